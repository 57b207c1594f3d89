"""The model of sparse kernels: what it asks of a loop, and what it plans (times: test_schedule_sparse_measured.py)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rnncc.constrint import Infeasible
from rnncc.ir.family import GRID, SPARSE, STEPWISE
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import KernelLayout
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.families import families_for
from rnncc.stages.schedule.sparse import sparse
from tests.stages.scheduling import forward

H200 = GPUS["h200"]
ELMAN = "cell Elman\nstate h\nweights R: {kind}\nh[t] = tanh(W@x + R@h[t-1] + b)\n"
LSTM = Path(__file__).resolve().parents[1].joinpath("fixtures", "sparselstm.rnn").read_text(encoding="utf-8")


@cache
def loop_of(text: str) -> FusedLoop:
    """The forward loop of a cell, in training."""
    loop = compile_cells(Request(Source("own.rnn", text), "own"), "lower").cells[0].plan.loops[0].fused_forward
    assert isinstance(loop, FusedLoop)
    return loop


def backward_of(density: float) -> FusedLoop:
    """The LSTM's backward loop."""
    text = LSTM.replace("density=0.1", f"density={density}")
    loop = compile_cells(Request(Source("own.rnn", text), "own"), "lower").cells[0].plan.loops[0].fused_backward
    assert isinstance(loop, FusedLoop)
    return loop


def sparse_kernel(loop: FusedLoop, problem: Problem, **tiles: int) -> KernelLayout:
    """The kernel of these tiles."""
    layout_model = sparse(cost_of(loop, problem.dtype), problem, H200)
    for name, size in tiles.items():
        tile = layout_model.tiles[name]
        assert not isinstance(tile, int)
        layout_model.model.require(tile == size, because="given: by the test")
    return layout_model.scheduled(layout_model.best(problem.batch), problem, H200)


def test_only_loops_with_sparse_matrices_have_the_family() -> None:
    assert SPARSE in families_for(cost_of(loop_of(LSTM), "bf16"))
    assert SPARSE not in families_for(cost_of(forward("lstm"), "bf16"))
    mixed = LSTM.replace("weights R:", "weights U: matrix, R:").replace("b)\ng", "U@c[t-1] + b)\ng")
    assert SPARSE not in families_for(cost_of(loop_of(mixed), "bf16"))


def test_a_sparse_kernel_is_chosen_where_it_is_the_quickest() -> None:
    """Where a dense matrix fits on chip, and at a size at which it does not."""
    loop = loop_of(LSTM)
    assert SPARSE not in {kernel.family for kernel in schedule(loop, Problem(512, 1, "bf16"), H200).kernels}
    large = schedule(loop, Problem(4096, 1, "bf16", 4), H200).kernel_for(4)
    assert large is not None and large.family is SPARSE


def test_kernels_for_dense_matrices_are_there_too() -> None:
    """Masks may become denser. And where a dense kernel is about as quick, there is no sparse one: how long that takes
    depends on the mask."""
    problem = Problem(2048, 1, "bf16", 16)
    few, many = (schedule(backward_of(density), problem, H200) for density in (0.01, 0.1))
    taken = few.kernel_for(16)
    assert taken is not None and taken.family is SPARSE
    grids = [[kernel for kernel in found.kernels if kernel.family is GRID] for found in (few, many)]
    assert grids[0] == grids[1] != []
    assert SPARSE in {each.family for each in many.rejected}


def test_a_sparse_kernel_may_be_the_only_one() -> None:
    """Where dense matrices of several heads fit on no chip."""
    found = schedule(backward_of(0.02), Problem(768, 4, "fp32", 64), H200)
    assert {kernel.family for kernel in found.kernels} == {SPARSE}


@pytest.mark.parametrize(("density", "head_dim"), [(0.1, 2304), (0.05, 4096)])
def test_a_backward_loop_has_its_kernel(density: float, head_dim: int) -> None:
    """It takes four operands, where the forward loop takes one."""
    kernel = sparse_kernel(backward_of(density), Problem(head_dim, 1, "bf16", 4))
    assert kernel.group_batch == 4 and kernel.shared_bytes <= H200.shared_bytes


def test_operands_of_many_entries_come_in_waves() -> None:
    """What four gates of 8 or 16 batch entries send has no room at once, and the dense kernel takes longer."""
    for batch in (8, 16):
        found = schedule(backward_of(0.05), Problem(4096, 1, "bf16", batch), H200, reasons=True)
        kernel = found.kernel_for(batch)
        others = [each.step_us for each in found.kernels if each.family is not SPARSE]
        others += [each.step_us for each in found.rejected if each.step_us is not None]
        assert kernel is not None and dict(kernel.tiles)["waves"] > 1
        assert kernel.step_us < 0.65 * min(others)  # measured at 16: 25.8 and 42.5 us


@pytest.mark.parametrize("batch", [8, 16])
def test_a_batch_takes_as_many_launches_as_are_quicker(batch: int) -> None:
    """No kernel takes more than 4 entries. Measured on an H200 at 16: four launches 33.5 us, a launch a step 42.3."""
    found = schedule(backward_of(0.1), Problem(4096, 1, "bf16", batch), H200)
    few, by_steps = (found.kernel_for(entries) for entries in (batch, 32))
    assert few is not None and few.family is SPARSE and few.launches(batch) == batch // 4
    # Nothing lies between them. Where masks are denser than planned, there is no kernel for zeros.
    assert by_steps is not None and by_steps.family is STEPWISE and found.kernel_for(21) is by_steps
    assert all(by_steps in [choice.kernel for choice in row.choices] for row in found.table)


def test_what_has_no_room_is_said() -> None:
    """Half of the elements of such matrices are more than the chip has room for."""
    dense = loop_of(LSTM.replace("density=0.1", "density=0.5"))
    found = schedule(dense, Problem(4096, 1, "bf16", 4), H200, reasons=True)
    (rejected,) = (each for each in found.rejected if each.family is SPARSE)
    assert {"shared memory", "registers"} & {limit.name for limit in rejected.limits}


def test_a_denser_matrix_takes_longer() -> None:
    problem = Problem(2304, 1, "bf16", 4)
    texts = [ELMAN.format(kind=f"sparse(density={density})") for density in (0.05, 0.1, 0.2, 0.3)]
    times = [sparse_kernel(loop_of(text), problem).step_us for text in texts]
    assert times == sorted(times) and times[0] < times[-1]


def test_reductions_and_several_phases_have_sparse_kernels_too() -> None:
    text = (
        "cell Own\nstate h\nweights R: sparse(density=0.1)\nr = sigmoid(W@x + R@h[t-1])\n"
        "h[t] = tanh(layernorm(R@(r*h[t-1]) + W@x))\n"
    )
    kernel = sparse_kernel(loop_of(text), Problem(1024, 1, "bf16", 4))
    assert kernel.family is SPARSE and len(kernel.shape) == 7 + 2 * 3


def test_lists_have_no_more_rows_than_threads() -> None:
    """Eight gates of 64 units are 512 rows, and 72 units have too many."""
    many = "cell Own\nstate h\nweights R: sparse(density=0.01)\n" + "".join(
        f"g{i} = tanh(W@x + R@h[t-1])\n" for i in range(8)
    )
    loop = loop_of(many + "h[t] = " + " + ".join(f"g{i}" for i in range(8)) + "\n")
    known = cost_of(loop, "bf16")
    assert sparse_kernel(loop, Problem(8192, 1, "bf16", 4)).ctas == 128
    with pytest.raises(Infeasible):
        layout_model = sparse(replace(known), Problem(8704, 1, "bf16", 4), H200)
        layout_model.best(4)
