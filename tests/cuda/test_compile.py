"""Kernels compile as planned: registers, spills, instructions. Needs NVRTC, no GPU.

Those of every cell become PTX here; of cells that stand for a kind NVRTC makes code, which takes some ten times as long
and says what registers and spills there are. `make kernels` does that for all, in every family, dtype and architecture.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.ir.family import (
    ALTERNATING,
    BLOCKS,
    FUSED,
    GATHER,
    GRID,
    SCAN,
    SPARSE,
    WIDE,
    Family,
    Scope,
)
from rnncc.ir.target import GPUS, REGISTERS
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from tests.compiling import lowered
from tests.cuda import kernels
from tests.cuda.inspected import Look, inspected
from tests.emulated.test_reductions import CELLS
from tests.shipped import COVERING

MAIN = ("lstm", "gru")
OLDEST, HOPPER = kernels.OLDEST, kernels.HOPPER
HOPPER_CASES = [case for case in kernels.cases(MAIN[:1]) if case.architecture == HOPPER]
OF_LSTM = tuple(family for family in (ALTERNATING, kernels.SINGLE, *FUSED) if not family.for_zeros)
DTYPES = {family: [case.dtype for case in HOPPER_CASES if case.family is family] for family in OF_LSTM}
# Loops with lengths and resets have the same products: those of one cell are enough here, in one dtype for each family.
MASKED = {family: dtypes[index % len(dtypes)] for index, (family, dtypes) in enumerate(DTYPES.items())}
CASES = [
    replace(case, masked=(case.cell, case.dtype, case.architecture) == (MAIN[0], MASKED[case.family], HOPPER))
    for case in kernels.cases(MAIN)
    # Where the headers of architectures differ, they do for every cell.
    if case.architecture == HOPPER
    or (case.architecture == OLDEST and case.cell == MAIN[0] and case.family not in FUSED)
]
SHARED_CASES = [case for case in kernels.SHARED if case.architecture in (OLDEST, HOPPER)]
# Kernels of matrices with zeros take long to compile: here the oldest architecture, and one with little shared memory.
EVERYWHERE = [
    case for case in kernels.EVERYWHERE if not case.family.for_zeros or case.architecture in (OLDEST, "sm_120a")
]
# Sums that all CTAs of a grid share.
LOW_RANK_CASES = [
    kernels.Case(kernels.LOW_RANK_LSTM, GRID, dtype, HOPPER, masked=dtype == "bf16") for dtype in ("bf16", "f16")
] + [kernels.Case(kernels.BLOCK_LSTM, BLOCKS, dtype, HOPPER, masked=dtype == "f16") for dtype in ("bf16", "f16")]
# A scan, with lengths and resets too, whose registers are the limit.
MASKED_SCAN = kernels.Case("mingru", SCAN, "bf16", HOPPER)
# Elements that are not zero, in each type of words, and blocks of them.
SPARSE_CASES = [
    kernels.Case(kernels.SPARSE_LSTM, SPARSE, dtype, HOPPER, masked=dtype == "bf16") for dtype in ("bf16", "f16")
] + [kernels.Case(kernels.BLOCK_LSTM, BLOCKS, dtype, HOPPER, masked=dtype == "f16") for dtype in ("bf16", "f16")]
# Kernels for one direction, as first use compiles them.
ONE_CASES = [
    kernels.Case("lstm", family, "bf16", HOPPER, masked=False, directions=1)
    for family in FUSED
    if not family.for_zeros
]  # fmt: skip
# Newton's method for a pair in float32: half of an SM's registers are its limit.
FLOAT_NEWTON = kernels.Case("paralstm", SCAN, "f32", HOPPER, masked=False)
# Cells that stand for a kind, beside LSTM and GRU: of several widths, and with sums along rows. Scans: of real and of
# complex numbers, of two segments. Walks: with norms, with Newton's method for a number and for a pair.
KINDS = ("lmu", "onlstm", "mingru", "lru", "rwkv4", "layernormindrnn", "paragru", "paralstm")
# Cells with the kernels of another one, letter by letter: those are compiled once.
TWINS = {"nn_lstm": "lstm", "nn_gru": "gru", "nn_rnn": "elman", "nn_rnn_relu": "irnn"}

STEPS = """cell Steps
const k = 2.0
state v
output y
a = sigmoid(W@x + b)
u = round(3*a, grad=u0 -> exp(-k*u0**2)) + sign(a, grad=1)
v[t] = {moved} + detach(a)*u + 0.1*detach(v[t-1])
y = floor(v[t], grad=w -> 1/(1 + abs(w))**2)
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "case", [*SHARED_CASES, *CASES, *ONE_CASES, *SPARSE_CASES, *LOW_RANK_CASES, MASKED_SCAN, FLOAT_NEWTON], ids=str
)
def test_every_family_dtype_and_architecture(case: kernels.Case, tmp_path: Path, look: Look) -> None:
    assert kernels.check(case, tmp_path, look=look) == ()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", EVERYWHERE, ids=str)
def test_every_architecture_has_what_its_plans_ask_for(case: kernels.Case, tmp_path: Path, look: Look) -> None:
    """What a CTA and an SM have there, by the plans; and the registers, spills and shared memory that the compiler
    makes of them."""
    target = kernels.TARGETS[case.architecture]
    planned = kernels.forced(case).kernels if case.family in FUSED else ()
    assert {name.rsplit("_", 1)[-1] for name, _ in planned} == ({"forward", "backward"} if planned else set())
    assert bool(planned) is (case.family in FUSED)
    for _, schedule in planned:
        assert schedule.shared_bytes <= target.shared_bytes and schedule.ctas <= max(target.sms, 16)
        assert schedule.threads * schedule.registers <= REGISTERS and schedule.threads <= target.threads
        assert target.has_clusters or case.family.scope is not Scope.CLUSTER or schedule.ctas == 1
    assert kernels.check(case, tmp_path, look=look) == ()


def test_every_family_is_there_for_every_architecture() -> None:
    """But for WIDE, whose products are Hopper's."""
    assert {case.family for case in EVERYWHERE} == {SCAN, kernels.SINGLE, kernels.BY_HEAD, *FUSED} - {WIDE}
    assert {case.architecture for case in EVERYWHERE} | {HOPPER} == {gpu.architecture for gpu in GPUS.values()}


@pytest.mark.parametrize(("family", "dtype"), [(ALTERNATING, "bf16"), (GATHER, "bf16"), (SCAN, "bf16"), (SCAN, "f32")])
def test_derivatives_that_the_text_gives(family: Family, dtype: str, tmp_path: Path, look: Look) -> None:
    path = tmp_path / "steps.rnn"
    moved = "a*v[t-1]" if family is SCAN else "R@v[t-1]"
    path.write_text(STEPS.format(moved=moved), encoding="utf-8")
    case = kernels.Case(str(path), family, dtype, HOPPER)
    assert kernels.has(str(path), family)
    assert kernels.check(case, tmp_path, family is not ALTERNATING, look) == ()


@pytest.mark.always(cell=COVERING[::4])
@pytest.mark.parametrize("cell", [path.stem for path in shipped_cells() if path.stem not in (*MAIN, *TWINS)])
def test_every_cell_once_each_way(cell: str, tmp_path: Path, look: Look) -> None:
    for case in kernels.once(cell):
        is_code = cell in KINDS or case.family is GATHER
        assert kernels.check(case, tmp_path / case.family.name, is_code, look) == ()


SPLIT = """
cell SplitState
state h, s: 2*num_heads, c: 2*H
local a: 1, e: 1, old: H, young: H
weights V: matrix
a, e = split(s[t-1])
old, young = split(c[t-1])
s[t] = concat(e + mean(h[t-1]), a) + W@x
c[t] = concat(young + h[t-1], old)
h[t] = tanh(W@x + R@h[t-1] + V@young + layernorm(old) + e)
"""


def test_parts_of_earlier_states_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Look) -> None:
    whole = lowered(Source("split.rnn", SPLIT))
    monkeypatch.setattr(kernels, "plan", lambda _: whole)
    case = kernels.Case("splitstate", ALTERNATING, "bf16", HOPPER, masked=False)
    assert kernels.check(case, tmp_path, False, look) == ()


MOVED = """
cell Moved
dim K = 6
state S: matrix(2*H, K), E: matrix(K, K) = 0.5*eye, m: num_heads
output y
local k: K
param A: matrix(2*H, K)
k, g = W@x
S[t] = roll(S[t-1], 1, fill=0.3, axis=rows) + cumsum(concat(g, g*g)@T(k), axis=columns)
E[t] = roll(E[t-1], 1, fill=0, axis=columns)
m[t] = logsumexp(roll(S[t], -2, axis=columns)) + sum(E[t]@k*logsumexp(cumsum(A*S[t], axis=rows), axis=columns))
y, z = split(S[t]@(k*m[t]) + logsumexp(S[t], axis=rows))
"""


def test_elements_of_matrices_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Look) -> None:
    whole = lowered(Source("moved.rnn", MOVED))
    monkeypatch.setattr(kernels, "plan", lambda _: whole)
    assert kernels.check(kernels.Case("moved", ALTERNATING, "bf16", HOPPER), tmp_path, False, look) == ()


@pytest.mark.parametrize(("family", "dtype"), [(GATHER, "bf16"), (GATHER, "f32"), (GRID, "f16")], ids=str)
def test_reductions_without_a_product(
    family: Family, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Look
) -> None:
    whole = lowered(Source("attending.rnn", CELLS["attending"]))
    monkeypatch.setattr(kernels, "plan", lambda _: whole)
    assert not kernels.has_products("attending")
    assert kernels.check(kernels.Case("attending", family, dtype, HOPPER), tmp_path, look=look) == ()


def texts(cell: str) -> list[str]:
    """The sources that are a cell's own, of its kernels once each way; but for its name and comments."""
    name, bundles = kernels.plan(cell).cell, [kernels.sources(case)[0] for case in kernels.once(cell)]
    own = (file for bundle in bundles for file in bundle.files if not file.path.startswith(bundle.include))
    texts = (re.sub("//.*", "", file.path + file.text) for file in own)
    return [text.replace(name, "CELL").replace(name.lower(), "CELL") for text in texts]


@pytest.mark.parametrize(("cell", "twin"), TWINS.items())
def test_the_kernels_of_twins_are_the_same(cell: str, twin: str) -> None:
    assert texts(cell) == texts(twin)


LOG = """ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    {stack} bytes stack frame, {stored} bytes spill stores, 8 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers{shared}
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 16 bytes smem
"""
ENTRIES = ".visible .entry one(\n.visible .entry two("


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"registers": 129}, ["one: 129 registers, 128 allowed"]),
        ({"stored": 12}, ["one: 0 bytes of stack, 12 + 8 spilled, 8 allowed"]),
        ({"stack": 16}, ["one: 16 bytes of stack, 4 + 8 spilled, 8 allowed"]),
        ({"shared": ", 32 bytes smem"}, ["one: 32 bytes of shared memory of its own, 0 allowed"]),
    ],
)
def test_what_is_too_much_is_found(changed: dict[str, int | str], said: list[str]) -> None:
    log = LOG.format(**({"stack": 0, "stored": 4, "registers": 128, "shared": ""} | changed))
    allowed = {"one": kernels.Allowed(128, 8, 0), "two": kernels.Allowed(32, 0, 16)}
    assert list(kernels.excesses(inspected(log, ENTRIES).kernels, allowed)) == said


def test_instructions_are_those_that_are_meant() -> None:
    ptx = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {} st.async.weak"

    def said(family: Family, dtype: str, text: str, cell: str = "lstm") -> list[str]:
        case = kernels.Case(cell, family, dtype, "sm_90a")
        return list(kernels.wrong_instructions(case, inspected("", text).instructions))

    assert said(GATHER, "bf16", ptx) == [] == said(ALTERNATING, "f32", "fma.rn.f32")
    assert said(GATHER, "f16", "") == ["no mma.f16", "no st.async"]
    assert said(ALTERNATING, "f32", ptx) == ["products by tensor cores, where none are meant"]
    assert said(ALTERNATING, "bf16", "fma.rn.f32", "brc") == []
