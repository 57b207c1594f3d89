"""Functions of vectors at the ends of their domains: zero vectors, infinite units; before a loop and in it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.packages import float64_package

ORACLES: dict[str, Callable[[Tensor], Tensor]] = {
    "normalize": lambda rows: F.normalize(rows, dim=-1).reshape(-1),
    "norm": lambda rows: torch.linalg.vector_norm(rows, dim=-1),
    "logsumexp": lambda rows: torch.logsumexp(rows, -1),
}
# In the second cell of a function, its argument is computed in the loop.
TEXT = "".join(
    f"""
cell Before_{name}
state s: {width}
input v: H
a = 1*v
s[t] = {name}(a)

cell Inside_{name}
state s: {width}
input v: H
a = v + 0*s[t-1]
s[t] = {name}(a)
"""
    for name, width in (("normalize", "H"), ("norm", "num_heads"), ("logsumexp", "num_heads"))
)
FINITE = {
    "zero": [0.0, 0, 0, 0],
    "one head zero": [0.0, 0, 3, -4],
    "short": [1e-20, 0, 0, 1e-14],
    "large": [800.0, 799, -900, 900],
    "no number": [float("nan"), 1, 2, 3],
}
INFINITE = {
    "some lowest": [-inf, 1, 2, -inf],
    "all lowest": [-inf, -inf, -inf, -inf],
    "highest": [inf, 1, 2, 3],
}
CASES = [(name, units) for name in ORACLES for units in FINITE] + [("logsumexp", units) for units in INFINITE]


def computed(cell: str, backend: str, heads: int, v: Tensor) -> Tensor:
    """The function of v, by a layer of one step."""
    package: Any = float64_package(TEXT, "vectors")
    layer = getattr(package, cell)(2, 4, num_heads=heads, backend=backend, dtype=torch.float64)
    result: Tensor = layer(torch.zeros(1, 1, 2, dtype=torch.float64), v=v)[0]
    return result.reshape(-1)


@pytest.mark.one_in(3, "place")
@pytest.mark.parametrize(("name", "units"), CASES)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("place", ["Before", "Inside"])
def test_values_and_gradients_are_those_of_torch(place: str, backend: str, heads: int, name: str, units: str) -> None:
    v = torch.tensor((FINITE | INFINITE)[units], dtype=torch.float64).reshape(1, 1, 4).requires_grad_()
    found, expected = computed(f"{place}_{name}", backend, heads, v), ORACLES[name](v.reshape(heads, -1))
    torch.testing.assert_close(found, expected, equal_nan=True)
    weights = torch.arange(1.0, len(expected) + 1, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), v)
    (gradient,) = torch.autograd.grad((found * weights).sum(), v)
    torch.testing.assert_close(gradient, wanted, equal_nan=True)
