"""`replace` on torch.nn's single steps: nn.LSTMCell, nn.GRUCell and nn.RNNCell."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc
from rnncc.compat.nn import Found, replace, survey

IN, H, B = 4, 6, 3
EXACT: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}
KINDS: list[tuple[str, type[nn.RNNCellBase], dict[str, Any]]] = [
    ("nn_LSTMCell", nn.LSTMCell, {}), ("nn_GRUCell", nn.GRUCell, {}), ("nn_RNNCell", nn.RNNCell, {}),
    ("nn_RNN_reluCell", nn.RNNCell, {"nonlinearity": "relu"}),
]  # fmt: skip


def pair(kind: type[nn.RNNCellBase], **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs = kind(IN, H, dtype=torch.float64, **options)
    return replace(copy.deepcopy(theirs)), theirs


def values(result: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("name", "kind", "options"), KINDS, ids=[name for name, _, _ in KINDS])
def test_a_step_and_what_replaces_it(
    name: str, kind: type[nn.RNNCellBase], options: dict[str, Any], bias: bool, with_states: bool, batched: bool
) -> None:
    """Numbers and gradients; hx given and left out, one entry and a batch."""
    ours, theirs = pair(kind, bias=bias, **options)
    assert type(ours).__name__ == name and ours.bias is bias
    shape = (B,) if batched else ()
    found = []
    for step in (ours, theirs):
        generator = torch.Generator().manual_seed(1)
        x, h, c = (torch.randn(*shape, width, generator=generator, dtype=torch.float64) for width in (IN, H, H))
        leaves = [value.requires_grad_() for value in (x, h, c)]
        hx: Any = ((h, c) if kind is nn.LSTMCell else h) if with_states else None
        made = values(step(x, hx))
        made = values(step(x, tuple(made) if kind is nn.LSTMCell else made[0]))  # and one more step
        wanted = [*leaves[: 1 + (with_states and (2 if kind is nn.LSTMCell else 1))], *step.parameters()]
        found.append([*made, *torch.autograd.grad(torch.stack([value.square().sum() for value in made]).sum(), wanted)])
    for value, expected in zip(*found, strict=True):
        assert value.shape == expected.shape
        torch.testing.assert_close(value, expected, **EXACT)


@pytest.mark.parametrize(("name", "kind", "options"), KINDS, ids=[name for name, _, _ in KINDS])
def test_it_has_the_same_parameters(name: str, kind: type[nn.RNNCellBase], options: dict[str, Any]) -> None:
    theirs: Any = kind(IN, H, **options).eval()
    parameters = dict(theirs.named_parameters())
    theirs.note = "the decoder"
    ours: Any = replace(theirs)
    assert all(parameters[key] is parameter for key, parameter in ours.named_parameters())
    assert list(ours.state_dict()) == list(parameters)
    assert not ours.training and ours.note == "the decoder" and ours.input_size == IN and ours.hidden_size == H
    again = kind(IN, H, **options)
    again.load_state_dict(ours.state_dict())
    fresh: Any = replace(kind(IN, H, **options))
    fresh.load_state_dict(again.state_dict())
    x = torch.randn(B, IN)
    assert torch.equal(values(fresh(x))[0], values(ours(x))[0])
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(values(twin(x))[0], values(ours(x))[0])


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(IN, H)
        self.step = nn.GRUCell(IN, H)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.encoder(x)
        state: Tensor = h[0]
        for value in x:
            state = self.step(value, state)
        return state


def test_a_model_with_both() -> None:
    torch.manual_seed(0)
    model: Any = Decoder()
    x = torch.randn(5, B, IN)
    expected = model(x)
    assert survey(model) == (
        Found(("encoder",), "nn.GRU", "nn_GRU"), Found(("step",), "nn.GRUCell", "nn_GRUCell"),
    )  # fmt: skip
    # Options of layers alone go to layers alone, and what both have to both.
    replace(model, recompute=True, recurrent_gradient_clip=5.0)
    assert not survey(model) and model.encoder.recompute is True
    assert model.step.recurrent_gradient_clip == model.encoder.recurrent_gradient_clip == 5.0
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="speed"):
        replace(nn.Sequential(nn.GRUCell(IN, H)), speed=11)


class Scaled(nn.LSTMCell):
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        h, c = super().forward(input, hx)
        return 2 * h, c


def test_instances_of_torch_s_classes() -> None:
    x = torch.randn(B, IN)
    own = nn.LSTMCell(IN, H)
    expected = own(x)
    ours: Any = replace(own, as_nn=True)
    assert isinstance(ours, nn.LSTMCell) and type(ours).__name__ == "nn_LSTMCell"
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-6)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert isinstance(twin, nn.LSTMCell) and torch.equal(twin(x)[0], ours(x)[0])
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        assert isinstance(torch.load(file, weights_only=True), nn.LSTMCell)

    scaled = Scaled(IN, H)
    expected = scaled(x)
    assert "derives from nn.LSTMCell" in survey(nn.Sequential(scaled))[0].why_not
    made: Any = replace(nn.Sequential(scaled), subclasses=(Scaled,), as_nn=True)[0]  # type: ignore[index]
    assert isinstance(made, Scaled)
    torch.testing.assert_close(made(x), expected, rtol=1e-5, atol=1e-6)


def test_what_stays() -> None:
    model = nn.Sequential(nn.LSTMCell(IN, H), nn.LSTMCell(IN, H))
    model[1].register_buffer("mask", torch.ones(4))
    with pytest.raises(ValueError, match=r"'1': nn.LSTMCell stays: its parameters, buffers .*: mask"):
        replace(model)
    assert type(model[0]) is nn.LSTMCell
    replace(model, keep=("1",))
    assert type(model[0]).__name__ == "nn_LSTMCell" and type(model[1]) is nn.LSTMCell


def test_dtypes_of_the_call() -> None:
    """A step in 16 bits has its module's dtype."""
    ours: Any = replace(nn.GRUCell(IN, H, dtype=torch.bfloat16))
    assert ours(torch.randn(B, IN, dtype=torch.bfloat16)).dtype == torch.bfloat16
    meta: Any = replace(nn.GRUCell(IN, H, device="meta"))
    assert meta(torch.randn(B, IN, device="meta")).is_meta
