"""The functions of the language: a table from the operator table, so that no page lists them by hand."""

from __future__ import annotations

from report_text import table

from rnncc.language.functions import MATRIX_FUNCTIONS, ROW_FUNCTIONS
from rnncc.language.operators import OPERATORS


def _functions() -> str:
    called = {in_loop: _names(in_loop) for in_loop in (True, False)}
    rows = (
        ("everywhere", f"`{called[True]}`"),
        ("everywhere, across units", f"`{' '.join(ROW_FUNCTIONS)}`"),
        ("not where a state is read", f"`{called[False]}`"),
        ("on matrices of parameters", f"`{' '.join(MATRIX_FUNCTIONS)} softmax`, arithmetic, all elementwise functions"),
        ("not as in PyTorch", "; ".join(row.meaning for row in OPERATORS.values() if row.meaning)),
    )
    return table(("where", "functions"), rows)


def _names(in_loop: bool) -> str:
    return " ".join(name for name, row in OPERATORS.items() if row.user and row.in_loop is in_loop)


TABLES = {"functions": _functions}
