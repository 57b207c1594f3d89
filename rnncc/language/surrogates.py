"""Surrogates: the derivatives that `grad=` gives to step functions, as rows of the operator table (operators.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rnncc.language.operator_row import Operator

_PREFIX = "surrogate_"


def _surrogate(name: str, slope: Callable[[Any, Any, Any], Any], kinks: tuple[float, ...] = (0.0,)) -> Operator:
    """`surrogate_NAME(v, value, k)`: the value, whose derivative by v is slope(v, k) whatever the value is made of."""
    return Operator(
        f"{_PREFIX}{name}",
        3,
        lambda f, y, v, value, k: (slope(f, v, k), 0, 0),
        "{1}",
        f"f.{_PREFIX}{name}({{0}}, {{1}}, {{2}})",
        kinks=kinks,
        user=False,
        bound=lambda v, value, k: value,
        instructions=0,
    )


ROWS = (
    # Zenke & Ganguli 2018 (SuperSpike): 1 / (1 + k|v|)^2.
    _surrogate("fast_sigmoid", lambda f, v, k: 1 / ((1 + k * f.abs(v)) * (1 + k * f.abs(v)))),
    # Fang et al. 2021: (k/2) / (1 + (π k v / 2)^2).
    _surrogate(
        "atan", lambda f, v, k: 0.5 * k / (1 + (1.5707963267948966 * k * v) * (1.5707963267948966 * k * v)), kinks=()
    ),
    # The derivative of sigmoid(k v).
    _surrogate("sigmoid", lambda f, v, k: k * f.sigmoid(k * v) * (1 - f.sigmoid(k * v)), kinks=()),
    # Bellec et al. 2018: k * max(0, 1 - |v|).
    _surrogate("triangular", lambda f, v, k: k * f.relu(1 - f.abs(v)), kinks=(-1.0, 0.0, 1.0)),
    # The text says what the derivative is: the third argument, which is itself differentiated no further.
    _surrogate("given", lambda f, v, slope: slope, kinks=()),
)

# The operators that give a value a derivative of another's.
DERIVATIVES = frozenset(row.name for row in ROWS)
# grad=NAME(k) -> the operator that gives a step function that derivative.
SURROGATES: dict[str, str] = {row.name.removeprefix(_PREFIX): row.name for row in ROWS}
# grad=NUMBER, grad=u -> … -> the operator.
GIVEN = SURROGATES.pop("given")
