"""Matrix states that start at a multiple of the identity: in layers, single steps and the op, and after resets."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.packages import float64_package

TEXT = """
cell RLS
dim K = H
const c = 0.5
state P: matrix(K, K) = c*eye, S: matrix(H, K), E: matrix(H, H) = -eye
output y
local k: K
k, v = W@x
Pk = P[t-1]@k
g = Pk/(1 + sum(k*Pk))
P[t] = P[t-1] - g@T(Pk)
S[t] = S[t-1] + (v - S[t-1]@k)@T(g)
E[t] = 0.5*E[t-1]
y = S[t]@k + E[t]@v
"""
BATCH, STEPS, INPUT, H = 3, 6, 5, 6
SHAPES = [(heads, keys) for heads in (1, 2, 3) for keys in (6, 12)]


@cache
def rls() -> Any:
    return float64_package(TEXT, "starts")


def starts(heads: int, keys: int, c: float = 0.5) -> list[Tensor]:
    """What the states of one batch entry are before a step."""
    p, e = (torch.eye(side // heads, dtype=torch.float64).repeat(heads, 1, 1) for side in (keys, H))
    return [c * p, torch.zeros(heads, H // heads, keys // heads, dtype=torch.float64), -e]


def step(state: list[Tensor], x: Tensor, weight: Tensor, keys: int) -> tuple[Tensor, list[Tensor]]:
    """One step of one batch entry."""
    p, s, e = state
    k, v = (part.reshape(len(p), -1, 1) for part in torch.split(weight @ x, [keys, H]))
    pk = p @ k
    g = pk / (1 + k.mT @ pk)
    p, s, e = p - g @ pk.mT, s + (v - s @ k) @ g.mT, 0.5 * e
    return (s @ k + e @ v).flatten(), [p, s, e]


def expected(
    layer: Any, x: Tensor, heads: int, keys: int, reset: Tensor | None = None, lengths: list[int] | None = None
) -> tuple[Tensor, list[Tensor]]:
    outputs, finals = [], []
    for entry in range(x.shape[1]):
        state, made = starts(heads, keys), []
        for t in range(len(x)):
            if lengths is not None and t >= lengths[entry]:
                made.append(torch.zeros(H, dtype=torch.float64))
                continue
            if reset is not None and reset[t, entry]:
                state = starts(heads, keys)
            y, state = step(state, x[t, entry], layer.weight_ih_l0, keys)
            made.append(y)
        outputs.append(torch.stack(made))
        finals.append(state)
    return torch.stack(outputs, 1), [torch.stack(each)[None] for each in zip(*finals, strict=True)]


def same(found: tuple[Tensor, Any], wanted: tuple[Tensor, list[Tensor]], leaves: list[Tensor]) -> None:
    """Values, and the gradients of something made of all of them."""
    ours, theirs = [found[0], *found[1]], [wanted[0], *wanted[1]]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    totals = [
        torch.stack([(value * value.detach().sin()).sum() for value in values]).sum() for values in (ours, theirs)
    ]
    for one, other in zip(*(torch.autograd.grad(total, leaves) for total in totals), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("heads", "keys"), SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_starts_at_the_identity_of_each_block(heads: int, keys: int, masked: bool) -> None:
    layer = rls().RLS(INPUT, H, num_heads=heads, K=keys, dtype=torch.float64)
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64, requires_grad=True)
    extra: dict[str, Any] = {}
    if masked:
        extra = {"reset": torch.rand(STEPS, BATCH) < 0.4, "lengths": [STEPS, 0, 3]}
        extra["reset"][2, 0] = True
    same(layer(x, **extra), expected(layer, x, heads, keys, **extra), [x, layer.weight_ih_l0])


def test_no_step_leaves_the_start() -> None:
    layer = rls().RLS(INPUT, H, num_heads=2, dtype=torch.float64)
    _, finals = layer(torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64), lengths=[0, 0, 0])
    for final, start in zip(finals, starts(2, H), strict=True):
        assert torch.equal(final, start.expand_as(final))


def test_a_reset_inside_equals_a_start() -> None:
    """In eager torch too, and where hx is given."""
    layer = rls().RLS(INPUT, H, num_heads=2, K=8, dtype=torch.float64)
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    hx = tuple(torch.randn(1, BATCH, *each.shape, dtype=torch.float64) for each in starts(2, 8))
    reset = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    reset[2] = True
    alone = layer(x[2:])
    for backend in (None, "reference"):
        layer.backend = backend
        output, finals = layer(x, hx, reset=reset)
        torch.testing.assert_close(output[2:], alone[0], rtol=1e-12, atol=1e-12)
        for one, other in zip(finals, alone[1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_single_step_and_the_op(dtype: torch.dtype) -> None:
    package = rls()
    layer = package.RLS(INPUT, H, num_heads=2, K=8, dtype=dtype)
    x = torch.randn(STEPS, BATCH, INPUT, dtype=dtype)
    output, finals = layer(x)
    cell = package.RLSCell(INPUT, H, num_heads=2, K=8, dtype=dtype)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    state, made = None, []
    for t in range(STEPS):
        y, state = cell(x[t], state)
        made.append(y)
    assert state is not None
    streams = (x @ layer.weight_ih_l0.T).split((8, H), -1)
    of_op, ends = package.rls(streams, [], hidden_size=H, num_heads=2, K=8)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    for found in (torch.stack(made), of_op):
        torch.testing.assert_close(found, output, rtol=tolerance, atol=tolerance)
    for one, other, final in zip(state, ends, finals, strict=True):
        assert one.dtype == dtype
        for found in (one, other.reshape(final[0].shape)):
            torch.testing.assert_close(found, final[0], rtol=tolerance, atol=tolerance)
