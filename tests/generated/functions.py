"""Which functions of the operator table a random expression may call, and what values they take: measured, so that a
new row needs no line here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from rnncc.language.operators import OPERATORS
from rnncc.language.surrogates import SURROGATES
from tests.definitions import definition

Interval = tuple[float, float]
# Expressions draw calls of these by rules of their own.
OWN_RULES = ("where", "clamp", "mod")
CALLED = {name: row for name, row in OPERATORS.items() if row.user and name not in OWN_RULES}
NAMED = tuple(SURROGATES)
GIVEN = (
    "1",
    "-0.5",
    "lambda u: exp(-u**2)",
    "lambda u: 1/(1 + abs(u))**2",
    "lambda u: where(u > 0, 1, heaviside(-u, grad=1))",
)
# Steeper functions, and larger values, would make rounding errors grow.
STEEP, LARGE = 5.0, 40.0
_POINTS = {1: 257, 2: 33, 3: 13}


def names(arities: Iterable[int], kinked: bool, in_loop: bool = True) -> tuple[str, ...]:
    """Functions of so many arguments, with or without kinks, that a loop has or that it does not have."""
    return tuple(
        name
        for name, row in CALLED.items()
        if row.arity in arities and bool(row.kinks) is kinked and row.in_loop is in_loop
    )


def values(name: str, arguments: Sequence[Interval]) -> Interval:
    """The least and the largest value of a function for arguments between these bounds."""
    sampled = _sampled(name, arguments)
    return sampled.min().item(), sampled.max().item()


def is_tame(name: str, arguments: Sequence[Interval]) -> bool:
    """Whether the function is defined between these bounds, and neither steep nor large."""
    sampled = _sampled(name, arguments)
    steps = [(high - low) / (count - 1) for (low, high), count in zip(arguments, sampled.shape, strict=True)]
    slopes = [sampled.diff(dim=i).abs().max().item() / step for i, step in enumerate(steps) if step > 0]
    return bool(sampled.isfinite().all()) and sampled.abs().max().item() <= LARGE and max(slopes, default=0) <= STEEP


def inner(name: str) -> Interval:
    """The middle of the function's domain and half of its width, away from where it ends."""
    low, high = CALLED[name].domain
    return (low + high) / 2, 0.4 * (high - low)


def _sampled(name: str, arguments: Sequence[Interval]) -> torch.Tensor:
    count = _POINTS[len(arguments)]
    axes = [torch.linspace(low, high, count, dtype=torch.float64) for low, high in arguments]
    return definition(name)(*torch.meshgrid(axes, indexing="ij"))
