"""A call of one layer and direction, or of a single step, on a GPU is one op. Other calls go the long way, and both
ways compute the same: the same bits where they call the same kernels. tests/runtime/test_whole_on_gpu.py has what needs
no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from tests.cuda.harness import DTYPES, launches_of
from tests.runtime.test_whole import LongWay, called, flat, gradients, squares, states_of

pytestmark = pytest.mark.gpu

# One product of the input each, in both ways. nn_GRU has two in the long way, so its bits differ.
CELLS = [("lstm", "LSTM"), ("gru", "GRU"), ("slstm", "sLSTM"), ("mingru", "minGRU")]
OTHER_BITS = [("nn_gru", "nn_GRU"), ("nn_rnn", "nn_RNN")]
ALL_CELLS = [*CELLS, *OTHER_BITS]
EVERY_DTYPE = pytest.mark.parametrize("dtype", list(DTYPES.values()))
# Steps (none: a single step), batch entries, units and heads: alternating kernels, and fused ones from two steps on.
SIZES = pytest.mark.parametrize(
    ("steps", "batch", "hidden", "heads"),
    [
        (None, 1, 256, 1),
        (None, 5, 96, 3),
        (1, 1, 64, 1),
        (1, 16, 40, 1),
        (7, 3, 144, 2),
        (70, 4, 72, 1),
        (70, 1, 20, 1),
    ],
)
# So many that torch makes the product of the input in both ways.
MANY = pytest.mark.parametrize(("steps", "batch", "hidden", "heads"), [(70, 128, 144, 2), (130, 128, 96, 1)])


@pytest.fixture(autouse=True)
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls compile the fused kernels of their sizes."""
    monkeypatch.setenv("RNNCC_COMPILE", "1")


def make(file: str, name: str, *arguments: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(*arguments, **{"device": "cuda", **options})


def given_states(module: Any, lead: tuple[int, ...], dtype: torch.dtype) -> Any:
    made = tuple(state.cuda().requires_grad_() for state in flat(states_of(module, lead, dtype)))
    return made if len(made) > 1 else made[0]


def both_ways(
    file: str, name: str, dtype: torch.dtype, size: tuple[int | None, int, int, int], with_states: bool
) -> tuple[list[Tensor], list[Tensor], int]:
    """Values and gradients of both ways, and how many of them are values. Without gradients the values are as close."""
    steps, batch, hidden, heads = size
    module = make(file, name if steps else f"{name}Cell", 24, hidden, num_heads=heads, dtype=dtype)
    x = torch.randn(*([steps] if steps else []), batch, 24, device="cuda", dtype=dtype, requires_grad=True)
    hx = given_states(module, (1, batch) if steps else (batch,), dtype) if with_states else None
    given = [x, *module.parameters(), *(flat(hx) if with_states else ())]
    assert called(lambda: module(x, hx))[-1] == f"{file}_0_whole_forward"
    found = gradients(module, x, hx, given)
    with LongWay():
        expected = gradients(module, x, hx, given)
    with torch.no_grad():
        plain = flat(module(x, hx))
    count = len(plain)
    errors = [verify.relative_error(*pair) for pair in zip(plain, map(_exact, found), strict=False)]
    assert all(error <= verify.BOUNDS[dtype] for error in errors), errors
    assert all(
        one.dtype == other.dtype and one.shape == other.shape for one, other in zip(found, expected, strict=True)
    )
    return found, expected, count


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().double()


@EVERY_DTYPE
@MANY
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize(("file", "name"), CELLS)
def test_both_ways_have_the_same_bits(
    file: str, name: str, with_states: bool, steps: int | None, batch: int, hidden: int, heads: int, dtype: torch.dtype
) -> None:
    found, expected, count = both_ways(file, name, dtype, (steps, batch, hidden, heads), with_states)
    same = [torch.equal(*pair) for pair in zip(found, expected, strict=True)]
    assert all(same[:count]), "values"
    assert all(same[count:]), f"gradients: {same[count:]}"


@EVERY_DTYPE
@SIZES
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize(("file", "name"), ALL_CELLS)
def test_both_ways_compute_the_same(
    file: str, name: str, with_states: bool, steps: int | None, batch: int, hidden: int, heads: int, dtype: torch.dtype
) -> None:
    found, expected, _ = both_ways(file, name, dtype, (steps, batch, hidden, heads), with_states)
    errors = [verify.relative_error(one.detach(), _exact(other)) for one, other in zip(found, expected, strict=True)]
    assert all(error <= verify.BOUNDS[dtype] for error in errors), errors


@pytest.mark.parametrize(("file", "name"), ALL_CELLS)
def test_a_plain_call_is_one_op(file: str, name: str) -> None:
    x = torch.randn(4, 2, 24, device="cuda")
    layer, step = make(file, name, 24, 64), make(file, f"{name}Cell", 24, 64)
    layer(x), step(x[0])  # the first calls ask for numbers of layouts, and for kernels
    layer(x)[0].sum().backward()
    assert called(lambda: layer(x)) == called(lambda: step(x[0])) == [f"{file}_0_whole_forward"]
    with torch.no_grad():
        assert called(lambda: layer(x)) == [f"{file}_0_whole_forward"]
    output = layer(x)[0]
    assert called(lambda: output.sum().backward()) == [f"{file}_0_whole_backward"]


def test_a_single_step_launches_a_product_and_a_loop() -> None:
    step, x = make("lstm", "LSTMCell", 24, 64), torch.randn(2, 24, device="cuda")
    with torch.no_grad():
        step(x)
        short = launches_of(lambda: step(x))
        with LongWay():
            long = launches_of(lambda: step(x))
    assert sum(name.startswith("lstm_0_") for name in short) == 1
    made_zeros = [[name for name in names if "FillFunctor" in name] for names in (short, long)]
    assert not made_zeros[0] and made_zeros[1], "no zeros are made for the initial states"


@pytest.mark.parametrize("options", [
    {"num_layers": 2}, {"bidirectional": True}, {"recompute": True}, {"recurrent_gradient_clip": 0.1},
    {"state_dtype": torch.float32}, {"dtype": torch.float64}, {"backend": "reference"},
])  # fmt: skip
def test_what_the_op_does_not_know_goes_the_long_way(options: dict[str, Any]) -> None:
    dtype = options.get("dtype", torch.bfloat16)
    layer, x = make("lstm", "LSTM", 24, 64, **{"dtype": dtype, **options}), torch.randn(4, 2, 24).to("cuda", dtype)
    assert not any("whole" in name for name in called(lambda: layer(x)))
    output, finals = layer(x)
    assert output.dtype == dtype
    assert {final.dtype for final in finals} == {options.get("state_dtype", dtype)}


def test_backends() -> None:
    x = torch.randn(4, 2, 24, device="cuda")
    layer = make("lstm", "LSTM", 24, 64, backend="cuda")
    layer(x)
    assert called(lambda: layer(x)) == ["lstm_0_whole_forward"]
    with pytest.raises(RuntimeError, match="backend='cpu' cannot run"):
        make("lstm", "LSTM", 24, 64, backend="cpu")(x)


def test_errors_come_from_the_long_way() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(4, 2, 24, device="cuda")
    zeros = torch.zeros(1, 2, 64, device="cuda")
    with pytest.raises(RuntimeError, match="not at the same device"):
        layer(x, (zeros.cpu(), zeros))
    with pytest.raises(RuntimeError):  # torch's own product says what is wrong
        layer(x.cpu())
    with pytest.raises(RuntimeError, match=r"input\.size"):
        layer(x[..., :5])
    with pytest.raises(RuntimeError, match="not the same dtype"):
        layer(x, (zeros.half(), zeros.half()))
    with pytest.raises(ValueError, match="does not match weight dtype"):
        layer(x.half())
    freed = torch.randn(4, 2, 24, device="cuda")
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="freed"):
        layer(freed)


def test_inputs_that_lie_otherwise() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(4, 2, 24, device="cuda")
    expected = layer(x)[0]
    wide = torch.randn(4, 2, 48, device="cuda")
    for part in (wide[..., ::2], wide[..., :24], wide[..., 1:25]):
        part.copy_(x)
        torch.testing.assert_close(layer(part)[0], expected)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(layer(turned)[0], expected)
    first = make("lstm", "LSTM", 24, 64, batch_first=True)
    torch.testing.assert_close(first(x.transpose(0, 1))[0].transpose(0, 1), expected)
    one = torch.randn(1, 1, 24, device="cuda")
    odd = one.as_strided((1, 1, 24), (0, 77, 1)).requires_grad_()
    found = gradients(layer, odd, None, [odd, *layer.parameters()])
    with LongWay():
        long = gradients(layer, odd, None, [odd, *layer.parameters()])
    torch.testing.assert_close(found, long)


def test_autocast_and_compilers_see_two_ops() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(4, 2, 24, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert not any("whole" in name for name in called(lambda: layer(x)))
        assert layer(x)[0].dtype == torch.bfloat16
    compiled: Any = torch.compile(layer)
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])


@pytest.mark.parametrize(("file", "name"), [("lstm", "LSTM"), ("nn_gru", "nn_GRU"), ("mingru", "minGRU")])
@pytest.mark.parametrize("single", [True, False])
def test_second_derivatives_and_second_backwards(file: str, name: str, single: bool) -> None:
    module = make(file, f"{name}Cell" if single else name, 8, 16)
    x = torch.randn(*([] if single else [3]), 2, 8, device="cuda", requires_grad=True)
    given = [x, *module.parameters()]

    def second() -> tuple[Tensor, ...]:
        first = torch.autograd.grad(squares(flat(module(x))), given, create_graph=True)
        return torch.autograd.grad(squares(first), given)

    found = second()
    with LongWay():
        torch.testing.assert_close(found, second(), rtol=1e-3, atol=1e-4)
    loss = squares(flat(module(x)))
    once = torch.autograd.grad(loss, given, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(loss, given)))


def training_step(module: Any, x: Tensor) -> list[Tensor]:
    return gradients(module, x, None, [x, *module.parameters()])


def graph_of(run: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    return graph, found


@pytest.mark.parametrize(("file", "name"), ALL_CELLS)
@pytest.mark.parametrize("steps", [None, 1, 70])
def test_a_graph_takes_other_inputs_and_weights(file: str, name: str, steps: int | None) -> None:
    module = make(file, name if steps else f"{name}Cell", 24, 64)
    shape = (*([steps] if steps else []), 3, 24)
    x = torch.randn(shape, device="cuda", requires_grad=True)
    graph, found = graph_of(lambda: training_step(module, x))
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn(shape))
            for parameter in module.parameters():
                parameter.mul_(0.9)
        graph.replay()
        again = [value.clone() for value in found]
        assert all(map(torch.equal, again, training_step(module, x)))


def test_on_another_stream() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(9, 3, 24, device="cuda", requires_grad=True)
    expected = training_step(layer, x)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = training_step(layer, x)
    stream.synchronize()
    assert all(map(torch.equal, found, expected))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_a_gpu_that_is_not_the_current_one() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(9, 3, 24, device="cuda")
    expected = training_step(layer, x.requires_grad_())
    other = make("lstm", "LSTM", 24, 64, device="cuda:1")
    other.load_state_dict(layer.state_dict())
    found = training_step(other, x.detach().to("cuda:1").requires_grad_())
    assert all(torch.equal(one.cpu(), value.cpu()) for one, value in zip(found, expected, strict=True))


def test_nothing_waits_for_the_gpu() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(1, 3, 24, device="cuda", requires_grad=True)
    training_step(layer, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        training_step(layer, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_first_call_of_several_steps_compiles_fused_kernels() -> None:
    layer = make("lstm", "LSTM", 24, 104, dtype=torch.bfloat16)
    layer(torch.randn(1, 2, 24, device="cuda", dtype=torch.bfloat16))
    layer(torch.randn(2, 2, 24, device="cuda", dtype=torch.bfloat16))
    assert "lstm_0: fused (" in layer.explain()
    x = torch.randn(40, 2, 24, device="cuda", dtype=torch.bfloat16)
    names = launches_of(lambda: layer(x)[0].sum().backward())
    assert not {"lstm_0_forward", "lstm_0_backward"} & set(names), "no alternating kernel runs"
    assert any(name.startswith("lstm_0_forward_") for name in names)


def test_new_weights_count_at_the_next_call() -> None:
    layer, x = make("lstm", "LSTM", 24, 64), torch.randn(1, 2, 24, device="cuda")
    with torch.no_grad():
        before = layer(x)[0]
        layer.weight_ih_l0.data.mul_(2)
        after = layer(x)[0]
        with LongWay():
            assert torch.allclose(after, layer(x)[0], atol=1e-6)
    assert not torch.allclose(before, after, atol=1e-3)
