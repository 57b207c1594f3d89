"""What a call is given and cannot take: tensors of other kinds and dtypes, and tensors whose memory was freed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.masked import masked_tensor

import rnncc

T, B, IN, H = 5, 3, 4, 6
BACKENDS = ("cpu", "reference")


def make(backend: str | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    return rnncc.load("lstm").LSTM(IN, H, backend=backend, **options)


def states(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.ones(1, B, H).to(dtype), torch.ones(1, B, H).to(dtype)


def freed(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16, torch.complex64])
def test_states_have_the_dtype_of_the_input(backend: str, dtype: torch.dtype) -> None:
    """As torch.nn's layers want it, in their words where they have any."""
    x = torch.randn(T, B, IN)
    with pytest.raises(RuntimeError):
        nn.GRU(IN, H)(x, states(dtype)[0])
    cell = rnncc.load("lstm").LSTMCell(IN, H, backend=backend)
    single = (x[0], tuple(state[0] for state in states(dtype)))
    for call, given in ((make(backend), (x, states(dtype))), (cell, single)):
        with pytest.raises(RuntimeError, match=f"not the same dtype.*float32 and hidden tensor with {dtype}"):
            call(*given)
    with pytest.raises(TypeError, match=r"a (state|weight) is"):
        rnncc.load("lstm").lstm(
            torch.randn(T, B, 4 * H, dtype=torch.float64 if dtype.itemsize == 2 else torch.float32),
            torch.randn(4 * H, H), [s[0] for s in states(dtype)], backend=backend,
        )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_another_dtype_go_where_it_is_asked_for(backend: str) -> None:
    half = make(backend, dtype=torch.bfloat16, state_dtype=torch.float32)
    x = torch.randn(T, B, IN)
    for dtype in (torch.bfloat16, torch.float32):
        _, (h, _) = half(x.bfloat16(), states(dtype))
        assert h.dtype == torch.float32
    layer = make(backend)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x, states())[0]
        assert torch.equal(layer(x, states(torch.bfloat16))[0], expected)
        with pytest.raises(RuntimeError, match="not the same dtype"):
            layer(x, states(torch.float64))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"lengths": torch.ones(B, dtype=torch.complex64)}, TypeError, "lengths must be integers"),
        ({"lengths": [1.0, 2.0, 3.0]}, TypeError, "lengths must be integers"),
        ({"lengths": ["a", "b", "c"]}, TypeError, "lengths must be integers"),
        (
            {"lengths": torch.ones(B, dtype=torch.int64, device="meta")},
            RuntimeError,
            "lengths are not at the same device",
        ),
        ({"reset": torch.ones(T, B, dtype=torch.complex64)}, TypeError, "reset must be bool or real"),
        ({"reset": torch.ones(T, B, device="meta")}, RuntimeError, "reset are not at the same device"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_and_resets_of_other_kinds(
    backend: str, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(backend)(torch.randn(T, B, IN), **given)
    with pytest.raises(error, match=message):
        rnncc.load("lstm").lstm(
            torch.randn(T, B, 4 * H), torch.randn(4 * H, H), hidden_size=H, backend=backend, **given
        )  # fmt: skip


def other_kinds() -> dict[str, Tensor]:
    parts = [torch.randn(5, IN), torch.randn(3, IN)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes
        return {
            "values()": torch.nested.nested_tensor(parts, layout=torch.jagged),
            "offsets=x.offsets()": torch.nested.nested_tensor(parts),
            "MaskedTensor": masked_tensor(torch.randn(T, B, IN), torch.ones(T, B, IN, dtype=torch.bool)),
            "to_dense": torch.randn(T, B, IN).to_sparse(),
        }


@pytest.mark.parametrize("message", ["values()", "offsets=x.offsets()", "MaskedTensor", "to_dense"])
def test_tensors_that_are_not_dense_are_named(message: str) -> None:
    x = other_kinds()[message]
    cells = rnncc.load("lstm")
    layer = make()
    for call in (layer, make("reference"), cells.LSTMCell(IN, H), lambda x: cells.lstm(x, layer.weight_hh_l0)):
        with pytest.raises(TypeError, match=message.replace("(", r"\(").replace(")", r"\)")):
            call(x)


def test_the_way_that_the_error_names_for_a_nested_tensor() -> None:
    layer, x = make(), other_kinds()["values()"]
    offsets = x.offsets()  # type: ignore[attr-defined]
    output, _ = layer(x.values(), offsets=offsets, max_length=5)
    found = torch.nested.nested_tensor_from_jagged(output, offsets)
    for part, own in zip(found.unbind(), x.unbind(), strict=True):
        torch.testing.assert_close(part, layer(own)[0])


FREED: dict[str, Callable[[Any], Any]] = {
    "x": lambda layer: layer(freed(torch.randn(T, B, IN))),
    "a view of x": lambda layer: layer(freed(torch.randn(2 * T, B, IN))[T:]),
    "x with lengths": lambda layer: layer(freed(torch.randn(T, B, IN)), lengths=[1, 2, 3]),
    "hx": lambda layer: layer(torch.randn(T, B, IN), tuple(map(freed, states()))),
    "lengths": lambda layer: layer(torch.randn(T, B, IN), lengths=freed(torch.ones(B, dtype=torch.int64))),
    "reset": lambda layer: layer(torch.randn(T, B, IN), reset=freed(torch.ones(T, B, dtype=torch.bool))),
    "rows": lambda layer: layer(freed(torch.randn(T, IN)), offsets=torch.tensor([0, 2, T])),
    "offsets": lambda layer: layer(torch.randn(T, IN), offsets=freed(torch.tensor([0, 2, T]))),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", FREED)
def test_freed_memory_is_an_error(what: str, backend: str) -> None:
    """torch's own operators end the process at many of these."""
    with pytest.raises(RuntimeError, match="storage"):
        FREED[what](make(backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"])
def test_freed_parameters_are_an_error(name: str, backend: str) -> None:
    """What a sharded layer leaves that is called outside of what gathers it."""
    layer = make(backend)
    getattr(layer, name).data.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        layer(torch.randn(T, B, IN))


def test_freed_memory_elsewhere_is_an_error() -> None:
    cells, x = rnncc.load("lstm"), torch.randn(T, B, IN)
    with pytest.raises(RuntimeError, match="storage"):
        cells.LSTMCell(IN, H)(freed(x[0]))
    for stream, weight in ((freed, torch.clone), (torch.clone, freed)):
        with pytest.raises(RuntimeError, match="storage"):
            cells.lstm(stream(torch.randn(T, B, 4 * H)), weight(torch.randn(4 * H, H)), hidden_size=H)
    layer = make()
    for lost in (x, layer.weight_hh_l0):
        output, _ = layer(x)
        kept = lost.untyped_storage().nbytes()
        lost.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="storage"):
            output.sum().backward()
        lost.untyped_storage().resize_(kept)


def test_freed_memory_of_what_torch_reads_first_is_an_error() -> None:
    """The LRU's loop reads what its prologue computes from parameters."""
    layer = rnncc.load("lru").LRU(H, H)
    next(layer.parameters()).data.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        layer(torch.randn(T, B, H))


def test_a_backward_in_bfloat16_is_refused_by_the_op_of_a_whole_layer() -> None:
    """A CPU's backward reads more bits. Layers go the long way, so only a caller of the op itself meets this."""
    loaded = rnncc.load("lstm")
    kernels = importlib.import_module(f"{loaded.__name__}._runtime.package").kernels()[0]
    layer, x = loaded.LSTM(24, 40), torch.randn(3, 9, 24)
    layer(x)[0].sum().backward()
    ops, layout = kernels.whole[layer._whole.segment], layer._whole

    def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
        return [x.to(dtype), *(layer._parameters[name].detach().to(dtype) for name in layout.names)]

    output, *_, kept = ops.forward(tensors(torch.float32), (), layout.number, [], True)
    assert ops.forward(tensors(torch.bfloat16), (), layout.number, [], True) == []
    backward = getattr(getattr(torch.ops, ops.forward.namespace), f"{layout.segment}_whole_backward")
    needs = (1 << len(tensors(torch.float32))) - 1
    for dtype in (torch.float32, torch.bfloat16):
        saved = [tensor.to(dtype) for tensor in (torch.ones_like(output), *tensors(dtype), kept, output)]
        if dtype == torch.float32:
            made = backward(saved, 1, needs, False, layout.number, [])
            assert torch.allclose(made[1], layer.weight_ih_l0.grad, atol=1e-5)
        else:
            with pytest.raises(RuntimeError, match="backward does not fit its forward"):
                backward(saved, 1, needs, False, layout.number, [])
