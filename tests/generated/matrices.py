"""Functions of whole matrices: what cells draw, and what torch says that they are."""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch
from torch import Tensor

# Functions of a matrix MF and a vector bs, whose numbers are of the size 1.
DRAWN = (
    "expm(0.4*MF - 0.4*T(MF))",
    "cayley(MF - T(MF))",
    "inv(eye(H) + 0.1*MF)",
    "softmax(MF, axis=rows)",
    "softmax(MF, axis=columns)",
    "normalize(MF, axis=rows)",
    "normalize(MF, axis=columns)",
    "(tril(MF) - 0.3*triu(MF))",
    "(diag(bs)@tanh(MF))",
    "(abs(MF)@diag(bs))",
    "(MF + diag(bs))",
    "(MF/norm(MF))",
)


def called(call: ast.Call) -> str:
    """The function's name, and then the axis."""
    parts = (call.func, *(keyword.value for keyword in call.keywords))
    return " ".join(part.id for part in parts if isinstance(part, ast.Name))


def _cayley(a: Tensor) -> Tensor:
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    result: Tensor = torch.linalg.inv(eye + a) @ (eye - a)
    return result


ELEMENTWISE = {"abs": torch.abs, "tanh": torch.tanh}
# What functions of matrices are, by torch's definitions; the axis follows the name.
OF_MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "tril": torch.tril,
    "triu": torch.triu,
    "expm": torch.linalg.matrix_exp,
    "inv": torch.linalg.inv,
    "cayley": _cayley,
    "softmax rows": lambda a: a.softmax(-1),
    "softmax columns": lambda a: a.softmax(-2),
    "normalize rows": lambda a: a / torch.linalg.vector_norm(a, dim=-1, keepdim=True),
    "normalize columns": lambda a: a / torch.linalg.vector_norm(a, dim=-2, keepdim=True),
}
