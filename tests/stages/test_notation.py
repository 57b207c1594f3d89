"""How generated text is laid out: brackets, lists over several lines, calls with named arguments, initialisers."""

from __future__ import annotations

import ast

import pytest

from rnncc.ir.dim import HEADS, HIDDEN_SIZE, floor_divide, scale
from rnncc.stages.render.cpp.initialisers import row, struct
from rnncc.stages.render.notation import dim_name, listed, python_dim, without_brackets
from rnncc.stages.render.python.written import call, string, written


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("(a + b)", "a + b"),
        ("(a + b) * (c + d)", "(a + b) * (c + d)"),
        ("((a + b) * c)", "(a + b) * c"),
        ("f(a)", "f(a)"),
        ("(a).abs()", "(a).abs()"),
        ("a", "a"),
    ],
)
def test_brackets_around_all_of_it_go(text: str, bare: str) -> None:
    assert without_brackets(text) == bare


def test_dims() -> None:
    dim = floor_divide(HIDDEN_SIZE, HEADS)
    assert python_dim(dim, "n") == 'n["H"]//n["num_heads"]'
    assert dim_name(scale(dim, 2)) == "2*(H//num_heads)"
    assert dim_name(dim, {"H": "hidden_size"}) == "hidden_size//num_heads"


def test_lists_are_broken_before_column_120() -> None:
    assert listed("f(", ["a", "b"], ");", 4) == "f(a, b);"
    assert listed("f(", [], ");", 4) == "f();"
    names = [f"name{index}" for index in range(40)]
    lines = listed("f(", names, ");", 4).split("\n")
    assert max(map(len, lines)) <= 120 and len(lines) == 3
    assert " ".join(line.strip() for line in lines) == f"f({', '.join(names)});"
    assert all(line.startswith("    name") for line in lines[1:])
    # What stands on lines before does not count.
    assert listed("x" * 119 + "\nf(", ["a", "b"], ")", 4).endswith("\nf(a, b)")


def test_initialisers_name_what_is_not_zero() -> None:
    assert row("h", kind="Kind::stored", kept=False, read=True, index=0, link=None) == (
        "    /* h */ {.kind = Kind::stored, .read = true, .index = 0},"
    )
    assert struct("T", "t", first=1) == "static constexpr T t = {.first = 1};"


def test_calls() -> None:
    value = call("f", string("a"), width="lambda n: n", empty=(), one=("1",), missing=None)
    assert written(value) == 'f("a", width=lambda n: n, empty=(), one=(1,))'
    many = call("f", names=tuple(string(f"name{index}") for index in range(30)), last=call("g"))
    text = written(many, start="x = ")
    lines = text.split("\n")
    assert lines[:3] == ["x = f(", "    names=(", '        "name0",'] and lines[-2:] == ["    last=g(),", ")"]
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse("".join(lines)))


@pytest.mark.parametrize("text", ["plain", "it's", 'a "quote"', "both ' and \"", "back\\slash", "tab\t"])
def test_strings(text: str) -> None:
    assert ast.literal_eval(string(text)) == text
