"""A call of one layer and direction, or of a single step, on the CPU is one op. Other calls go the long way, and both
ways compute the same."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

import rnncc
from tests.packages import float64_package

CELLS = [
    ("lstm", "LSTM"),
    ("gru", "GRU"),
    ("nn_gru", "nn_GRU"),
    ("nn_rnn", "nn_RNN"),
    ("mingru", "minGRU"),
    ("slstm", "sLSTM"),
    ("gruv3", "GRUv3"),
]

# A state that does not begin at zero, and a constant.
STARTED = """
cell Started
const k = 0.5
state h = 0.25
z = sigmoid(W@x + R@h[t-1] + b)
h[t] = z*h[t-1] + k*(1 - z)*tanh(W@x + b)
"""


class LongWay(TorchDispatchMode):
    """A call in any mode goes the long way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


def make(file: str, name: str, *arguments: Any, **options: Any) -> Any:
    module = rnncc.compile(STARTED) if file == "started" else rnncc.load(file)
    return getattr(module, name)(*arguments, **options)


def called(run: Callable[[], object]) -> list[str]:
    """The ops of packages that a call runs, by their last names."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        run()
    return [str(event.name).split("::")[-1] for event in seen.events() if str(event.name).startswith("rnncc_")]


def flat(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [tensor for each in result for tensor in flat(each)]


def squares(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([value.square().sum() for value in values]).sum()


def states_of(module: Any, lead: tuple[int, ...], dtype: torch.dtype) -> Any:
    sizes = module._sizes[0]
    made = tuple(torch.randn(*lead, state.width(sizes), dtype=dtype) for state in module.spec.states)
    return made if len(made) > 1 else made[0]


def gradients(module: Any, x: Tensor, hx: Any, given: list[Tensor]) -> list[Tensor]:
    values = flat(module(x, hx))
    loss = sum((k + 1) * value.square().sum() for k, value in enumerate(values))
    assert isinstance(loss, Tensor)
    return [*values, *torch.autograd.grad(loss, given)]


@pytest.mark.one_in(5, "dtype")
@pytest.mark.parametrize(("file", "name"), [*CELLS, ("started", "Started")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("steps", "batch", "hidden"), [(None, 1, 7), (None, 18, 70), (1, 300, 5), (1, 5, 130), (6, 3, 4)]
)
def test_both_ways_compute_the_same(
    file: str, name: str, dtype: torch.dtype, steps: int | None, batch: int, hidden: int
) -> None:
    torch.manual_seed(0)
    module = make(file, name if steps else f"{name}Cell", 5, hidden, dtype=dtype)
    x = torch.randn(*([steps] if steps else []), batch, 5, dtype=dtype, requires_grad=True)
    hx = states_of(module, (1, batch) if steps else (batch,), dtype)
    for tensor in flat(hx):
        tensor.requires_grad_()
    for states in (hx, None):
        given = [x, *module.parameters(), *(flat(hx) if states is not None else ())]
        found = gradients(module, x, states, given)
        with LongWay():
            expected = gradients(module, x, states, given)
        with torch.no_grad():
            plain = flat(module(x, states))
        count = len(plain)
        assert all(map(torch.equal, found[:count], expected[:count])), "the forwards have the same bits"
        assert all(map(torch.equal, plain, found[:count]))
        bound = 1e-4 if dtype == torch.float32 else 1e-12
        for one, other in zip(found[count:], expected[count:], strict=True):
            assert (one - other).abs().max() <= bound * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("file", "name", "frozen"), [("lstm", "LSTM", True), ("gruv3", "GRUv3", False)])
def test_a_long_call_makes_its_streams_block_by_block(
    file: str, name: str, frozen: bool, dtype: torch.dtype, threads: int
) -> None:
    """Several blocks, the last of which is shorter: the same bits as the product of the whole input, in training (where
    streams may be kept) and without gradients, and with packed weights."""
    torch.manual_seed(0)
    module = make(file, name, 11, 37, dtype=dtype)
    x = torch.randn(61, 21, 11, dtype=dtype, requires_grad=True)
    given = [x, *module.parameters()]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with LongWay():
            expected = gradients(module, x, None, given)
        found = gradients(module, x, None, given)
        with torch.no_grad():
            plain = flat(module(x))
            packed = flat(module.eval().freeze()(x)) if frozen else plain
    finally:
        torch.set_num_threads(before)
    count = len(plain)
    for values in (found[:count], plain, packed):
        assert all(map(torch.equal, values, expected[:count]))
    bound = 1e-4 if dtype == torch.float32 else 1e-12
    for one, other in zip(found[count:], expected[count:], strict=True):
        assert (one - other).abs().max() <= bound * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize(("file", "name"), [("lstm", "LSTM"), ("nn_gru", "nn_GRU"), ("started", "Started")])
@pytest.mark.parametrize("steps", [None, 3, 90])
def test_bfloat16_without_gradients_is_one_op(file: str, name: str, steps: int | None) -> None:
    """Beside float64 of the same numbers, values are as near as those of the long way, which rounds the streams."""
    torch.manual_seed(0)
    module = make(file, name if steps else f"{name}Cell", 24, 40, dtype=torch.bfloat16)
    x = torch.randn(*([steps] if steps else []), 9, 24, dtype=torch.bfloat16)
    hx = states_of(module, (1, 9) if steps else (9,), torch.bfloat16)
    exact_hx = hx.double() if isinstance(hx, Tensor) else tuple(each.double() for each in hx)
    with torch.no_grad():
        module(x, hx)
        assert [op.rpartition("_whole_")[2] for op in called(lambda: module(x, hx))] == ["forward"]
        for states, exact_states in ((hx, exact_hx), (None, None)):
            with LongWay():
                long = flat(module(x, states))
            exact = flat(copy.deepcopy(module).double()(x.double(), exact_states))
            for one, other, right in zip(flat(module(x, states)), long, exact, strict=True):
                assert one.dtype == other.dtype == torch.bfloat16
                assert (one - right).norm() <= 1.2 * (other - right).norm() + 2**-9 * right.norm()
    assert module(x)[0].grad_fn is not None


TIED = """
cell Tied
input x: H
state h
a = W_a@x
h[t] = tanh(a + W_a@h[t-1] + b)
"""


@pytest.mark.parametrize("single", [False, True])
def test_a_matrix_of_the_input_that_the_loop_reads_too(single: bool) -> None:
    made = float64_package(TIED)
    layer = (made.TiedCell if single else made.Tied)(6, 6, dtype=torch.float64)
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    h = torch.zeros(3, 6, dtype=torch.float64)
    expected_of = dict(layer.named_parameters())
    weight, bias = (next(p for p in expected_of.values() if p.dim() == dims) for dims in (2, 1))
    for row in x[:1] if single else x:
        h = torch.tanh((row + h) @ weight.t() + bias)
    found = flat(layer(x[0]) if single else layer(x)[1])[-1]
    assert torch.allclose(found.view_as(h), h, atol=1e-12)
    expected = torch.autograd.grad(h.square().sum(), [weight, bias])
    for one, other in zip(torch.autograd.grad(found.square().sum(), [weight, bias]), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("single", [False, True])
def test_hooks_on_saved_tensors_may_change_how_they_lie(single: bool) -> None:
    layer = make("lstm", "LSTMCell" if single else "LSTM", 5, 8)
    x = torch.randn(*(() if single else (7,)), 3, 5)

    def loss() -> Tensor:
        return squares(flat(layer(x)))

    def given_back(change: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.detach().clone(), change):
            return torch.autograd.grad(loss(), list(layer.parameters()))

    expected = torch.autograd.grad(loss(), list(layer.parameters()))

    def spread(kept: Tensor) -> Tensor:
        return kept.new_empty((*kept.shape, 2))[..., 0].copy_(kept)

    def moved(kept: Tensor) -> Tensor:
        return kept.new_empty(kept.numel() + 1)[1:].copy_(kept.flatten()).view(kept.shape)

    for change in (spread, moved):
        for one, other in zip(given_back(change), expected, strict=True):
            assert torch.equal(one, other)
    given = {tuple(parameter.shape) for parameter in layer.parameters()} | {tuple(x.shape)}

    def rounded(kept: Tensor) -> Tensor:
        return kept if tuple(kept.shape) in given else kept.half()

    with pytest.raises(RuntimeError, match="backward does not fit its forward"):
        given_back(rounded)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("vectors", "is_one_op"), [(57, True), (58, False)])
def test_more_tensors_than_bits_go_the_long_way(vectors: int, is_one_op: bool) -> None:
    """62 and 63 tensors: x, the state, three parameters and the vectors."""
    groups = "".join(f"weights k{i}: vector\n" for i in range(vectors))
    values = "".join(f"a{i + 1} = tanh(k{i}*a{i})\n" for i in range(vectors))
    text = f"cell Many\nstate h\n{groups}a0 = W@x + R@h[t-1] + b\n{values}h[t] = tanh(a{vectors})\n"
    layer: Any = float64_package(text).Many(3, 2, dtype=torch.float64)
    assert (layer._whole is not None) == is_one_op
    hx = torch.randn(1, 1, 2, dtype=torch.float64, requires_grad=True)
    layer(torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True), hx)[0].sum().backward()
    assert hx.grad is not None and all(parameter.grad is not None for parameter in layer.parameters())


def test_a_call_that_goes_the_long_way_copies_no_input() -> None:
    several = make("elman", "Elman", 5, 3, num_layers=2, batch_first=True)
    pruned = make("elman", "Elman", 5, 3, batch_first=True)
    prune.identity(pruned, "weight_hh_l0")  # type: ignore[no-untyped-call]
    x = torch.randn(4, 6, 5)
    for layer in (several, pruned):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen, torch.no_grad():
            layer(x)
        copies = [event for event in seen.events() if event.name == "aten::copy_"]
        assert len(copies) <= 1


def test_a_plain_call_is_one_op() -> None:
    x = torch.randn(4, 2, 3)
    for file, name in CELLS:
        layer, step = make(file, name, 3, 8), make(file, f"{name}Cell", 3, 8)
        layer(x), step(x[0])  # the first call asks for the number of the layer's layout
        first = f"{file}_0_whole"
        assert called(lambda: layer(x)) == called(lambda: step(x[0])) == [f"{first}_forward"]  # noqa: B023
        output = layer(x)[0]
        assert called(lambda: output.sum().backward()) == [f"{first}_backward"]  # noqa: B023
    layer = make("lstm", "LSTM", 3, 8, batch_first=True)
    layer(x)
    assert called(lambda: layer(x)) == ["lstm_0_whole_forward"]


@pytest.mark.parametrize("options", [
    {"num_layers": 2}, {"bidirectional": True}, {"return_sequences_of": ("c",)}, {"recompute": True},
    {"recurrent_gradient_clip": 0.1}, {"weight_dropout": 0.5}, {"state_dtype": torch.bfloat16},
])  # fmt: skip
def test_what_the_op_does_not_know_goes_the_long_way(options: dict[str, Any]) -> None:
    layer = make("lstm", "LSTM", 3, 8, **options)
    assert not any("whole" in name for name in called(lambda: layer(torch.randn(4, 2, 3))))


def test_an_option_that_is_set_later_counts() -> None:
    layer, x = make("lstm", "LSTM", 3, 8), 100 * torch.randn(4, 2, 3)
    first = torch.autograd.grad(layer(x)[0].sum(), layer.weight_hh_l0)[0]
    layer.recurrent_gradient_clip = 0.0
    assert not torch.equal(torch.autograd.grad(layer(x)[0].sum(), layer.weight_hh_l0)[0], first)
    with pytest.raises(ValueError, match="recurrent_gradient_clip"):
        layer.recurrent_gradient_clip = -1.0
    started = make("started", "Started", 3, 8)
    before = started(x)[0]
    started.constants["k"] = 0.0
    assert not torch.equal(started(x)[0], before)


def test_tensors_of_other_kinds_go_the_long_way() -> None:
    layer, x = make("lstm", "LSTM", 3, 8), torch.randn(4, 2, 3)
    expected = layer(x)[0]

    def whole(run: Callable[[], object]) -> bool:
        return called(run) == ["lstm_0_whole_forward"]

    wide = torch.randn(4, 2, 6)
    wide[..., ::2] = x
    assert torch.equal(layer(wide[..., ::2])[0], expected) and not whole(lambda: layer(wide[..., ::2]))
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(layer(turned)[0], expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert not whole(lambda: layer(x))
        assert layer(x)[0].dtype == torch.bfloat16
    half = copy.deepcopy(layer).half()
    assert not whole(lambda: half(x.half())) and half(x.half())[0].dtype == torch.float16
    meta = copy.deepcopy(layer).to("meta")
    assert meta(x.to("meta"))[0].is_meta
    with pytest.raises(RuntimeError, match="not at the same device"):
        meta(x)
    with pytest.raises(RuntimeError, match="not at the same device"):
        layer(x, (torch.zeros(1, 2, 8, device="meta"), torch.zeros(1, 2, 8)))
    assert layer(torch.randn(0, 2, 3))[0].shape == (0, 2, 8)
    assert layer(torch.randn(4, 3))[0].shape == (4, 8)
    with pytest.raises(RuntimeError, match=r"input\.size"):
        layer(torch.randn(4, 2, 5))
    with pytest.raises(RuntimeError, match="Expected hidden"):
        layer(x, (torch.zeros(1, 3, 8), torch.zeros(1, 2, 8)))
    with pytest.raises(TypeError, match="hx must be"):
        layer(x, torch.zeros(1, 2, 8))
    freed = torch.randn(4, 2, 3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"freed"):
        layer(freed)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("file", "name"), [*CELLS, ("started", "Started")])
@pytest.mark.parametrize("single", [False, True])
def test_derivatives_of_both_orders(file: str, name: str, single: bool) -> None:
    torch.manual_seed(1)
    module = make(file, f"{name}Cell" if single else name, 2, 3, dtype=torch.float64)
    x = torch.randn(*([] if single else [3]), 2, 2, dtype=torch.float64, requires_grad=True)
    hx = states_of(module, (2,) if single else (1, 2), torch.float64)
    states = flat(hx)
    for state in states:
        state.requires_grad_()
    own = list(module.parameters())

    def plain(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(module(x, states if len(states) > 1 else states[0])))

    assert torch.autograd.gradcheck(plain, (x, *states))
    assert torch.autograd.gradgradcheck(plain, (x, *states))

    def second() -> tuple[Tensor, ...]:
        first = torch.autograd.grad(squares(plain(x, *states)), own, create_graph=True)
        return torch.autograd.grad(squares(first), own)

    found = second()
    with LongWay():
        expected = second()
    assert all(torch.allclose(*pair, rtol=1e-9, atol=1e-11) for pair in zip(found, expected, strict=True))


def test_batched_gradients() -> None:
    layer, x = make("lstm", "LSTM", 2, 3), torch.randn(2, 1, 2)
    found = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x, vectorize=True)  # type: ignore[no-untyped-call]
    expected = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x)  # type: ignore[no-untyped-call]
    assert torch.allclose(found, expected, atol=1e-6)


def test_final_states_may_be_written_into_and_the_output_is_watched() -> None:
    layer, x = make("lstm", "LSTM", 3, 4), torch.randn(3, 2, 3)
    output, (h, c) = layer(x)
    h.mul_(0)
    c.detach_()
    output.sum().backward()
    output, _ = layer(x)
    doubled = output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        doubled.sum().backward()


def test_copies_and_pickles() -> None:
    layer, x = make("lstm", "LSTM", 3, 4), torch.randn(3, 2, 3)
    expected = layer(x)[0]
    assert torch.equal(copy.deepcopy(layer)(x)[0], expected)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x)[0], expected)


def test_threads() -> None:
    layers = [make("lstm", "LSTM", 3, size) for size in range(4, 20)]
    x = torch.randn(3, 2, 3)
    expected = [layer(x)[0] for layer in map(copy.deepcopy, layers)]
    found: dict[int, Tensor] = {}

    def run(place: int) -> None:
        with torch.no_grad():
            found[place] = layers[place](x)[0]

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(layers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[place], value) for place, value in enumerate(expected))
