"""Kernels of matrices of low rank on a CPU, thread by thread: all CTAs of a grid share what is between the factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.ir.family import GRID
from tests.cuda.kernels import Case as Wanted
from tests.cuda.kernels import forced, plan
from tests.emulated.compiled import Kernel, build
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.emulated.test_fused import BOUNDS, loops
from tests.numeric.compare import Problem

CELLS = {
    "lstm": """cell LowRankLSTM
state h, c
weights R: lowrank({rank})
i, f, o = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])
""",
    "gru": """cell LowRankGRU
state h
param u: vector
weights R: lowrank({rank})
r, z = sigmoid(W@x + R@h[t-1] + b)
n = tanh(W@x + b + r*(R@h[t-1] + u))
h[t] = (1 - z)*n + z*h[t-1]
""",
    # The first factors of two gates take h, and that of another one takes c.
    "states": """cell LowRankStates
state h, c
weights R: lowrank({rank})
i = sigmoid(W@x + R@h[t-1] + b)
f = sigmoid(W@x + R@c[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = i*tanh(c[t])
""",
    # Two products of low rank that wait for each other, and a norm between them.
    "chain": """cell LowRankChain
state h
weights R: lowrank({rank})
r = sigmoid(layernorm(W@x + R@h[t-1]) + b)
n = tanh(R@(r*h[t-1]) + W@x)
h[t] = r*h[t-1] + (1 - r)*n
""",
    # A sum of one gate alone.
    "elman": """cell LowRankElman
state h
weights R: lowrank({rank})
h[t] = tanh(W@x + R@h[t-1] + b)
""",
}


def made_of(
    cell: str, rank: int, dtype: str, masked: bool, head_dim: int, folder: Path, **tiles: int
) -> tuple[str, Mapping[str, Kernel]]:
    """A cell's file, and its kernels, which have the given tiles."""
    path = folder / f"{cell}.rnn"
    path.write_text(CELLS[cell].format(rank=rank), encoding="utf-8")
    made = forced(Wanted(str(path), GRID, dtype, "sm_90a"), head_dim, tiles)
    own = tuple(entry for entry in made.tables if ("_masked_" in entry[0]) == masked)
    return str(path), build(plan(str(path)), replace(made, tables=own), folder)


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    ("cell", "rank", "dtype", "head_dim", "heads", "batch", "tiles"),
    [
        ("lstm", 16, "bf16", 64, 1, 3, {"unit_tile": 8}),
        ("lstm", 8, "f16", 72, 2, 11, {"unit_tile": 16}),
        ("lstm", 24, "f32", 64, 1, 9, {"unit_tile": 8, "batch_tile": 16}),
        ("lstm", 64, "bf16", 264, 1, 5, {"unit_tile": 64}),
        ("lstm", 40, "f16", 104, 1, 19, {"unit_tile": 24, "batch_tile": 16}),
        ("gru", 16, "bf16", 72, 1, 7, {"unit_tile": 16}),
        ("gru", 32, "f32", 40, 2, 3, {"unit_tile": 8}),
        ("states", 16, "bf16", 64, 1, 9, {"unit_tile": 16}),
        ("states", 24, "f32", 72, 1, 4, {"unit_tile": 24}),
        ("chain", 16, "f16", 64, 1, 5, {"unit_tile": 16}),
        ("chain", 8, "f32", 64, 2, 3, {"unit_tile": 8}),
        ("elman", 48, "bf16", 136, 1, 1, {"unit_tile": 40}),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_kernel_of_low_rank(
    cell: str,
    rank: int,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    tiles: dict[str, int],
    masked: bool,
    tmp_path: Path,
) -> None:
    path, made = made_of(cell, rank, dtype, masked, head_dim, tmp_path, **tiles)
    assert {name.split("_")[-1] for name in made} == {"forward", "inference", "backward"}
    assert {kernel.schedule.relayed_head_dim for kernel in made.values()} == {rank}
    sizes = {"I": 3, "H": head_dim * heads, "R__rank": rank * heads}
    problem = Problem(5, batch, sizes, heads, DTYPES[dtype], reverse=masked)
    errors = EmulatedCase(loops(path)[masked], problem, made).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_more_steps_than_the_exchange_holds(masked: bool, tmp_path: Path) -> None:
    path, made = made_of("lstm", 16, "bf16", masked, 64, tmp_path, unit_tile=8)
    problem = Problem(150, 5, {"I": 3, "H": 64}, 1, DTYPES["bf16"])
    assert 2 * max(kernel.schedule.exchange_steps or 0 for kernel in made.values()) < problem.steps
    errors = EmulatedCase(loops(path)[masked], problem, made).measured()
    assert {name: error for name, error in errors.items() if not error <= 2 * BOUNDS["bf16"]} == {}
