"""A call of one step as a GPU runs it: a launch makes the products, cuBLAS those that are large, and small launches do
the rest. Here on the CPU's tensors, with the kernels in the emulator (whole_single.py). tests/cuda/test_single.py needs
a GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import locate
from tests.kept import shared_folder
from tests.long import runs_all
from tests.runtime import whole_on_gpu, whole_single
from tests.runtime.test_whole import LongWay, called, flat, gradients, squares, states_of
from tests.runtime.test_whole_on_gpu import TEXTS, closeness
from tests.runtime.whole_on_gpu import SINGLE

# One product; one that is not just added to what the input gives; two states of more parts; two phases; an operator
# along rows; a bias that the loop reads too, and a start that is not zero.
SHIPPED = {"lstm": "LSTM", "nn_gru": "nn_GRU", "slstm": "sLSTM", "mgu": "MGU"}
ROWS = "cell Rows\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b + sum(h[t-1]))\n"
# One matrix for several gates and states.
TIED = """
cell Tied
param A: matrix
state h, m
i = sigmoid(W@x + A@h[t-1] + R@m[t-1] + b)
m[t] = i*m[t-1] + (1 - i)*tanh(W@x + A@m[t-1] + R@h[t-1])
h[t] = tanh(A@h[t-1] + m[t])
"""
NAMES = [*SHIPPED.values(), "Read", "Rows", "Tied"]


TEXT = "\n".join([*(read_source(locate(file)).text for file in SHIPPED), TEXTS["Read"], ROWS, TIED])


# Once a process: pytest-xdist may give it other tests in between, and ops cannot be registered twice.
@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # In 16 bits most runs call the LSTM alone.
    others = {name.lower() for name in NAMES if name != "LSTM"} if not runs_all() else ()
    ways = ("forward", "backward")
    left_out = {f"{name}_0_{way}_single_{dtype}" for name in others for way in ways for dtype in ("bf16", "f16")}
    source = Source("cell.rnn", TEXT)
    fill = partial(whole_on_gpu.build, module=rnncc.compile(TEXT), source=source, space=SINGLE, left_out=left_out)
    return shared_folder(tmp_path_factory, "single", fill)


@pytest.fixture(scope="session")
def module(folder: Path) -> Any:
    """All of these cells, whose layers call the op of a GPU."""
    made = rnncc.compile(TEXT)
    whole_on_gpu.take(folder, made, SINGLE, [getattr(made, name).spec for name in NAMES])
    whole_single.take_products_of_16_bits()
    return made


@pytest.mark.one_in(7, "dtype")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(None, 1, 8), (None, 5, 7), (None, 18, 8), (1, 3, 24)])
def test_both_ways_compute_the_same(
    module: Any, name: str, dtype: torch.dtype, steps: int | None, batch: int, hidden: int
) -> None:
    torch.manual_seed(0)
    layer = getattr(module, name if steps else f"{name}Cell")(5, hidden, dtype=dtype)
    x = torch.randn(*([steps] if steps else []), batch, 5, dtype=dtype, requires_grad=True)
    hx = states_of(layer, (1, batch) if steps else (batch,), dtype)
    for tensor in flat(hx):
        tensor.requires_grad_()
    for states in (hx, None):
        given = [x, *layer.parameters(), *(flat(hx) if states is not None else ())]
        found = gradients(layer, x, states, given)
        with LongWay():
            expected = gradients(layer, x, states, given)
        with torch.no_grad():
            plain = flat(layer(x, states))
        for one, other in zip(plain, found, strict=False):
            assert torch.equal(one, other)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert (one - other).abs().max() <= closeness(dtype) * max(1.0, float(other.detach().abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_gradients_that_are_wanted(module: Any, name: str) -> None:
    torch.manual_seed(0)
    step, x = getattr(module, f"{name}Cell")(3, 8), torch.randn(2, 3, requires_grad=True)
    hx = states_of(step, (2,), torch.float32)
    states = flat(hx)
    for tensor in states:
        tensor.requires_grad_()
    given = [x, *step.parameters(), *states]
    expected = gradients(step, x, hx, given)[-len(given) :]
    for tensor, value in zip(given, expected, strict=True):
        for other in given:
            other.requires_grad_(other is tensor)
        (found,) = gradients(step, x, hx, [tensor])[-1:]
        assert torch.allclose(found, value, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_one_result_alone(module: Any, name: str) -> None:
    """The others bring no gradient."""
    torch.manual_seed(0)
    step, x = getattr(module, f"{name}Cell")(3, 8), torch.randn(2, 3, requires_grad=True)
    hx = states_of(step, (2,), torch.float32)
    for tensor in flat(hx):
        tensor.requires_grad_()
    given = [x, *step.parameters(), *flat(hx)]

    def one(index: int) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(squares(flat(step(x, hx))[index : index + 1]), given, allow_unused=True)

    for index in range(len(flat(hx))):
        found = one(index)
        with LongWay():
            expected = one(index)
        for value, other in zip(found, expected, strict=True):
            assert value is not None and other is not None and torch.allclose(value, other, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "theirs"), [("LSTM", nn.LSTM), ("LSTM", nn.LSTMCell), ("nn_GRU", nn.GRU), ("nn_GRU", nn.GRUCell)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_beside_torch(module: Any, name: str, theirs: type[nn.Module], bias: bool) -> None:
    torch.manual_seed(0)
    single = theirs.__name__.endswith("Cell")
    layer = getattr(module, f"{name}Cell" if single else name)(3, 8, bias=bias)
    expected: Any = theirs(3, 8, bias=bias)
    zeros = {key: torch.zeros_like(value) for key, value in expected.state_dict().items()}
    expected.load_state_dict(zeros | layer.state_dict())  # an LSTM has one bias, torch's has two
    for x in (torch.randn(2, 3), torch.randn(3), torch.randn(3, 2).T, torch.randn(2, 6)[:, ::2]):
        given = x if single else x.unsqueeze(0)  # [T, I] is a layer's input without a batch
        found, wanted = flat(layer(given)), flat(expected(given))
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found, wanted, strict=True))


def test_two_calls_and_a_longer_one(module: Any) -> None:
    """A layer that runs twice before its backward, and whose parameters change in between."""
    torch.manual_seed(0)
    step, x = module.LSTMCell(3, 8), torch.randn(2, 3)

    def twice() -> tuple[Tensor, ...]:
        states = step(x)
        states = step(x, states)
        return torch.autograd.grad(squares(states), list(step.parameters()))

    for _ in range(2):
        found = twice()
        with LongWay():
            expected = twice()
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected, strict=True))
        with torch.no_grad():
            for parameter in step.parameters():
                parameter.add_(0.1)


def test_weights_that_are_not_finite(module: Any) -> None:
    """Zeros for a state that is not given are multiplied, as torch.nn multiplies them."""
    step, x = module.LSTMCell(3, 8), torch.randn(2, 3)
    with torch.no_grad():
        step.weight_hh[0, 0] = float("nan")
        assert step(x)[0].isnan().any()


@pytest.mark.parametrize(
    ("dtype", "overlapping", "products"),
    [(torch.float32, False, 2), (torch.float32, True, 1), (torch.bfloat16, False, 1)],
)
def test_cublas_makes_large_products(
    module: Any, folder: Path, dtype: torch.dtype, overlapping: bool, products: int
) -> None:
    """The input's and the state's. torch makes those with a result of 16 bits, or of a state whose rows overlap."""
    torch.manual_seed(0)
    step, x = module.LSTMCell(5, 24, dtype=dtype), torch.randn(18, 5, dtype=dtype)
    states = [torch.randn(1, 24, dtype=dtype).expand(18, 24) for _ in range(2)]
    with torch.no_grad():
        before = whole_on_gpu.products_of_cublas(folder)
        found = step(x, tuple(states if overlapping else (state.contiguous() for state in states)))
        assert whole_on_gpu.products_of_cublas(folder) - before == products
        with LongWay():
            expected = step(x, tuple(states))
    assert all((one - other).abs().max() <= closeness(dtype) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_one_op(module: Any, name: str) -> None:
    step, x = getattr(module, f"{name}Cell")(3, 8), torch.randn(2, 3)
    step(x)  # the first call asks for the number of the layer's layout
    assert called(lambda: step(x)) == [f"{name.lower()}_0_whole_forward"]
