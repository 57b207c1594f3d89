"""Each `RNNxxx_name.rnn` gives exactly the diagnostics of `RNNxxx_name.err`, the code of its name among them.

A first line `# shaping: L=3` gives constants. Pedantic codes are shown only where the file is named after one.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rnncc.language.codes import CODES, Code
from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity, render, render_all
from rnncc.language.read import decode
from rnncc.language.source import Source
from tests.compiling import front
from tests.conftest import Golden

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.rnn"))
WITH_EXAMPLE = [row for row in CODES.values() if row.example is not None]


def _shaping(text: str) -> dict[str, float | int | str]:
    first = text.partition("\n")[0]
    if not first.startswith("# shaping: "):
        return {}
    pairs = (pair.split("=") for pair in first.removeprefix("# shaping: ").split(","))
    return {name.strip(): int(value) if value.isdigit() else value for name, value in pairs}


def _diagnose(source: Source, shaping: dict[str, float | int | str]) -> tuple[Diagnostic, ...]:
    try:
        return tuple(diagnostic for _, found in front(source, shaping) for diagnostic in found)
    except RnnccError as error:
        return error.diagnostics


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pair(path: Path, golden: Golden) -> None:
    code = path.stem.partition("_")[0]
    try:
        source = decode(path.name, path.read_bytes())
        found = _diagnose(source, _shaping(source.text))
    except RnnccError as error:
        found = error.diagnostics
    shown = [one for one in found if one.code == code or not CODES[one.code].pedantic]
    golden(path.with_suffix(".err"), "".join(render(diagnostic) + "\n\n" for diagnostic in shown))
    assert code in {diagnostic.code for diagnostic in shown}
    assert all(diagnostic.severity is CODES[diagnostic.code].severity for diagnostic in shown)
    assert all(not diagnostic.message.endswith(".") for diagnostic in shown)
    assert [diagnostic.message for diagnostic in found if diagnostic.source is not None and not diagnostic.label] == []


def test_every_code_of_a_text_has_a_pair() -> None:
    paired = {path.stem.partition("_")[0] for path in FILES}
    assert {row.code for row in WITH_EXAMPLE} <= paired
    assert paired <= set(CODES)
    assert all(path.with_suffix(".rnn").exists() for path in HERE.glob("*.err"))


@pytest.mark.parametrize("row", WITH_EXAMPLE, ids=lambda row: row.code)
def test_example_triggers_its_code_and_no_other(row: Code) -> None:
    assert row.example is not None
    found = _diagnose(Source("example.rnn", row.example), dict(row.shaping))
    assert {diagnostic.code for diagnostic in found if not CODES[diagnostic.code].pedantic or row.pedantic} == {
        row.code
    }


@pytest.mark.parametrize("row", [row for row in WITH_EXAMPLE if row.mended is not None], ids=lambda row: row.code)
def test_mended_example_is_clean(row: Code) -> None:
    assert row.mended is not None
    found = _diagnose(Source("example.rnn", row.mended), dict(row.shaping))
    # Notes on performance are no mistakes.
    kept = [one for one in found if one.severity is not Severity.NOTE and not CODES[one.code].pedantic]
    assert [one for one in found if one.code == row.code] + kept == []


def _last_lines(text: str) -> list[str]:
    """What is shown below the help of each message of a text."""
    with pytest.raises(RnnccError) as raised:
        front(Source("cell.rnn", text), {})
    shown = render_all(raised.value.diagnostics)
    assert str(raised.value) == "\n\n".join(shown)
    return [one.splitlines()[-1].strip() for one in shown]


def test_what_is_said_of_several_places_is_shown_once() -> None:
    equation = "{} = tanh(U@x)\n"
    text = "cell A\nstate h\nh[t] = tanh(U@x + V@h[t-1]) + U@x\n"
    declare = "= help: declare it: 'weights {0}: matrix' (one for each equation) or 'param {0}: matrix' (one for all)"
    assert _last_lines(text) == ["= the same again in this line", declare.format("V")]
    assert _last_lines(text + equation.format("f")) == ["= the same in line 4", declare.format("V")]
    more = "".join(map(equation.format, "fgklmnopq"))
    assert _last_lines(text + more)[0] == "= the same in lines 4, 5, 6, 7, 8, 9 and 3 more"
    others = "cell A\nstate h, c\nh[t] = tanh(U@x)\nf = U + V@x\n"  # each with a help of its own
    assert [line.startswith("= the same") for line in _last_lines(others)] == [False, True, False]


def test_findings_with_other_places_are_all_shown() -> None:
    text = "cell A\nstate h\ndef f(u) = U@u\ng = f(x)\nh[t] = f(x) + f(g)\n"
    with pytest.raises(RnnccError) as raised:
        front(Source("cell.rnn", text), {})
    assert len(render_all(raised.value.diagnostics)) == len(raised.value.diagnostics)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("h = [a" + ";b" * 65_536 + "] + c\n", {"RNN108"}),
        ("h = " + "[a;" * 40_000 + "\n", {"RNN109", "RNN119", "RNN118"}),
        ("h = " + "a\u0303" * 40_000 + "\n", {"RNN108"}),
    ],
    ids=["list", "lists", "accents"],
)
def test_pasted_text_takes_linear_time(text: str, codes: set[str]) -> None:
    """A second look at each `;` or letter would take minutes."""
    start = time.process_time()
    with pytest.raises(RnnccError) as raised:
        front(Source("a", "cell A\n" + text), {})
    assert {found.code for found in raised.value.diagnostics} <= codes
    assert time.process_time() - start < 30
