"""Fused kernels on a CPU, thread by thread, against the float64 interpreter and torch's autograd. They need no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rnncc.ir.family import GATHER, GRID, SCATTER, WIDE, Family
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from tests.cuda.kernels import Case as Wanted
from tests.cuda.kernels import forced, plan
from tests.emulated.compiled import Kernel, build
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.emulated.texts import NARROW_NORM, OLDER, OWN, STEPS
from tests.numeric.compare import Problem
from tests.numeric.loops import Loop, loops_of

BOUNDS = {"f32": 1e-6, "bf16": 8e-3, "f16": 1e-3}


@cache
def loops(cell: str) -> dict[bool, Loop]:
    """A cell's first loop, plain and masked."""
    made = compile_cells(read_request(cell), "partition").cells[0]
    found = loops_of(made.cell)
    return {False: found[0], True: found[len(found) // 2]}


def kernels_of(
    wanted: Wanted, masked: bool, head_dim: int, folder: Path, flags: Sequence[str] = ()
) -> Mapping[str, Kernel]:
    """The plain or the masked kernels of a cell."""
    made = forced(wanted, head_dim)
    own = tuple(entry for entry in made.tables if ("_masked_" in entry[0]) == masked)
    return build(plan(wanted.cell), replace(made, tables=own), folder, flags)


# Those that run always are masked: most other tests are of plain kernels.
@pytest.mark.one_in(50, "family")
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
        ("lstm", WIDE, "bf16", 64, 1, 67),
        ("slstm", WIDE, "f16", 128, 2, 3),
        ("gruv3", WIDE, "bf16", 64, 1, 20),
        ("lem", WIDE, "f16", 64, 2, 5),
        # Several products a step, and sums that do not take every operand.
        ("gruv3", GATHER, "bf16", 64, 2, 9),
        ("dsgu", GATHER, "f32", 40, 1, 3),
        ("sgu", GRID, "bf16", 64, 1, 3),
        ("lem", GRID, "f16", 72, 1, 11),
        ("rhn", GRID, "f32", 64, 2, 5),
        ("taugru", SCATTER, "bf16", 64, 1, 4),
        # Norms: reductions over a head's units, and vectors of several parts.
        ("layernormlstm", GATHER, "f32", 64, 2, 9),
        ("layernormlstm_pt", GRID, "bf16", 72, 1, 11),
        ("layernormgru", GRID, "f16", 64, 1, 9),
        ("dreamergru", GATHER, "bf16", 40, 2, 3),
        # A sum over all heads, which is taken after the loop.
        ("timeawarelstm", GATHER, "f32", 64, 2, 3),
        ("timeawarelstm", GRID, "bf16", 72, 1, 5),
        # Matrices and vectors that parameters make once a call, and a step of six products.
        ("exprnn", GATHER, "f32", 64, 2, 3),
        # In 16 bits rounding turns the sign of modReLU over.
        ("scornn", GRID, "f32", 72, 1, 5),
        ("gruode", GATHER, "bf16", 64, 2, 9),
        ("ltc", GRID, "f32", 64, 1, 9),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "plain"])
def test_a_family(
    cell: str, family: Family, dtype: str, head_dim: int, heads: int, batch: int, masked: bool, tmp_path: Path
) -> None:
    made = kernels_of(Wanted(cell, family, dtype, "sm_90a"), masked, head_dim, tmp_path)
    loop = loops(cell)[masked]
    for reverse in (False, True):
        problem = Problem(5, batch, {"I": 3, "H": head_dim * heads}, heads, DTYPES[dtype], reverse=reverse)
        errors = EmulatedCase(loop, problem, made, seed=int(reverse)).measured()
        assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
@pytest.mark.parametrize("family", [WIDE, SCATTER, GRID, GATHER], ids=lambda family: family.name)
def test_kernels_for_one_direction(family: Family, tmp_path: Path) -> None:
    made = kernels_of(Wanted("lstm", family, "bf16", "sm_90a", directions=1), False, 64, tmp_path)
    for reverse in (False, True):
        problem = Problem(5, 5, {"I": 3, "H": 64}, 1, DTYPES["bf16"], reverse=reverse)
        errors = EmulatedCase(loops("lstm")[False], problem, made, seed=int(reverse)).measured()
        assert {name: error for name, error in errors.items() if not error <= BOUNDS["bf16"]} == {}


WITHOUT_CLUSTERS = ("-DEMULATED_CAPABILITY=80",)


@pytest.mark.one_in(16)
@pytest.mark.parametrize(
    ("cell", "family", "dtype", "head_dim", "heads", "batch", "architecture"),
    [
        ("lstm", GATHER, "bf16", 64, 2, 11, "sm_80"),
        ("slstm", GATHER, "f32", 64, 1, 3, "sm_80"),
        ("layernormlstm", GATHER, "f16", 32, 1, 9, "sm_89"),
        ("lstm", SCATTER, "f16", 64, 1, 5, "sm_89"),
        ("gru", SCATTER, "f32", 64, 2, 9, "sm_86"),
        ("lstm", GRID, "f16", 64, 1, 5, "sm_80"),
        ("gruv3", GRID, "f32", 104, 1, 9, "sm_86"),
        ("layernormlstm", GRID, "bf16", 128, 1, 5, "sm_89"),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_a_gpu_without_clusters(
    cell: str,
    family: Family,
    dtype: str,
    head_dim: int,
    heads: int,
    batch: int,
    architecture: str,
    masked: bool,
    tmp_path: Path,
) -> None:
    """Kernels as they are planned for it, which have nothing but what compute capability 8.0 has."""
    made = kernels_of(Wanted(cell, family, dtype, architecture), masked, head_dim, tmp_path, WITHOUT_CLUSTERS)
    assert {name.rsplit("_", 1)[-1] for name in made} >= {"forward", "backward"}
    assert all(kernel.schedule.ctas == 1 for kernel in made.values()) is (family is not GRID)
    for reverse in (False, True):
        problem = Problem(5, batch, {"I": 3, "H": head_dim * heads}, heads, DTYPES[dtype], reverse=reverse)
        errors = EmulatedCase(loops(cell)[masked], problem, made, seed=int(reverse)).measured()
        assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


def test_what_needs_clusters_fails_without_them(tmp_path: Path) -> None:
    made = kernels_of(Wanted("lstm", GATHER, "f32", "sm_90a"), False, 64, tmp_path, WITHOUT_CLUSTERS)
    assert all(kernel.schedule.ctas > 1 for kernel in made.values())
    with pytest.raises(AssertionError, match="this GPU has no clusters"):
        EmulatedCase(loops("lstm")[False], Problem(5, 3, {"I": 3, "H": 64}), made).measured()


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "family", "dtype", "batch", "steps"),
    [("gru", WIDE, "bf16", 18, 50), ("rhn", GRID, "bf16", 3, 150), ("layernormgru", GRID, "f32", 9, 150)],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_steps_take_the_slots_of_the_exchange_in_turns(
    cell: str, family: Family, dtype: str, batch: int, steps: int, masked: bool, tmp_path: Path
) -> None:
    made = kernels_of(Wanted(cell, family, dtype, "sm_90a"), masked, 64, tmp_path)
    slots = {kernel.schedule.exchange_steps for kernel in made.values()}
    problem = Problem(steps, batch, {"I": 3, "H": 64}, 1, DTYPES[dtype])
    assert 2 * max(slot or 0 for slot in slots) < problem.steps
    errors = EmulatedCase(loops(cell)[masked], problem, made).measured()
    # Errors grow with the steps.
    assert {name: error for name, error in errors.items() if not error <= 2 * BOUNDS[dtype]} == {}


@pytest.mark.one_in(43)
@pytest.mark.parametrize(
    ("cell", "family", "dtype", "head_dim", "heads", "batch", "sizes"),
    [
        ("lstmp", GATHER, "f32", 64, 2, 3, {"P": 64}),
        ("lstmp", GATHER, "bf16", 64, 1, 9, {"P": 24}),
        ("lstmp", GRID, "f32", 72, 1, 11, {"P": 40}),
        ("nn_lstmp", GRID, "f16", 64, 1, 5, {"P": 48}),
        ("lmu", GATHER, "f32", 64, 1, 9, {"N": 8}),
        ("lmu", GRID, "bf16", 72, 1, 3, {"N": 40}),
        ("mogrifierlstm", GRID, "f32", 64, 1, 9, {"I": 40}),
        # Running sums, and values that are repeated.
        ("onlstm", GATHER, "bf16", 64, 2, 3, {"K": 32}),
        ("onlstm", GRID, "f32", 96, 1, 5, {"K": 24}),
        ("cfc", GATHER, "f32", 64, 2, 9, {"N": 96}),
        ("cfc", GRID, "bf16", 72, 1, 5, {"N": 40}),
        ("lowrankrnn", GATHER, "f32", 64, 2, 9, {"K": 8}),
        ("conditionalgru", GRID, "bf16", 64, 1, 11, {}),
        ("running", GATHER, "f32", 48, 2, 9, {}),
        ("half", GATHER, "bf16", 64, 2, 3, {}),
        ("half", GRID, "f32", 64, 1, 9, {}),
        ("elsewhere", GATHER, "f32", 64, 2, 3, {}),
        ("elsewhere", GRID, "bf16", 64, 1, 5, {}),
        ("gapped", GATHER, "f32", 64, 1, 9, {}),
        ("largest", GATHER, "f32", 64, 2, 9, {"P": 48}),
        ("largest", GATHER, "f32", 72, 1, 3, {"P": 40}),
        ("largest", GRID, "f32", 72, 1, 9, {"P": 24}),
        ("once", GATHER, "f32", 64, 2, 9, {}),
        ("once", GATHER, "bf16", 72, 1, 3, {}),
        ("once", SCATTER, "f16", 64, 1, 5, {}),
        ("once", GRID, "bf16", 64, 1, 11, {}),
        ("once", WIDE, "bf16", 64, 2, 20, {}),
        ("shared", GATHER, "f32", 64, 2, 9, {}),
        ("shared", GRID, "f32", 40, 1, 3, {}),
        ("echo", GATHER, "f32", 64, 2, 9, {}),
        ("echo", GRID, "bf16", 72, 1, 5, {}),
        ("reservoir", GATHER, "bf16", 64, 1, 9, {}),
        ("reservoir", SCATTER, "f32", 64, 2, 3, {}),
        ("reservoir", GRID, "f32", 72, 1, 3, {}),
        ("reservoir", WIDE, "f16", 64, 1, 20, {}),
        ("orthogonal", GATHER, "bf16", 64, 2, 3, {}),
        ("twice", GATHER, "f32", 48, 2, 9, {}),
        ("twice", GRID, "f32", 64, 1, 3, {}),
        ("numbers", GATHER, "f32", 48, 2, 9, {}),
        ("mean", GATHER, "f32", 48, 2, 9, {}),
        ("repeated", GATHER, "f32", 64, 2, 3, {"K": 32}),
        ("normed", GATHER, "f32", 96, 2, 9, {"P": 192, "H": 80}),
        ("normed", GRID, "bf16", 64, 1, 5, {"P": 64, "H": 24}),
    ],
    ids=str,
)
def test_values_of_several_widths(
    cell: str, family: Family, dtype: str, head_dim: int, heads: int, batch: int, sizes: dict[str, int], tmp_path: Path
) -> None:
    """`head_dim` is that of the widest value. What is narrower is padded within the kernel alone."""
    path = cell
    if cell in OWN:
        path = str(tmp_path / f"{cell}.rnn")
        Path(path).write_text(OWN[cell], encoding="utf-8")
    made = kernels_of(Wanted(path, family, dtype, "sm_90a"), False, head_dim, tmp_path)
    problem = Problem(5, batch, {"I": 3, "H": head_dim * heads} | sizes, heads, DTYPES[dtype])
    errors = EmulatedCase(loops(path)[False], problem, made).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}


@pytest.mark.long
def test_what_is_sent_arrives_late(tmp_path: Path) -> None:
    """What CTAs send arrives late: kernels that do not wait for it give wrong results, whatever the seed."""
    wanted = Wanted("lstm", GATHER, "f32", "sm_90a")
    made = kernels_of(wanted, False, 64, tmp_path, ("-DEMULATED_WITHOUT_WAITS",))
    assert all(kernel.schedule.ctas > 1 for kernel in made.values())
    for seed in range(3):
        errors = EmulatedCase(loops("lstm")[False], Problem(5, 3, {"I": 3, "H": 64}), made, seed).measured()
        assert not all(error <= 100 * BOUNDS["f32"] for error in errors.values())


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "family", "head_dim"),
    [("gruv3", GATHER, 128), ("rhn", GRID, 64), ("layernormlstm", GRID, 64), ("wmclstm", GRID, 64)],
    ids=str,
)
def test_threads_in_any_order(cell: str, family: Family, head_dim: int, tmp_path: Path) -> None:
    """A step's buffers are used again at the next step, so many steps in many orders are right."""
    made = kernels_of(Wanted(cell, family, "bf16", "sm_90a"), False, head_dim, tmp_path)
    assert all(kernel.schedule.ctas > 1 for kernel in made.values())
    for seed in range(5):
        problem = Problem(12, 9, {"I": 3, "H": head_dim}, dtype=DTYPES["bf16"])
        errors = EmulatedCase(loops(cell)[False], problem, made, seed).measured()
        assert all(error <= BOUNDS["bf16"] for error in errors.values()), errors


@pytest.mark.long
def test_a_sum_of_two_matrices_of_one_operand(tmp_path: Path) -> None:
    """Each matrix meets a copy of the operand of its own, which two sums share."""
    path = tmp_path / "two.rnn"
    text = "cell Two\nstate h\nweights U: matrix\nz, v = tanh(W@x + R@h[t-1] + U@h[t-1])\nh[t] = z*v\n"
    path.write_text(text, encoding="utf-8")
    made = kernels_of(Wanted(str(path), GATHER, "f32", "sm_90a"), False, 64, tmp_path)
    errors = EmulatedCase(loops(str(path))[False], Problem(5, 3, {"I": 3, "H": 64}), made).measured()
    assert all(error <= BOUNDS["f32"] for error in errors.values()), errors


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "equations"),
    [
        # A sum that is split, two norms at once, a norm by hand, and one of a narrower value.
        (GATHER, ("state h", "v = R@h[t-1] + W@x", "m = mean(v*v)", "h[t] = tanh(v - mean(tanh(v) - m*v))")),
        (
            GRID,
            (
                "state h",
                "h[t] = layernorm(R@h[t-1]) + layernorm(tanh(R@h[t-1]) + W@x)",
            ),
        ),
        (GATHER, ("state h", "v = R@h[t-1] + W@x", "d = v - mean(v)", "h[t] = d / sqrt(mean(d**2) + 0.1)")),
        (GATHER, NARROW_NORM),
        (GRID, NARROW_NORM),
    ],
    ids=str,
)
def test_reductions_that_do_not_wait(family: Family, equations: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "own.rnn"
    path.write_text("\n".join(("cell Own", *equations, "")), encoding="utf-8")
    made = kernels_of(Wanted(str(path), family, "f32", "sm_90a"), False, 72, tmp_path)
    errors = EmulatedCase(loops(str(path))[False], Problem(5, 9, {"I": 3, "H": 72, "P": 40}), made).measured()
    assert all(error <= BOUNDS["f32"] for error in errors.values()), errors


@pytest.mark.one_in(6)
@pytest.mark.parametrize("family", [GATHER, GRID], ids=str)
@pytest.mark.parametrize("head_dim", [64, 72, 200])
def test_a_norm_is_as_accurate_as_torch(family: Family, head_dim: int, tmp_path: Path) -> None:
    """The mean of the values is 1e5 times their standard deviation. The squares of such numbers would cancel."""
    path = tmp_path / "normed.rnn"
    path.write_text(
        "cell Normed\nstate h\nlocal v: 2*H\nv = layernorm(R@h[t-1] + W@x)\np, q = split(v)\nh[t] = p + 2*q\n",
        encoding="utf-8",
    )
    made = kernels_of(Wanted(str(path), family, "f32", "sm_90a"), False, head_dim, tmp_path)
    case = EmulatedCase(loops(str(path))[False], Problem(8, 8, {"I": 3, "H": head_dim}), made)
    (stream,), (matrix,), (d_final,) = case.streams, case.weights, case.d_final
    case.streams[0] = values = (1e3 + 1e-2 * torch.randn(stream.shape)).double()
    matrix.zero_()
    d_final.zero_()

    def normed(of: Tensor) -> tuple[Tensor, Tensor]:
        leaf = of.clone().requires_grad_()
        a, b = torch.nn.functional.layer_norm(leaf, leaf.shape[-1:]).chunk(2, -1)
        (gradient,) = torch.autograd.grad(a + 2 * b, leaf, case.d_sequences[0].to(of))
        return (a + 2 * b).detach(), gradient

    exact = normed(values)
    (found,), _, (gradient, *_) = case.kernel(next(iter(made.values())).library, "")
    for ours, theirs, expected in zip((found, gradient), normed(values.float()), exact, strict=True):
        assert ours is not None
        assert (ours - expected).norm() <= (theirs - expected).norm()


@pytest.mark.long
def test_a_scalar_beside_a_narrow_width(tmp_path: Path) -> None:
    """All units of H have the scalar, also where the loop's first width is the narrower P."""
    path = tmp_path / "narrow.rnn"
    text = "cell Narrow\ndim P = 24\nweights U: matrix, V: matrix\nparam s: scalar = 0.3\nstate h\nlocal q: P\n"
    text += "q = tanh(U@h[t-1])\nh[t] = sigmoid(s)*h[t-1] + tanh(V@q + W@x)\n"
    path.write_text(text, encoding="utf-8")
    made = kernels_of(Wanted(str(path), GATHER, "f32", "sm_90a"), False, 64, tmp_path)
    problem = Problem(5, 3, {"I": 3, "H": 64, "P": 24})
    assert max(EmulatedCase(loops(str(path))[False], problem, made).measured().values()) <= BOUNDS["f32"]


@pytest.mark.long
@pytest.mark.parametrize(("family", "masked"), [(GATHER, False), (GATHER, True), (GRID, False)], ids=str)
def test_derivatives_that_the_text_gives(family: Family, masked: bool, tmp_path: Path) -> None:
    """Steps and stopped gradients in a loop with products."""
    path = tmp_path / "steps.rnn"
    path.write_text(STEPS, encoding="utf-8")
    made = kernels_of(Wanted(str(path), family, "f32", "sm_90a"), masked, 64, tmp_path)
    errors = EmulatedCase(loops(str(path))[masked], Problem(5, 3, {"I": 3, "H": 64}), made).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS["f32"]} == {}


@pytest.mark.long
@pytest.mark.parametrize(("family", "masked"), [(GATHER, True), (SCATTER, False), (GRID, True)], ids=str)
def test_older_values_are_streams(family: Family, masked: bool, tmp_path: Path) -> None:
    path = tmp_path / "older.rnn"
    path.write_text(OLDER, encoding="utf-8")
    made = kernels_of(Wanted(str(path), family, "f32", "sm_90a"), masked, 64, tmp_path)
    loop = loops(str(path))[masked]
    assert {"u", "u__1"} <= {member for stream in loop.segment.streams for member in stream.members}
    errors = EmulatedCase(loop, Problem(5, 3, {"I": 3, "H": 64}), made).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS["f32"]} == {}
