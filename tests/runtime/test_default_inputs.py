"""Inputs with a default: a call without them is the call that gives their number at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from tests.packages import float64_package

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H = 5, 3, 4, 6
TEXT = """
cell Paced
input gap: 1 = 0.5, drive: 3 = -2, late: 2*num_heads = 0.25
state h
local a: 1, c: 1
weights V: matrix
a, c = split(late)
h[t] = exp(-gap)*h[t-1] + a*tanh(W@x + V@drive[t-1] + R@h[t-1] + b) + c

cell Mixed
input one: 1, two: 1 = 1
state h
h[t] = one*two*tanh(W@x + h[t-1])
"""
LENGTHS = torch.tensor([5, 2, 0])
X = torch.randn(T, B, IN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CALLS: dict[str, tuple[Tensor, dict[str, Any], dict[str, Any]]] = {
    "plain": (X, {}, {}),
    "layers, heads": (X, {"num_layers": 2, "bidirectional": True, "num_heads": 2}, {}),
    "batch first": (X, {"batch_first": True}, {}),
    "one sequence": (X[:, 0], {}, {}),
    "one step": (X[:1], {}, {}),
    "lengths": (X, {"bidirectional": True}, {"lengths": LENGTHS, "reset": torch.eye(T, B)}),
    "rows": (X[:, 0], {}, {"offsets": torch.tensor([0, 2, 5]), "max_length": 3}),
    "torch's operators": (X, {"backend": "reference"}, {}),
}


def paced() -> Any:
    return float64_package(TEXT, "paced")


def filled(x: Tensor, heads: int) -> dict[str, Tensor]:
    """What the declarations say, written out."""
    return {
        "gap": x.new_full((*x.shape[:-1], 1), 0.5),
        "drive": x.new_full((*x.shape[:-1], 3), -2),
        "late": x.new_full((*x.shape[:-1], 2 * heads), 0.25),
    }


def results(layer: Any, x: Tensor, **given: Any) -> list[Tensor]:
    """The output, the final state and all gradients."""
    x = x.clone().requires_grad_()
    output, h = layer(x, **given)
    return [output, h, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_may_leave_them_out(kind: str) -> None:
    x, options, masks = CALLS[kind]
    torch.manual_seed(0)
    layer = paced().Paced(IN, H, dtype=torch.float64, **options)
    given = filled(x, layer.num_heads)
    expected = results(layer, x, **given, **masks)
    for names in ((), ("drive",), ("gap", "late")):
        some = {name: given[name] for name in names}
        torch.testing.assert_close(results(layer, x, **some, **masks), expected, atol=0, rtol=0)
    given["late"] = given["late"] + 1
    assert not torch.allclose(results(layer, x, **given, **masks)[0], expected[0])


def test_packed_sequences_and_single_steps() -> None:
    layer, step = paced().Paced(IN, H, dtype=torch.float64), paced().PacedCell(IN, H, dtype=torch.float64)
    packed = pack_sequence([X[:n, 0] for n in (5, 2)], enforce_sorted=False)
    given = {name: pack_sequence([v[:n, 0] for n in (5, 2)]) for name, v in filled(X, 1).items()}
    assert torch.equal(layer(packed)[0].data, layer(packed, **given)[0].data)
    for own, other in zip(step(X[0]), step(X[0], **filled(X[0], 1)), strict=True):
        assert torch.equal(own, other)


def test_under_autocast_exported_and_mapped() -> None:
    torch.manual_seed(0)
    layer = paced().Paced(IN, H)
    x = X.float()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(results(layer, x), results(layer, x, **filled(x, 1)), atol=0, rtol=0)
    any_size = torch.export.Dim.AUTO
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: any_size, 1: any_size},)).module()
    for part in (x, x[:2, :2]):
        expected = results(layer, part, **filled(part, 1))
        torch.testing.assert_close(results(program, part), expected)
    each = torch.func.vmap(lambda own: layer(own)[0], in_dims=1, out_dims=1)(x)
    torch.testing.assert_close(each, layer(x)[0])
    assert "late= [T, B, width] (0.25 where left out)" in str(type(layer).__doc__)


def test_one_without_a_default_is_still_asked_for() -> None:
    layer = paced().Mixed(IN, H)
    with pytest.raises(TypeError, match="needs the input one="):
        layer(X.float(), two=torch.ones(T, B, 1))
