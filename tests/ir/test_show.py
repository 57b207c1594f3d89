"""`show`: one text a value, the same in every process, and a declaration's text parses to the declaration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.syntax import CellDecl
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.show.stage import show, stage_text
from rnncc.show.values import show_expr, show_number
from rnncc.stages.parse import parse
from tests.conftest import Golden

CELLS = sorted((Path(__file__).parents[2] / "cells").glob("*.rnn"))
GOLDEN = Path(__file__).parents[1] / "golden"


def _parsed(path: Path) -> tuple[CellDecl, ...]:
    return parse(Source(path.name, path.read_text()))


@pytest.mark.parametrize("path", CELLS, ids=lambda path: path.stem)
def test_a_declaration_survives_its_text(path: Path) -> None:
    for declaration in _parsed(path):
        (again,) = parse(Source("again.rnn", show(declaration) + "\n"))
        assert again.statements == declaration.statements
        assert show(again) == show(declaration)


@pytest.mark.parametrize("name", ["gru", "scrn", "rhn", "onlstm", "antisymmetricrnn"])
def test_a_cell(name: str, golden: Golden) -> None:
    """The golden texts are what a reader should see of a cell; tests/test_golden.py has those of more cells."""
    for stage in ("check", "partition"):
        golden(GOLDEN / name / f"{stage}.txt", stage_text(read_request(name), stage) + "\n")


a, b, c = Ref("a"), Ref("b"), Ref("c")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (apply("sub", a, apply("sub", b, c)), "a - (b - c)"),
        (apply("sub", apply("sub", a, b), c), "a - b - c"),
        (apply("mul", apply("add", a, b), c), "(a + b) * c"),
        (apply("div", a, apply("mul", b, c)), "a / (b * c)"),
        (apply("neg", apply("add", a, b)), "-(a + b)"),
        (apply("mul", apply("neg", a), b), "(-a) * b"),
        (apply("sub", a, Const(-2.0)), "a - (-2)"),
        (apply("where", apply("lt", a, Const(0.5)), b, Const(-math.inf)), "where(a < 0.5, b, -inf)"),
        (apply("lt", apply("lt", a, b), c), "a < b < c"),
    ],
)
def test_expressions(expr: Expr, text: str) -> None:
    assert show_expr(expr) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2"),
        (0.1, "0.1"),
        (-math.inf, "-inf"),
        (1e-5, "1e-05"),
        (1e20, "1e+20"),
        (-0.0, "-0.0"),
        (math.nan, "nan"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert show_number(value) == text
