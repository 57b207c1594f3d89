"""The cost model against steps measured on an H200: the LSTM in bfloat16, trained, the shape given, T = 1024."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rnncc.constrint import Infeasible, Variable
from rnncc.ir.family import GATHER, GRID, SCATTER, Family
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule.draft import TENTHS_OF_NS
from rnncc.stages.schedule.facts import facts_of
from rnncc.stages.schedule.families import MODELS
from tests.stages.scheduling import backward, forward

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


def on_grid(us: float, head_dim: int, unit_blocks: int, batch: int, groups: int, tiles: int = 1) -> Measured:
    return Measured(us, GRID, head_dim, batch, {"unit_blocks": unit_blocks, "tiles": tiles}, groups)


FORWARD = [
    cluster(0.445, GATHER, 64, 2, ctas=1, unit_warps=8, k_warps=1, unit_blocks=1),
    cluster(0.439, GATHER, 64, 4, ctas=4, unit_warps=2, k_warps=1, unit_blocks=1),
    cluster(0.459, GATHER, 128, 4, ctas=4, unit_warps=4, k_warps=1, unit_blocks=1),
    cluster(0.499, GATHER, 128, 8, ctas=8, unit_warps=2, k_warps=2, unit_blocks=1),
    cluster(0.545, GATHER, 256, 4, ctas=8, unit_warps=4, k_warps=1, unit_blocks=1),
    cluster(0.609, GATHER, 256, 8, ctas=16, unit_warps=2, k_warps=2, unit_blocks=1),
    cluster(0.826, GATHER, 512, 3, ctas=16, unit_warps=4, k_warps=2, unit_blocks=1),
    cluster(0.962, GATHER, 512, 3, ctas=16, unit_warps=2, k_warps=2, unit_blocks=2),
    on_grid(1.50, 768, 2, 8, 2),
    on_grid(1.66, 768, 4, 4, 4),
    on_grid(2.73, 768, 3, 16, 4, tiles=2),
    on_grid(1.81, 1024, 2, 8, 2),
    on_grid(3.44, 2048, 2, 16, 1, tiles=2),
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
    on_grid(2.37, 1024, 4, 4, 4),
    on_grid(4.32, 768, 4, 16, 4, tiles=2),
    on_grid(6.72, 2048, 2, 16, 1, tiles=2),
]


def predicted(loop: FusedLoop, row: Measured) -> float:
    """Microseconds; what a row leaves open is chosen by the model."""
    # As many heads as fill the GPU leave one group a head, hence the wanted batch.
    heads = 1 if row.family is GRID else dict(H200.clusters)[row.given["ctas"]]
    draft = MODELS[row.family](
        facts_of(loop, "bf16"), Problem(row.head_dim, heads, "bf16", row.batch * row.groups), H200
    )
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


def test_what_was_slow_since_it_spilled_is_ruled_out() -> None:
    row = cluster(5.0, SCATTER, 768, 8, ctas=16, items=6, row_warps=8, k_warps=1)
    with pytest.raises(Infeasible) as refused:
        predicted(backward("lstm"), row)
    assert "registers" in [part.requirement.name for part in refused.value.conflict.parts]
