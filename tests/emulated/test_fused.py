"""Fused kernels on a CPU, thread by thread, against the float64 interpreter and torch's autograd. They need no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rnncc.ir.family import GATHER, GRID, SCATTER, Family
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from tests.cuda.kernels import Case as Wanted
from tests.cuda.kernels import forced, plan
from tests.emulated.fused import DTYPES, EmulatedCase, Kernel, build
from tests.numeric.compare import Problem
from tests.numeric.loops import Loop, loops_of

BOUNDS = {"f32": 1e-6, "bf16": 8e-3, "f16": 1e-3}


@cache
def loops(cell: str) -> dict[bool, Loop]:
    """A cell's first loop, plain and masked."""
    made = compile_cells(read_request(cell), "partition").cells[0]
    found = loops_of(made)
    return {False: found[0], True: found[len(found) // 2]}


def kernels_of(wanted: Wanted, masked: bool, head_dim: int, folder: Path) -> Mapping[str, Kernel]:
    made = forced(wanted, head_dim)
    own = tuple(entry for entry in made.kernels if ("_masked_" in entry[0]) == masked)
    return build(plan(wanted.cell), replace(made, kernels=own), folder)


@pytest.mark.parametrize(
    ("cell", "family", "dtype", "head_dim", "heads", "batch"),
    [
        ("lstm", GATHER, "f32", 64, 1, 3),
        ("lstm", GATHER, "bf16", 64, 2, 11),
        ("lstm", SCATTER, "bf16", 64, 1, 5),
        ("lstm", GRID, "f16", 64, 1, 5),
        ("slstm", SCATTER, "f32", 96, 2, 17),
        ("gru", GRID, "f32", 104, 1, 9),
        ("elman", GRID, "bf16", 72, 1, 17),
        ("cornn", GATHER, "f16", 40, 1, 2),
        # Several products a step, and sums that do not take every operand.
        ("gruv3", GATHER, "bf16", 64, 2, 9),
        ("dsgu", GATHER, "f32", 40, 1, 3),
        ("sgu", GRID, "bf16", 64, 1, 3),
        ("lem", GRID, "f16", 72, 1, 11),
        ("rhn", GRID, "f32", 64, 2, 5),
        ("taugru", SCATTER, "bf16", 64, 1, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_family(
    cell: str, family: Family, dtype: str, head_dim: int, heads: int, batch: int, masked: bool, tmp_path: Path
) -> None:
    made = kernels_of(Wanted(cell, family, dtype, "sm_90a", masked=True), masked, head_dim, tmp_path)
    loop = loops(cell)[masked]
    for reverse in (False, True):
        problem = Problem(5, batch, {"I": 3, "H": head_dim * heads}, heads, DTYPES[dtype], reverse=reverse)
        errors = EmulatedCase(loop, problem, made, seed=int(reverse)).measured()
        assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}
