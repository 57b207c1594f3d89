"""Derivatives that come with rnncc: of the equations of shipped cells and of each operator, as sympy makes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rnncc.ir.expr import Apply, Ref, references, substitute
from rnncc.ir.request import Request
from rnncc.language.operators import OPERATORS
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir, shipped_cells
from rnncc.pipeline import compile_cells
from rnncc.stages.differentiate import derivatives
from rnncc.stages.differentiate.derivatives import Derivative, Equation, contributions, derive

NOTHING_CONSTANT: frozenset[str] = frozenset()


# Equations of cells that one may think of next.
USUAL = (
    "o + p",
    "o - p",
    "o + p + q",
    "o + p + q + r",
    "o*p",
    "o*p*q",
    "o*p + q",
    "o*p - q",
    "o + p*q",
    "o - p*q",
    "o*p + q*r",
    "o*p - q*r",
    "o*p + q*r + s",
    "o*p + q*r + s*u",
    "o*(p + q)",
    "o*(p - q)",
    "o + p*(q - o)",
    "(1 - o)*p",
    "(1 - o)*p + q",
    "(1 - o)*p + o*q",
    "o*p + (1 - o)*q",
    "(1 - o)*p + (1 - q)*r",
    "(1 - o)*p + o*q + r*s",
    "1 - o",
    "1 + o",
    "o**2",
    "o/p",
    "max(o, p)",
    "min(o, p)",
)


def cell(right_side: str) -> str:
    """The text of a cell with an equation."""
    gates = [f"{name} = W_{name}@x + R_{name}@h[t-1]" for name in "opqrsu" if re.search(rf"\b{name}\b", right_side)]
    return "\n".join(("cell Usual", "state h", *gates, f"v = {right_side}", "h[t] = tanh(v)", ""))


def equations() -> list[Equation]:
    """The equations of the shipped cells, plain and masked, the usual ones, and each smooth operator alone."""
    seen: dict[Equation, None] = {}

    def record(equation: Equation) -> Derivative:
        seen[equation] = None
        return derive(equation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derivatives, "derivative", record)
        for path in shipped_cells():
            compile_cells(read_request(path.stem), "differentiate")
        for right_side in USUAL:
            compile_cells(Request(Source("usual.rnn", cell(right_side)), "usual"), "differentiate")
    for row in OPERATORS.values():
        if row.smooth and row.in_loop:
            names = tuple(f"x{number:02}" for number in range(row.arity))
            seen[Equation(Apply(row.name, tuple(map(Ref, names))), names, frozenset())] = None
    return list(seen)


@pytest.mark.long
def test_known_derivatives_are_those_that_sympy_makes(golden: Callable[[Path, str], None]) -> None:
    found = equations()
    golden(derivatives.KNOWN, derivatives.written(found))
    assert derivatives.known() == {equation: derive(equation) for equation in found}


def names_swapped(text: str) -> str:
    """The LSTM's text with other names, whose order is another."""
    for old, new in (("i", "zz"), ("f", "e"), ("b_f", "b_e"), ("g", "a"), ("o", "k")):
        text = re.sub(rf"\b{old}\b", new, text)
    return text


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("lstm", ("tanh(c", "sin(c")),
        ("lstm", ("tanh(c", "exp(c")),
        ("gru", ("tanh", "gelu")),
        ("slstm", ("exp", "softplus")),
    ],
)
def test_an_edited_activation_needs_no_sympy(name: str, edit: tuple[str, str]) -> None:
    text = (cells_dir() / f"{name}.rnn").read_text()
    assert text.count(edit[0]) > 0
    assert without_sympy(text.replace(*edit))


def test_other_names_and_usual_equations_need_no_sympy() -> None:
    text = (cells_dir() / "lstm.rnn").read_text()
    assert names_swapped(text) != text
    assert without_sympy(names_swapped(text), *map(cell, USUAL))


def test_an_unusual_equation_is_derived() -> None:
    assert not without_sympy(cell("o*p*q*r + o*p + sin(q*q*q)"))


def without_sympy(*texts: str) -> bool:
    """Whether a new process compiles the texts and never imports sympy."""
    program = """
import json, sys
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
for text in json.load(sys.stdin):
    compile_cells(Request(Source("cell.rnn", text), "cell", instructions="generic"))
print("sympy" not in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    return {"True\n": True, "False\n": False}[done.stdout]


@pytest.mark.parametrize("written", ["other code", "half", "nothing", "[]"])
def test_what_other_code_wrote_or_what_is_damaged_counts_for_nothing(
    written: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    equation, text = next(iter(derivatives.known())), derivatives.KNOWN.read_text()
    other = tmp_path / "known.json"
    texts = {"other code": text.replace(derivatives._made_by(), "0" * 64), "half": text[: len(text) // 2], "[]": "[]"}
    if written in texts:
        other.write_text(texts[written])
    monkeypatch.setattr(derivatives, "KNOWN", other)
    derivatives.known.cache_clear()
    try:
        assert derivatives.known() == {}
        assert derivatives.derivative.__wrapped__(equation) == derive(equation)
    finally:
        derivatives.known.cache_clear()


def test_names_change_nothing() -> None:
    """A derivative depends on how an equation is written, and not on how its values are called."""
    for equation in derivatives.known():
        own = tuple(dict.fromkeys(references(equation.expr)))
        names = {name: f"value_{99 - number}" for number, name in enumerate(own)}
        there = {
            name: Ref(new)
            for name, new in (names | {"d_": "d_y", "t": "y", **{f"d_s{k}": f"d_y__{k}" for k in range(99)}}).items()
        }
        wanted = tuple(names[name] for name in equation.wanted)
        constants = {names[name] for name in equation.constants}
        found = contributions("y", substitute(equation.expr, there), "d_y", wanted, "d_y__", constants)
        made = derive(equation)
        for named, plain in zip(found, (made.shared, made.pairs), strict=True):
            assert named == tuple((there[name].name, substitute(part, there)) for name, part in plain)
