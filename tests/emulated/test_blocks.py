"""Kernels of blocks on a CPU, thread by thread, as test_sparse.py runs the sparse ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rnncc.ir.family import BLOCKS
from tests.cuda.kernels import plan
from tests.emulated.compiled import Kernel, build
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.emulated.test_fused import BOUNDS, loops
from tests.emulated.test_sparse import made_of, planned
from tests.numeric.compare import Problem


def blocks_case(path: str, problem: Problem, masked: bool, made: Mapping[str, Kernel], density: float) -> EmulatedCase:
    """A case whose matrices have about so many blocks of 16 x 16."""
    case = EmulatedCase(loops(path)[masked], problem, made)
    for weight in case.weights:
        if weight.dim() == 2:
            rows, columns = (size // 16 for size in weight.shape)
            weight *= (torch.rand(rows, columns) < density).repeat_interleave(16, 0).repeat_interleave(16, 1)
    return case


def wrong(case: EmulatedCase, dtype: str) -> dict[str, float]:
    return {name: error for name, error in case.measured().items() if not error <= BOUNDS[dtype]}


@pytest.mark.one_in(16)
@pytest.mark.parametrize(
    ("cell", "dtype", "head_dim", "heads", "batch", "sizes", "entries", "turns", "warps"),
    [
        ("lstm", "bf16", 96, 1, 3, {}, 8, 1, 16),
        ("lstm", "f16", 64, 2, 13, {}, 8, 2, 8),
        ("lstm", "bf16", 128, 1, 19, {}, 16, 2, 8),
        ("elman", "f16", 176, 1, 11, {}, 16, 1, 16),
        ("normed", "bf16", 96, 1, 7, {}, 8, 1, 8),
        ("normed", "f16", 80, 1, 30, {}, 16, 2, 16),
        ("narrow", "bf16", 96, 1, 6, {"P": 48}, 8, 2, 16),
        ("narrow", "f16", 64, 2, 9, {"P": 32}, 16, 1, 8),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_kernel_of_blocks(
    cell: str,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    sizes: dict[str, int],
    entries: int,
    turns: int,
    warps: int,
    masked: bool,
    tmp_path: Path,
) -> None:
    tiles = {"batch_tile": entries, "turns": turns, "warps": warps}
    path, made = made_of(cell, dtype, masked, head_dim, tmp_path, BLOCKS, **tiles)
    assert {kernel.schedule.family for kernel in made.values()} == {BLOCKS}
    sizes = {"I": 3, "H": head_dim * heads} | {name: size * heads for name, size in sizes.items()}
    problem = Problem(5, batch, sizes, heads, DTYPES[dtype], reverse=masked)
    assert wrong(blocks_case(path, problem, masked, made, 0.15), dtype) == {}


@pytest.mark.long
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_cta_that_needs_no_others_waits_for_them_all_the_same(masked: bool, turns: int, tmp_path: Path) -> None:
    """Steps take the slots of the exchange in turns, and a slow CTA may not have read yet what others have sent."""
    path, kernels = planned("elman", "bf16", masked, 96, tmp_path, BLOCKS, turns=turns)
    made = build(plan(path), kernels, tmp_path, ("-DEMULATED_SLOW_CTA=2", "-DEMULATED_SLOWNESS=8"))
    ctas = {kernel.schedule.ctas for kernel in made.values()}
    problem = Problem(150, 11, {"I": 3, "H": 96}, 1, DTYPES["bf16"])
    assert min(ctas) > 1 and 2 * max(kernel.schedule.exchange_steps or 0 for kernel in made.values()) < problem.steps
    case = blocks_case(path, problem, masked, made, 1.0)
    for weight in case.weights:
        if weight.shape == (96, 96):
            weight *= torch.ones(6, 6).tril().repeat_interleave(16, 0).repeat_interleave(16, 1) / 2
    assert wrong(case, "bf16") == {}


@pytest.mark.long
@pytest.mark.parametrize("density", [0.0, 0.6, 1.0])
def test_more_blocks_than_planned(density: float, tmp_path: Path) -> None:
    """Those for which there is no room are multiplied as they lie in memory."""
    path, made = made_of("lstm", "bf16", False, 192, tmp_path, BLOCKS)
    problem = Problem(4, 5, {"I": 3, "H": 192}, 1, DTYPES["bf16"])
    assert wrong(blocks_case(path, problem, False, made, density), "bf16") == {}


@pytest.mark.long
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_more_blocks_than_planned_in_several_phases(masked: bool, tmp_path: Path) -> None:
    path, made = made_of("normed", "f16", masked, 160, tmp_path, BLOCKS, turns=2)
    problem = Problem(4, 9, {"I": 3, "H": 160}, 1, DTYPES["f16"])
    assert wrong(blocks_case(path, problem, masked, made, 0.9), "f16") == {}


@pytest.mark.long
def test_bands_of_very_different_lengths(tmp_path: Path) -> None:
    """Long bands have many lists, and one has none."""
    path, made = made_of("elman", "bf16", False, 160, tmp_path, BLOCKS)
    problem = Problem(4, 5, {"I": 3, "H": 160}, 1, DTYPES["bf16"])
    case = blocks_case(path, problem, False, made, 0.05)
    for weight in case.weights:
        if weight.dim() == 2:
            weight[32:48] = torch.randn(16, weight.shape[1], dtype=weight.dtype) / 16
            weight[16:32] = 0
    assert wrong(case, "bf16") == {}


@pytest.mark.long
def test_masks_without_blocks(tmp_path: Path) -> None:
    """Squares of which one element exists are squares."""
    path, made = made_of("elman", "bf16", False, 96, tmp_path, BLOCKS)
    problem = Problem(4, 5, {"I": 3, "H": 96}, 1, DTYPES["bf16"])
    case = blocks_case(path, problem, False, made, 1.0)
    for weight in case.weights:
        if weight.dim() == 2:
            weight *= torch.rand(weight.shape) < 0.01
    assert wrong(case, "bf16") == {}


def magnitude_mask(units: int, density: float, spread: float) -> torch.Tensor:
    """The blocks of the largest weights of four gates [4 * units, units], in blocks. Units differ in the size of their
    rows, which is that of all gates, and of their columns."""
    scale = torch.exp(spread * torch.randn(units, 1)).repeat(4, 1) * torch.exp(spread * torch.randn(1, units))
    size = torch.rand(4 * units, units) * scale
    return size > size.flatten().kthvalue(round((1 - density) * size.numel())).values


def most_squares(blocks: torch.Tensor, kernel: Kernel) -> int:
    """The squares that a warp of some CTA gets forward, where each CTA has its units' rows of all gates."""
    tiles = dict(kernel.schedule.tiles)
    bands = tiles["unit_tile"] // 16
    of_gates = blocks.view(4, -1, blocks.shape[1])
    counts = [int(of_gates[:, i : i + bands].sum()) for i in range(0, of_gates.shape[1], bands)]
    return -(-max(counts) // tiles["warps"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("density", "spread", "fits"), [(0.2, 1.0, True), (0.3, 3.0, False)], ids=["uneven", "overflows"]
)
def test_masks_that_magnitudes_have_chosen(density: float, spread: float, fits: bool, tmp_path: Path) -> None:
    """A CTA has more blocks than the mean plus what chance adds. What shared memory is left has room for them, or that
    CTA reads its blocks from memory."""
    path, made = made_of("lstm", "bf16", False, 256, tmp_path, BLOCKS, warps=8, unit_tile=32)
    case = EmulatedCase(loops(path)[False], Problem(3, 5, {"I": 3, "H": 256}, 1, DTYPES["bf16"]), made)
    torch.manual_seed(0)
    blocks = magnitude_mask(16, density, spread)
    for weight in case.weights:
        if weight.dim() == 2:
            weight *= blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)
    (kernel,) = (kernel for name, kernel in made.items() if name.endswith("_forward"))
    held, shared, _ = kernel.schedule.shape[4:]
    planned, most = dict(kernel.schedule.tiles)["squares_per_warp"], most_squares(blocks, kernel)
    assert planned < most and (most <= held + shared) is fits
    assert wrong(case, "bf16") == {}
