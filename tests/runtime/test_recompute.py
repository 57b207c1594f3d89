"""`recompute=True`: what lasts until the backward, and that nothing else is different.

That gradients are the same to the last bit is tested for every shipped cell (test_cells_built.py) and for every feature
of the language (test_language.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import rnncc
from tests.packages import float64_package
from tests.runtime.test_ops import CELLS, arguments, make

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H = 4, 2, 3, 4
MASKS: dict[str, Any] = {
    "lengths": torch.tensor([4, 2]),
    "reset": torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]]),
}


def pair(file: str, name: str, **options: Any) -> tuple[Any, Any]:
    """A layer that keeps everything and one that recomputes, with the same parameters."""
    plain, again = make(file, name, **options), make(file, name, recompute=True, **options)
    again.load_state_dict(plain.state_dict())
    return plain, again


def gradients(layer: Any, x: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Of a loss over the output, for the input and every parameter."""
    x = x.detach().requires_grad_()
    loss = layer(x, **options)[0].double().square().sum()
    return torch.autograd.grad(loss, [x, *layer.parameters()])


def same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def bytes_kept(layer: Any, x: Tensor, **options: Any) -> int:
    """Of the tensors that autograd holds between forward and backward, each memory once."""
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = layer(x, **options)
    output.sum().backward()
    return sum(held.values())


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(
    ("file", "name", "dtype", "spared"),
    [
        # How many gates per unit are not saved; they are float32 for bfloat16 too.
        ("lstm", "LSTM", torch.float32, 4),
        ("lstm", "LSTM", torch.bfloat16, 4),
        ("lstm", "LSTM", torch.float64, 4),
        ("gru", "GRU", torch.float32, 3),
        ("slstm", "sLSTM", torch.bfloat16, 4),
        # Its step has no product: the backward computes everything anyway, and only states are kept.
        ("mingru", "minGRU", torch.float32, 0),
    ],
)
def test_only_states_last_until_the_backward(
    file: str, name: str, dtype: torch.dtype, spared: int, masked: bool
) -> None:
    plain, again = pair(file, name)
    plain._whole = None  # the op of a whole layer does not keep the streams
    segment = plain.spec.segments[0]
    x = torch.randn(T, B, IN, dtype=dtype)
    less = bytes_kept(plain.to(dtype), x, **(MASKS if masked else {})) - bytes_kept(
        again.to(dtype), x, **(MASKS if masked else {})
    )
    loop = segment.masked if masked else segment.plain
    values = [
        saved.width(plain._sizes[0]) for saved, state in zip(loop.saved, loop.saved_state, strict=True) if state < 0
    ]
    assert sum(values) == spared * H
    assert less == T * B * spared * H * (8 if dtype == torch.float64 else 4)


def test_explain_says_what_is_kept() -> None:
    plain, again = pair("lstm", "LSTM")
    # i, f, g, o and c; h is the output.
    assert (
        f"each step of a batch entry keeps {8 * 5 * H} bytes for the backward, {8 * H} with recompute"
        in plain.explain()
    )
    assert "no effect" not in again.explain()
    again.backend = "reference"
    assert "recompute: no effect" in again.explain()
    assert "recompute=True" in repr(again) and "recompute" not in repr(plain)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("file", "name"), CELLS, ids=[c[1] for c in CELLS])
def test_opcheck(file: str, name: str) -> None:
    for options in ({}, MASKS | {"reset": MASKS["reset"].bool()}):
        op, given = arguments(make(file, name), recompute=True, **options)
        assert set(torch.library.opcheck(op, given).values()) == {"SUCCESS"}
        strided = [stream.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for stream in given[0]]
        assert set(torch.library.opcheck(op, (strided, *given[1:])).values()) == {"SUCCESS"}


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_gradients_of_both_orders(masked: bool) -> None:
    layer = make("lstm", "LSTM", recompute=True, bidirectional=masked)
    x = torch.randn(T, B, IN, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Any:
        return layer(x, **(MASKS if masked else {}))[0]

    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,), fast_mode=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_many_steps_are_computed_again_in_blocks(bidirectional: bool) -> None:
    """A block is a batch of 16,384, and the last one is shorter. A single batch entry has its steps in place of the
    batch. Layouts differ."""
    plain, again = pair("lstm", "LSTM", bidirectional=bidirectional)
    for steps, batch in ((6000, 3), (20000, 1), (1, 5), (2, 40000)):
        x = torch.randn(steps, batch, IN, dtype=torch.float64)
        reset = torch.rand(steps, batch) < 0.1
        assert same(gradients(again, x), gradients(plain, x))
        assert same(gradients(again, x, reset=reset), gradients(plain, x, reset=reset))
    plain.batch_first = again.batch_first = True
    assert same(gradients(again, x), gradients(plain, x))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
def test_nothing_to_compute(shape: tuple[int, int]) -> None:
    plain, again = pair("gru", "GRU")
    x = torch.randn(*shape, IN, dtype=torch.float64)
    assert same(gradients(again, x), gradients(plain, x))


def test_streams_in_any_layout() -> None:
    """Columns that do not lie evenly are copied."""
    package = rnncc.load("lstm")
    weight = torch.randn(4 * H, H, requires_grad=True)
    wide = torch.randn(B, T, 4 * H + 4)[..., : 4 * H].transpose(0, 1)
    same_for_all = torch.randn(B, 4 * H).expand(T, B, 4 * H)
    for stream in (wide, same_for_all, torch.randn(T, 1, 4 * H).expand(T, B, 4 * H)):
        found = []
        for recompute in (False, True):
            leaf = stream.detach().requires_grad_()
            output, (_, c) = package.lstm(leaf, weight, hidden_size=H, recompute=recompute, reverse=True)
            found.append(torch.autograd.grad(output.sum() + c.square().sum(), [leaf, weight]))
        assert same(found[1], found[0])


def test_retain_graph_and_checkpoint() -> None:
    plain, again = pair("slstm", "sLSTM")
    x = torch.randn(T, B, IN, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(plain(x)[0].square().sum(), [x, *plain.parameters()])
    loss = again(x)[0].square().sum()
    inputs = [x, *again.parameters()]
    for retain in (True, False):
        assert same(torch.autograd.grad(loss, inputs, retain_graph=retain), expected)
    for reentrant in (False, True):
        output = checkpoint(lambda value: again(value)[0], x, use_reentrant=reentrant)
        again.zero_grad()
        x.grad = None
        output.square().sum().backward()
        assert same(tuple(value.grad for value in inputs), expected)


def test_a_changed_output_is_noticed() -> None:
    """The sequence of a state that was returned is the one that is saved."""
    output, _ = make("lstm", "LSTM", recompute=True)(torch.randn(T, B, IN, dtype=torch.float64))
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_autocast() -> None:
    plain, again = (layer.float() for layer in pair("lstm", "LSTM"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.randn(T, B, IN)
        assert same(gradients(again, x, **MASKS), gradients(plain, x, **MASKS))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_compiles_as_one_graph_and_keeps_as_little(backend: str) -> None:
    """The second backend divides the joint graph as inductor does, by what is cheapest to keep."""
    torch._dynamo.reset()
    plain, again = pair("lstm", "LSTM")
    compiled: Any = torch.compile(again, fullgraph=True, backend=backend)
    x = torch.randn(T, B, IN, dtype=torch.float64)
    for options in ({}, {"lengths": MASKS["lengths"]}):
        for a, b in zip(gradients(compiled, x, **options), gradients(plain, x, **options), strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    other: Any = torch.compile(plain, fullgraph=True, backend=backend)
    assert bytes_kept(other, x) - bytes_kept(compiled, x) == T * B * 4 * H * 8


def test_a_state_is_kept_that_only_saved_values_follow_from() -> None:
    """The backward of a mean reads no state, but h[t] cannot be made again without c[t-1]."""
    text = """cell Mean
state h, c
u = sigmoid(mean(c[t-1]) + W@x)
h[t] = u * h[t-1]
c[t] = W@x + 0.5*c[t-1] + 0.1*h[t-1]
"""
    layer = float64_package(text, "mean_state").Mean(IN, H, dtype=torch.float64, bidirectional=True)
    loop = layer.spec.segments[0].plain
    assert min(loop.saved_state) < 0 and sorted(state for state in loop.saved_state if state >= 0) == [0, 1]
    x = torch.randn(T, B, IN, dtype=torch.float64)
    expected = gradients(layer, x)
    layer.recompute = True
    assert same(gradients(layer, x), expected)


def test_wrong_arguments() -> None:
    package = rnncc.load("lstm")
    with pytest.raises(TypeError, match="recompute should be of type bool"):
        package.LSTM(IN, H, recompute=1)
    with pytest.raises(rnncc.RnnccError, match="recompute"):
        rnncc.compile("cell Bad\nstate h\nconst recompute = 1.0\nh[t] = recompute * tanh(W@x)\n", "bad_recompute")
    op, given = arguments(make("lstm", "LSTM"), recompute=True)
    backward = getattr(torch.ops, op.default.namespace).lstm_0_backward
    streams, weights, states = ([t.detach() for t in group] for group in given[:3])
    with torch.no_grad(), pytest.raises(RuntimeError, match="saved tensors, got 1"):
        backward([], [], [], [], streams, weights, states, [states[0]], *given[3:11], [True] * 4)
