"""What the op of a whole layer does on a GPU around its loop: here on the CPU's tensors, with the CPU's loops
(whole_on_gpu.py). tests/cuda/test_whole.py has the rest, which needs a GPU."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import locate
from tests.kept import shared_folder
from tests.runtime import whole_on_gpu
from tests.runtime.test_whole import LongWay, called, flat, gradients, squares, states_of
from tests.runtime.whole_on_gpu import WHOLE_CALLS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Several streams; two biases, one of which the loop reads in part; both whole; heads and a state that begins at -inf; a
# scan; a single bias.
SHIPPED = {"lstm": "LSTM", "nn_gru": "nn_GRU", "nn_rnn": "nn_RNN", "slstm": "sLSTM", "mingru": "minGRU"}
# Columns without a bias, no bias at all, a bias that two gates have, and one that the loop reads too; states that do
# not begin at zero, and a constant.
GATES = """
cell {name}
const k = 0.5
state h = {start}
i = W_i@x + R_i@h[t-1] + b_i
g = W_g@x + R_g@h[t-1] {bias}
h[t] = sigmoid(i)*h[t-1] + k*tanh(g){read}
"""
TEXTS = {
    "Partly": GATES.format(name="Partly", start=0.25, bias="", read=""),
    "Bare": "cell Bare\nstate h\nh[t] = tanh(W@x + R@h[t-1])\n",
    "Shared": GATES.format(name="Shared", start=0, bias="+ b_i", read=""),
    "Read": GATES.format(name="Read", start=-1, bias="+ b_i", read="*sigmoid(h[t-1] + b_i)"),
}
NAMES = [*SHIPPED.values(), *TEXTS]
# A stream of one number, which moves the rows of the next one.
APART = "cell Apart\nlocal u: 1\nstate h\nu = W@x + R@h[t-1]\nh[t] = tanh(W@x + R@h[t-1] + b + sigmoid(u))\n"


# Once a process: pytest-xdist may give it other tests in between, and ops cannot be registered twice.
@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All of these cells, whose layers call the op of a GPU."""
    text = "\n".join([*(read_source(locate(file)).text for file in SHIPPED), *TEXTS.values(), APART])
    made = rnncc.compile(text)
    fill = partial(whole_on_gpu.build, module=made, source=Source("cell.rnn", text), space=WHOLE_CALLS)
    folder = shared_folder(tmp_path_factory, "whole", fill)
    whole_on_gpu.take(folder, made, WHOLE_CALLS, [getattr(made, name).spec for name in (*NAMES, "Apart")])
    made.__dict__["launches_of_given_products"] = partial(whole_on_gpu.launches_of_given_products, folder)
    return made


def closeness(dtype: torch.dtype) -> float:
    return {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]


@pytest.mark.one_in(7, "dtype")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("steps", "batch", "hidden", "heads"),
    [(None, 1, 8, 1), (None, 5, 12, 3), (1, 3, 7, 1), (7, 4, 24, 2), (7, 1, 8, 1)],
)
def test_both_ways_compute_the_same(
    module: Any, name: str, dtype: torch.dtype, steps: int | None, batch: int, hidden: int, heads: int
) -> None:
    torch.manual_seed(0)
    layer = getattr(module, name if steps else f"{name}Cell")(5, hidden, dtype=dtype, num_heads=heads)
    x = torch.randn(*([steps] if steps else []), batch, 5, dtype=dtype, requires_grad=True)
    hx = states_of(layer, (1, batch) if steps else (batch,), dtype)
    for tensor in flat(hx):
        tensor.requires_grad_()
    for states in (hx, None):
        given = [x, *layer.parameters(), *(flat(hx) if states is not None else ())]
        before = module.launches_of_given_products()
        found = gradients(layer, x, states, given)
        launches, work = (
            module.launches_of_given_products() - before,
            x.numel() * layer.get_parameter(layer._whole.names[0]).shape[0],
        )
        assert launches == (work <= whole_on_gpu.MOST_SHORT_WORK), "who makes the product of the input"
        with LongWay():
            expected = gradients(layer, x, states, given)
        with torch.no_grad():
            plain = flat(layer(x, states))
        assert all(map(torch.equal, plain, found))
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert (one - other).abs().max() <= closeness(dtype) * max(1.0, float(other.detach().abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_gradients_that_are_wanted(module: Any, name: str) -> None:
    layer, x = getattr(module, name)(3, 8), torch.randn(4, 2, 3, requires_grad=True)
    given = [x, *layer.parameters()]
    expected = gradients(layer, x, None, given)[-len(given) :]
    for tensor, value in zip(given, expected, strict=True):
        for other in given:
            other.requires_grad_(other is tensor)
        (found,) = gradients(layer, x, None, [tensor])[-1:]
        assert torch.allclose(found, value, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_call_is_one_op(module: Any, name: str) -> None:
    x = torch.randn(4, 2, 3)
    layer, step = getattr(module, name)(3, 8), getattr(module, f"{name}Cell")(3, 8)
    layer(x), step(x[0])  # the first call asks for the number of the layer's layout
    whole = f"{name.lower()}_0_whole_forward"
    assert called(lambda: layer(x)) == called(lambda: step(x[0])) == [whole]
    with torch.no_grad():
        assert called(lambda: layer(x)) == [whole]
    output = layer(x)[0]
    assert called(lambda: output.sum().backward()) == [f"{name.lower()}_0_whole_backward"]


@pytest.mark.parametrize(("hidden", "dtype"), [(8, torch.bfloat16), (4, torch.float32), (12, torch.bfloat16)])
def test_streams_lie_apart_where_their_rows_would_not_begin_at_16_bytes(
    module: Any, hidden: int, dtype: torch.dtype
) -> None:
    layer, step = module.Apart(3, hidden, dtype=dtype), module.ApartCell(3, hidden, dtype=dtype)
    x = torch.randn(4, 2, 3, dtype=dtype)
    output = layer(x)[0]
    whole = ["apart_0_whole_forward"]
    no_gain = hidden == 12  # rows of 24 bytes: apart they would not be aligned either
    assert (called(lambda: layer(x)) == whole) == no_gain
    step(x[0])
    assert called(lambda: step(x[0])) == called(lambda: layer(x[:1])) == whole, "a step's kernels take any rows"
    output.sum().backward()
    with LongWay():
        assert torch.allclose(layer(x)[0], output, atol=closeness(dtype))


@pytest.mark.parametrize("name", ["LSTM", "nn_GRU", "Read"])
def test_second_derivatives_and_second_backwards(module: Any, name: str) -> None:
    torch.manual_seed(1)
    layer, x = getattr(module, name)(2, 3), torch.randn(3, 2, 2, requires_grad=True)
    given = [x, *layer.parameters()]

    def second() -> tuple[Tensor, ...]:
        first = torch.autograd.grad(squares(flat(layer(x))), given, create_graph=True)
        return torch.autograd.grad(squares(first), given)

    found = second()
    with LongWay():
        expected = second()
    assert all(torch.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in zip(found, expected, strict=True))
    loss = squares(flat(layer(x)))
    once = torch.autograd.grad(loss, given, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(loss, given)))


def test_what_the_op_does_not_take(module: Any) -> None:
    layer, x = module.LSTM(3, 8), torch.randn(4, 2, 3)
    whole = ["lstm_0_whole_forward"]
    expected = layer(x)[0]
    wide = torch.randn(4, 2, 6)
    wide[..., ::2] = x
    assert torch.allclose(layer(wide[..., ::2])[0], expected, atol=1e-6)
    assert called(lambda: layer(wide[..., ::2])) != whole
    wide[..., :3] = x
    assert torch.allclose(layer(wide[..., :3])[0], expected, atol=1e-6)
    assert called(lambda: layer(wide[..., :3])) == whole, "rows may lie further apart"
    with torch.no_grad():
        layer.eval().freeze()
        assert torch.allclose(layer(x)[0], layer.unfreeze()(x)[0], atol=1e-6), "packed weights are for the CPU's op"
    with pytest.raises(RuntimeError, match=r"input\.size"):
        layer(torch.randn(4, 2, 5))
    with pytest.raises(RuntimeError, match="not the same dtype"):
        layer(x, (torch.zeros(1, 2, 8).bfloat16(), torch.zeros(1, 2, 8).bfloat16()))
    for name in ("x", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
        layer, x = module.LSTM(3, 8), torch.randn(4, 2, 3)
        freed = x if name == "x" else getattr(layer, name).data
        freed.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="freed"):
            layer(x)


def test_strides_of_dimensions_of_one(module: Any) -> None:
    layer, step = module.LSTM(3, 8), module.LSTMCell(3, 8)
    x = torch.randn(1, 1, 3)
    odd = x.as_strided((1, 1, 3), (0, 77, 1)).requires_grad_()
    hx = tuple(torch.randn(1, 1, 8).as_strided((1, 1, 8), (1, 0, 1)) for _ in range(2))
    with LongWay():
        expected = gradients(layer, odd, hx, [odd, *layer.parameters()])
    found = gradients(layer, odd, hx, [odd, *layer.parameters()])
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found, expected, strict=True))
    assert torch.equal(step(odd[0])[0], step(x[0])[0])
    one = module.LSTM(1, 8)
    assert torch.equal(one(torch.ones(2, 3, 1).expand(2, 3, 5)[..., :1])[0], one(torch.ones(2, 3, 1))[0])


def test_a_package_without_gpu_kernels_declines() -> None:
    """Its op returns nothing for tensors elsewhere than on the CPU."""
    layer = rnncc.load("lstm").LSTM(3, 4)
    package = importlib.import_module(f"{rnncc.load('lstm').__name__}._runtime.package")
    whole = package.kernels()[0].whole["lstm_0"]
    meta = torch.empty(1, 1, 3, device="meta")
    assert whole.forward([meta], (), 0, (), False) == []
    assert layer.to("meta")(meta)[0].is_meta
