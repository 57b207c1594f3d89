"""States of single steps that one op computes: older values, what heads share, float32 beside bfloat16."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from tests.runtime.test_single_steps import _double, assert_same, cell_class
from tests.runtime.test_whole import LongWay, called, flat

CELLS = """
cell Older
input x: H
state h, c, g: 2*H
output y
local v: 2*H
v = W@x
i, j = split(sigmoid(v[t-2]))
c[t] = c[t-3]*i + j*(R@h[t-1]) + W@x
h[t] = tanh(R@h[t-2] + c[t-1] + 0.5*x[t-1] + 0.3*x[t-3])
g[t] = 0.5*g[t-2] + tanh(v + g[t-1])
g1, g2 = split(g[t])
y = h[t] + g1*g2

cell Groups
state h
local B: 12, C: 6
param n: vector(12) = 0.7
B, C = W@x
h[t] = 0.5*h[t-1] + tanh(sum(heads(B, 2)*heads(tanh(n*B), 2)) + sum(heads(C)) + W@x)
"""


@cache
def module_of_cells() -> Any:
    return rnncc.compile(CELLS)


def _steps(step: Any, x: Tensor, hx: Any = None) -> Tensor:
    """The outputs of a step at all t."""
    found = []
    for row in x:
        made = step(row, hx)
        output, hx = (made, made) if step.spec.output == step.spec.states[0].name else made
        found.append(output)
    return torch.stack(found)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(("name", "heads"), [("Older", 1), ("Older", 2), ("Groups", 2), ("Groups", 4), ("Groups", 6)])
def test_older_values_and_groups_of_heads(name: str, heads: int, batch: int) -> None:
    """Steps are a layer's. Heads need not divide what they share copies of."""
    torch.manual_seed(heads)
    step = getattr(module_of_cells(), f"{name}Cell")(12, 12, num_heads=heads).double()
    layer = getattr(module_of_cells(), name)(12, 12, num_heads=heads).double()
    layer.load_state_dict({f"{key}_l0": value for key, value in step.state_dict().items()})
    x = torch.randn(7, batch, 12).double()
    with torch.no_grad():
        assert called(partial(step, x[0]))[-1:] == [f"{name.lower()}_single_whole_forward"]
        assert_same(_steps(step, x), layer(x)[0], 1e-14)


@pytest.mark.parametrize("name", ["mamba2", "mamba3"])
def test_heads_share_what_they_do_not_divide(name: str) -> None:
    """64 units, for 5 heads."""
    step_class = cell_class(name)
    layer_class = getattr(rnncc.load(name), step_class.__name__.removesuffix("Cell"))
    step, layer = step_class(12, 20, num_heads=5), layer_class(12, 20, num_heads=5)
    layer.load_state_dict({f"{key}_l0": value for key, value in step.state_dict().items()})
    x = torch.randn(7, 3, 12)
    with torch.no_grad():
        assert called(partial(step, x[0]))[-1:] == [f"{name}_single_whole_forward"]
        assert_same(_steps(step, x), layer(x)[0], 1e-5)


def test_older_values_are_written_in_place() -> None:
    step = module_of_cells().OlderCell(12, 12)
    with torch.no_grad():
        _, hx = step(torch.randn(3, 12))
        x = torch.randn(3, 12)
        expected, given = step(x, hx), tuple(state.clone() for state in hx)
        output, states = step(x, given, inplace=True)
    assert_same((output, states), expected, 0.0)
    assert all(one.data_ptr() == other.data_ptr() for one, other in zip(states, given, strict=True))


@pytest.mark.parametrize("state_dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Many", "gateddeltanet", "mamba3", "lstm"])
def test_bfloat16_beside_states_of_float32(name: str, state_dtype: torch.dtype | None) -> None:
    """As matrices are where no `state_dtype` says otherwise. The op rounds less than the long way does."""
    torch.manual_seed(0)
    step = cell_class(name)(12, 12, num_heads=2, dtype=torch.bfloat16, state_dtype=state_dtype)
    exact = cell_class(name)(12, 12, num_heads=2).double()
    exact.load_state_dict(step.state_dict())
    x = torch.randn(3, 12).bfloat16()
    with torch.no_grad(), LongWay():
        (*_, hx) = (step(x),) if name == "lstm" else step(x)
        expected, truth = step(x, hx), exact(x.double(), _double(hx))
    with torch.no_grad():
        assert called(partial(step, x, hx))[-1:] == [
            f"{name.lower()}_{'0' if name == 'lstm' else 'single'}_whole_forward"
        ]
        found = step(x, hx)
        given = hx.clone() if isinstance(hx, Tensor) else tuple(state.clone() for state in hx)
        assert called(partial(step, x, given, inplace=True))[-1:] == called(partial(step, x, hx))[-1:]
    assert_same(given, found if name == "lstm" else found[1], 0.0)
    for one, other, true in zip(flat(found), flat(expected), flat(truth), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert verify.relative_error(one, true) <= 1.5 * verify.relative_error(other, true) + 0.004


def test_states_of_other_dtypes_go_the_long_way() -> None:
    step = cell_class("gateddeltanet")(12, 12, dtype=torch.bfloat16)
    x = torch.randn(3, 12).bfloat16()
    with torch.no_grad():
        _, hx = step(x)
        assert called(partial(step, x, hx))[-1:] == ["gateddeltanet_single_whole_forward"]
        rounded = hx.bfloat16()
        assert called(partial(step, x, rounded))[-1:] != ["gateddeltanet_single_whole_forward"]
        assert step(x, rounded)[1].dtype == torch.float32
