"""Cells without a recurrent matrix on a GPU: outputs, final states and every gradient against the float64 reference,
for all sizes, layouts, masks and values; ways of calling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.ir.recurrence import MIXING, RecurrenceKind
from rnncc.machine.paths import shipped_cells
from rnncc.stages.classify import classify
from rnncc.verify import BOUNDS, relative_error, verify
from tests import shipped
from tests.cuda import harness
from tests.cuda.harness import DTYPES, Call, launches_of
from tests.cuda.scans import (
    AFFINE,
    CELLS,
    ELEMENTWISE,
    LAYOUTS,
    WITH_OPS,
    assert_as,
    assert_true,
    draw_scan,
    package,
)
from tests.cuda.test_calls import assert_same, in_a_graph, on_side_stream

HALF = tuple(dtype for dtype in DTYPES.values() if dtype.itemsize == 2)
# (steps, batch, hidden): odd, prime and none; rows that are no pieces of 16 bytes.
SIZES = (
    (0, 3, 8), (5, 0, 8), (1, 1, 1), (1, 3, 1000), (2, 3, 33), (31, 1, 1000), (127, 3, 96), (61, 1, 1), (257, 1, 5),
    (1021, 3, 8),
)  # fmt: skip


def test_all_such_cells_are_tested() -> None:
    """By what the compiler says of them."""
    kinds = {path.stem: {r.kind for r in classify(shipped.cells(path.stem)[0])} for path in shipped_cells()}
    affine, elementwise = RecurrenceKind.AFFINE, RecurrenceKind.ELEMENTWISE
    assert {stem for stem, found in kinds.items() if MIXING.isdisjoint(found)} == set(CELLS)
    assert {stem for stem, found in kinds.items() if found == {affine}} == set(AFFINE)
    assert {stem for stem, found in kinds.items() if found == {elementwise}} == set(ELEMENTWISE)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", CELLS)
def test_as_rnncc_verify(cell: str) -> None:
    """The layers, with their products; in 32 bits also without hx, reversed, with heads, lengths and resets."""
    checked = shipped.cells(cell)[0]
    layer_class = getattr(rnncc.load(cell), checked.name)
    report = verify(layer_class, checked, device=harness.DEVICE, dtypes=tuple(DTYPES.values()))
    assert [row for row in report.rows if not row.passed] == []


@pytest.mark.gpu
@pytest.mark.parametrize("cell", WITH_OPS)
@pytest.mark.parametrize(("steps", "batch", "hidden"), SIZES)
def test_sizes(cell: str, steps: int, batch: int, hidden: int) -> None:
    assert_true(draw_scan(cell, steps, batch, hidden, torch.float32), torch.float32)


@pytest.mark.gpu
# relu, max and spikes may turn over where a backward reads a rounded state: test_as_rnncc_verify has these in 16 bits.
@pytest.mark.parametrize("cell", [cell for cell in WITH_OPS if cell not in ("indrnn", "plif", "rwkv4")])
@pytest.mark.parametrize("dtype", HALF)
def test_sizes_in_16_bits(cell: str, dtype: torch.dtype) -> None:
    for steps, batch, hidden in ((1, 3, 8), (33, 1, 1), (127, 3, 96), (61, 2, 1000)):
        assert_true(draw_scan(cell, steps, batch, hidden, dtype), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cell", ["mingru", "minlstm", "sru", "lru", "rwkv4", "indrnn"])
def test_layouts(cell: str, layout: str) -> None:
    """Views of whatever memory, none of them copied for the caller to see."""
    for hidden in (96, 33):
        assert_true(draw_scan(cell, 45, 3, hidden, torch.float32, layout=layout), torch.float32)
    if cell not in ("rwkv4", "indrnn"):
        assert_true(draw_scan(cell, 45, 3, 96, torch.bfloat16, layout=layout), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["mingru", "lru", "sru"])
def test_gradients_of_any_layout(cell: str) -> None:
    """The output's gradient with strides of its own: batch first, one number for all, one row for all."""
    call = draw_scan(cell, 45, 3, 96, torch.float32, layout="batch first")
    output, *finals = call.cotangents
    for other in (
        output.transpose(0, 1).contiguous().transpose(0, 1),
        output[:1, :1, :1].expand_as(output),
        output[:, :1].expand_as(output),
    ):
        assert_true(replace(call, cotangents=(other, *finals)), torch.float32)


def saturated(values: Tensor) -> Tensor:
    """A third of the values at 100, a third at -100."""
    places = torch.rand(values.shape, generator=torch.Generator().manual_seed(1)).to(values.device)
    return torch.where(places < 1 / 3, 100.0, torch.where(places > 2 / 3, -100.0, values)).to(values.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", WITH_OPS)
def test_saturated_gates(cell: str) -> None:
    assert_true(draw_scan(cell, 127, 3, 96, torch.float32, fill=saturated), torch.float32)


def edges(steps: int, batch: int) -> Tensor:
    """Resets [T, B]: by batch entry at multiples of 8, one step before, one after, all three, at the ends,
    everywhere."""
    t = torch.arange(steps, device=harness.DEVICE)
    kinds = [t % 8 == 0, t % 8 == 7, t % 8 == 1, (t + 1) % 8 < 3, (t == 0) | (t == steps - 1), t >= 0]
    return torch.stack([kinds[entry % len(kinds)] for entry in range(batch)], 1)


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", WITH_OPS)
def test_resets_and_lengths(cell: str, reverse: bool) -> None:
    steps, batch = 131, 7
    reset = edges(steps, batch)
    lengths = torch.tensor([131, 64, 65, 0, 1, 130, 127], device=harness.DEVICE)
    every: tuple[dict[str, Any], ...] = (
        {"reset": reset}, {"lengths": lengths}, {"reset": reset, "lengths": lengths}
    )  # fmt: skip
    for masks in every:
        assert_true(draw_scan(cell, steps, batch, 40, torch.float32, reverse=reverse, **masks), torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["mingru", "lru", "qrnn"])
@pytest.mark.parametrize("dtype", HALF)
def test_resets_in_16_bits(cell: str, dtype: torch.dtype) -> None:
    assert_true(draw_scan(cell, 131, 6, 64, dtype, reset=edges(131, 6)), dtype)


def in_chunks(call: Call, *ends: int) -> dict[str, Tensor]:
    """What the call gives, made by calls that each take some of its steps and hand their states on."""
    whole = call.leaves()
    states, outputs, begin = whole.states, [], 0
    for end in ends:
        part = replace(whole, op=_some_steps(whole.op, begin, end), states=states)
        output, *finals = part.values().values()
        outputs.append(output)
        states, begin = tuple(finals), end
    values = {"y": torch.cat(outputs)} | {f"final {i}": state for i, state in enumerate(states)}
    return {name: value.detach() for name, value in values.items()} | whole.gradients(values)


def _some_steps(op: Callable[..., Any], begin: int, end: int) -> Callable[..., Any]:
    def run(streams: list[Tensor], *rest: Any, **options: Any) -> Any:
        return op([stream[begin:end] for stream in streams], *rest, **options)

    return run


@pytest.mark.gpu
@pytest.mark.parametrize("cell", WITH_OPS)
def test_chunks_are_one_call(cell: str) -> None:
    call = draw_scan(cell, 300, 3, 40, torch.float32)
    # The op of a drawn call views all steps: here its streams are what it takes.
    call = replace(call, op=package(cell)[1])
    one = call.run()
    many = in_chunks(call, 1, 8, 65, 128, 255, 300)
    assert_as(many, {name: one[name] for name in many}, BOUNDS[torch.float32])


# torch hands the gradient of relu and max on where a NaN is compared, kernels do not: there outputs are compared alone.
COMPARING = ("indrnn", "rwkv4")
POISONS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@pytest.mark.gpu
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize(
    "cell", ["mingru", "minlstm_log", "lru", "sru", "paragru", "indrnn", "unicornn", "rglru", "rwkv4"]
)
def test_what_is_not_finite_stays_in_its_channel(cell: str, poison: str) -> None:
    """Also where a reset follows, in the same tile or a later one: before it is the past."""
    steps, batch, hidden, channel, bound = 77, 3, 40, 11, BOUNDS[torch.float32]
    reset = torch.zeros(steps, batch, dtype=torch.bool, device=harness.DEVICE)
    reset[21], reset[64] = True, True
    call = draw_scan(cell, steps, batch, hidden, torch.float32, reset=reset)
    clean = call.run()

    def assert_contained(bad: Call) -> None:
        found, expected = bad.run(), bad.exact().run()
        assert_as(found, {k: v for k, v in expected.items() if cell not in COMPARING or not k.startswith("d_")}, bound)
        for name, value in clean.items():
            others = torch.arange(value.shape[-1], device=value.device) % hidden != channel
            assert torch.equal(found[name][..., others], value[..., others]), name

    for place, step in ((0, 16), (-1, 20), (0, 63)):
        streams = [stream.clone() for stream in call.streams]
        streams[place][step, 1, channel] = POISONS[poison]
        assert_contained(replace(call, streams=tuple(streams)))
    states = [state.clone() for state in call.states]
    states[0][1, channel] = POISONS[poison]
    assert_contained(replace(call, states=tuple(states)))
    output, *finals = (cotangent.clone() for cotangent in call.cotangents)
    output[40, 1, channel] = POISONS[poison]
    assert_contained(replace(call, cotangents=(output, *finals)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF)
def test_slow_gates_in_16_bits(dtype: torch.dtype) -> None:
    """Over ten thousand steps what a gate of sigmoid(-8) lets in is all that counts."""

    def slow(values: Tensor) -> Tensor:
        return torch.cat((torch.full_like(values[..., :64], -8), values[..., 64:]), -1)

    assert_true(draw_scan("mingru", 10_000, 2, 64, dtype, fill=slow), dtype)


GROWING = "cell Growing\nstate h\na, n = W@x\nh[t] = a*h[t-1] + n"


@pytest.mark.gpu
def test_a_reset_ends_what_overflows() -> None:
    """In float32, as eager PyTorch has it: infinite from where the product of slopes is, finite after the reset."""
    steps, batch, hidden = 200, 2, 40
    generator = torch.Generator().manual_seed(3)
    stream = torch.rand(steps, batch, 2 * hidden, generator=generator).to(harness.DEVICE)
    stream[10:80, :, :hidden] = 10.0
    state = torch.ones(batch, hidden, device=harness.DEVICE)
    for at in (70, 79, 80, 90, 128, 131):
        reset = torch.zeros(steps, batch, dtype=torch.bool, device=harness.DEVICE)
        reset[at, 1] = True
        op = rnncc.compile(GROWING).growing
        found, expected = (op((stream,), (), (state,), reset=reset, backend=which)[0] for which in (None, "reference"))
        finite = expected.isfinite()
        assert not finite[at - 1].any() and finite[at:, 1].all()
        assert torch.equal(found.isfinite(), finite)
        torch.testing.assert_close(found[finite], expected[finite], atol=0, rtol=1e-5)


# Channel-serial, tiles, and steps split over CTAs, whatever the schedule makes of them.
WAYS = pytest.mark.parametrize(("steps", "batch", "hidden"), [(200, 3, 40), (50, 16, 4096), (5000, 1, 64)])


@pytest.mark.gpu
@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", ["mingru", "lru", "sru"])
def test_ways_of_calling(cell: str, dtype: torch.dtype, steps: int, batch: int, hidden: int) -> None:
    """Twice, on another stream, in a CUDA graph: the same bits, also of gradients that are summed over time."""
    call = draw_scan(cell, steps, batch, hidden, dtype)
    expected = call.run()
    assert_same(call.run(), expected)
    assert_same(on_side_stream(call.run), expected)
    assert_same(in_a_graph(call.run), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["steps first", "batch first"])
@pytest.mark.parametrize("cell", ["mingru", "minlstm", "hgrn"])
def test_one_launch_and_no_copies(cell: str, layout: str) -> None:
    call = draw_scan(cell, 64, 4, 128, torch.bfloat16, layout=layout)
    with torch.no_grad():
        call.values()
        (forward,) = launches_of(call.values)
    assert forward.startswith(f"{cell}_0_")
    leaves = call.leaves()
    gradients = [name for name in launches_of(lambda: leaves.gradients(leaves.values())) if cell in name]
    assert len(gradients) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("cell", ["mingru", "qrnn", "lru", "sru", "rwkv4"])
def test_both_directions_of_a_layer(cell: str, dtype: torch.dtype, batch_first: bool) -> None:
    layer_class = getattr(rnncc.load(cell), shipped.cells(cell)[0].name)
    torch.manual_seed(1)
    # Drawn on the CPU: the same on every device.
    parameters = layer_class(24, 24, bidirectional=True).to(dtype).state_dict()
    x = torch.randn(*((5, 67) if batch_first else (67, 5)), 24).to(harness.DEVICE, dtype)

    def results(dtype: torch.dtype, backend: str | None) -> dict[str, Tensor]:
        layer = layer_class(24, 24, bidirectional=True, batch_first=batch_first, backend=backend)
        layer.load_state_dict(parameters)
        layer.to(harness.DEVICE, dtype)
        own = x.detach().to(dtype, copy=True).requires_grad_()
        output, _ = layer(own)
        # Weighted, so that no gradient is a sum that cancels.
        weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device, dtype=output.dtype)
        output.backward(weights.view_as(output))
        gradients = {f"d_{name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
        return {"y": output.detach(), "d_x": own.grad, **gradients}

    exact = results(torch.float64, "reference")
    assert_as(results(dtype, None), exact, BOUNDS[dtype], lambda: results(dtype, "reference"))


def scanned(a: Tensor, b: Tensor) -> Tensor:
    """h[t] = a[t] h[t-1] + b[t] from 0 over time in log2 T passes: the oracle where loops take too long."""
    reach = 1
    while reach < a.shape[0]:
        b = torch.cat((b[:reach], a[reach:] * b[:-reach] + b[reach:]))
        a = torch.cat((a[:reach], a[reach:] * a[:-reach]))
        reach *= 2
    return b


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(65537, 3, 8), (1_000_003, 1, 1), (16411, 1, 1000)])
def test_long_sequences(steps: int, batch: int, hidden: int, dtype: torch.dtype) -> None:
    call = draw_scan("mingru", steps, batch, hidden, dtype, seed=3)
    call = replace(call, states=tuple(torch.zeros_like(state) for state in call.states)).leaves()
    ours = call.values()
    gradients = call.gradients(ours)
    gates = call.streams[0].detach().double().requires_grad_()
    z, n = gates.chunk(2, -1)
    z = torch.sigmoid(z)
    y = scanned(1 - z, z * n)
    output, last = (cotangent.double() for cotangent in call.cotangents)
    (expected,) = torch.autograd.grad((y, y[-1]), gates, (output, last))
    found = {"y": ours["y"].detach(), "final 0": ours["final 0"].detach(), "d_stream 0": gradients["d_stream 0"]}
    assert_as(found, {"y": y.detach(), "final 0": y[-1].detach(), "d_stream 0": expected}, BOUNDS[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(52_441, 40, 1024), (2_097_169, 1, 1024)])
def test_more_elements_than_32_bits_count(steps: int, batch: int, hidden: int) -> None:
    """Of the output and of every stream, which are some 30 GB with what comes back: ends and middle as smaller calls
    give them."""
    assert steps * batch * hidden > 2**31
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < 40e9:
        pytest.skip(f"needs 40 GB of the GPU's memory, {free / 1e9:.0f} GB are free")
    generator = torch.Generator(harness.DEVICE).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=harness.DEVICE, dtype=torch.bfloat16)

    gates, h0, output = normal(steps, batch, 2 * hidden), normal(batch, hidden), normal(steps, batch, hidden)
    op = package("mingru")[1]

    def run(gates: Tensor, h0: Tensor, output: Tensor) -> dict[str, Tensor]:
        gates, h0 = (value.detach().requires_grad_() for value in (gates, h0))
        y, last = op([gates], [], [h0])
        d_gates, d_h0 = torch.autograd.grad((y, last), (gates, h0), (output, torch.zeros_like(last)))
        return {"y": y.detach(), "last": last.detach(), "d_gates": d_gates, "d_h0": d_h0}

    found = run(gates, h0, output)
    if batch > 1:
        for entry in (0, batch // 2, batch - 1):
            own = slice(entry, entry + 1)
            expected = run(gates[:, own].contiguous(), h0[own], output[:, own].contiguous())
            for name, value in expected.items():
                part = found[name][own] if found[name].dim() == 2 else found[name][:, own]
                assert relative_error(part, value) <= BOUNDS[torch.bfloat16], (name, entry)
    else:
        # A step's gates decide most of what is some hundred steps away: the last steps from the state before them.
        begin = steps - 2000
        expected = run(gates[begin:], found["y"][begin - 1], output[begin:])
        for name in ("y", "last", "d_gates"):
            part = found[name][begin:] if name != "last" else found[name]
            assert relative_error(part, expected[name]) <= BOUNDS[torch.bfloat16], name
        first = run(gates[:2000], h0, output[:2000])
        assert relative_error(found["y"][:2000], first["y"]) <= BOUNDS[torch.bfloat16]
        assert relative_error(found["d_h0"], first["d_h0"]) <= BOUNDS[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_autocast_keeps_the_vectors(bidirectional: bool, masked: bool) -> None:
    """Against the CPU's kernels in float64. A decay in 16 bits may be one of growth."""
    torch.manual_seed(0)
    exact = rnncc.load("lru").LRU(32, 32, bidirectional=bidirectional)
    layer = rnncc.load("lru").LRU(32, 32, bidirectional=bidirectional, device=harness.DEVICE)
    layer.load_state_dict(exact.state_dict())
    exact.double()
    x = torch.randn(2048, 3, 32)
    lengths = torch.tensor([2048, 1, 1000]) if masked else None
    expected = exact(x.double(), lengths=lengths)[0]
    expected.square().sum().backward()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = layer(x.to(harness.DEVICE), lengths=lengths)[0]
        output.float().square().sum().backward()
    assert output.dtype == x.dtype  # D*x
    assert 1e-4 < relative_error(output.cpu(), expected) < 1e-2  # products took 16 bits
    wanted = {name: parameter.grad for name, parameter in exact.named_parameters()}
    for name, parameter in layer.named_parameters():
        assert relative_error(parameter.grad.cpu(), wanted[name]) < 3e-2, name
