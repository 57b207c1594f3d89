"""Truth on a GPU, of the functional ops: outputs, final states and the gradient of every stream, weight and initial
state against the float64 reference, for the fused kernels and the alternating ones."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
import torch

from rnncc.ir.family import FUSED as FUSED_FAMILIES
from rnncc.ir.family import GATHER, GRID, SCATTER, WIDE, Family
from tests.cuda.harness import DEVICE, DTYPES, FUSED, Packages, assert_true, draw, kernels_of

STEPS, BATCH, HEADS, HEAD_DIMS = (1, 7, 1024), (1, 3, 16, 200), (1, 3, 12), (16, 64, 96, 256, 768, 1000)
# (steps, batch, heads, head_dim): any two of these values stand together in one of the cases.
COVERING = (
    (1, 1, 1, 16), (1, 200, 12, 16), (7, 16, 3, 16), (1024, 3, 12, 16),
    (1, 3, 3, 64), (7, 1, 12, 64), (7, 16, 3, 64), (1024, 200, 1, 64),
    (1, 3, 12, 96), (7, 200, 3, 96), (7, 1, 3, 96), (1024, 16, 1, 96),
    (1, 200, 12, 256), (1, 16, 1, 256), (7, 3, 1, 256), (1024, 1, 3, 256),
    (1, 3, 3, 768), (1, 200, 3, 768), (7, 16, 12, 768), (1024, 1, 1, 768),
    (1, 16, 3, 1000), (1, 200, 12, 1000), (7, 3, 1, 1000), (1024, 1, 12, 1000),
)  # fmt: skip
# What the sizes leave out: long sequences of the widest kernels, and batches between their limits.
MORE = ((1024, 16, 1, 768), (1024, 16, 12, 64), (40, 40, 1, 768), (33, 64, 1, 1000), (20, 70, 3, 256))
OTHERS = (
    ("elman", 96, "bf16"), ("slstm", 64, "fp16"), ("peepholelstm", 64, "fp16"), ("lstm", 192, "fp32"),
    ("lstm", 512, "fp32"), ("gru", 384, "fp32"), ("slstm", 128, "fp32"), ("gruv3", 64, "bf16"), ("gruv3", 256, "fp32"),
    ("gruv3", 768, "bf16"), ("layernormlstm", 64, "bf16"), ("layernormlstm", 256, "fp16"),
    ("layernormlstm", 768, "bf16"), ("sgu", 64, "fp16"), ("sgu", 768, "bf16"),
    ("onlstm", 64, "bf16"), ("onlstm", 256, "fp32"), ("onlstm", 768, "bf16"),
    ("timeawarelstm", 64, "bf16"), ("timeawarelstm", 256, "fp32"), ("timeawarelstm", 768, "bf16"),
    ("lstmp", 64, "bf16"), ("lstmp", 256, "fp32"), ("lstmp", 768, "bf16"),
)  # fmt: skip


def test_the_cases_cover_every_pair() -> None:
    pairs = {(i, j, case[i], case[j]) for case in COVERING for i, j in combinations(range(4), 2)}
    axes = (STEPS, BATCH, HEADS, HEAD_DIMS)
    assert pairs == {(i, j, a, b) for i, j in combinations(range(4), 2) for a, b in product(axes[i], axes[j])}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cell", "steps", "batch", "heads", "head_dim"),
    [(cell, *case) for cell in ("lstm", "gru") for case in COVERING + MORE if case[3] in dict(FUSED[cell])],
)
def test_fused(cell: str, steps: int, batch: int, heads: int, head_dim: int, packages: Packages) -> None:
    dtype = DTYPES[dict(FUSED[cell])[head_dim]]
    assert_true(draw(packages(cell), cell, head_dim, heads, batch, steps, dtype), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(("cell", "head_dim", "dtype"), OTHERS)
def test_fused_loops_of_other_cells_and_in_float32(cell: str, head_dim: int, dtype: str, packages: Packages) -> None:
    for steps, batch, heads in ((1, 1, 1), (7, 3, 12), (33, 16, 3), (9, 200, 1), (200, 16, 1), (67, 17, 3)):
        assert_true(draw(packages(cell), cell, head_dim, heads, batch, steps, DTYPES[dtype]), DTYPES[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize(("cell", "head_dim"), [(c, size) for c in ("lmu", "mogrifierlstm") for size, _ in FUSED[c]])
def test_fused_loops_of_one_head(cell: str, head_dim: int, packages: Packages) -> None:
    dtype = DTYPES[dict(FUSED[cell])[head_dim]]
    module = packages(cell)
    known = packages.families(cell)
    assert known
    for steps, batch in ((1, 1), (2, 1), (7, 3), (33, 16), (200, 16)):
        call = draw(module, cell, head_dim, 1, batch, steps, dtype)
        assert_true(call, dtype)
        assert (kernels_of(call.run) & known.keys()) or steps == 1, "a single step has kernels of its own"


@pytest.mark.hopper
@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "gruv3"])
def test_large_batches(cell: str, reverse: bool, packages: Packages) -> None:
    """More steps than the exchange of such kernels holds; groups that are full or not, and several launches."""
    module, dtype = packages(cell), DTYPES[dict(FUSED[cell])[768]]
    known = packages.families(cell)
    # Where it takes two launches, clusters are quicker for the cells whose matrices fit in one.
    for steps, batch in ((2, 200), (50, 241), (40, 256), (19, 470 if cell == "lstm" else 319)):
        call = draw(module, cell, 768, 1, batch, steps, dtype, reverse=reverse, seed=batch)
        assert_true(call, dtype)
        assert {known[kernel] for kernel in kernels_of(call.run) & known.keys()} == {WIDE}
    generator = torch.Generator().manual_seed(1)
    masks: dict[str, Any] = {
        "lengths": torch.randint(0, 41, (200,), generator=generator).to(DEVICE),
        "reset": (torch.rand(40, 200, generator=generator) < 0.1).to(DEVICE),
    }
    call = draw(module, cell, 768, 1, 200, 40, dtype, reverse=reverse, **masks)
    assert_true(call, dtype)
    families = {known[kernel] for kernel in kernels_of(call.run) & known.keys()}
    # The backward of lstm has too many registers with lengths to be wide.
    assert families == ({WIDE, GRID} if cell == "lstm" else {WIDE})


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(COVERING)))
def test_alternating(number: int, packages: Packages) -> None:
    steps, batch, heads, head_dim = COVERING[number]
    cell, dtype = ("lstm", "gru")[number % 2], list(DTYPES.values())[number % 3]
    assert_true(draw(packages(cell, fused=False), cell, head_dim, heads, batch, steps, dtype), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_1_to_15_units(dtype: str, packages: Packages) -> None:
    for head_dim in range(1, 16):
        call = draw(packages("lstm"), "lstm", head_dim, 1 + head_dim % 3, 2 + head_dim, 9, DTYPES[dtype], seed=head_dim)
        assert_true(call, DTYPES[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("cell", "head_dim"),
    [
        ("lstm", 64),
        ("lstm", 256),
        ("lstm", 768),
        ("gru", 256),
        ("gru", 768),
        ("slstm", 64),
        ("lstm", 512),
        ("lstm", 24),
        ("gru", 15),
        ("gruv3", 64),
        ("gruv3", 768),
        ("layernormlstm", 256),
        ("layernormlstm", 768),
        ("sgu", 768),
        ("onlstm", 64),
        ("timeawarelstm", 64),
        ("timeawarelstm", 768),
        ("lstmp", 64),
        ("lstmp", 768),
    ],
)
def test_lengths_and_resets(cell: str, head_dim: int, reverse: bool, packages: Packages) -> None:
    dtype = DTYPES[dict(FUSED[cell]).get(head_dim, "fp32")]
    generator = torch.Generator().manual_seed(head_dim)
    masks: dict[str, Any] = {
        "lengths": torch.tensor([9, 1, 4, 0, 7], device=DEVICE),
        "reset": (torch.rand(9, 5, generator=generator) < 0.2).to(DEVICE),
    }
    assert_true(draw(packages(cell), cell, head_dim, 3, 5, 9, dtype, reverse=reverse, **masks), dtype)


@pytest.mark.hopper
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cell", "head_dim", "families"),
    [
        ("lstm", 64, {GATHER, SCATTER}),
        ("gru", 256, {GATHER, SCATTER}),
        ("lstm", 768, {GRID}),
        ("lstm", 1000, {GRID}),
    ],
)
def test_the_kernels_meant_run(cell: str, head_dim: int, families: set[Family], packages: Packages) -> None:
    """Some of those families, in both directions."""
    call = draw(packages(cell), cell, head_dim, 1, 16, 5, DTYPES[dict(FUSED[cell])[head_dim]])
    known = packages.families(cell)
    used = kernels_of(call.run) & known.keys()
    assert {known[kernel] for kernel in used} <= families
    for program in ("forward", "inference", "backward"):
        assert any(kernel.startswith(f"{cell}_0_{program}") for kernel in used)
    # Some kernels are for cells with sparse matrices.
    assert cell != "lstm" or set(known.values()) == {family for family in FUSED_FAMILIES if not family.for_zeros}
    # A size without kernels of its own, and a package without any: at a size that no other test compiles for it.
    for module, other in ((packages(cell), head_dim + 1), (packages(cell, fused=False), head_dim + 24)):
        call = draw(module, cell, other, 1, 16, 5, torch.bfloat16)
        used = kernels_of(call.run)
        assert used.isdisjoint(known) and any(kernel.startswith(f"{cell}_0_") for kernel in used)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 768, 40])
def test_no_steps_and_no_batch(head_dim: int, packages: Packages) -> None:
    for steps, batch in ((0, 3), (5, 0), (0, 0)):
        call = draw(packages("lstm"), "lstm", head_dim, 2, batch, steps, torch.bfloat16)
        found, hidden = call.run(), 2 * head_dim
        assert found["y"].shape == (steps, batch, hidden) and found["d_stream 0"].shape == (
            steps,
            batch,
            4 * hidden,
        )
        assert torch.equal(found["final 1"], call.states[1]) or steps
        assert torch.equal(found["d_state 1"], call.cotangents[2]) or steps
        assert not found["d_weight 0"].any()


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 256, 768, 40])
def test_batches_may_change_between_calls(head_dim: int, packages: Packages) -> None:
    dtype = DTYPES[dict(FUSED["lstm"]).get(head_dim, "bf16")]
    for batch in (16, 1, 200, 3, 70, 16):
        assert_true(draw(packages("lstm"), "lstm", head_dim, 1, batch, 6, dtype, seed=batch), dtype)
