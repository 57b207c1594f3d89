"""Sparse kernels on a CPU, thread by thread, as test_fused.py runs the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rnncc.ir.family import BLOCKS, SPARSE, Family
from rnncc.ir.layout import FusedKernels
from rnncc.stages.schedule import sparse as model
from tests.cuda.kernels import Case as Wanted
from tests.cuda.kernels import forced, plan
from tests.emulated.compiled import Kernel, build
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.emulated.test_fused import BOUNDS, loops
from tests.numeric.compare import Problem

CELLS = {
    "lstm": """cell SparseLSTM
state h, c
weights R: sparse(density=0.1)
i, f, o = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])
""",
    "elman": """cell SparseElman
state h
weights R: mask(density=0.3)
h[t] = tanh(W@x + R@h[t-1] + b)
""",
    # Two products that wait for each other, and a norm.
    "normed": """cell SparseNormed
state h
weights R: sparse(density=0.2)
r = sigmoid(W@x + R@h[t-1] + b)
n = tanh(layernorm(R@(r*h[t-1]) + W@x))
h[t] = r*h[t-1] + (1 - r)*n
""",
    # A narrower state, and a sum that takes two operands.
    "narrow": """cell SparseNarrow
dim P
state h: P, c
weights R: sparse(density=0.25), U: sparse(density=0.25)
f = sigmoid(W@x + R@h[t-1] + U@c[t-1])
c[t] = f*c[t-1] + (1 - f)*tanh(W@x)
h[t] = tanh(U@c[t-1])
""",
    # Three gates: backward, a sum takes three operands.
    "gates": """cell SparseGates
state h
weights R: sparse(density=0.2)
r, z = sigmoid(W@x + R@h[t-1] + b)
n = tanh(W@x + r*(R@h[t-1]))
h[t] = z*h[t-1] + (1 - z)*n
""",
}


def planned(
    cell: str, dtype: str, masked: bool, head_dim: int, folder: Path, family: Family = SPARSE, **tiles: int
) -> tuple[str, FusedKernels]:
    """A cell's file, and its kernels, which have the given tiles. Those of blocks have blocks of 16."""
    path = folder / f"{cell}.rnn"
    text = re.sub(r"(density=[\d.]+)", r"\1, block=16", CELLS[cell]) if family is BLOCKS else CELLS[cell]
    path.write_text(text, encoding="utf-8")
    made = forced(Wanted(str(path), family, dtype, "sm_90a"), head_dim, tiles)
    own = tuple(entry for entry in made.tables if ("_masked_" in entry[0]) == masked)
    return str(path), replace(made, tables=own)


def made_of(
    cell: str, dtype: str, masked: bool, head_dim: int, folder: Path, family: Family = SPARSE, **tiles: int
) -> tuple[str, Mapping[str, Kernel]]:
    """The same, compiled."""
    path, kernels = planned(cell, dtype, masked, head_dim, folder, family, **tiles)
    return path, build(plan(path), kernels, folder)


def sparse_case(path: str, problem: Problem, masked: bool, made: Mapping[str, Kernel], density: float) -> EmulatedCase:
    """A case whose matrices have about so many elements that are not zero."""
    case = EmulatedCase(loops(path)[masked], problem, made)
    for weight in case.weights:
        if weight.dim() == 2:
            weight *= torch.rand(weight.shape) < density
    return case


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    ("cell", "dtype", "head_dim", "heads", "batch", "sizes", "entries", "turns"),
    [
        ("lstm", "bf16", 64, 1, 3, {}, 4, 2),
        ("lstm", "f16", 72, 2, 8, {}, 4, 2),
        ("lstm", "f32", 96, 1, 5, {}, 4, 1),
        ("lstm", "bf16", 96, 1, 13, {}, 8, 2),
        ("elman", "bf16", 136, 1, 4, {}, 8, 1),
        ("elman", "f32", 64, 2, 9, {}, 4, 2),
        ("elman", "f32", 96, 1, 9, {}, 8, 1),
        ("normed", "bf16", 64, 1, 7, {}, 4, 2),
        ("normed", "f32", 72, 1, 3, {}, 4, 1),
        ("normed", "f16", 72, 1, 16, {}, 8, 2),
        ("narrow", "f16", 72, 1, 6, {"P": 40}, 8, 2),
        ("narrow", "f32", 72, 1, 6, {"P": 40}, 4, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_sparse_kernel(
    cell: str,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    sizes: dict[str, int],
    entries: int,
    turns: int,
    masked: bool,
    tmp_path: Path,
) -> None:
    path, made = made_of(cell, dtype, masked, head_dim, tmp_path, batch_tile=entries, turns=turns)
    assert {kernel.schedule.family for kernel in made.values()} == {SPARSE}
    problem = Problem(5, batch, {"I": 3, "H": head_dim * heads} | sizes, heads, DTYPES[dtype], reverse=masked)
    errors = sparse_case(path, problem, masked, made, 0.1).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "dtype", "head_dim", "heads", "batch", "sizes", "entries", "turns", "waves"),
    [
        ("lstm", "bf16", 64, 1, 13, {}, 8, 2, 4),
        ("lstm", "f16", 72, 2, 7, {}, 4, 2, 2),
        ("lstm", "f32", 96, 1, 5, {}, 8, 1, 4),
        ("gates", "bf16", 72, 1, 7, {}, 8, 1, 2),
        ("gates", "bf16", 136, 1, 3, {}, 4, 1, 3),
        ("narrow", "f32", 72, 1, 6, {"P": 40}, 4, 2, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize(("masked", "density"), [(True, 0.1), (False, 0.6)], ids=["masked", "denser"])
def test_operands_that_come_in_waves(
    cell: str,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    sizes: dict[str, int],
    entries: int,
    turns: int,
    waves: int,
    masked: bool,
    density: float,
    tmp_path: Path,
) -> None:
    """Shared memory has a part of the operands at a time. Denser matrices have elements that have no room in lists."""
    tiles = {"batch_tile": entries, "turns": turns}
    folders = [tmp_path / "all", tmp_path / "waves"]
    for folder in folders:
        folder.mkdir()
    path, made = made_of(cell, dtype, masked, head_dim, folders[0], SPARSE, **tiles)
    # A loop of one operand has one wave.
    _, with_waves = made_of(cell, dtype, masked, head_dim, folders[1], SPARSE, **tiles, waves=waves, split=1)
    assert with_waves and all(dict(kernel.schedule.tiles)["waves"] == waves for kernel in with_waves.values())
    made = {**made, **with_waves}
    problem = Problem(4, batch, {"I": 3, "H": head_dim * heads} | sizes, heads, DTYPES[dtype], reverse=masked)
    errors = sparse_case(path, problem, masked, made, density).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "dtype", "head_dim", "heads", "batch", "sizes", "tiles"),
    [
        ("lstm", "bf16", 64, 1, 13, {}, {"batch_tile": 8, "turns": 2, "split": 2}),
        ("lstm", "bf16", 128, 1, 5, {}, {"batch_tile": 4, "turns": 1, "split": 4, "unit_tile": 8}),
        ("lstm", "f32", 96, 1, 5, {}, {"batch_tile": 8, "turns": 1, "split": 2}),
        ("elman", "f16", 96, 2, 9, {}, {"batch_tile": 8, "turns": 1, "split": 4, "unit_tile": 8}),
        ("normed", "bf16", 64, 1, 7, {}, {"batch_tile": 4, "turns": 2, "split": 2}),
        ("gates", "f16", 160, 1, 11, {}, {"batch_tile": 8, "turns": 2, "split": 4, "unit_tile": 8}),
        ("narrow", "f32", 96, 1, 6, {"P": 40}, {"batch_tile": 4, "turns": 2, "split": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize(("masked", "density"), [(True, 0.1), (False, 0.1), (False, 0.6)], ids=["masked", "", "denser"])
def test_terms_that_a_cluster_splits(
    cell: str,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    sizes: dict[str, int],
    tiles: dict[str, int],
    masked: bool,
    density: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each CTA of a cluster has a slice of the terms. Some slices are padded, and some operands are cut."""
    monkeypatch.setattr(model, "_MOST_SPLIT", 4)  # kernels take more CTAs per cluster than are planned
    path, made = made_of(cell, dtype, masked, head_dim, tmp_path, SPARSE, **tiles)
    assert {kernel.schedule.cluster for kernel in made.values()} == {tiles["split"]}
    problem = Problem(5, batch, {"I": 3, "H": head_dim * heads} | sizes, heads, DTYPES[dtype], reverse=masked)
    errors = sparse_case(path, problem, masked, made, density).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_matrices_of_another_density_than_the_planned_one(density: float, tmp_path: Path) -> None:
    """More elements than there is room for in lists are multiplied as they lie in memory."""
    path, made = made_of("lstm", "bf16", False, 64, tmp_path)
    problem = Problem(4, 5, {"I": 3, "H": 64}, 1, DTYPES["bf16"])
    errors = sparse_case(path, problem, False, made, density).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS["bf16"]} == {}


@pytest.mark.long
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_more_steps_than_the_exchange_holds(masked: bool, turns: int, tmp_path: Path) -> None:
    path, made = made_of("normed", "f16", masked, 72, tmp_path, batch_tile=4, turns=turns)
    problem = Problem(150, 7, {"I": 3, "H": 72}, 1, DTYPES["f16"])
    assert 2 * max(kernel.schedule.exchange_steps or 0 for kernel in made.values()) < problem.steps
    errors = sparse_case(path, problem, masked, made, 0.1).measured()
    assert {name: error for name, error in errors.items() if not error <= 2 * BOUNDS["f16"]} == {}


# The group of 3 entries, and the last one of 11, have entries in their first turn alone.
@pytest.mark.long
@pytest.mark.parametrize("batch", [3, 11])
def test_a_slow_cta_still_finds_what_others_have_sent(batch: int, tmp_path: Path) -> None:
    path, kernels = planned("elman", "bf16", False, 64, tmp_path, batch_tile=4, turns=2, unit_tile=16)
    made = build(plan(path), kernels, tmp_path, ("-DEMULATED_SLOW_CTA=1", "-DEMULATED_SLOWNESS=100"))
    assert {(kernel.schedule.ctas, len(kernel.loop.phases)) for kernel in made.values()} == {(4, 1)}
    problem = Problem(8, batch, {"I": 3, "H": 64}, 1, DTYPES["bf16"])
    errors = sparse_case(path, problem, False, made, 0.3).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS["bf16"]} == {}


@pytest.mark.long
def test_rows_of_very_different_lengths(tmp_path: Path) -> None:
    """Long rows have many lists, and short ones few or none."""
    path, made = made_of("elman", "bf16", False, 136, tmp_path)
    problem = Problem(4, 5, {"I": 3, "H": 136}, 1, DTYPES["bf16"])
    case = sparse_case(path, problem, False, made, 1.0)
    for weight in case.weights:
        if weight.dim() == 2:
            weight[1:] *= torch.rand(weight[1:].shape) < 0.05
            weight[5] = 0
    errors = case.measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS["bf16"]} == {}
