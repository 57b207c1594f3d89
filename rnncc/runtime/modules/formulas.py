"""The formulas that parameters start at: numbers, sizes, vectors that count, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..spec import Sizes

# A name and what it is applied to: ("log", ("add", ("number", 1.0), ("ones", width, parts))).
Formula = tuple[Any, ...]

_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def evaluate(formula: Formula, sizes: Sizes, block: int, blocks: int) -> Tensor:
    """Block number `block` of what the formula says, in float64. There are as many blocks as heads, or one."""
    name, *given = formula
    match name:
        case "number":
            return torch.tensor(float(given[0]), dtype=torch.float64)
        case "size":
            return torch.tensor(float(given[0](sizes)), dtype=torch.float64)
        case "ones":
            return torch.ones(given[0](sizes) // blocks, dtype=torch.float64)
        case "arange":
            return _counted(given[0](sizes), given[1], sizes["num_heads"], block, blocks)
        case "outer":
            left, right = (evaluate(part, sizes, block, blocks) for part in given)
            return left[:, None] * right
        case _:
            return _OPERATORS[name](*(evaluate(part, sizes, block, blocks) for part in given))


def _counted(width: int, parts: int, heads: int, block: int, blocks: int) -> Tensor:
    """0, 1, … in each head, which has units in so many parts of a vector; no parts: the numbers of the heads."""
    if not parts:
        numbers = torch.arange(heads, dtype=torch.float64)
        return numbers[block : block + 1] if blocks == heads else numbers
    units = torch.arange(width // heads, dtype=torch.float64)
    return units if blocks == heads else units.reshape(parts, 1, -1).expand(parts, heads, -1).flatten()
