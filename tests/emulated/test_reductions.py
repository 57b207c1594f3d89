"""Fused kernels of steps that have reductions and no product, thread by thread on a CPU. They need no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.ir.family import GATHER, GRID, Family
from tests.cuda.kernels import Case as Wanted
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.emulated.test_fused import BOUNDS, kernels_of, loops
from tests.numeric.compare import Problem

CELLS = {
    "normed": """cell Normed
state h
h[t] = tanh(layernorm(h[t-1] + W@x))
""",
    # Two phases, a number per head that is read, one that is made, and their gradients.
    "attending": """cell Attending
input x, gain: num_heads
state h, c
local a: num_heads
s = softmax(h[t-1] + W@x + b)
a = sum(s*c[t-1])
c[t] = 0.5*c[t-1] + gain*s
h[t] = tanh(a*c[t] + rmsnorm(1 + h[t-1]))
""",
    # The values of a state are wider than those of the other one, and a norm is of two values side by side.
    "wide": """cell Wide
dim P
weights V: matrix(P, I)
state h: P, c
local a: num_heads, w: 2*H
w = layernorm(concat(c[t-1] + W@x, W@x))
p, q = split(w)
a = mean(p*c[t-1])
h[t] = a*h[t-1] + V@x
c[t] = 0.5*c[t-1] + tanh(q)*mean(h[t-1])
""",
    # A matrix of one row is a vector: its product is a sum over the units. So the cell has one head.
    "vectors": """cell Vectors
weights C: matrix, D: matrix
state h
local a: 1
a = C@h[t-1]
u = D@a
h[t] = tanh(0.5*h[t-1] + u + W@x)
""",
    # A matrix by a rule alone.
    "running": """cell Running
state h
h[t] = tanh(0.1*cumsum(h[t-1]) + W@x)
""",
}


def written(name: str, folder: Path) -> str:
    path = folder / f"{name}.rnn"
    path.write_text(CELLS[name], encoding="utf-8")
    return str(path)


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    ("cell", "family", "dtype", "head_dim", "heads", "batch", "sizes"),
    [
        ("normed", GATHER, "f32", 64, 1, 3, {}),
        ("normed", GATHER, "bf16", 40, 3, 11, {}),
        # Several CTAs send each other parts of reductions, and nothing else.
        ("normed", GATHER, "f32", 256, 1, 9, {}),
        ("normed", GRID, "f32", 72, 3, 9, {}),
        ("normed", GRID, "bf16", 64, 1, 17, {}),
        ("attending", GATHER, "f32", 8, 3, 9, {}),
        ("attending", GATHER, "bf16", 264, 1, 3, {}),
        ("attending", GRID, "f32", 64, 1, 11, {}),
        ("attending", GRID, "bf16", 40, 3, 5, {}),
        ("wide", GATHER, "f32", 64, 2, 9, {"P": 96}),
        ("wide", GRID, "f32", 64, 1, 3, {"H": 24, "P": 64}),
        ("vectors", GATHER, "f32", 64, 1, 9, {}),
        ("vectors", GRID, "bf16", 40, 1, 3, {}),
        ("running", GATHER, "f32", 48, 3, 9, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_step_without_products(
    cell: str,
    family: Family,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    sizes: dict[str, int],
    masked: bool,
    tmp_path: Path,
) -> None:
    """`head_dim` is that of the widest value."""
    path = written(cell, tmp_path)
    made = kernels_of(Wanted(path, family, dtype, "sm_90a"), masked, head_dim, tmp_path)
    assert len(made) == 3  # forward, inference and backward
    for reverse in (False, True):
        own = {"I": 3, "H": head_dim * heads} | sizes
        problem = Problem(5, batch, own, heads, DTYPES[dtype], reverse=reverse)
        errors = EmulatedCase(loops(path)[masked], problem, made, seed=int(reverse)).measured()
        assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "family", "head_dim"),
    [("normed", GATHER, 256), ("attending", GATHER, 256), ("normed", GRID, 64), ("attending", GRID, 64)],
    ids=str,
)
def test_threads_in_any_order(cell: str, family: Family, head_dim: int, tmp_path: Path) -> None:
    """What CTAs send each other of one phase and of two is used again at later steps, and still right in any order."""
    path = written(cell, tmp_path)
    made = kernels_of(Wanted(path, family, "bf16", "sm_90a"), False, head_dim, tmp_path)
    assert all(kernel.schedule.ctas > 1 for kernel in made.values())
    for seed in range(5):
        problem = Problem(12, 9, {"I": 3, "H": head_dim}, dtype=DTYPES["bf16"])
        errors = EmulatedCase(loops(path)[False], problem, made, seed).measured()
        assert all(error <= BOUNDS["bf16"] for error in errors.values()), errors
