"""Names, hover texts and renaming, without a server; of half-typed texts too."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.editing.analysis import Analysis, analyse
from rnncc.editing.hover import describe
from rnncc.editing.names import Mention
from rnncc.editing.positions import Positions
from rnncc.editing.rename import RefusedError, can_be_renamed, rename
from rnncc.machine.paths import shipped_cells
from tests.generated.cells import generate
from tests.long import runs_all

SHIPPED = shipped_cells()
PREFIXES = [path for path in SHIPPED if path.stem in ("lstm", "rhn", "egru", "ternarylstm", "lmu", "conditionalgru")]


def looked_at(text: str) -> Analysis:
    analysis = analyse("cell.rnn", text)
    assert analysis.crash == ""
    return analysis


def mention_of(analysis: Analysis, text: str, turn: int = 0) -> Mention:
    """The name that begins where a piece of the text does."""
    at = -1
    for _ in range(turn + 1):
        at = analysis.source.text.index(text, at + 1)
    found = analysis.index.at(at)
    assert found is not None
    return found


def renamed(analysis: Analysis, mention: Mention, name: str) -> str:
    text = analysis.source.text
    for place in reversed(rename(analysis, mention, name)):
        text = text[: place.start] + name + text[place.end :]
    return text


@pytest.mark.one_in(30)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_name_of_a_cell_has_a_meaning_and_can_be_renamed_and_back(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    analysis = looked_at(text)
    assert analysis.made is not None
    for mention in analysis.index.mentions:
        assert describe(analysis, mention)
    found = {id(mention.symbol): mention for mention in analysis.index.mentions if can_be_renamed(mention)}
    # Two cells have dozens of names.
    for mention in list(found.values())[:: 1 + len(found) // 8]:
        assert mention.symbol.definition is not None
        other = "Renamed" if mention.symbol.kind == "cell" else "renamed"
        changed = renamed(analysis, mention, other)
        again = looked_at(changed)
        assert again.made is not None
        written = text[mention.span.start : mention.span.end]
        back = again.index.at(changed.index(other, changed.index("\ncell ")))
        assert back is not None
        assert renamed(again, back, written) == text


def test_the_names_of_generated_cells_have_meanings() -> None:
    for seed in range(30 if runs_all() else 12):
        analysis = looked_at(generate(seed).text)
        for mention in analysis.index.mentions:
            assert describe(analysis, mention)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", PREFIXES, ids=lambda path: path.stem)
def test_every_prefix_of_a_cell(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for end in range(text.index("cell "), len(text)):
        analysis = looked_at(text[:end])
        for mention in analysis.index.mentions[-3:]:
            assert describe(analysis, mention)


CELL = """\
cell Names
input c: 4 per sequence
const k = 2, act = tanh
dim P = 3
weights W2: matrix
state h, α
def gate(u) = sigmoid(W@x + R@u + b)
r_1, α = gate(h[t-1])
s[0] = W2@c
for l in 1..2:
    s[l] = act(R@s[l-1] + b)
α[t] = heaviside(s[2] - 1, grad=u -> exp(-u**2))
h[t] = h[t-1] + k*α[t] + b_r_1
init b_s_1 = 1
cell Other
state k
k[t] = W@x
"""


def places(text: str, turn: int = 0) -> list[str]:
    """The lines, with columns, where the name stands that begins where a piece of the text does."""
    analysis = Analysis(analyse("cell.rnn", CELL).source)
    positions = Positions(CELL, "utf-32")
    return [
        "{}:{}".format(*positions.position(span.start)) for span in mention_of(analysis, text, turn).symbol.mentions
    ]


def test_names_belong_to_their_scopes() -> None:
    assert places("u) =") == ["6:9", "6:30"]
    assert places("u -> exp") == ["11:32", "11:42"]
    assert places("l in 1") == ["9:4", "10:6", "10:19"]
    assert places("k = 2") == ["2:6", "12:16"]
    assert places("k\nk[t]") == ["15:6", "16:0"]
    assert places("gate(u)") == ["6:4", "7:9"]
    assert places("c: 4") == ["1:6", "8:10"]
    # The member of an equation names it, and that of a turn of a loop names the loop's equation.
    assert places("r_1, ") == ["7:0", "12:27"]
    assert places("s[0]") == ["8:0", "10:4", "10:17", "11:17", "13:7"]
    assert places("W2: ") == ["4:8", "8:7"]


def test_what_a_rename_refuses() -> None:
    analysis = looked_at(CELL.replace("α = gate", "z = gate").replace("state h, α", "state h, α\nlocal z: H"))
    assert [found for found in analysis.diagnostics if found.severity.value == "error"] == []
    gate = mention_of(analysis, "z = gate")
    for name, why in (
        ("h", "already"), ("alpha", "already"), ("gate", "already"), ("u", "already"), ("l", "already"),
        ("σ", "a function"), ("x", "a name of the language"), ("z__", "kept"), ("", "no name"), ("z#", "no name"),
        ("z;", "no name"), ("z[t]", "no name"), ("z" * 65, "no name"), ("state", "no name"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=why):
            rename(analysis, gate, name)
    # `b_q` would be the bias of q and the name of a value.
    with pytest.raises(RefusedError):
        rename(analysis, mention_of(analysis, "k = 2"), "b_z")
    with pytest.raises(RefusedError, match="argument of every layer"):
        rename(analysis, mention_of(analysis, "k = 2"), "dropout")
    with pytest.raises(RefusedError):
        rename(analysis, mention_of(analysis, "Other"), "names")
    assert len(rename(analysis, gate, "ζ")) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_positions_there_and_back(encoding: str) -> None:
    text = "a\r\nαβ😀c\n\r# \u2028\x0c\n😀"
    positions = Positions(text, encoding)
    assert "".join(positions.lines()) == text
    assert len(positions.lines()) == 5
    for offset, character in enumerate(text):
        if character not in "\r\n":
            assert positions.offset(*positions.position(offset)) == offset
    assert positions.offset(0, 99) == 1
    assert positions.offset(99, 0) == len(text)


def test_a_matrix_has_rows_and_columns() -> None:
    text = (Path(__file__).parents[1] / "fixtures" / "gateddeltanet.rnn").read_text(encoding="utf-8")
    analysis = analyse("gateddeltanet.rnn", text)
    for place in (text.index("S: matrix"), text.index("S[t-1]"), text.index("S[t]@q")):
        mention = analysis.index.at(place)
        assert mention is not None
        assert "**state** `S`: H x K in num_heads blocks" in describe(analysis, mention)
