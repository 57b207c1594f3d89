"""A matrix that a call gives for each sequence, `input mem: matrix(L, C) per sequence`: [B, L, C]."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from tests.packages import float64_package

T, B, IN, H, L, C = 6, 3, 4, 5, 7, 3
SHAPE = r"mem is given per sequence: expected \[3, 7, 3\], got"
# Attention; the same in steps of its own; a memory that is read element by element, with no product before.
TEXT = """
cell Attention
dim L, A = H, C = 3
input mem: matrix(L, C) per sequence, gone: L per sequence = 0
state h
param U: matrix(A, C), V: matrix(A, H), g: vector(A), Q: matrix(H, C)
p = softmax(tanh(mem@T(U) + ones(L)@T(V@h[t-1]))@g + gone)
c = T(mem)@p
h[t] = tanh(W@x + Q@c + R@h[t-1] + b)

cell Elementwise
dim L, C = 3
input mem: matrix(L, C) per sequence
state S: matrix(L, C)
output y
local q: C
q = W@x + b
S[t] = 0.5*S[t-1] + tanh(mem*S[t-1] + mem)@diag(q)
y = S[t]@q + sum(mem, axis=rows)
"""


@pytest.fixture(scope="module")
def cells() -> Any:
    return float64_package(TEXT, "memories")


def layer_of(cells: Any, name: str = "Attention", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(cells, name)(IN, H, L=L, dtype=torch.float64, **options)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def by_hand(layer: Any, x: Tensor, mem: Tensor, gone: Tensor) -> Tensor:
    """The formulas of Bahdanau et al. 2015, in steps."""
    own = {name: view.reshape(view.shape[-2:] if view.dim() > 2 else view.shape) for name, view in gates(layer).items()}
    h, states = torch.zeros(B, H, dtype=torch.float64), []
    for step in x:
        scores = torch.einsum("bla,a->bl", torch.tanh(mem @ own["U"].mT + (h @ own["V"].mT)[:, None]), own["g"]) + gone
        context = torch.einsum("bl,blc->bc", scores.softmax(-1), mem)
        h = torch.tanh(step @ own["W_h"].mT + context @ own["Q"].mT + h @ own["R_h"].mT + own["b_h"])
        states.append(h)
    return torch.stack(states)


def trained(layer: Any, x: Tensor, mem: Tensor) -> list[Tensor]:
    """The output, and the gradients of the memory and the parameters."""
    output = layer(x, mem=mem)[0]
    return [output, *torch.autograd.grad(output.square().sum(), [mem, *layer.parameters()])]


def gates(layer: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = layer.gate_parameters()
    return found


def test_attention_is_what_its_formulas_say(cells: Any) -> None:
    layer, x = layer_of(cells), random(T, B, IN)
    mem, gone = random(B, L, C).requires_grad_(), torch.zeros(B, L, dtype=torch.float64)
    gone[1, 4:] = -1e9
    wanted = [mem, *layer.parameters()]
    output, expected = layer(x, mem=mem, gone=gone)[0], by_hand(layer, x, mem, gone)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    found, right = (torch.autograd.grad(each.square().sum(), wanted) for each in (output, expected))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert found[0][1, 4:].eq(0).all()  # what is padded has no weight


@pytest.mark.parametrize("name", ["Attention", "Elementwise"])
def test_every_way_to_call(cells: Any, name: str) -> None:
    """Eager torch, steps, one sequence, other strides, lengths, packed rows, pieces: as the layer."""
    layer, x, mem = layer_of(cells, name), random(T, B, IN), random(B, L, C).requires_grad_()
    output, state = layer(x, mem=mem)
    expected = trained(layer, x, mem)
    layer.backend = "reference"
    torch.testing.assert_close(trained(layer, x, mem), expected)
    layer.backend = None
    step = layer_of(cells, f"{name}Cell")
    step.load_state_dict({key.removesuffix("_l0"): value for key, value in layer.state_dict().items()})
    carried, made = None, []
    for row in x:
        result = step(row, carried, mem=mem)
        one, carried = result if isinstance(result, tuple) else (result, result)
        made.append(one)
    torch.testing.assert_close(torch.stack(made), output)
    torch.testing.assert_close(layer(x[:, 1], mem=mem[1])[0], output[:, 1])
    strided = mem.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(layer(x, mem=strided)[0], output)
    first, between = layer(x[:2], mem=mem)
    torch.testing.assert_close(torch.cat([first, layer(x[2:], between, mem=mem)[0]]), output)
    lengths = torch.tensor([2, 6, 4])
    cut, last = layer(x, mem=mem, lengths=lengths)
    torch.testing.assert_close(cut[:2, 0], output[:2, 0])
    packed = layer(pack_padded_sequence(x, lengths, enforce_sorted=False), mem=mem)[1]
    torch.testing.assert_close(packed, last)
    assert state.shape == last.shape


@pytest.mark.long
def test_compiled_exported_and_in_other_dtypes(cells: Any) -> None:
    layer, x, mem = layer_of(cells), random(T, B, IN), random(B, L, C)
    expected = layer(x, mem=mem)[0]
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mem=mem)[0], expected)
    program: Any = torch.export.export(layer, (x,), {"mem": mem})
    torch.testing.assert_close(program.module()(x, mem=mem)[0], expected)
    half = layer.bfloat16()(x.bfloat16(), mem=mem.bfloat16())[0]
    torch.testing.assert_close(half.double(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["Attention", "Elementwise"])
def test_a_step_takes_the_same_with_gradients_and_without(cells: Any, name: str) -> None:
    """Without them a step may be one op, which takes vectors alone."""
    step, x, mem = layer_of(cells, f"{name}Cell"), random(B, IN), random(B, L, C)
    result = step(x, mem=mem)
    state = result[1] if isinstance(result, tuple) else result
    expected = step(x, state, mem=mem)
    with torch.no_grad():
        torch.testing.assert_close(step(x, state, mem=mem), expected)
        with pytest.raises(ValueError, match=SHAPE):
            step(x, state, mem=mem.flatten(1))


def test_what_is_wrong_is_said(cells: Any) -> None:
    layer, x, mem = layer_of(cells), random(T, B, IN), random(B, L, C)
    for given in (mem.flatten(1), mem[:2], mem.mT, mem[:, :, None]):
        with pytest.raises(ValueError, match=SHAPE):
            layer(x, mem=given)
    with pytest.raises(TypeError, match=r"needs the input mem=, one tensor for all steps, \[3, 7, 3\]"):
        layer(x)
    with pytest.raises(
        ValueError, match=r"num_heads=1 only: all heads would share the matrix 'mem' \(line 4\).*RNN703"
    ):
        cells.Attention(IN, 6, L=L, num_heads=2)
    assert "mem= [B, rows, columns]" in str(cells.Attention.__doc__)
