"""What a call is given beside its first input follows the first one's rules of kind, dtype and device, also under
another default device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

import rnncc

T, B, IN, H = 5, 3, 4, 6
TEXT = """
cell Gap
input g: 1, c: 2 per sequence
state h
local k: 2
k = c
p, q = split(k)
h[t] = exp(-g*g)*h[t-1] + tanh(W@x + R@h[t-1] + b) + 0.1*p - q

cell Masked
state h
weights R: mask(density=0.5)
h[t] = tanh(W@x + R@h[t-1] + b)

cell Kept
input g: 1
state h
h[t] = 0.5*h[t-1] + g*x + max(h[t-1], 0.25)
"""
BACKENDS = ("cpu", "reference")
Call = Callable[..., Any]


@cache
def package() -> Any:
    return rnncc.compile(TEXT, "gap")


def call_layer(backend: str, g: Any, c: Any) -> Any:
    return package().Gap(IN, H, backend=backend)(torch.randn(T, B, IN), g=g, c=c)


def call_step(backend: str, g: Any, c: Any) -> Any:
    return package().GapCell(IN, H, backend=backend)(torch.randn(B, IN), g=g[0] if torch.is_tensor(g) else g, c=c)


def call_rows(backend: str, g: Any, c: Any) -> Any:
    """Packed: the batch's entries one after the other."""
    rows, offsets = torch.randn(T * B, IN), torch.arange(0, T * B + 1, T)
    g = g.transpose(0, 1).flatten(0, 1) if torch.is_tensor(g) else g
    return package().Gap(IN, H, backend=backend)(rows, offsets=offsets, g=g, c=c)


CALLS = (call_layer, call_step, call_rows)
OTHERS = [torch.int64, torch.bool, torch.complex64, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("name", ["g", "c"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_they_have_the_first_inputs_dtype(backend: str, call: Call, name: str, dtype: torch.dtype) -> None:
    given = {"g": torch.ones(T, B, 1), "c": torch.ones(B, 2)}
    call(backend, **given)
    given[name] = given[name].to(dtype)
    if dtype.is_floating_point:
        message = rf"{name}'s dtype \({dtype}\) does not match the input's \(torch.float32\). Convert it: {name}.to"
        with pytest.raises(ValueError, match=message):
            call(backend, **given)
        return
    with pytest.raises(TypeError, match=f"takes floating-point {name}, got {dtype}"):
        call(backend, **given)


@pytest.mark.parametrize("name", ["g", "c"])
@pytest.mark.parametrize("call", CALLS)
def test_they_are_on_the_first_inputs_device(call: Call, name: str) -> None:
    given = {"g": torch.ones(T, B, 1), "c": torch.ones(B, 2)}
    given[name] = given[name].to("meta")
    with pytest.raises((RuntimeError, ValueError), match=f"{name} .*at meta|{name} must be on the input's device"):
        call("cpu", **given)


@pytest.mark.parametrize("call", CALLS)
def test_they_are_dense_tensors(call: Call) -> None:
    with pytest.raises(TypeError, match=r"(Gap: )?g should be a tensor, got: list|g must be packed as the input is"):
        call("cpu", g=[1.0], c=torch.ones(B, 2))
    with pytest.raises(TypeError, match="c should be a tensor, got: float"):
        call("cpu", g=torch.ones(T, B, 1), c=0.5)
    with pytest.raises(TypeError, match=r"Gap \(c\) takes dense tensors.*call x.to_dense"):
        call("cpu", g=torch.ones(T, B, 1), c=torch.ones(B, 2).to_sparse())


def test_autocast_takes_what_it_makes() -> None:
    """Under autocast the results of other modules have 16 bits; they may be further inputs, as they may be the first
    one."""
    layer, x = package().Gap(IN, H), torch.randn(T, B, IN)
    g, c = torch.rand(T, B, 1).bfloat16(), torch.rand(B, 2).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x, g=g, c=c)[0], layer(x, g=g.float(), c=c.float())[0])
        with pytest.raises(ValueError, match="g's dtype"):
            layer(x, g=g.double(), c=c)
        with pytest.raises(TypeError, match="floating-point g"):
            layer(x, g=g.long(), c=c)


@pytest.fixture(params=["meta", "default"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Another default device, in both ways in which one is set."""
    if request.param == "meta":
        with torch.device("meta"):
            yield
        return
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def given_call(layer: Any, given: Any) -> Any:
    return layer(torch.ones(T, B, IN, device="cpu"), **given)


LISTS: dict[str, Callable[[], Any]] = {
    "lengths": lambda: {"lengths": [5, 3, 1]},
    "tensor lengths": lambda: {"lengths": torch.tensor([5, 3, 1], device="cpu")},
    "reset": lambda: {"reset": [[False] * B] * (T - 1) + [[True] * B]},
    "both": lambda: {"lengths": [5, 3, 0], "reset": [[False] * B] * T},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", LISTS)
def test_lists_go_to_the_input_under_any_default_device(what: str, backend: str, elsewhere: None) -> None:
    layer = rnncc.load("lstm").LSTM(IN, H, bidirectional=True, backend=backend, device="cpu")
    found, _ = given_call(layer, LISTS[what]())
    with torch.device("cpu"):
        expected, _ = given_call(layer, LISTS[what]())
    assert found.device.type == "cpu" and torch.equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_call_runs_under_any_default_device(backend: str, elsewhere: None) -> None:
    """Masks that are looked at, numbers in equations, packed rows, single steps, the functional op."""
    x = torch.randn(T, B, IN, device="cpu")
    masked = package().Masked(IN, H, backend=backend, device="cpu")
    masked.set_mask("R", torch.eye(H, dtype=torch.bool, device="cpu"))
    assert masked(x, lengths=[1, 2, 3])[0].device.type == "cpu" and masked.explain()
    kept = package().Kept(IN, IN, backend=backend, device="cpu")
    g = torch.rand(T, B, 1, device="cpu")
    assert kept(x, g=g)[0].device.type == "cpu"
    assert package().KeptCell(IN, IN, backend=backend, device="cpu")(x[0], g=g[0]).device.type == "cpu"
    layer = rnncc.load("lstm").LSTM(IN, H, 2, bidirectional=True, backend=backend, device="cpu")
    offsets = torch.tensor([0, 5, 5, 15], device="cpu")
    output, _ = layer(x.flatten(0, 1), offsets=offsets)
    output.sum().backward()
    assert layer.weight_hh_l0.grad.device.type == "cpu"
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 1], device="cpu"))
    assert layer(packed)[0].data.device.type == "cpu"
    stream, weight = torch.randn(T, B, 4 * H, device="cpu"), torch.randn(4 * H, H, device="cpu")
    op = rnncc.load("lstm").lstm
    assert op(stream, weight, hidden_size=H, lengths=[1, 2, 3], backend=backend)[0].device.type == "cpu"
    frozen = rnncc.load("lstm").LSTM(IN, H, device="cpu").eval().freeze()
    with torch.no_grad():
        assert frozen(x)[0].device.type == "cpu"
    assert rnncc.load("lstm").LSTM(IN, H, zoneout={"h": 0.5}, device="cpu")(x)[0].device.type == "cpu"


@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_hh_mask_l0"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_freed_memory_of_a_masked_matrix_is_an_error(backend: str, name: str) -> None:
    layer = package().Masked(IN, H, backend=backend)
    getattr(layer, name).data.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        layer(torch.randn(T, B, IN))
    with pytest.raises(RuntimeError, match="storage"):
        layer.set_mask("R", torch.ones(H, H, dtype=torch.bool))


def test_the_first_input_is_a_tensor() -> None:
    cells = rnncc.load("lstm")
    for call in (cells.LSTM(IN, H), cells.LSTM(IN, H, bias=False, bidirectional=True), cells.LSTMCell(IN, H)):
        for given, kind in (([1, 2], "list"), (None, "NoneType"), (torch.ones(T, B, IN).numpy(), "ndarray")):
            with pytest.raises(TypeError, match=f"LSTM: input should be a tensor, got: {kind}"):
                call(given)
        with pytest.raises(TypeError, match="LSTM: input should be a tensor, got: list"):
            call([1, 2], (torch.zeros(1, B, H), torch.zeros(1, B, H)))
        with pytest.raises(TypeError, match=r"got torch.int64: input.to\(torch.float32\) for numbers, nn.Embedding"):
            call(torch.ones(B, IN, dtype=torch.int64))


def test_the_results_of_a_call_share_no_memory() -> None:
    """A sequence of the output's own name is not the output."""
    cells, x = rnncc.load("lstm"), torch.randn(T, B, IN)
    for backend in BACKENDS:
        for options in (
            {},
            {"bidirectional": True},
            {"batch_first": True},
            {"num_layers": 2, "return_all_layers": True},
        ):
            layer = cells.LSTM(IN, H, return_sequences_of=("h", "c"), backend=backend, **options)
            for given in ({}, {"lengths": [3, 3, 3]}):
                with torch.no_grad():
                    output, (h, c), sequences = layer(x if "batch_first" not in options else x[:3], **given)
                made = [output, h, c]
                for value in sequences.values():
                    made += value if isinstance(value, tuple) else [value]
                assert len({tensor.untyped_storage().data_ptr() for tensor in made}) == len(made)
        stream, weight = torch.randn(T, B, 4 * H), torch.randn(4 * H, H)
        output, _, sequences = cells.lstm(
            stream, weight, hidden_size=H, return_sequences_of=("h",), backend=backend
        )  # fmt: skip
        assert output.data_ptr() != sequences["h"].data_ptr() and torch.equal(output, sequences["h"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_two_devices_are_an_error(backend: str) -> None:
    """torch's own operators let a meta tensor pass beside one of the CPU, and give no numbers."""
    cells, x, stream, weight = (
        rnncc.load("lstm"), torch.randn(T, B, IN), torch.randn(T, B, 4 * H), torch.randn(4 * H, H)
    )  # fmt: skip
    layer, states = cells.LSTM(IN, H, backend=backend), (torch.zeros(1, B, H, device="meta"),) * 2
    calls: list[Callable[[], Any]] = [
        lambda: layer(x.to("meta")), lambda: layer(x, states), lambda: layer(x, states, lengths=[1, 2, 3]),
        lambda: cells.LSTM(IN, H, backend=backend, device="meta")(x),
        lambda: cells.LSTMCell(IN, H, backend=backend)(x[0], tuple(state[0] for state in states)),
        lambda: cells.lstm(stream.to("meta"), weight, hidden_size=H, backend=backend),
        lambda: cells.lstm(stream, weight.to("meta"), hidden_size=H, backend=backend),
        lambda: cells.lstm(stream, weight, tuple(state[0] for state in states), backend=backend),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RuntimeError, match=r"not at the same device, found tensors at .*meta"):
            call()
