"""What each function of the language computes, in torch's own words: the oracle of the tests of operators.

A function is torch's of the same name. Nothing of rnncc is read here, so that a wrong row of the operator table cannot
agree with it. `OWN` has those that torch calls differently, or does not have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[..., Tensor]

OWN: dict[str, Function] = {
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.remainder,
    "leakyrelu": F.leaky_relu,
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    # torch's own derivative fails where a bound is wider than the value.
    "clamp": lambda v, low, high: torch.clamp(v.expand_as(v + low + high), low, high),
    # torch's own hardsigmoid multiplies its gradient by a sixth in float32, in float64 too.
    "hardsigmoid": lambda v: F.relu6(v + 3) / 6,
    "heaviside": lambda v: (v > 0).to(v.dtype),
}


def definition(name: str) -> Function:
    """The function of this name, on tensors. Raises LookupError where neither torch nor `OWN` has one."""
    found: Function | None = OWN.get(name) or getattr(torch, name, None) or getattr(F, name, None)
    if found is None:
        message = f"torch has no function '{name}': write what it computes, in torch, as a line of OWN in "
        raise LookupError(f"{message}tests/definitions.py, from the paper and not from rnncc's own row")
    return found
