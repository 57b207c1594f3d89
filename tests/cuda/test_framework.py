"""PyTorch's tools on a GPU: graphs of whole training steps, compilation, opcheck, checkpointing, nothing that waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import rnncc
from tests.cuda.harness import launches_of

pytestmark = pytest.mark.gpu

T, B, IN, H = 12, 6, 8, 64
CELLS = [("lstm", "LSTM"), ("mingru", "minGRU"), ("slstm", "sLSTM")]


def make(file: str = "lstm", name: str = "LSTM", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(IN, H, device="cuda", **options)


def batch(seed: int, batch_size: int = B, steps: int = T) -> dict[str, Tensor]:
    """The input, lengths and resets of a call, all on the GPU."""
    torch.manual_seed(seed)
    return {
        "input": torch.randn(steps, batch_size, IN, device="cuda"),
        "lengths": torch.randint(1, steps + 1, (batch_size,), device="cuda"),
        "reset": torch.rand(steps, batch_size, device="cuda") > 0.8,
    }


def gradients(run: Any, layer: Any, call: dict[str, Tensor]) -> list[Tensor]:
    output, _ = run(**call)
    return [output, *torch.autograd.grad(output.square().mean(), list(layer.parameters()))]


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.fixture
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("file", "name"), CELLS)
def test_nothing_waits_for_the_gpu(file: str, name: str, no_waiting: None) -> None:
    layer = make(file, name, num_layers=2, bidirectional=True)
    with torch.autocast("cuda", torch.bfloat16):
        gradients(layer, layer, batch(1))


@pytest.mark.parametrize(("file", "name"), CELLS)
def test_a_step_of_training_is_a_graph(file: str, name: str) -> None:
    """Capturing fails where anything waits for the GPU. Replayed on other batches, it trains as it does without."""
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    layer, alone = make(file, name, **options), make(file, name, **options)
    given = batch(0)

    def step(layer: Any, optimizer: Any, call: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss: Any = layer(**call)[0].square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (layer, alone)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(layer, optimizers[0], given)
    torch.cuda.current_stream().wait_stream(stream)
    for _ in range(3):
        step(alone, optimizers[1], given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(layer, optimizers[0], given)
    for seed in (1, 2):
        other = batch(seed)
        for key, value in other.items():
            given[key].copy_(value)
        graph.replay()
        expected = step(alone, optimizers[1], other)
        assert torch.equal(loss, expected)
    assert all(map(torch.equal, layer.parameters(), alone.parameters()))


@pytest.mark.parametrize(("file", "name"), CELLS)
def test_new_sizes_compile_nothing_again(file: str, name: str) -> None:
    torch._dynamo.reset()
    layer = make(file, name, bidirectional=True)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    gradients(compiled, layer, batch(0, 7, 13))
    with torch.compiler.set_stance("fail_on_recompile"):
        for seed, batch_size, steps in ((1, 6, 9), (2, 3, 20)):
            call = batch(seed, batch_size, steps)
            close(gradients(compiled, layer, call), gradients(layer, layer, call))


def test_graphs_of_what_inductor_compiled() -> None:
    torch._dynamo.reset()
    layer = make(num_layers=2)
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        call = {"input": batch(seed)["input"]}
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        close([t.clone() for t in gradients(compiled, layer, call)], gradients(layer, layer, call))


@pytest.mark.parametrize(("file", "name"), CELLS)
def test_opcheck(file: str, name: str) -> None:
    layer = make(file, name)
    segment, sizes = layer.spec.segments[0], layer._sizes[0]
    kernels, why = layer._choose(next(layer.parameters()))
    assert kernels is not None, why

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", requires_grad=True)

    # A transposed view: what a kernel gets is copied, what it returns is not.
    streams = [
        random(B, T, stream.width(sizes)).detach().transpose(0, 1).requires_grad_() for stream in segment.streams
    ]
    weights = [getattr(layer, f"{weight.attribute}_l0") for weight in segment.plain.weights]
    states = [random(B, state.width(sizes)) for state in segment.states]
    given: tuple[Any, ...] = (
        streams, weights, states, None, 0, None, None, [], layer.spec.sizes_in_order(sizes), 1, [False],
        list(range(len(segment.sequences))), True, False,
    )  # fmt: skip
    assert set(torch.library.opcheck(kernels.ops[segment.name], given).values()) == {"SUCCESS"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    layer = make(num_layers=2, dropout=0.5)
    found = []
    for checkpointed in (False, True):
        x = batch(0)["input"].requires_grad_()
        torch.manual_seed(2)
        output = checkpoint(layer, x, use_reentrant=reentrant)[0] if checkpointed else layer(x)[0]
        layer.zero_grad()
        output.square().sum().backward()
        assert x.grad is not None
        found.append([output, x.grad, *(tensor.grad for tensor in layer.parameters())])
    assert all(map(torch.equal, *found))


def test_deterministic_mode() -> None:
    layer, call = make(num_layers=2, bidirectional=True), batch(0)
    expected = gradients(layer, layer, call)
    torch.use_deterministic_algorithms(True)
    try:
        found = gradients(layer, layer, call)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("file", "name", "most"), [("lstm", "LSTM", 6), ("gru", "GRU", 6), ("mingru", "minGRU", 5)])
def test_a_single_step_is_a_handful_of_launches(file: str, name: str, most: int) -> None:
    """torch.nn.LSTMCell takes three: two products and the gates. Copies and fills count as launches here."""
    step = getattr(rnncc.load(file), f"{name}Cell")(IN, H, device="cuda")
    x = torch.randn(B, IN, device="cuda")
    states = tuple(torch.zeros(B, H, device="cuda") for _ in step.spec.states)
    run: Callable[[], Any] = lambda: step(x, states if len(states) > 1 else states[0])  # noqa: E731
    with torch.no_grad():
        run()
        launches = launches_of(run)
    assert len(launches) <= most, launches


def test_states_that_are_not_given_are_one_fill() -> None:
    """Of all layers, directions and states. Final states are a layer's own, not views: one copy each, but for a call
    that is one op, whose loop writes them."""
    layer, x = make(num_layers=2, bidirectional=True), batch(0)["input"]
    states = tuple(torch.zeros(4, B, H, device="cuda") for _ in range(2))
    with torch.no_grad():
        layer(x)
        assert len(launches_of(lambda: layer(x))) == len(launches_of(lambda: layer(x, states))) + 1
        single = make()
        one = tuple(torch.zeros(1, B, H, device="cuda") for _ in range(2))
        step = rnncc.load("lstm").LSTMCell(IN, H, device="cuda")
        single(x[:1], one), step(x[0], (one[0][0], one[1][0]))
        given = launches_of(lambda: step(x[0], (one[0][0], one[1][0])))
        assert len(launches_of(lambda: single(x[:1], one))) == len(given)
        for run in (lambda: single(x[:1]), lambda: step(x[0])):
            assert len(launches_of(run)) <= len(given) + 1, "zeros for states that are not given are one fill"
        recomputing = make(recompute=True)  # this goes the long way, where torch multiplies the input
        recomputing(x[:1], one)
        assert len(launches_of(lambda: recomputing(x[:1], one))) == 1 + len(given) + len(one)


def test_decoding_is_a_graph() -> None:
    """Steps that each take the states of the one before, captured as one."""
    step = rnncc.load("lstm").LSTMCell(IN, H, device="cuda")
    x = torch.randn(4, B, IN, device="cuda")

    def decode() -> Tensor:
        with torch.no_grad():
            states = None
            for value in x:
                states = step(value, states)
            assert states is not None
            return torch.stack(states)

    expected = decode()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = decode()
    found.fill_(float("nan"))
    graph.replay()
    assert torch.equal(found, expected)
