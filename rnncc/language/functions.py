"""Functions of the language that are no operators: they work across units, or on whole matrices."""

from __future__ import annotations

from rnncc.language.operators import OPERATORS

ROW_FUNCTIONS: dict[str, tuple[int, int]] = {
    # name: least and most positional arguments
    "layernorm": (1, 1),
    "rmsnorm": (1, 1),
    "softmax": (1, 1),
    "cumsum": (1, 1),
    "sum": (1, 1),
    "mean": (1, 1),
    "max": (1, 1),
    "min": (1, 1),
    "split": (1, 1),
    "repeat": (2, 2),
    "concat": (2, 64),
}
# These take matrices that are made of parameters; `eye` takes a size, and `diag` a vector.
MATRIX_FUNCTIONS: dict[str, tuple[int, int]] = dict.fromkeys(
    ("T", "eye", "diag", "tril", "triu", "expm", "inv", "cayley", "normalize", "norm"), (1, 1)
)
# Functions that take `axis=`, on matrices, and what it may be: `axis=rows` works on each row.
ALONG_AXIS = ("softmax", "normalize")
AXES = ("rows", "columns")
# Functions of square matrices.
OF_SQUARE = ("expm", "inv", "cayley")


def is_across_units(name: str, arguments: int) -> bool:
    """Whether a call with so many arguments is one of ROW_FUNCTIONS: `max(v)` is, `max(a, b)` is an operator."""
    return name in ROW_FUNCTIONS and (name not in OPERATORS or arguments == 1)
