"""A call of one step beside torch.nn's: small launches make the products, or torch does, and do the rest
(templates/include/rnncc/cuda/single.h). tests/runtime/test_single.py has what needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc
from rnncc import verify
from tests.cuda.harness import DTYPES, launches_of
from tests.runtime.test_whole import flat, squares

pytestmark = pytest.mark.gpu
THEIRS = {"lstm": ("LSTM", nn.LSTM, nn.LSTMCell), "nn_gru": ("nn_GRU", nn.GRU, nn.GRUCell),
          "nn_rnn": ("nn_RNN", nn.RNN, nn.RNNCell)}  # fmt: skip
# The largest leave their products to torch.
SHAPES = [(1, 64), (16, 64), (3, 7), (33, 130), (1, 1024), (256, 256), (300, 600)]


def pair(
    file: str, single: bool, *sizes: int, dtype: torch.dtype = torch.float32, bias: bool = True
) -> tuple[Any, Any]:
    """Ours, and torch.nn's in float64 on the CPU with the same parameters."""
    torch.manual_seed(0)
    name, layer, cell = THEIRS[file]
    ours = getattr(rnncc.load(file), f"{name}Cell" if single else name)(*sizes, bias=bias, device="cuda", dtype=dtype)
    theirs: Any = (cell if single else layer)(*sizes, bias=bias).double()
    zeros = {key: torch.zeros_like(value) for key, value in theirs.state_dict().items()}
    theirs.load_state_dict(zeros | ours.state_dict())  # an LSTM has one bias, torch's has two
    return ours, theirs


def states(file: str, lead: tuple[int, ...], hidden: int) -> Any:
    made = tuple(torch.randn(*lead, hidden, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return made if file == "lstm" else made[0]


def moved(hx: Any, dtype: torch.dtype) -> Any:
    if hx is None:
        return None
    made = tuple(each.detach().to("cuda", dtype).requires_grad_() for each in flat(hx))
    return made if isinstance(hx, tuple) else made[0]


def as_theirs(hx: Any) -> Any:
    """The same states for torch.nn's module."""
    if hx is None:
        return None
    made = tuple(each.detach().double().cpu().requires_grad_() for each in flat(hx))
    return made if isinstance(hx, tuple) else made[0]


def close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype and one.shape == other.shape
        assert verify.relative_error(one.detach().cpu(), other.detach()) <= verify.BOUNDS[dtype]


@pytest.mark.parametrize("file", list(THEIRS))
@pytest.mark.parametrize("dtype", list(DTYPES.values()))
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize(("batch", "hidden"), SHAPES)
def test_beside_torch(file: str, dtype: torch.dtype, single: bool, with_states: bool, batch: int, hidden: int) -> None:
    ours, theirs = pair(file, single, 24, hidden, dtype=dtype)
    theirs.load_state_dict({key: value.to(dtype).double() for key, value in theirs.state_dict().items()})
    x = torch.randn(*(() if single else (1,)), batch, 24, device="cuda", dtype=dtype, requires_grad=True)
    other = x.detach().double().cpu().requires_grad_()
    hx = states(file, (batch,) if single else (1, batch), hidden) if with_states else None
    own = moved(hx, dtype)
    hx = as_theirs(own)
    found, expected = flat(ours(x, own)), flat(theirs(other, hx))
    close(found, expected, dtype)
    names = [name for name, _ in ours.named_parameters()]
    parameters = dict(theirs.named_parameters())
    given = [x, *ours.parameters(), *(flat(own) if with_states else ())]
    wanted = [other, *(parameters[name] for name in names), *(flat(hx) if with_states else ())]
    close(list(torch.autograd.grad(squares(found), given)), list(torch.autograd.grad(squares(expected), wanted)), dtype)


@pytest.mark.parametrize("file", list(THEIRS))
def test_inputs_of_other_kinds(file: str) -> None:
    """Without a bias, without a batch, and where rows or units do not lie side by side."""
    for bias in (True, False):
        ours, theirs = pair(file, True, 6, 32, bias=bias)
        for x in (torch.randn(6), torch.randn(6, 3).T, torch.randn(3, 12)[:, ::2], torch.randn(3, 12)[:, :6]):
            close(flat(ours(x.cuda())), flat(theirs(x.double())), torch.float32)


@pytest.mark.parametrize("file", list(THEIRS))
def test_one_step_and_then_more(file: str) -> None:
    ours, theirs = pair(file, False, 6, 32)
    x = torch.randn(6, 3, 6)
    for steps in (1, 5, 1):
        close(flat(ours(x[:steps].cuda())), flat(theirs(x[:steps].double())), torch.float32)


@pytest.mark.parametrize("file", list(THEIRS))
def test_streams_graphs_and_compiling(file: str) -> None:
    ours, _ = pair(file, True, 6, 32)
    x = torch.randn(3, 6, device="cuda")
    with torch.no_grad():
        expected = flat(ours(x))
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            found = flat(ours(x))
        aside.synchronize()
        assert all(map(torch.equal, found, expected))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = flat(ours(x))
        for each in captured:
            each.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, captured, expected))
        compiled: Callable[..., Any] = torch.compile(ours, fullgraph=True, backend="aot_eager")
        close(flat(compiled(x)), [each.double().cpu() for each in expected], torch.float32)


@pytest.mark.parametrize("file", list(THEIRS))
def test_launches(file: str) -> None:
    """The products of the input and the state, and the rest of the step."""
    ours, _ = pair(file, True, 64, 64)
    x, hx = torch.randn(2, 64, device="cuda"), moved(states(file, (2,), 64), torch.float32)
    with torch.no_grad():
        ours(x, hx)
        names = launches_of(lambda: ours(x, hx))
    (single,) = (name for name in names if name.endswith("_forward_single"))
    assert names == ["small_products", single]
