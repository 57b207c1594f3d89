"""parse: trees built by hand, precedence, spans, comments, limits, recovery. tests/diagnostics tests the messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.syntax import (
    Binary,
    Call,
    CellDecl,
    ConstDecl,
    DimDecl,
    EquationDecl,
    Expression,
    ForDecl,
    FunctionDecl,
    IfElse,
    Index,
    InitDecl,
    InputDecl,
    Lambda,
    LocalDecl,
    Name,
    Number,
    OutputDecl,
    ParamDecl,
    StateDecl,
    Statement,
    Target,
    TypeDecl,
    Unary,
    WeightsDecl,
)
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import LARGEST, decode, read_source
from rnncc.language.source import Source, Span
from rnncc.machine.paths import shipped_cells
from rnncc.show.syntax import show_declaration
from rnncc.stages.parse import parse

ONE, TWO = Number(1, True), Number(2, True)
A, B, C = Name("a"), Name("b"), Name("c")


def statements(*lines: str) -> tuple[Statement, ...]:
    (cell,) = parse(Source("test.rnn", "\n".join(("cell Test", *lines))))
    return cell.statements


def expression(text: str) -> Expression:
    (equation,) = statements(f"y = {text}")
    assert isinstance(equation, EquationDecl)
    return equation.expression


def codes(text: str) -> list[str]:
    with pytest.raises(RnnccError) as raised:
        parse(Source("test.rnn", text))
    return [diagnostic.code for diagnostic in raised.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b*c", Binary("+", A, Binary("*", B, C))),
        ("a - b - c", Binary("-", Binary("-", A, B), C)),
        ("a/b*c", Binary("*", Binary("/", A, B), C)),
        ("a//b", Binary("//", A, B)),
        ("a*b@c", Binary("@", Binary("*", A, B), C)),
        ("a@b*c", Binary("*", Binary("@", A, B), C)),
        ("-a**2", Unary("-", Binary("**", A, TWO))),
        ("a**-b", Binary("**", A, Unary("-", B))),
        ("a**b**c", Binary("**", A, Binary("**", B, C))),
        ("-a*b", Binary("*", Unary("-", A), B)),
        ("a - -b", Binary("-", A, Unary("-", B))),
        ("+a", Unary("+", A)),
        ("(a + b)*c", Binary("*", Binary("+", A, B), C)),
        ("a + b < c", Binary("<", Binary("+", A, B), C)),
        ("a if b == 1 else c", IfElse(Binary("==", B, ONE), A, C)),
        ("a if b else b if c else a", IfElse(B, A, IfElse(C, B, A))),
        ("h[t-1]", Index("h", Binary("-", Name("t"), ONE))),
        ("u[l][t-1]", Index("u", Name("l"), Binary("-", Name("t"), ONE))),
        ("f()", Call("f", ())),
        ("f(a, b)", Call("f", (A, B))),
        ("f(a, grad=g(10))", Call("f", (A,), (("grad", Call("g", (Number(10, True),))),))),
        ("f(a, grad=b -> c)", Call("f", (A,), (("grad", Lambda("b", C)),))),
        ("f(a, grad=b->a if b else c)", Call("f", (A,), (("grad", Lambda("b", IfElse(B, A, C))),))),
        ("f(grad=b -> g(a), l=2)", Call("f", (), (("grad", Lambda("b", Call("g", (A,)))), ("l", TWO)))),
        ("f(k=1, l=2)", Call("f", (), (("k", ONE), ("l", TWO)))),
        ("σ(a)", Call("sigmoid", (A,))),
        ("a⊙b", Binary("*", A, B)),
        ("a·b", Binary("@", A, B)),
        ("-inf", Unary("-", Name("inf"))),
    ],
)
def test_expression(text: str, tree: Expression) -> None:
    assert expression(text) == tree


def test_a_buffer_is_shown_as_it_is_written() -> None:
    text = (
        "cell Echo\nstate h\nbuffer A: matrix = spectral(0.9)\nparam g: vector\nh[t] = softmax(A, axis=rows)@h[t - 1]"
    )
    (cell,) = parse(Source("test.rnn", text))
    assert show_declaration(cell) == text


def test_a_derivative_is_shown_as_it_is_written() -> None:
    text = "cell A\nstate h\nh[t] = round(W@x, grad=u -> exp(-u**2) if 1 else u)"
    (cell,) = parse(Source("a.rnn", text))
    assert show_declaration(cell) == text
    assert parse(Source("a.rnn", show_declaration(cell)))[0] == cell


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "==", "!="])
def test_comparison(operator: str) -> None:
    assert expression(f"where(a {operator} b, 1, 2)") == Call("where", (Binary(operator, A, B), ONE, TWO))


@pytest.mark.parametrize(
    ("text", "value", "is_integer"),
    [
        ("2", 2.0, True),
        ("2.0", 2.0, False),
        ("2.", 2.0, False),
        (".5", 0.5, False),
        ("1e-5", 1e-5, False),
        ("1.5E+3", 1500.0, False),
        ("9007199254740992", 2.0**53, True),
    ],
)
def test_number(text: str, value: float, is_integer: bool) -> None:
    assert expression(text) == Number(value, is_integer)


@pytest.mark.parametrize(
    ("line", "declared"),
    [
        ("input x, gap: 1 = 1", (InputDecl("x", None), InputDecl("gap", ONE, ONE))),
        ("input c: 1 per sequence = 1", (InputDecl("c", ONE, ONE, True),)),
        (
            "input per, c per sequence, sequence: 1",
            (
                InputDecl("per", None),
                InputDecl("c", None, None, True),
                InputDecl("sequence", ONE),
            ),
        ),
        (
            "state h, c: P = 0, m = -inf",
            (
                StateDecl("h", None, None),
                StateDecl("c", Name("P"), Number(0, True)),
                StateDecl("m", None, Unary("-", Name("inf"))),
            ),
        ),
        ("output y", (OutputDecl("y"),)),
        ("dim P = 64, K", (DimDecl("P", Number(64, True)), DimDecl("K", None))),
        ("const dt = 0.1, act = tanh", (ConstDecl("dt", Number(0.1, False)), ConstDecl("act", Name("tanh")))),
        ("local v: 4*H", (LocalDecl("v", Binary("*", Number(4, True), Name("H"))),)),
        (
            "param g: vector = 1, M: matrix(P, H)",
            (
                ParamDecl("g", TypeDecl("vector"), ONE),
                ParamDecl("M", TypeDecl("matrix", (Name("P"), Name("H"))), None),
            ),
        ),
        (
            "buffer A: matrix = spectral(2), s: scalar",
            (
                ParamDecl("A", TypeDecl("matrix"), Call("spectral", (TWO,)), trained=False),
                ParamDecl("s", TypeDecl("scalar"), None, trained=False),
            ),
        ),
        (
            "weights p: diag, R: sparse(density=0.3)",
            (
                WeightsDecl("p", TypeDecl("diag")),
                WeightsDecl("R", TypeDecl("sparse", (), (("density", Number(0.3, False)),))),
            ),
        ),
        ("init R = orthogonal", (InitDecl("R", Name("orthogonal")),)),
        ("init u = uniform(1, 2)", (InitDecl("u", Call("uniform", (ONE, TWO))),)),
        ("a, b = c", (EquationDecl((Target("a", None), Target("b", None)), C),)),
        ("h[t] = a", (EquationDecl((Target("h", Name("t")),), A),)),
        ("s[0] = a", (EquationDecl((Target("s", Number(0, True)),), A),)),
        ("def f(a) = b", (FunctionDecl("f", (A,), B),)),
        ("def f(a, b) = a < c", (FunctionDecl("f", (A, B), Binary("<", A, C)),)),
        ("def f() = 1", (FunctionDecl("f", (), ONE),)),
        # Words of declarations are names where an equation says so.
        ("output = a", (EquationDecl((Target("output", None),), A),)),
        ("input, state = a", (EquationDecl((Target("input", None), Target("state", None)), A),)),
        ("buffer = a", (EquationDecl((Target("buffer", None),), A),)),
        ("buffer[t] = a", (EquationDecl((Target("buffer", Name("t")),), A),)),
        ("buffer, a = b", (EquationDecl((Target("buffer", None), Target("a", None)), B),)),
        ("cell[1] = a", (EquationDecl((Target("cell", ONE),), A),)),
    ],
)
def test_statement(line: str, declared: tuple[Statement, ...]) -> None:
    assert statements(line) == declared


def test_loops_nest_and_end_by_indentation() -> None:
    found = statements("for k in 1..K:", "  for l in 1..2:", "", "    # deeper", "    n[l] = a", "  m[k] = b", "y = c")
    inner = ForDecl("l", ONE, TWO, (EquationDecl((Target("n", Name("l")),), A),))
    outer = ForDecl("k", ONE, Name("K"), (inner, EquationDecl((Target("m", Name("k")),), B)))
    assert found == (outer, EquationDecl((Target("y", None),), C))


def test_semicolons_and_lines_in_brackets() -> None:
    assert statements("state h; a = b;; y = f(", "a,  # first", "", "  b)") == statements(
        "state h", "a = b", "y = f(a, b)"
    )


def test_keyword_argument_on_a_line_of_its_own() -> None:
    assert statements("y = f(a,", "grad=b)") == statements("y = f(a, grad=b)")


def test_line_ends_and_byte_order_mark() -> None:
    plain = parse(Source("a", "cell A\nstate h\nh[t] = x\n"))
    assert parse(decode("a", b"\xef\xbb\xbfcell A\r\nstate h\r\nh[t] = x")) == plain
    assert parse(Source("a", "\ufeffcell A\r\nstate h\r\nh[t] = x\r\n")) == plain


@pytest.mark.parametrize(
    ("text", "comment"),
    [
        ("# one\n#two\n#\n#  four\ncell A\n# inside\nstate h", "one\ntwo\n\n four"),
        ("# far\n\ncell A\n# one\n# two\nstate h\n# late", "one\ntwo"),
        ("cell A  # one\n# two\nstate h  # no", "one\ntwo"),
        ("cell A\nstate h\n# late", ""),
    ],
)
def test_comment(text: str, comment: str) -> None:
    (cell,) = parse(Source("a", text))
    assert cell.comment == comment


def test_several_cells() -> None:
    first, second = parse(Source("a", "cell A\nstate h\n\n# B's\ncell B\nstate c\n"))
    assert (first.name, second.name, second.comment) == ("A", "B", "B's")
    assert second.statements == (StateDecl("c", None, None),)


def test_spans() -> None:
    text = "cell A\nh[t] = (a + b)*tanh( W@x )"
    (cell,) = parse(Source("a", text))

    def shown(span: Span) -> str:
        return text[span.start : span.end]

    (equation,) = cell.statements
    assert isinstance(equation, EquationDecl)
    product = equation.expression
    assert isinstance(product, Binary) and isinstance(product.right, Call) and isinstance(product.left, Binary)
    assert shown(cell.span) == text
    assert shown(cell.name_span) == "A"
    assert shown(equation.span) == "h[t] = (a + b)*tanh( W@x )"
    assert shown(equation.targets[0].span) == "h[t]"
    assert shown(product.span) == "(a + b)*tanh( W@x )"
    assert shown(product.left.span) == "(a + b)"
    assert shown(product.right.span) == "tanh( W@x )"
    assert shown(product.right.function_span) == "tanh"
    assert shown(product.right.arguments[0].span) == "W@x"


@pytest.mark.parametrize("path", shipped_cells(), ids=lambda path: path.stem)
def test_shipped_cell(path: Path) -> None:
    source = read_source(path)
    for cell in parse(source):
        assert cell.comment
        _check_spans(cell, source)


def _check_spans(node: Any, source: Source) -> None:
    """Every node has a span, which lies in its parent's."""
    assert 0 <= node.span.start < node.span.end <= len(source.text)
    for child in _children(node):
        assert node.span.start <= child.span.start <= child.span.end <= node.span.end
        _check_spans(child, source)


def _children(node: Any) -> Iterator[Any]:
    values = [getattr(node, field.name) for field in fields(node)]
    while values:
        value = values.pop()
        if isinstance(value, tuple):
            values.extend(value)
        elif is_dataclass(value) and not isinstance(value, Source | Span):
            yield value


def test_all_errors_are_found_in_one_go() -> None:
    text = "cell a\nstate h c\ni = W x\nj == 2\nk = (1\nl = é\nfor m in range(3):\n    n[m] = 1 +\nreturn h\n"
    assert codes(text) == [
        *("RNN106", "RNN110", "RNN111", "RNN112", "RNN109", "RNN108", "RNN115", "RNN110", "RNN120"),
    ]


def test_a_forgotten_bracket_does_not_hide_what_follows() -> None:
    assert codes("cell A\ni = f(a\nj = W x\nstate h c\ncell b\n") == ["RNN109", "RNN111", "RNN110", "RNN106"]


def test_at_most_fifty_errors() -> None:
    assert codes("cell A\n" + "W x\n" * 1000) == ["RNN120"] * 50


@pytest.mark.parametrize(
    "deep",
    ["-" * 99 + "a", "a" + " + a" * 99, "a" + "**a" * 99, "(" * 100 + "a" + ")" * 100, "f(" * 99 + "a" + ")" * 99],
)
def test_nesting_up_to_the_limit(deep: str) -> None:
    expression(deep)


@pytest.mark.parametrize(
    "deep",
    ["-" * 100 + "a", "a" + " + a" * 100, "a" + "**a" * 100, "(" * 101 + "a" + ")" * 101, "f(" * 100 + "a" + ")" * 100],
)
def test_nesting_beyond_the_limit(deep: str) -> None:
    assert codes(f"cell A\ny = {deep}\nz = W x") == ["RNN116", "RNN111"]


def test_loops_nested_beyond_the_limit() -> None:
    lines = [f"{' ' * depth}for l{depth} in 1..1:" for depth in range(101)]
    assert codes("\n".join(["cell A", *lines, " " * 101 + "y = 1"])) == ["RNN116"]


@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    "filler",
    [
        "-",
        "(",
        "a+",
        "a**",
        "f(",
        "a,",
        "a=",
        "a;",
        "a=1;",
        "\n ",
        "for l in 1..2:\n ",
        "x\n",
        "'",
        "é",
        "1",
        "#\n",
        "[t",
    ],
)
def test_a_long_text_ends_soon(filler: str) -> None:
    text = ("cell A\n" + filler * (LARGEST // len(filler.encode())))[: LARGEST // 8]
    start = time.process_time()
    try:
        parse(Source("a", text))
    except RnnccError as error:
        assert str(error).startswith("error[RNN1")
    # Seconds on a slow machine, where quadratic time would be hours.
    assert time.process_time() - start < 30


def test_too_large_text() -> None:
    assert codes("#" * (LARGEST + 1)) == ["RNN102"]
    with pytest.raises(RnnccError, match="RNN102"):
        decode("a", b"#" * (LARGEST + 1))
    assert codes("#" * LARGEST) == ["RNN103"]


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.rnn").write_bytes(b"# Koutn\xedk\n")
    (tmp_path / "large.rnn").write_bytes(b"#" * (LARGEST + 1))
    for name, code, words in (
        ("missing.rnn", "RNN101", "no such file"),
        (".", "RNN101", "directory"),
        ("latin.rnn", "RNN101", "byte 0xed in line 1"),
        ("large.rnn", "RNN102", "1 MiB"),
    ):
        with pytest.raises(RnnccError, match=code) as raised:
            read_source(tmp_path / name)
        assert words in str(raised.value)
    with pytest.raises(RnnccError, match="RNN101"):
        read_source("nul\0byte.rnn")


def test_same_tree_from_equal_texts() -> None:
    text = "cell A\nstate h\nh[t] = tanh(W@x)"

    def tree() -> tuple[CellDecl, ...]:
        return parse(Source("a", text))

    assert tree() == tree()
    assert parse(Source("b", text.replace(" = ", "="))) == tree()
