"""`schedule`: which kernels it chooses, what it says against the others, and that every size has a plan, quickly."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from rnncc.constrint.store import Limits, Meter
from rnncc.ir.family import ALTERNATING, GATHER, GRID, SCATTER, STEPWISE, WIDE, Family
from rnncc.ir.fused import FusedLoop
from rnncc.ir.lowered import NoForm
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.show.schedule import show_schedule
from rnncc.stages.schedule import after_us, schedule
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.cost import LoopCost, cost_of
from rnncc.stages.schedule.expect import step_us
from rnncc.stages.schedule.families import MODELS
from rnncc.stages.schedule.kernels import call_time, planned
from rnncc.stages.schedule.table import WORTH
from tests.compiling import lowered
from tests.stages.scheduling import backward, forward

H200 = GPUS["h200"]
DIRECTIONS = {"forward": forward, "backward": backward}


@pytest.mark.parametrize(
    ("head_dim", "heads", "direction", "family", "shape"),
    [
        (64, 12, "forward", GATHER, (1, 8, 1, 1, 1)),
        (128, 6, "forward", GATHER, (4, 4, 1, 1, 1)),
        (256, 3, "forward", GATHER, (8, 4, 1, 1, 1)),
        (512, 1, "forward", GATHER, (16, 4, 2, 1, 1)),
        (768, 1, "forward", GRID, (2, 8, 1)),
        (1024, 1, "forward", GRID, (2, 8, 1)),
        (64, 12, "backward", SCATTER, (4, 16)),
        (128, 6, "backward", SCATTER, (8, 16, 4, 1)),
        (256, 3, "backward", SCATTER, (16, 16, 4, 1)),
        (512, 1, "backward", SCATTER, (16, 32, 8, 1)),
        (768, 1, "backward", GRID, (4, 8, 1)),
        (1024, 1, "backward", GRID, (4, 8, 1)),
    ],
    ids=lambda value: value.name if isinstance(value, Family) else None,
)
def test_the_quickest_of_the_designs_tried_on_a_gpu(
    head_dim: int, heads: int, direction: str, family: Family, shape: tuple[int, ...]
) -> None:
    """The LSTM with a batch of 16; of the shape what makes the difference."""
    kernel = schedule(DIRECTIONS[direction]("lstm"), Problem(head_dim, heads, "bf16"), H200).kernel_for(16)
    assert kernel is not None
    assert (kernel.family, kernel.shape[: len(shape)]) == (family, shape)


def test_nothing_follows_a_loop_whose_matrix_is_a_buffer() -> None:
    """Its gradient is not computed, so its time is not counted."""
    problem = Problem(64, 1, "bf16")
    for matrix, follows in (("param A: matrix", True), ("buffer A: matrix", False)):
        source = Source("echo.rnn", f"cell Echo\nstate h\n{matrix}\nh[t] = tanh(W@x + A@h[t-1])\n")
        plan = lowered(source)
        (loop,) = planned(plan, problem, H200).loops
        assert (loop.after_us is not None) is follows
        call = call_time(plan, problem, H200, batch=16, steps=100, training=True)
        assert call is not None and (call.after > 0) is follows


@pytest.mark.one_in(3)
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_step_without_products_holds_no_matrix(heads: int, dtype: str) -> None:
    """It needs CTAs for its reductions alone, so a head_dim may be large. On a grid each of them joins fewer parts."""
    source = Source("normed.rnn", "cell Normed\nstate h\nh[t] = tanh(layernorm(h[t-1] + W@x))\n")
    fused = lowered(source).loops[0].fused
    assert not isinstance(fused, NoForm)
    for loop in fused:
        assert after_us(loop, Problem(64, heads, dtype), 1024, H200) == 0.0
        for head_dim in (8, 24, 64, 200, 1024, 2048):
            problem = Problem(head_dim, heads, dtype)
            kernels = schedule(loop, problem, H200).kernels
            families = {kernel.family for kernel in kernels}
            assert families == {GATHER} or (head_dim >= 1024 and families <= {GATHER, GRID})
            assert kernels[0].step_us < WORTH * alternating_us(cost_of(loop, dtype), problem, H200)
            for kernel in kernels:
                tiles = dict(kernel.tiles)
                assert tiles["register_pairs"] == 0 == tiles["shared_pairs"]
                assert tiles["k_warps"] == 1 or kernel.family is not GATHER


@pytest.mark.always(apart=[72], name=["lstm"], direction=["forward"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("apart", [72, 8])
def test_every_size_has_a_plan(name: str, direction: str, apart: int) -> None:
    """No holes, no size that takes less than a much smaller one, and searches of bounded length."""
    loop, slowest = DIRECTIONS[direction](name), 0.0
    for head_dim in range(8, 2305, apart):
        found = schedule(loop, Problem(head_dim, 1, "bf16"), H200)
        assert found.step_us is not None
        assert found.step_us > 0.9 * slowest
        assert found.nodes < 300
        slowest = max(slowest, found.step_us)
        if found.kernel_for(16) is None:
            assert head_dim > 1000


def test_in_float32_lanes_of_few_gates_have_more_rows() -> None:
    """But not where the registers for the sums would leave too few for the matrices."""
    found = []
    for head_dim in (512, 2048):
        layout_model = MODELS[GRID](cost_of(forward("mgu"), "fp32"), Problem(head_dim, 1, "fp32"), H200)
        found.append(layout_model.best(16).value(layout_model.tiles["lane_rows"]))
    assert found == [4, 1]


def test_in_float32_launches_of_a_grid_are_quicker_than_clusters() -> None:
    """nn.RNN's clusters took a third longer."""
    found = schedule(forward("nn_rnn"), Problem(1024, 1, "fp32"), H200)
    kernel = found.kernel_for(128)
    assert kernel is not None and kernel.family is GRID and kernel.launches(128) > 1


def test_a_row_is_for_the_batches_up_to_the_next_one() -> None:
    found = schedule(forward("lstm"), Problem(768, 1, "bf16"), H200)
    rows = [(row.batch, row.choices[0].kernel.family, row.choices[0].kernel.launch_batch) for row in found.table]
    assert rows == [
        (1, GRID, 8),
        (9, GRID, 16),
        (17, GRID, 32),
        (33, GRID, 64),
        (65, WIDE, 128),
        (129, WIDE, 320),
    ]
    small, larger, *_, wide = (row.kernel for row in found.table)
    assert found.kernel_for(1) is found.kernel_for(8) is small and found.kernel_for(9) is found.kernel_for(16) is larger
    assert wide is not None and found.kernel_for(129) is found.kernel_for(10_000) is wide and wide.launches(640) == 2


def test_small_batches_are_run_where_the_planned_one_is_too_large() -> None:
    many = schedule(backward("lstm"), Problem(2048, 1, "bf16", batch=256), H200)
    kernels = [many.kernel_for(batch) for batch in (8, 256)]
    assert [kernel and kernel.family for kernel in kernels] == [GRID, STEPWISE]


def test_a_batch_that_does_not_run_at_once_takes_several_launches() -> None:
    problem = Problem(768, 1, "bf16", batch=600)
    found = schedule(backward("lstm"), problem, H200, reasons=True)
    kernel = found.kernel_for(600)
    assert kernel is not None and (kernel.family, kernel.launch_batch, kernel.launches(600)) == (WIDE, 320, 2)
    # Of equal width: groups of 64, five at a time. Groups of 60 would take as long.
    assert kernel.batch_of_a_launch(600) == 320
    alternating = next(entry.step_us for entry in found.rejected if entry.family is ALTERNATING)
    assert found.step_us is not None and alternating is not None and found.step_us < 0.5 * alternating
    assert WIDE not in [entry.family for entry in found.rejected]
    first, *lines = show_schedule(found, 600)
    assert first == f"batch 600: 2 launches of wide with {kernel.ctas} CTAs, {found.step_us} us per step"
    assert f"wide, scope grid: batches up to 320 per launch: {kernel.symbol}" in lines


@pytest.mark.one_in(12)
@pytest.mark.parametrize("gpu", ["h200", "h100", "b200"])
@pytest.mark.parametrize(("name", "dtype"), [("lstm", "bf16"), ("gru", "fp16"), ("slstm", "fp32"), ("elman", "bf16")])
def test_no_other_kernel_is_quicker_than_the_one_that_runs_a_batch(name: str, dtype: str, gpu: str) -> None:
    """At a row's end, where kernels were compared: whether a batch takes several launches, or a launch per step. Within
    a row, where the last launch of a kernel may be nearly empty, another one may be a little quicker."""
    target, several, by_steps = GPUS[gpu], 0, 0
    for loop in (forward(name), backward(name)):
        known = cost_of(loop, dtype)
        for head_dim, heads in ((256, 12), (512, 2), (768, 1), (1000, 1), (1024, 1), (1536, 1), (2048, 1), (4096, 1)):
            found = schedule(loop, Problem(head_dim, heads, dtype), target)
            batches = (1, 8, 16, 17, 32, 33, 48, 64, 65, 81, 128, 129, 161, 256, 257, 321, 640, 1000, 1024, 4096)
            # A cell with one gate has few batches that take several launches.
            for batch in sorted({*batches, *range(4, 513, 4)} if name == "elman" else batches):
                problem = Problem(head_dim, heads, dtype, batch)
                alternating, kernel = alternating_us(known, problem, target), found.kernel_for(batch)
                times = [step_us(known, each, problem, target) for each in found.kernels]
                is_end = batch & (batch - 1) == 0 and batch <= 1024
                if kernel is None:
                    assert min(times, default=inf) > (WORTH if is_end else 0.8) * alternating
                    continue
                several += kernel.launches(batch) > 1
                by_steps += kernel.family is STEPWISE
                us = step_us(known, kernel, problem, target)
                assert us <= (1.02 if is_end else 1.2) * min(times), (head_dim, batch)
                assert us <= (1.02 * WORTH if is_end else 1.0) * alternating
    assert several > 20 and by_steps > 10


def test_rows_are_few() -> None:
    for loop in (forward("lstm"), backward("lstm")):
        for head_dim in (64, 512, 768, 1024, 2048):
            table = schedule(loop, Problem(head_dim, 1, "bf16"), H200).table
            assert 0 < len(table) <= 12 and table[0].batch == 1
            assert all(one.batch < other.batch for one, other in pairwise(table))


def test_after_the_quickest_kernel_come_those_for_what_it_cannot_run() -> None:
    """A launch per step takes no packed sequences. A grid needs a GPU on which all of its CTAs run at once."""
    row = next(row for row in schedule(backward("lstm"), Problem(2048, 1, "bf16"), H200).table if row.batch > 24)
    assert [choice.kernel.family for choice in row.choices] == [STEPWISE, GRID]
    row = schedule(forward("layernormgru"), Problem(512, 1, "bf16"), H200).table[0]
    assert [choice.kernel.family for choice in row.choices] == [GRID, GATHER]
    assert row.choices[0].pass_us < row.choices[1].pass_us


def test_a_launch_a_step_may_take_any_batch() -> None:
    """The matrix of 4096 units comes from memory at every step, and cuBLAS reads it sooner. Measured on an H200: 42 us
    at a batch of 16, and the alternating kernel 69 at 4."""
    found = schedule(backward("lstm"), Problem(4096, 1, "bf16", 4), GPUS["h200"])
    assert [kernel.family for kernel in found.kernels] == [STEPWISE]
    assert found.kernel_for(1) is found.kernel_for(4096) is found.kernels[0]


def test_what_launches_outdo_is_no_kernel() -> None:
    """A kernel of the grid for a batch of 64 at once takes longer than two launches for 32."""
    kernels = schedule(backward("lstm"), Problem(1024, 1, "bf16"), H200).kernels
    grids = [kernel for kernel in kernels if kernel.family is GRID]
    assert [kernel.launch_batch for kernel in grids] == [16, 32]
    assert grids[1].launches(64) == 2 and grids[1].batch_of_a_launch(33) == 4 * 5


def test_wide_batches_stay_fused_where_that_is_quicker() -> None:
    """Measured with a batch of 64: 12.5 us alternating, 6.2 on the grid."""
    wide = schedule(backward("lstm"), Problem(768, 1, "bf16", batch=64), H200)
    kernel = wide.kernel_for(64)
    assert kernel is not None
    assert kernel.family is GRID
    assert kernel.step_us < 6.5


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", ["lstm", "gru", "elman", "slstm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_larger_batches_take_longer_and_so_does_float32(name: str, dtype: str) -> None:
    for loop in (forward(name), backward(name)):
        for head_dim in (64, 768, 2048):
            times = [
                schedule(loop, Problem(head_dim, 1, dtype, batch), H200).step_us or 0 for batch in (1, 16, 64, 256)
            ]
            assert times == sorted(times)
            assert times[0] >= (schedule(loop, Problem(head_dim, 1, "bf16", 1), H200).step_us or 0) > 0


@pytest.mark.parametrize(("dtype", "fits", "too_large"), [("bf16", 132_000, 133_000), ("fp32", 93_000, 94_000)])
def test_weights_that_do_not_fit_memory_have_no_kernel(dtype: str, fits: int, too_large: int) -> None:
    """Four matrices; an H200 has 141 GB."""
    assert schedule(forward("lstm"), Problem(fits, 1, dtype), H200).step_us is not None
    found = schedule(forward("lstm"), Problem(too_large, 1, dtype), H200)
    assert found.is_impossible and not found.kernels and found.step_us is None
    gigabytes = round(4 * too_large**2 * (4 if dtype == "fp32" else 2) / 1e9)
    assert [limit.numbers for entry in found.rejected for limit in entry.limits] == [f"{gigabytes} GB <= 141 GB"] * 2


def test_more_heads_take_longer_once_the_gpu_is_full() -> None:
    times = [schedule(forward("lstm"), Problem(256, heads, "bf16"), H200).step_us for heads in (1, 15, 60, 600)]
    assert None not in times
    assert times == sorted(times, key=lambda time: time or 0)
    assert len(set(times)) == len(times)


def test_large_batches_are_bound_by_memory() -> None:
    problem = Problem(64, 12, "bf16", batch=2048)
    found = schedule(forward("lstm"), problem, H200)
    slow_memory = schedule(forward("lstm"), problem, replace(H200, memory_gb_s=100))
    assert found.step_us is not None
    assert slow_memory.step_us is not None
    assert slow_memory.step_us > found.step_us


def test_what_has_no_fused_form_alternates_and_says_why() -> None:
    cases: list[tuple[FusedLoop | NoForm, Problem, str, str]] = [
        (NoForm("why"), Problem(768, 1, "bf16"), "form", "why"),
        (forward("lstm"), Problem(100, 10, "bf16"), "head_dim", "8"),
    ]
    for loop, problem, name, reason in cases:
        found = schedule(loop, problem, H200)
        assert found.kernels == ()
        ((limit,),) = (entry.limits for entry in found.rejected)
        assert limit.name == name
        assert reason in limit.reason


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["elman", "slstm", "peepholelstm", "cornn", "gatedantisymmetricrnn"])
def test_other_cells_and_odd_sizes_have_plans(name: str) -> None:
    for loop in (forward(name), backward(name)):
        for head_dim, heads, batch in ((8, 1, 1), (1000, 1, 16), (96, 500, 3), (65_536, 1, 16), (768, 3, 10_000)):
            found = schedule(loop, Problem(head_dim, heads, "fp16", batch), H200, reasons=True)
            assert found.step_us is not None
            assert all(kernel.shared_bytes <= H200.shared_bytes for kernel in found.kernels)
            for entry in found.rejected:
                assert (entry.step_us is None) == bool(entry.limits)


@pytest.mark.parametrize("name", ["wmclstm", "timeawarelstm", "taugru", "sgu"])
def test_a_grid_holds_only_the_matrices_that_exist(name: str) -> None:
    """That is quicker than a matrix for each sum and operand. The shape has a number for each run."""
    for loop in (forward(name), backward(name)):
        problem = Problem(768, 1, "bf16", 16)
        drafts = [MODELS[GRID](cost, problem, H200) for cost in _with_and_without_matrices_for_all(loop)]
        own, whole = (layout_model.best(problem.batch).value(layout_model.step) for layout_model in drafts)
        assert own < whole
        found = next(kernel for kernel in schedule(loop, problem, H200).kernels if kernel.family is GRID)
        phases = [phase for phase in loop.phases if phase.sums]
        assert len(found.shape) == 4 + sum(len(set(phase.taken_by)) for phase in phases)


def _with_and_without_matrices_for_all(loop: FusedLoop) -> tuple[LoopCost, LoopCost]:
    known = cost_of(loop, "bf16")
    return known, replace(known, phases=tuple(replace(phase, parts=()) for phase in known.phases))


def test_reasons_name_the_limits_and_how_far_the_others_go() -> None:
    found = schedule(forward("lstm"), Problem(1024, 1, "bf16"), H200, reasons=True)
    gather, scatter, wide, alternating = found.rejected
    assert [entry.family for entry in found.rejected] == [GATHER, SCATTER, WIDE, ALTERNATING]
    assert wide.step_us is not None and wide.step_us > 0.5 * (alternating.step_us or 0) > 0
    assert gather.limits[0].numbers == "768 >= 1024"
    assert {"head_dim", "registers", "shared memory"} <= {limit.name for limit in gather.limits}
    assert "registers" in {limit.name for limit in scatter.limits}
    assert alternating.step_us is not None
    assert found.step_us is not None
    assert alternating.step_us > found.step_us
    assert schedule(forward("lstm"), Problem(1024, 1, "bf16"), H200).rejected[0].limits == ()


@pytest.mark.parametrize(
    ("name", "problem", "gpu"),
    [
        ("nas", Problem(1536, 2, "fp16", 1), "h100"),
        ("mclstm", Problem(768, 1, "bf16", 256), "b200"),
        ("lstm", Problem(768, 4, "bf16", 64), "h100"),
        ("nn_gru", Problem(640, 1, "fp32", 64), "h200"),
        ("lstm", Problem(2048, 1, "bf16"), "h200"),
        ("slstm", Problem(4096, 1, "bf16"), "h200"),
    ],
    ids=str,
)
def test_the_work_of_a_schedule_and_its_reasons_is_bounded(
    name: str, problem: Problem, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In runs of propagators, of which there are about 200 a millisecond, for what takes longest of all shipped cells:
    within 50 ms. float32 has one choice more, `lane_rows`, and takes 55. The clock is benchmarks/constrint.py's."""
    meters: list[Meter] = []
    begin = Meter.__init__

    def counted(meter: Meter, limits: Limits) -> None:
        begin(meter, limits)
        meters.append(meter)

    monkeypatch.setattr(Meter, "__init__", counted)
    schedule(backward(name), problem, GPUS[gpu], reasons=True)
    assert 0 < sum(meter.steps for meter in meters) < (11_000 if problem.is_float else 9_000)
