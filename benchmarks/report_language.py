"""The functions of the language: a table from the operator table, so that no page lists them by hand."""

from __future__ import annotations

from report_text import table

from rnncc.language.functions import (
    ALONG_AXIS,
    MATRIX_FUNCTIONS,
    OF_GRIDS,
    OF_VECTORS_TOO,
    OF_WIDTHS,
    PER_HEAD,
    REDUCTIONS,
    ROW_FUNCTIONS,
)
from rnncc.language.operators import OPERATORS


def _functions() -> str:
    called = {in_loop: _names(in_loop) for in_loop in (True, False)}
    rows = (
        ("everywhere", f"`{called[True]}`"),
        ("everywhere, across units", f"`{' '.join((*ROW_FUNCTIONS, *OF_VECTORS_TOO))}`"),
        ("everywhere, of a width", f"`{' '.join(OF_WIDTHS)}`"),
        ("not where a state is read", f"`{called[False]} {' '.join(PER_HEAD)}`"),
        ("on matrices of parameters", f"`{_of_parameters()} softmax`, arithmetic, all elementwise functions"),
        ("on matrices that change", f"`{' '.join(OF_GRIDS)}`, arithmetic, all elementwise functions"),
        ("on these along an axis", f"`{' '.join((*REDUCTIONS, *ALONG_AXIS))}`"),
        ("on a vector, which becomes a matrix", "`diag unflatten`"),
        ("not as in PyTorch", "; ".join(row.meaning for row in OPERATORS.values() if row.meaning)),
    )
    return table(("where", "functions"), rows)


def _of_parameters() -> str:
    return " ".join(name for name in MATRIX_FUNCTIONS if name != "unflatten")


def _names(in_loop: bool) -> str:
    return " ".join(name for name, row in OPERATORS.items() if row.user and row.in_loop is in_loop)


TABLES = {"functions": _functions}
