"""Functions of the language that are no operators: they work across units, or on whole matrices."""

from __future__ import annotations

from rnncc.language.operators import OPERATORS

ROW_FUNCTIONS: dict[str, tuple[int, int]] = {
    # name: least and most positional arguments
    "layernorm": (1, 1),
    "rmsnorm": (1, 1),
    "softmax": (1, 1),
    "cumsum": (1, 1),
    "logsumexp": (1, 1),
    "sum": (1, 1),
    "mean": (1, 1),
    "max": (1, 1),
    "min": (1, 1),
    "split": (1, 1),
    "repeat": (2, 2),
    "concat": (2, 64),
    "roll": (2, 2),
}
# These take a width, and make a vector of numbers alone.
OF_WIDTHS: dict[str, tuple[int, int]] = dict.fromkeys(("ones", "arange"), (1, 1))
# This copies a value that no state reaches for each head, and is computed before the loops.
PER_HEAD: dict[str, tuple[int, int]] = {"heads": (1, 2)}
# These take matrices; `eye` takes a size, and `diag` a vector. Matrices that change with the step are taken by those of
# OF_GRIDS alone.
MATRIX_FUNCTIONS: dict[str, tuple[int, int]] = dict.fromkeys(
    ("T", "eye", "diag", "tril", "triu", "expm", "inv", "cayley", "normalize", "norm"), (1, 1)
) | {"unflatten": (3, 3)}
OF_GRIDS = ("T", "diag", "norm")
# Functions of matrices that also take vectors of any values, head by head.
OF_VECTORS_TOO = ("norm", "normalize")
# Functions that take `axis=`, on matrices, and what it may be: `axis=rows` works on each row. These leave a matrix.
ALONG_AXIS = ("softmax", "normalize", "cumsum", "roll")
# These leave a vector with one number for each row, or column; without an axis one number per head.
REDUCTIONS = ("sum", "mean", "max", "min", "logsumexp")
AXES = ("rows", "columns")
# Functions of square matrices.
OF_SQUARE = ("expm", "inv", "cayley")


def is_across_units(name: str, arguments: int) -> bool:
    """Whether a call with so many arguments is one of ROW_FUNCTIONS: `max(v)` is, `max(a, b)` is an operator."""
    return name in ROW_FUNCTIONS and (name not in OPERATORS or arguments == 1)
