"""The one style of cells: all shipped cells and 1,000 generated ones, in other spaces and with comments everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnncc.cli.text import _STARTER
from rnncc.editing.formatting import format_bytes, format_source
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.show.stage import stage_text
from rnncc.stages.parse import parse
from rnncc.stages.parse.lexer import lex
from tests.docs.pages import PAGES, ROOT, blocks
from tests.editing.scramble import Scrambler
from tests.generated.cells import generate
from tests.seeds import batches

SHIPPED = shipped_cells()
IN_TESTS = sorted((ROOT / "tests").rglob("*.rnn"))
SEEDS = batches(50, 10)


def styled(text: str) -> str:
    return format_source(Source("cell.rnn", text))


def code(text: str) -> list[str]:
    """The lines of a text without empty ones and comments."""
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def comments(text: str) -> list[str]:
    """The words of all comments, in the order of the text."""
    lexed = lex(Source("cell.rnn", text))
    found = lexed.comments | lexed.trailing_comments
    return [found[line].strip() for line in sorted(found)]


def check_style(text: str) -> str:
    """The text in the style, which has its comments and its syntax, and which the style leaves alone."""
    made = styled(text)
    assert comments(made) == comments(text)
    assert parse(Source("", made)) == parse(Source("", text))
    assert styled(made) == made
    return made


def check_differently_written(text: str, seed: int) -> None:
    assert code(styled(Scrambler(text, seed, comments=False).text())) == code(styled(text))
    check_style(Scrambler(text, seed, comments=True).text())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_cells_are_in_the_style(path: Path) -> None:
    assert format_bytes(path.name, path.read_bytes()) == path.read_bytes()


@pytest.mark.one_in(24)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_cell_written_differently(path: Path) -> None:
    for seed in range(3):
        check_differently_written(path.read_text(encoding="utf-8"), seed)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_generated_cells(seeds: range) -> None:
    for seed in seeds:
        text = generate(seed).text
        written = Scrambler(text, seed, comments=True).text()
        # It is an internal error where the syntax differs.
        made = styled(written)
        assert (styled(made), comments(made)) == (made, comments(written))
        if seed % 10 == 0:
            check_style(text)
            check_differently_written(text, seed)


@pytest.mark.long
def test_the_stages_after_it_make_the_same_of_it() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SHIPPED[::16]] + [generate(seed).text for seed in range(20)]
    for seed, text in enumerate(texts):
        other = styled(Scrambler(text, seed, comments=True).text())
        for stage in ("check", "partition"):
            # Lines have other numbers, and nothing else is different.
            one, two = (stage_text(Request(Source("cell.rnn", each), "cell"), stage) for each in (text, other))
            assert re.sub(r"\(line \d+\)", "", one) == re.sub(r"\(line \d+\)", "", two)


@pytest.mark.long
def test_every_cell_of_the_tests() -> None:
    count = 0
    for path in IN_TESTS:
        data = path.read_bytes()
        try:
            made = format_bytes(path.name, data)
        except RnnccError as error:
            # What cannot be read has the diagnostics that it always has.
            with pytest.raises(RnnccError) as other:
                parse(read_source(path))
            assert [each.code for each in other.value.diagnostics] == [each.code for each in error.diagnostics]
            continue
        count += 1
        assert format_bytes(path.name, made) == made
        assert comments(made.decode()) == comments(data.decode())
    assert count > 150


# `rnncc show` prints what stands in pipeline.md.
@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "pipeline.md"], ids=lambda path: path.name)
def test_cells_of_the_documents_are_in_the_style(path: Path) -> None:
    for block in blocks(path, "rnn"):
        assert styled(block.text) == block.text


def test_what_new_writes_is_in_the_style() -> None:
    text = _STARTER.format(name="Leaky", file="leaky.rnn", stem="leaky")
    assert styled(text) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("y=-a*-b- -c**-2", "y = -a*-b - -c**-2"),
        ("y = f ( a,g=1 , d = u->u + 1 )", "y = f(a, g=1, d=u -> u + 1)"),
        ("h [ t ] = h [t - 1] + s[ l+1 ] [ t -k ]", "h[t] = h[t-1] + s[l+1][t-k]"),
        ("y = a[(k + 1)]*(b+1)", "y = a[(k + 1)]*(b + 1)"),
        ("y = (( a if b<=c else d ))", "y = a if b <= c else d"),
        ("y = (a + b)*(c)", "y = (a + b)*(c)"),
        ("f,g[l]=(split( v ))", "f, g[l] = split(v)"),
        ("α = σ(W·x)⊙ v", "α = σ(W·x)⊙v"),
        ("y = 1E-5 + .5*2.", "y = 1E-5 + .5*2."),
        ("def  g ( u , v )=( u+v )", "def g(u, v) = u + v"),
        ("def g( )= 1", "def g() = 1"),
        ("input c :64 per  sequence=0 ,x", "input c: 64 per sequence = 0, x"),
        ("state h:H//2=- inf", "state h: H//2 = -inf"),
        ("param p : matrix( P,H )=normal( 0,1 )", "param p: matrix(P, H) = normal(0, 1)"),
        ("weights R : sparse( density = 0.1,block=16 )", "weights R: sparse(density=0.1, block=16)"),
        ("dim K;dim P = 2*K;", "dim K\ndim P = 2*K"),
        ("for l in 1 .. L - 1 :\n  y = 1", "for l in 1..L-1:\n    y = 1"),
        ("for l in 2. .. .3:\n\ty = 1", "for l in 2. .. .3:\n    y = 1"),
        ("init  b_f=1  #remember ", "init b_f = 1  # remember"),
        ("output = 1 #  two ", "output = 1  #  two"),
        ("a = 1 #1\nbbb = 2 # 2\n\nc = 3 # 3", "a = 1    # 1\nbbb = 2  # 2\n\nc = 3  # 3"),
        ("\n\n\na = 1\n\n\n#!x\n\n\n\nb = 2\n\n", "\na = 1\n\n#!x\n\nb = 2"),
    ],
)  # fmt: skip
def test_the_style(text: str, wanted: str) -> None:
    assert check_style(f"cell A\n{text}") == f"cell A\n{wanted}\n"


LONG = [f"{letter * 30}" for letter in "abcdef"]


def test_a_long_line_is_broken_where_operators_bind_least() -> None:
    a, b, c, d, e, f = LONG
    made = check_style(f"cell A\ny = {a}*{b} + {c}*{d} - {e}/{f}\nz = g({a}, {b}, {c} + {d})\n")
    assert made.splitlines()[1:] == [
        f"y = ({a}*{b}",
        f"     + {c}*{d}",
        f"     - {e}/{f})",
        f"z = g({a}, {b},",
        f"      {c} + {d})",
    ]


def test_brackets_around_a_right_side_go_where_it_fits() -> None:
    assert check_style("cell A\ny = (a\n   + b)\n") == "cell A\ny = a + b\n"
    assert check_style("cell A\ny = (a  # one\n   + b)\n") == "cell A\ny = (a  # one\n     + b)\n"


def test_a_long_declaration_becomes_several() -> None:
    names = [f"number{index}" for index in range(20)]
    made = check_style(f"cell A\nstate {', '.join(names)}\n")
    assert made.count("state ") == 2
    assert all(len(line) <= 120 for line in made.splitlines())


def test_what_is_as_deep_as_it_may_be_gets_no_bracket() -> None:
    deep = "(" * 98 + "f(g(a))" + ")" * 98
    text = f"cell A\ny = {deep} + {'b' * 60}\n"
    assert check_style(text) == text


def test_a_comment_below_a_loop_is_where_it_is_indented() -> None:
    text = """\
cell A
for l in 1..2:
    # first
    for k in 1..2:
        a[l] = 1
        # inner
    # outer
# none
b = 2
"""
    assert check_style(text.replace("    ", "\t")) == text


@pytest.mark.parametrize(
    "text",
    [
        "# of A\ncell A  # not\n# nor\nstate h",
        "cell A; state h  # of A\n# too\noutput h",
        "cell A\n# of both\ncell B\nstate h",
        "# of both\ncell A; state h; cell B\nstate h",
        "cell A; cell B  # of both\n# too",
        "cell A; state h; c = (1\n# of A\n + 2)",
        "cell A; state h; c = (1\n+ 2\n# of none\n)",
        "cell A; state h; c = (1 +\n# of B\n 2); cell B",
        "cell A; state h\n# of both\ncell B\nstate h",
        "# file\n\n# of A\ncell A\n\n# none\nstate h\n# of B\ncell B\nstate h",
        "cell A\nstate h\n# last",
    ],
)
def test_the_comment_of_a_cell_stays_its_comment(text: str) -> None:
    check_style(text)
    check_style(text + "\n")


def test_cells_stand_apart() -> None:
    made = check_style("# a\ncell A\nstate h\n# b\ncell B\nstate h\ncell C\n\n\n# c\nstate h")
    assert made == "# a\ncell A\nstate h\n\n# b\ncell B\nstate h\n\ncell C\n\n# c\nstate h\n"


def test_bytes_keep_their_mark_and_their_line_ends() -> None:
    assert format_bytes("a", b"\xef\xbb\xbfcell  A\r\nstate h\n\r\n") == b"\xef\xbb\xbfcell A\r\nstate h\r\n"
    assert format_bytes("a", b"cell  A\nstate h\r\n") == b"cell A\nstate h\n"
    assert format_bytes("a", b"cell A # \xe2\x80\xa8 \x0c x") == b"cell A  # \xe2\x80\xa8 \x0c x\n"
    assert format_bytes("a", b"cell A\rstate  h") == b"cell A\nstate h\n"


@pytest.mark.parametrize("data", [b"", b"\n", b"# alone\n", b"\xef\xbb\xbf"])
def test_a_text_without_a_cell_has_its_diagnostic(data: bytes) -> None:
    with pytest.raises(RnnccError, match="RNN103"):
        format_bytes("a", data)
