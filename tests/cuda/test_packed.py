"""Packed sequences on a GPU: what the CPU gives and what each sequence alone gives, no padded copy, and the host never
waits for the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import rnncc
from rnncc import verify
from tests.cuda.harness import CLASSES, Packages, is_for_hopper, launches_of
from tests.cuda.test_gpu import assert_close, pair

pytestmark = pytest.mark.gpu

LENGTHS = (4, 9, 1, 30, 2, 30)
LATE = "cell Late\nweights V: matrix\nstate h = learned\nh[t] = tanh(W@x + V@x[t-1] + R@h[t-2] + b) + 0.1*h[t-3]"
OLDER = "cell Older\nweights k: vector\nstate h\nu = W@x + b\nh[t] = tanh(u + k*u[t-1] - u[t-3] + R@h[t-1])"


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """For tests that ask torch to raise where the host waits: not any longer than they do."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def offsets_of(lengths: tuple[int, ...]) -> Tensor:
    """[B + 1]."""
    return torch.tensor((0, *lengths)).cumsum(0)


def tuple_of(last: Any) -> tuple[Tensor, ...]:
    return last if isinstance(last, tuple) else (last,)


def found(layer: Any, output: Tensor, last: Any, rows: Tensor) -> dict[str, Any]:
    """Values and gradients, on their device."""
    finals = tuple_of(last)
    torch.stack([(value * value).sum() for value in (output, *finals)]).sum().backward()  # type: ignore[no-untyped-call]
    # A learned initial state that nothing reads has no gradient, or zeros where the masked loop might read it.
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in layer.named_parameters()
    }
    return {"y": output, "d_x": rows.grad, **{f"final {i}": v for i, v in enumerate(finals)}, **gradients}


def of_packed(layer: Any, packed: PackedSequence) -> dict[str, Any]:
    """`found` of a call."""
    rows = packed.data.detach().requires_grad_()
    given = PackedSequence(rows, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    output, last = layer(given)
    return found(layer, output.data, last, rows)


def exactly(result: dict[str, Any]) -> dict[str, Tensor]:
    return {key: value.detach().cpu().double() for key, value in result.items()}


def assert_as_true(
    ours: dict[str, Tensor], other: dict[str, Tensor], expected: dict[str, Tensor], bound: float
) -> None:
    """Within `bound`, or twice the errors of `other`: a norm of what is nearly constant amplifies rounding."""
    assert ours.keys() == other.keys() == expected.keys()
    for key, value in expected.items():
        assert verify.relative_error(ours[key], value) <= max(bound, 2 * verify.relative_error(other[key], value)), key


def after_a_first_use(layer: Any, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` gives on a GPU where the host must not wait: what is compiled or loaded at first use may."""
    run()
    layer.zero_grad()
    torch.cuda.set_sync_debug_mode("error")
    result = run()
    torch.cuda.set_sync_debug_mode("default")
    return result


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "minGRU", "IndRNN", "GRUv3", "SCRN", "TGRU", "LayerNormLSTM", "RWKV4"])
def test_as_on_the_cpu(name: str, is_sorted: bool, no_waiting: None) -> None:
    torch.manual_seed(1)
    lengths = sorted(LENGTHS, reverse=True) if is_sorted else LENGTHS
    values = [torch.randn(length, 16) for length in lengths]
    cpu, gpu = pair(name, 16, 16, bidirectional=True)
    exact = copy.deepcopy(cpu).double()
    results = []
    for layer in (cpu, gpu, exact):
        packed = pack_sequence(values, enforce_sorted=is_sorted).to(next(layer.parameters()))

        def run(layer: Any = layer, packed: PackedSequence = packed) -> dict[str, Any]:
            return of_packed(layer, packed)

        results.append(exactly(after_a_first_use(layer, run) if layer is gpu else run()))
    assert_as_true(results[1], results[0], results[2], 1e-4)


def test_a_packed_sequence_of_many_steps() -> None:
    """Its tables are more than CUDA copies from the host's pageable memory without waiting."""
    values = [torch.randn(length, 4) for length in (17, 9000, 3)]
    cpu, gpu = pair("minGRU", 4, 8, bidirectional=True)

    packed = pack_sequence(values, enforce_sorted=False)
    assert_close(exactly(of_packed(gpu, packed.to(next(gpu.parameters())))), exactly(of_packed(cpu, packed)), 1e-4)


def test_offsets(no_waiting: None) -> None:
    torch.manual_seed(1)
    lengths = (0, *LENGTHS, 0)
    x = torch.randn(sum(lengths), 16)
    layers = pair("GRU", 16, 32, num_layers=2)
    results = []
    for layer in layers:
        device = next(layer.parameters()).device
        given, offsets = x.to(device), offsets_of(lengths).to(device)

        def run(layer: Any = layer, given: Tensor = given, offsets: Tensor = offsets) -> dict[str, Any]:
            rows = given.detach().requires_grad_()
            output, last = layer(rows, offsets=offsets, max_length=32)
            return found(layer, output, last, rows)

        results.append(after_a_first_use(layer, run) if layer is layers[1] else run())
    cpu, gpu = ({key: value.detach().cpu() for key, value in result.items()} for result in results)
    assert_close(gpu, cpu, 1e-4)


OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("lstm", "LSTM", {}),
    ("lstm", "LSTM", {"recompute": True}),
    ("slstm", "sLSTM", {"recompute": True}),
    ("layernormlstm", "LayerNormLSTM", {"recompute": True}),
    ("mingru", "minGRU", {"recompute": True}),
    ("mingru_log", "minGRU_log", {}),
    ("onlstm", "ONLSTM", {}),
    (LATE, "Late", {"return_delays": True}),
    (OLDER, "Older", {"return_delays": True}),
    ("lstm", "LSTM", {"dtype": torch.float64}),  # by the reference
]


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize(
    ("text", "name", "options"), OPTIONS, ids=[f"{name}-{i}" for i, (_, name, _) in enumerate(OPTIONS)]
)
def test_every_option(text: str, name: str, options: dict[str, Any], with_reset: bool) -> None:
    """Two layers, both directions, initial states, resets and empty sequences; the CPU's results for the same rows, in
    float64."""
    module = rnncc.compile(text) if "\n" in text else rnncc.load(text)
    layer_class = getattr(module, name)
    # Both layers' inputs are as wide: where they are states, they must be.
    layer = layer_class(48, 24, 2, bidirectional=True, **options)
    twin = layer_class(48, 24, 2, bidirectional=True, device="cuda", **options)
    twin.load_state_dict(layer.state_dict())
    torch.manual_seed(1)
    lengths = (0, 7, 0, 33, 1, 12, 12, 40, 0)
    like = next(layer.parameters())
    x, offsets = torch.randn(sum(lengths), 48).to(like), offsets_of(lengths)
    hx = [0.1 * torch.randn_like(state) for state in tuple_of(layer(torch.zeros(1, len(lengths), 48).to(like))[1])]
    reset = torch.rand(x.shape[0]) < 0.2
    results = []
    for own in (layer, twin, copy.deepcopy(layer).double()):
        like = next(own.parameters())
        device = like.device
        rows, *states = (value.detach().to(like).requires_grad_() for value in (x, *hx))
        keywords = {"reset": reset.to(device)} if with_reset else {}
        given = states[0] if len(states) == 1 else tuple(states)
        output, last = own(rows, given, offsets=offsets.to(device), max_length=40, **keywords)
        result = found(own, output, last, rows) | {f"d_state {i}": state.grad for i, state in enumerate(states)}
        results.append(exactly(result))
    assert_as_true(results[1], results[0], results[2], 2e-4)


FAMILIES = [
    ("lstm", 64, torch.bfloat16), ("lstm", 256, torch.float16), ("lstm", 768, torch.bfloat16),
    ("lstm", 192, torch.float32), ("lstm", 512, torch.float32), ("gru", 64, torch.bfloat16),
    ("gru", 768, torch.float16), ("slstm", 128, torch.float32), ("peepholelstm", 64, torch.float16),
    ("gruv3", 64, torch.bfloat16), ("gruv3", 768, torch.bfloat16), ("layernormlstm", 256, torch.float16),
    ("layernormlstm", 768, torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 5, 40])
@pytest.mark.parametrize(("cell", "hidden", "dtype"), FAMILIES)
def test_fused_kernels(cell: str, hidden: int, dtype: torch.dtype, batch: int, packages: Packages) -> None:
    """Against each sequence alone, in float64 on the CPU."""
    torch.manual_seed(2)
    layer = getattr(packages(cell), CLASSES[cell])(16, hidden, bidirectional=True, device="cuda", dtype=dtype)
    exact = getattr(rnncc.load(cell), CLASSES[cell])(16, hidden, bidirectional=True, dtype=torch.float64)
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    # sLSTM's m begins at -inf, of which this loss would make NaN.
    least = int(cell == "slstm")
    lengths = (21, *torch.randint(least, 22, (batch - 1,)).tolist())
    rows = torch.randn(sum(lengths), 16).to("cuda", dtype).requires_grad_()
    names = launches_of(lambda: layer(rows, offsets=offsets_of(lengths).cuda(), max_length=21)[0].sum().backward())
    layer.zero_grad()
    rows.grad = None
    if (hidden, dtype, batch) != (512, torch.float32, 40) or is_for_hopper():  # an RTX 4090 has none there
        for program in ("forward", "backward"):
            assert any(name.startswith(f"{cell}_0_masked_{program}_") for name in names), names
    output, last = layer(rows, offsets=offsets_of(lengths).cuda(), max_length=21)
    ours = exactly(found(layer, output, last, rows))
    layer.zero_grad()
    apart, expected = (
        one_by_one(layer, rows.detach(), lengths),
        one_by_one(exact, rows.detach().cpu().double(), lengths),
    )
    assert_as_true(ours, apart, expected, verify.BOUNDS[dtype])


def one_by_one(layer: Any, rows: Tensor, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """What `found` gives of calls of one sequence each; final states of empty ones are zeros."""
    rows.requires_grad_()
    parts = [layer(part.unsqueeze(1)) for part in torch.split(rows, list(lengths)) if part.shape[0]]
    present = torch.tensor([b for b, length in enumerate(lengths) if length], device=rows.device)
    ends = zip(*(tuple_of(last) for _, last in parts), strict=True)
    finals = []
    for end in ends:
        joined = torch.cat(end, 1)
        shape = (joined.shape[0], len(lengths), joined.shape[2])
        finals.append(joined.new_zeros(shape).index_copy(1, present, joined))
    return exactly(found(layer, torch.cat([output.squeeze(1) for output, _ in parts]), tuple(finals), rows))


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("cell", "hidden", "fused"), [("lstm", 64, True), ("lstm", 768, True), ("gru", 256, True), ("lstm", 40, False)]
)
def test_bits_of_padded_calls(
    cell: str, hidden: int, fused: bool, reverse: bool, with_reset: bool, packages: Packages
) -> None:
    """A batch entry's steps are the same ones in the same order, wherever its rows lie."""
    torch.manual_seed(3)
    layer = getattr(packages(cell, fused), CLASSES[cell])(8, hidden, device="cuda", dtype=torch.bfloat16)
    kernels, why = layer._choose(torch.empty(0, device="cuda", dtype=torch.bfloat16))
    assert kernels is not None, why
    (segment,), sizes = layer.spec.segments, layer._sizes[0]
    steps, lengths = 17, (3, 17, 0, 9, 17, 1, 12)
    active = torch.arange(steps).unsqueeze(1) < torch.tensor(lengths)
    places = torch.cat([torch.arange(n) * len(lengths) + b for b, n in enumerate(lengths)]).cuda()
    streams = [torch.randn(*active.shape, stream.width(sizes)).cuda().bfloat16() for stream in segment.streams]
    weights = [getattr(layer, f"{weight.attribute}_l0").detach() for weight in segment.masked.weights]
    # Numbers of 16 bits: a padded batch entry that begins late may find them where outputs are kept.
    states = [torch.randn(len(lengths), state.width(sizes)).cuda().bfloat16().float() for state in segment.states]
    reset = (torch.rand(active.shape) < 0.2).cuda() if with_reset else None

    def rows(padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, places)

    def run(streams: list[Tensor], *masks: Any, packed: bool) -> list[Tensor]:
        groups = [[tensor.clone().requires_grad_() for tensor in group] for group in (streams, weights, states)]
        sequences, finals, _ = kernels.ops[segment.name](
            *groups, *masks, [], layer.spec.sizes_in_order(sizes), 1, [reverse], [0], True, False
        )
        generator = torch.Generator("cuda").manual_seed(0)
        flowing = torch.randn(*active.shape, hidden, device="cuda", generator=generator).bfloat16()
        flowing = torch.where(active.cuda().unsqueeze(-1), flowing, 0)
        ends = [torch.ones_like(final) for final in finals]
        wanted = [*groups[0], *groups[2]]
        output = sequences[0].squeeze(1) if packed else rows(sequences[0])
        made = torch.autograd.grad(
            [sequences[0], *finals], wanted, [rows(flowing).unsqueeze(1) if packed else flowing, *ends]
        )
        gradients = [d.squeeze(1) if packed else rows(d) for d in made[: len(streams)]]
        return [output, *finals, *gradients, *made[len(streams) :]]

    lengths_given = torch.tensor(lengths).cuda()
    padded = run(streams, None, 0, lengths_given, reset, packed=False)
    packed = run(
        [rows(stream).unsqueeze(1) for stream in streams], offsets_of(lengths).cuda(), steps, None,
        None if reset is None else rows(reset.unsqueeze(-1)), packed=True,
    )  # fmt: skip
    assert [torch.equal(a, b) for a, b in zip(packed, padded, strict=True)] == [True] * len(padded)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("name", "hidden"),
    [("LSTM", 64), ("LSTM", 768), ("GRU", 256), ("LayerNormLSTM", 64), ("GRUv3", 64), ("minGRU", 64), ("IndRNN", 64)],
)
def test_nothing_is_padded(name: str, hidden: int, recompute: bool) -> None:
    """One long sequence among short ones: all that a call allocates is less than one padded tensor."""
    layer = getattr(rnncc.load(name.lower()), name)(
        32, hidden, bidirectional=True, device="cuda", dtype=torch.bfloat16, recompute=recompute
    )
    lengths = (2048, *[1] * 1023)
    rows = torch.randn(sum(lengths), 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    offsets = offsets_of(lengths).cuda()

    def run() -> None:
        layer(rows, offsets=offsets, max_length=2048)[0].sum().backward()

    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    padded = 2048 * len(lengths) * hidden * 2
    assert torch.cuda.max_memory_allocated() - before < padded


@pytest.mark.parametrize("name", ["LSTM", "GRUv3", "minGRU", "IndRNN"])
def test_a_graph_of_a_training_step_takes_other_offsets(name: str) -> None:
    _, layer = pair(name, 16, 32, bidirectional=True)
    first, second = (9, 0, 30, 1, 8), (3, 21, 0, 20, 4)
    rows = torch.randn(sum(first), 16, device="cuda", requires_grad=True)
    offsets = offsets_of(first).cuda()
    assert sum(first) == sum(second)

    def step() -> tuple[Tensor, ...]:
        output, last = layer(rows, offsets=offsets, max_length=30)
        values = torch.stack([(value * value).sum() for value in (output, *tuple_of(last))]).sum()
        return output, *torch.autograd.grad(values, [rows, *layer.parameters()])

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for lengths in (second, first):
        offsets.copy_(offsets_of(lengths))
        graph.replay()
        expected = step()
        for made, value in zip(captured, expected, strict=True):
            torch.testing.assert_close(made, value, rtol=1e-5, atol=1e-5)


def test_compiles_whole() -> None:
    _, layer = pair("LSTM", 16, 32, bidirectional=True)

    def run(rows: Tensor, offsets: Tensor) -> Tensor:
        output: Tensor = layer(rows, offsets=offsets, max_length=30)[0]
        return output

    compiled: Callable[..., Tensor] = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in (LENGTHS, (30, 2), (7, 0, 9)):
        results = []
        for function in (run, compiled):
            torch.manual_seed(4)
            rows = torch.randn(sum(lengths), 16, device="cuda").requires_grad_()
            output = function(rows, offsets_of(lengths).cuda())
            results.append((output, torch.autograd.grad(output.square().sum(), rows)[0]))
        for made, value in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(made, value)


def test_a_packed_sequence_compiles_whole() -> None:
    _, layer = pair("LSTM", 16, 32, bidirectional=True)
    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in (LENGTHS, (30, 2), (7, 1, 9)):
        packed: Any = pack_sequence([torch.randn(length, 16) for length in lengths if length], enforce_sorted=False)
        results = []
        for run in (layer, compiled):
            given = packed.to("cuda")
            given.data.requires_grad_()
            output = run(given)[0].data
            results.append((output, torch.autograd.grad(output.square().sum(), given.data)[0]))
        torch.testing.assert_close(results[1], results[0])


def test_twice_differentiable() -> None:
    results = []
    x, offsets = torch.randn(14, 5), offsets_of((4, 0, 9, 1))
    for layer in pair("LSTM", 5, 6):
        rows = x.to(next(layer.parameters()).device).requires_grad_()
        output, _ = layer(rows, offsets=offsets.to(rows.device), max_length=9)
        (once,) = torch.autograd.grad(output.square().sum(), rows, create_graph=True)
        (twice,) = torch.autograd.grad(once.square().sum(), rows)
        results.append({"once": once.detach().cpu(), "twice": twice.cpu()})
    assert_close(results[1], results[0], 1e-4)


def test_further_inputs_sorted_otherwise() -> None:
    module = rnncc.compile("cell Gated\ninput x, g: 1\nstate h\nh[t] = g*h[t-1] + W@x")
    layer = module.Gated(8, 8, device="cuda")
    x, g = ([torch.randn(n, width, device="cuda") for n in (2, 5, 2)] for width in (8, 1))
    given = pack_sequence(x, enforce_sorted=False)
    order, back = torch.tensor([1, 2, 0], device="cuda"), torch.tensor([2, 0, 1], device="cuda")
    other = PackedSequence(pack_sequence([g[i] for i in (1, 2, 0)]).data, given.batch_sizes, order, back)
    expected, _ = layer(given, g=pack_sequence(g, enforce_sorted=False))
    torch.testing.assert_close(layer(given, g=other)[0].data, expected.data)


def test_masks_do_not_wait(no_waiting: None) -> None:
    _, layer = pair("LSTM", 16, 32, bidirectional=True)
    x = torch.randn(9, 3, 16, device="cuda", requires_grad=True)
    lengths, reset = torch.tensor([9, 2, 5], device="cuda"), torch.zeros(9, 3, dtype=torch.bool, device="cuda")
    layer(x, lengths=lengths, reset=reset)[0].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    layer(x, lengths=lengths, reset=reset)[0].sum().backward()
