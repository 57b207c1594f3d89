"""The cost model against steps measured on an H200: single kernels, the shape given, T = 1024 (float32: 64 or 128)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rnncc.constrint import Infeasible, Variable
from rnncc.ir.family import GATHER, GRID, SCATTER, WIDE, Family, Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.draft import TENTHS_OF_NS
from rnncc.stages.schedule.expect import after_us
from rnncc.stages.schedule.facts import facts_of
from rnncc.stages.schedule.families import MODELS
from tests.stages.scheduling import backward, forward, inference

H200 = GPUS["h200"]
MOST_APART = 1.3


@dataclass(frozen=True)
class Measured:
    """Microseconds per step of groups of `batch` entries; `given` are the model's variables. On the grid `groups` run
    side by side; clusters do not disturb each other."""

    us: float
    family: Family
    head_dim: int
    batch: int
    given: dict[str, int]
    groups: int = 1

    def __str__(self) -> str:
        return f"{self.family.name} {self.head_dim} [{self.batch}] " + " ".join(
            f"{k}={v}" for k, v in self.given.items()
        )


def cluster(us: float, family: Family, head_dim: int, batch: int, **given: int) -> Measured:
    return Measured(us, family, head_dim, batch, given)


def on_grid(us: float, head_dim: int, unit_blocks: int, batch: int, groups: int, **given: int) -> Measured:
    return Measured(us, GRID, head_dim, batch, {"unit_blocks": unit_blocks, "tiles": 1, **given}, groups)


def at_large(us: float, head_dim: int, unit_blocks: int, batch: int) -> Measured:
    return Measured(us, WIDE, head_dim, batch, {"unit_blocks": unit_blocks})


# The LSTM, trained.
FORWARD = [
    cluster(0.445, GATHER, 64, 2, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1),
    cluster(0.439, GATHER, 64, 4, ctas=4, unit_warps=2, k_warps=1, unit_blocks=1),
    cluster(0.459, GATHER, 128, 4, ctas=4, unit_warps=4, k_warps=1, unit_blocks=1),
    cluster(0.499, GATHER, 128, 8, ctas=8, unit_warps=2, k_warps=2, unit_blocks=1),
    cluster(0.545, GATHER, 256, 4, ctas=8, unit_warps=4, k_warps=1, unit_blocks=1),
    cluster(0.609, GATHER, 256, 8, ctas=16, unit_warps=2, k_warps=2, unit_blocks=1),
    cluster(0.826, GATHER, 512, 3, ctas=16, unit_warps=4, k_warps=2, unit_blocks=1),
    cluster(0.962, GATHER, 512, 3, ctas=16, unit_warps=2, k_warps=2, unit_blocks=2),
    on_grid(1.45, 768, 3, 4, 4),
    on_grid(1.50, 768, 2, 8, 2),
    on_grid(1.66, 768, 4, 4, 4),
    on_grid(1.70, 768, 3, 8, 4),
    on_grid(2.55, 768, 3, 16, 4, tiles=2),
    on_grid(2.73, 768, 3, 16, 4, tiles=2),
    on_grid(1.81, 1024, 2, 8, 2),
    on_grid(3.44, 2048, 2, 16, 1, tiles=2),
    at_large(3.91, 768, 2, 128),
    at_large(5.28, 768, 4, 256),
    at_large(3.88, 1024, 2, 64),
    at_large(4.50, 1024, 2, 128),
    at_large(3.81, 512, 2, 256),
]
BACKWARD = [
    cluster(0.512, SCATTER, 64, 4, ctas=4, items=2, row_warps=4, k_warps=1),
    cluster(0.475, SCATTER, 64, 2, ctas=4, items=2, row_warps=2, k_warps=1),
    cluster(0.498, SCATTER, 64, 4, ctas=2, items=4, row_warps=2, k_warps=2),
    cluster(0.604, SCATTER, 128, 4, ctas=4, items=4, row_warps=8, k_warps=1),
    cluster(0.524, SCATTER, 128, 8, ctas=8, items=2, row_warps=4, k_warps=1),
    cluster(0.690, SCATTER, 256, 8, ctas=16, items=2, row_warps=4, k_warps=1),
    cluster(0.738, SCATTER, 256, 4, ctas=8, items=4, row_warps=8, k_warps=1),
    cluster(1.17, SCATTER, 512, 3, ctas=16, items=4, row_warps=8, k_warps=1),
    on_grid(1.99, 768, 4, 4, 4),
    on_grid(2.47, 768, 4, 8, 4),
    on_grid(2.37, 1024, 4, 4, 4),
    on_grid(4.32, 768, 4, 16, 4, tiles=2),
    on_grid(6.72, 2048, 2, 16, 1, tiles=2),
    at_large(5.61, 768, 2, 64),
    at_large(6.77, 768, 2, 128),
    at_large(9.14, 768, 4, 256),
    at_large(6.81, 1024, 2, 64),
    at_large(9.19, 1024, 2, 128),
    at_large(4.44, 512, 2, 32),
    at_large(5.12, 512, 4, 256),
]
# Other cells, in training and inference. All but two have reductions over a head.
OTHERS: list[tuple[str, Callable[[str], FusedLoop], Measured]] = [
    ("timeawarelstm", inference, cluster(1.09, GATHER, 256, 8, ctas=16, unit_warps=2, k_warps=2, unit_blocks=1)),
    ("gruv3", forward, on_grid(4.38, 768, 4, 16, 4, tiles=2)),
    ("gruv3", backward, on_grid(5.07, 768, 4, 16, 4, tiles=2)),
    ("lstm", inference, at_large(4.49, 768, 4, 256)),
    ("gru", inference, at_large(3.53, 768, 4, 256)),
    ("gru", backward, at_large(5.91, 768, 4, 256)),
    ("gruv3", forward, at_large(5.72, 768, 4, 256)),
    ("gruv3", backward, at_large(7.10, 768, 4, 256)),
    ("elman", forward, at_large(2.54, 768, 4, 256)),
    ("elman", backward, at_large(2.55, 768, 4, 256)),
    ("slstm", forward, at_large(6.24, 768, 4, 256)),
    ("layernormlstm", inference, cluster(1.17, GATHER, 64, 2, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1)),
    ("layernormlstm", forward, cluster(1.39, GATHER, 64, 2, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1)),
    ("layernormlstm", backward, cluster(1.65, GATHER, 64, 2, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1)),
    ("layernormlstm", inference, cluster(1.93, GATHER, 256, 4, ctas=8, unit_warps=4, k_warps=1, unit_blocks=1)),
    ("layernormgru", inference, cluster(1.25, GATHER, 256, 4, ctas=8, unit_warps=4, k_warps=1, unit_blocks=1)),
    ("layernormgru", inference, cluster(3.6, GATHER, 768, 2, ctas=16, unit_warps=3, k_warps=2, unit_blocks=2)),
    ("layernormgru", forward, cluster(3.7, GATHER, 768, 2, ctas=16, unit_warps=3, k_warps=2, unit_blocks=2)),
    # A layer's times, less those of the products before its loop.
    ("onlstm", inference, cluster(1.07, GATHER, 64, 2, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1)),
    ("onlstm", inference, cluster(2.70, GATHER, 256, 4, ctas=8, unit_warps=4, k_warps=1, unit_blocks=1)),
    ("layernormgru", inference, on_grid(2.8, 768, 3, 4, 4)),
    ("layernormgru", backward, on_grid(3.7, 768, 4, 4, 4)),
    ("onlstm", forward, on_grid(6.8, 768, 2, 8, 2)),
    ("onlstm", backward, on_grid(7.3, 768, 2, 8, 2)),
    ("layernormlstm", inference, on_grid(4.48, 768, 3, 4, 4)),
    ("layernormlstm", inference, on_grid(7.8, 768, 3, 16, 4, tiles=2)),
    ("layernormlstm", forward, on_grid(7.96, 768, 3, 16, 4, tiles=2)),
    ("layernormlstm", backward, on_grid(10.24, 768, 3, 16, 4, tiles=2)),
    ("janet", inference, on_grid(2.5, 1536, 3, 16, 2, tiles=2)),
    ("janet", inference, on_grid(3.1, 1536, 4, 16, 2, tiles=2)),
]
# In float32. Cells of few gates load operands for few rows, unless lanes share these (lane_rows=4). Where clusters have
# such lanes, a row's time is that of a layer's step divided by its passes.
FLOATS: list[tuple[str, Callable[[str], FusedLoop], Measured]] = [
    ("nn_rnn", forward, cluster(4.93, GATHER, 512, 8, ctas=8, unit_warps=8, k_warps=1, unit_blocks=1, lane_rows=1)),
    ("nn_rnn", forward, cluster(2.47, GATHER, 512, 8, ctas=8, unit_warps=2, k_warps=4, unit_blocks=4, lane_rows=1)),
    ("nn_rnn", forward, cluster(10.3, GATHER, 1024, 8, ctas=16, unit_warps=8, k_warps=1, unit_blocks=1, lane_rows=1)),
    ("janet", forward, cluster(3.02, GATHER, 512, 8, ctas=16, unit_warps=4, k_warps=2, unit_blocks=1, lane_rows=1)),
    ("janet", forward, cluster(3.93, GATHER, 512, 8, ctas=16, unit_warps=2, k_warps=2, unit_blocks=2, lane_rows=1)),
    ("mgu", forward, cluster(2.03, GATHER, 256, 8, ctas=8, unit_warps=1, k_warps=8, unit_blocks=4, lane_rows=1)),
    ("nn_rnn", forward, cluster(0.98, SCATTER, 256, 8, ctas=8, items=4, row_warps=8, k_warps=1, lane_rows=1)),
    ("nn_rnn", forward, on_grid(1.68, 512, 3, 8, 6, lane_rows=1)),
    ("nn_rnn", forward, on_grid(1.92, 512, 4, 8, 8, lane_rows=1)),
    ("nn_rnn", forward, on_grid(3.56, 512, 4, 16, 8, tiles=2, lane_rows=1)),
    ("nn_rnn", forward, on_grid(7.53, 768, 3, 32, 4, tiles=4, lane_rows=1)),
    ("nn_rnn", forward, on_grid(2.70, 1024, 2, 8, 2, lane_rows=1)),
    ("nn_rnn", forward, on_grid(3.20, 1024, 4, 8, 4, lane_rows=1)),
    ("nn_rnn", forward, on_grid(5.58, 1024, 4, 16, 4, tiles=2, lane_rows=1)),
    ("mgu", forward, on_grid(5.55, 1024, 2, 8, 2, lane_rows=1)),
    ("mgu", forward, on_grid(6.60, 1024, 4, 8, 4, lane_rows=1)),
    ("nn_gru", forward, on_grid(4.10, 1024, 2, 8, 2, lane_rows=1)),
    ("nn_gru", backward, on_grid(4.80, 512, 4, 8, 8, lane_rows=1)),
    ("lstm", forward, on_grid(5.98, 1024, 1, 16, 1, tiles=2, lane_rows=1)),
    ("lstm", backward, on_grid(8.16, 1024, 1, 8, 1, lane_rows=1)),
    ("lstm", backward, on_grid(16.1, 1024, 1, 16, 1, tiles=2, lane_rows=1)),
    ("nn_rnn", forward, cluster(2.27, GATHER, 512, 8, ctas=8, unit_warps=8, k_warps=1, unit_blocks=1, lane_rows=4)),
    ("nn_rnn", forward, cluster(5.07, GATHER, 1024, 8, ctas=16, unit_warps=8, k_warps=1, unit_blocks=1, lane_rows=4)),
    ("nn_gru", forward, cluster(3.27, GATHER, 512, 8, ctas=16, unit_warps=4, k_warps=2, unit_blocks=1, lane_rows=4)),
    ("nn_gru", backward, cluster(4.52, GATHER, 512, 8, ctas=16, unit_warps=4, k_warps=2, unit_blocks=1, lane_rows=4)),
    ("mgu", forward, cluster(1.18, GATHER, 64, 6, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1, lane_rows=4)),
    ("lem", backward, cluster(3.23, GATHER, 256, 8, ctas=8, unit_warps=4, k_warps=2, unit_blocks=1, lane_rows=4)),
    ("lstm", backward, cluster(0.81, SCATTER, 64, 8, ctas=4, items=2, row_warps=4, k_warps=2, lane_rows=4)),
    ("nn_rnn", forward, on_grid(1.31, 512, 2, 2, 4, lane_rows=4)),
    ("mgu", forward, on_grid(4.88, 1024, 2, 8, 2, lane_rows=4)),
    ("nn_gru", backward, on_grid(3.03, 512, 1, 8, 2, lane_rows=4)),
    ("lstm", backward, on_grid(8.42, 512, 2, 16, 4, tiles=2, lane_rows=4)),
    ("lstm", backward, on_grid(11.2, 1024, 1, 16, 1, tiles=2, lane_rows=4)),
]


def predicted(loop: FusedLoop, row: Measured, dtype: str = "bf16") -> float:
    """Microseconds; what a row leaves open is chosen by the model."""
    # As many heads as fill the GPU leave one group a head, hence the wanted batch.
    heads = 1 if row.family.scope is Scope.GRID else dict(H200.clusters)[row.given["ctas"]]
    draft = MODELS[row.family](facts_of(loop, dtype), Problem(row.head_dim, heads, dtype, row.batch * row.groups), H200)
    known: dict[str, Variable] = {variable.name: variable for variable in draft.model.variables}
    solution = draft.model.minimise(draft.total, given={known[name]: value for name, value in row.given.items()})
    return solution.value(draft.step) / TENTHS_OF_NS


@pytest.mark.parametrize("row", FORWARD, ids=str)
def test_forward_steps(row: Measured) -> None:
    ratio = predicted(forward("lstm"), row) / row.us
    assert 1 / MOST_APART < ratio < MOST_APART


@pytest.mark.parametrize("row", BACKWARD, ids=str)
def test_backward_steps(row: Measured) -> None:
    ratio = predicted(backward("lstm"), row) / row.us
    assert 1 / MOST_APART < ratio < MOST_APART


@pytest.mark.parametrize(("cell", "way", "row"), OTHERS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_steps_of_other_cells(cell: str, way: Callable[[str], FusedLoop], row: Measured) -> None:
    ratio = predicted(way(cell), row) / row.us
    assert 1 / MOST_APART < ratio < MOST_APART


@pytest.mark.parametrize(("cell", "way", "row"), FLOATS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_steps_in_float32(cell: str, way: Callable[[str], FusedLoop], row: Measured) -> None:
    ratio = predicted(way(cell), row, "fp32") / row.us
    assert 1 / MOST_APART < ratio < MOST_APART


def test_many_items_reduce_by_a_grid() -> None:
    """Each CTA of a cluster joins what 96 items give. On a grid it joins 24 parts of a norm."""
    loop = forward("layernormgru")
    assert schedule(loop, Problem(768, 1, "bf16", 16), H200).kernels[0].family is GRID
    assert schedule(loop, Problem(512, 1, "bf16", 16), H200).kernels[0].family is GATHER


def test_what_was_slow_since_it_spilled_is_ruled_out() -> None:
    row = cluster(5.0, SCATTER, 768, 8, ctas=16, items=6, row_warps=8, k_warps=1)
    with pytest.raises(Infeasible) as refused:
        predicted(backward("lstm"), row)
    assert "registers" in [part.requirement.name for part in refused.value.conflict.parts]


# Head_dim, heads, batch, steps, and the microseconds of both kernels of heads.h for the LSTM's gradients in bfloat16.
GRADIENTS_OF_HEADS = [
    (64, 12, 256, 512, 248), (256, 3, 256, 512, 620), (128, 6, 256, 512, 309), (384, 2, 256, 512, 1013),
    (16, 48, 256, 512, 662), (32, 24, 256, 512, 317), (96, 8, 256, 512, 484), (64, 64, 64, 256, 178),
    (64, 12, 16, 1024, 48), (256, 3, 16, 1024, 94), (128, 6, 16, 1024, 55), (384, 2, 16, 1024, 146),
]  # fmt: skip


@pytest.mark.parametrize(("head_dim", "heads", "batch", "steps", "us"), GRADIENTS_OF_HEADS)
def test_gradients_of_heads(head_dim: int, heads: int, batch: int, steps: int, us: float) -> None:
    expected_us = after_us(backward("lstm"), Problem(head_dim, heads, "bf16", batch), steps, H200)
    assert us / MOST_APART < expected_us < us * MOST_APART
