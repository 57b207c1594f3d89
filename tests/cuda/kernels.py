"""Compiles kernels of shipped cells and checks what NVRTC made of them; `make kernels` does it for all cells.

python -m tests.cuda.kernels [--jobs N] [--every] [--record] [CELL...]

Each cell's kernels in each family are compiled once. The dtype and the architecture, and whether there are lengths and
resets, change from cell to cell, so that all come up. `--every` compiles every combination, which takes half a day on
two cores. A kernel may spill what its plan says, or what tests/golden/spilled.json says; `--record` writes what is new.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from rnncc.constrint import Infeasible
from rnncc.ir.artifact import Bundle
from rnncc.ir.family import (
    ALTERNATING,
    BLOCKS,
    FUSED,
    GATHER,
    GRID,
    SCAN,
    SCATTER,
    SPARSE,
    STEPWISE,
    WIDE,
    Family,
    Scope,
)
from rnncc.ir.layout import FusedKernels, Row, from_batch
from rnncc.ir.lowered import LoweredCell, fused_programs, scan_programs
from rnncc.ir.problem import Problem
from rnncc.ir.step import TileStage
from rnncc.ir.target import GPUS, REGISTERS
from rnncc.language.read import read_request
from rnncc.machine.paths import shipped_cells
from rnncc.pipeline import compile_cells
from rnncc.stages.render.cuda.device import device_programs
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.families import MODELS, families_for
from rnncc.stages.schedule.kernels import scan_kernels
from rnncc.stages.schedule.stepwise import stepwise, stepwise_takes
from tests.compiling import plan_of
from tests.cuda import nvrtc
from tests.cuda.inspected import MMA, SENDS, Inspected, Look, Text, Usage
from tests.rendering import at_first_use, for_gpus

# The GPU for which kernels of an architecture are planned.
TARGETS = {
    GPUS[name].architecture: GPUS[name]
    for name in ("a100", "rtx3090", "rtx4090", "h200", "b200", "b300", "rtx5090", "gb10")
}
ARCHITECTURES = tuple(TARGETS)
OLDEST, HOPPER = "sm_80", "sm_90a"
_DTYPES = ("f32", "bf16", "f16")
_OF_PROBLEM = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}
# Kernels that are the same for every cell, and of no loop.
CORE, HEAD_NORM = Family("core", Scope.THREAD), Family("head_norm", Scope.THREAD)
HEADS = Family("heads", Scope.THREAD)
# Products of a few rows; the kernels of a single step; and those that give each head of a batch entry to a CTA.
SMALL, SINGLE, BY_HEAD = (Family(name, Scope.THREAD) for name in ("small", "single", "by_head"))
# Cells with sparse matrices: no shipped cell has any.
SPARSE_LSTM = str(Path(__file__).resolve().parents[1] / "fixtures" / "sparselstm.rnn")
BLOCK_LSTM = str(Path(__file__).resolve().parents[1] / "fixtures" / "blocklstm.rnn")
# A cell with matrices of low rank: neither has any.
LOW_RANK_LSTM = str(Path(__file__).resolve().parents[1] / "fixtures" / "lowranklstm.rnn")
_FAMILIES = (ALTERNATING, SINGLE, BY_HEAD, SCAN, *FUSED)  # SCAN stands for all kernels of loops without products
# The head_dim of fused kernels: large enough for clusters of several CTAs, too large for a cluster; of one CTA where
# there are no clusters; and for few SMs, where more units per CTA would spill a few registers.
HEAD_DIM = {Scope.CLUSTER: 256, Scope.GRID: 768, Scope.STEP: 2304}
ONE_CTA, FEW_SMS = 64, 512
_NORM_DTYPES = ("f32_f32", "bf16_bf16", "bf16_f32", "f16_f16", "f16_f32")
_SHARED: dict[Family, tuple[str, ...]] = {
    CORE: ("permute_rows",),
    HEADS: ("head_products_{dtype}_64", "head_products_{dtype}_128", "head_sums_{dtype}"),
    SMALL: ("small_products",),
    HEAD_NORM: (
        *(f"head_norm_{direction}{names}" for direction in ("", "backward_") for names in _NORM_DTYPES),
        *(f"head_norm_sums_{dtype}" for dtype in _DTYPES),
    ),
}
# Bytes per thread that NVRTC makes kernels spill though their plans do not say it, by case and kernel.
_SPILLED = Path(__file__).resolve().parents[1] / "golden" / "spilled.json"
_THREADS = 256  # per CTA of the alternating kernel: sequence.cuh


@dataclass(frozen=True, slots=True)
class Case:
    """The kernels of a cell in one family, for a dtype and an architecture; `masked`: also with lengths and resets;
    `directions`: the most of a launch."""

    cell: str
    family: Family
    dtype: str
    architecture: str
    masked: bool = True
    directions: int = 2

    def __str__(self) -> str:
        one = ("one",) if self.directions == 1 else ()
        return "-".join((Path(self.cell).stem, self.family.name, self.dtype, self.architecture, *one))


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a kernel may take: registers per thread, bytes that a thread spills, bytes of shared memory that are not
    asked for at launch."""

    registers: int
    spilled: int
    shared: int


# Each family for each architecture but Hopper's, in one dtype; a kernel forward, and one backward.
EVERYWHERE = tuple(
    Case(cell, family, dtype, architecture, masked=False)
    for family, (cell, dtype) in {
        GATHER: ("lstm", "bf16"),
        SCATTER: ("lstm", "bf16"),
        GRID: ("lstm", "f16"),
        STEPWISE: ("lstm", "bf16"),
        SPARSE: (SPARSE_LSTM, "bf16"),
        BLOCKS: (BLOCK_LSTM, "f16"),
        SCAN: ("mingru", "bf16"),
        SINGLE: ("lstm", "f32"),
        BY_HEAD: ("gateddeltanet", "bf16"),
    }.items()
    for architecture in ARCHITECTURES
    if architecture != HOPPER
)
SHARED = tuple(Case("layernormlstm", family, "bf16", name) for family in _SHARED for name in ARCHITECTURES) + tuple(
    Case("layernormlstm", family, dtype, HOPPER) for family, dtype in ((SMALL, "f32"), (SMALL, "f16"), (HEADS, "f16"))
)


@cache
def plan(cell: str) -> LoweredCell:
    """The kernel plan of a shipped cell."""
    return plan_of(cell)


def has(cell: str, family: Family) -> bool:
    """Whether a cell has kernels in a family."""
    if family is ALTERNATING:
        return bool(device_programs(plan(cell)))
    if family in (SINGLE, BY_HEAD):
        programs = device_programs(plan(cell))
        return any(program.has_single if family is SINGLE else program.by_head for program in programs)
    if family is SCAN:
        return any(True for _ in scan_programs(plan(cell)))
    loops = (loop for _, loop in fused_programs(plan(cell)))
    if family.scope is Scope.STEP:
        return any(stepwise_takes(loop, Problem(8, 1, "bf16")) for loop in loops)
    return any(family in families_for(cost_of(loop, "bf16")) for loop in loops)


def has_products(cell: str) -> bool:
    """Whether a step multiplies anything by a matrix."""
    programs = (program for loop in plan(cell).loops for program in (loop.forward, loop.backward))
    return any(isinstance(stage, TileStage) and stage.products for program in programs for stage in program.stages)


def cases(cells: Sequence[str]) -> Iterator[Case]:
    """Every family × dtype × architecture that there is."""
    return (case for cell in cells for family in _FAMILIES for case in _cases(cell, family))


def _cases(cell: str, family: Family) -> list[Case]:
    if not has(cell, family):
        return []
    architectures = (HOPPER,) if family is WIDE else ARCHITECTURES
    # In float32 the kernels of GRID spill a few registers, which their plan does not say. WIDE has none.
    dtypes = _DTYPES[1:] if family in FUSED and family.scope is Scope.GRID else _DTYPES
    return [Case(cell, family, dtype, name) for dtype in dtypes for name in architectures]


def spread(cells: Sequence[str]) -> Iterator[Case]:
    """Each cell once in each family. What else there is to choose goes round from cell to cell."""
    for number, cell in enumerate(cells):
        for family in _FAMILIES:
            found = _cases(cell, family)
            if found:  # 7 has no divisor in common with their number: each comes up
                yield replace(found[7 * number % len(found)], masked=number % 2 == 0)


def once(cell: str) -> Iterator[Case]:
    """A cell's kernels forward and backward, once: of loops with products fused ones if there are any, which take less
    long."""
    families = (GATHER if has(cell, GATHER) else ALTERNATING, SCAN)
    yield from (Case(cell, family, "bf16", HOPPER, masked=False) for family in families if has(cell, family))


def forced(case: Case, head_dim: int | None = None, tiles: Mapping[str, int] | None = None) -> FusedKernels:
    """A cell's kernels in a family, whether or not others are quicker, for those programs that have one. `head_dim`:
    another one than HEAD_DIM and ONE_CTA say. `tiles`: sizes that they must have."""
    scope, target = case.family.scope, TARGETS[case.architecture]
    usual = ONE_CTA if scope is Scope.CLUSTER and not target.has_clusters else HEAD_DIM[scope]
    if scope is Scope.GRID and target.sms < 64:
        usual = FEW_SMS
    problem = Problem(head_dim or usual, 1, _OF_PROBLEM[case.dtype])
    found: list[tuple[str, tuple[Row, ...]]] = []
    for program, loop in fused_programs(plan(case.cell)):
        if not case.masked and ("_masked_" in program or program.endswith("_inference")):
            continue
        known = cost_of(loop, problem.dtype)
        if scope is Scope.STEP:
            found += [(program, from_batch(stepwise(known, problem, target)))] if stepwise_takes(loop, problem) else []
            continue
        layout_model = MODELS[case.family](known, problem, target)
        for name, size in (tiles or {}).items():
            tile = layout_model.tiles[name]
            assert not isinstance(tile, int)
            layout_model.model.require(tile == size, because="given: by the test")
        try:
            solution = layout_model.best(problem.batch)
        except Infeasible:
            continue
        found.append((program, from_batch(layout_model.scheduled(solution, problem, target))))
    sizes = problem.head_dim, problem.heads
    return FusedKernels(*sizes, case.dtype, case.architecture, tuple(found), case.directions)


def sources(case: Case, head_dim: int | None = None) -> tuple[Bundle, dict[str, Allowed]]:
    """The files of a case, and what each of its kernels may take. `head_dim`: of fused kernels, as in `forced`."""
    whole = plan(case.cell)
    if case.family in FUSED:
        kernels = forced(case, head_dim)
        bundle = at_first_use(whole, [kernels])
        allowed = {
            unit.name: Allowed(schedule.registers, 4 * dict(schedule.tiles).get("spilled_registers", 0), 0)
            for unit, (_, schedule) in zip(bundle.device_units, kernels.kernels, strict=True)
        }
        return bundle, allowed
    if case.family in _SHARED:
        bundle = compile_cells(replace(read_request(case.cell), architectures=(case.architecture,))).bundle
        either = (f"_{case.family.name}", f"_{case.family.name}_{case.dtype}")
        unit = next(unit for unit in bundle.device_units if unit.name in either)
        # Half of an SM's warps at once have enough bytes on their way. Backward 384 threads hold more each, and some
        # keep two numbers in memory.
        # Products of heads hold their sums: two CTAs per SM with tiles of 64 columns, and one with 128.
        most = {"backward": Allowed(168, 16, 0), "products": Allowed(128, 0, 0), "128": Allowed(255, 0, 0)}
        allowed = {
            name: next((limit for part, limit in reversed(most.items()) if part in name), Allowed(64, 0, 0))
            for name in (each.format(dtype=case.dtype) for each in _SHARED[case.family])
        }
        return replace(bundle, device_units=(unit,)), allowed
    loops = tuple(loop for loop in whole.loops if case.masked or not loop.masked)
    shown = replace(whole, loops=loops)
    scans = [found for found in scan_kernels(shown, newton=True) if found.are_own]
    bundle = for_gpus([shown], newton=True)
    if case.family is SCAN:
        allowed = {
            f"{kernels.program}_{form}": Allowed(shape.registers, 0, 0)
            for kernels in scans
            for form, shape in (kernels.full if case.dtype == "f32" else kernels.half).forms
        }
    elif case.family is BY_HEAD:
        allowed = {
            f"{program.name}{tile.name}": Allowed(min(255, REGISTERS // _THREADS // tile.at_once), 0, 0)
            for program in device_programs(shown)
            if program.by_head
            for tile in program.by_head.tiles
        }
    else:
        limit = Allowed(min(255, REGISTERS // _THREADS), 0, 0)
        single = case.family is SINGLE
        programs = [program for program in device_programs(shown) if program.has_single or not single]
        allowed = {f"{program.name}{'_single' * single}": limit for program in programs}
    files = {f"{name}_{case.dtype}" for name in allowed}
    return replace(bundle, device_units=tuple(unit for unit in bundle.device_units if unit.name in files)), allowed


def check(case: Case, folder: Path, optimised: bool = True, look: Look = Text.compile) -> tuple[str, ...]:
    """Compiles a case in an empty folder: what is wrong with its kernels. Those that are not `optimised` become PTX and
    no code: nothing is known of their registers. `look`: says what a text becomes, in place of a compiler."""
    bundle, allowed = sources(case)
    problems: list[str] = []
    seen: set[str] = set()
    for unit in bundle.device_units:
        name = f"{case}{'-masked' * case.masked}{'' if optimised else '-ptx'}/{unit.name}"
        try:
            found = look(Text(name, unit, bundle, case.architecture, optimised), folder)
        except nvrtc.NvrtcError as failed:
            lines = str(failed).strip().splitlines()
            problems.append(f"{unit.name}: {next((line for line in lines if 'error' in line), lines[0])}")
            continue
        seen |= set(found.kernels)
        problems += excesses(found.kernels, _with_known_spills(case, allowed))
        problems += [f"{unit.name}: {text}" for text in wrong_instructions(case, found.instructions)]
    if not problems and seen != set(allowed):
        problems.append(f"kernels {sorted(seen ^ set(allowed))} are missing or too many")
    return tuple(problems)


def _with_known_spills(case: Case, allowed: Mapping[str, Allowed]) -> dict[str, Allowed]:
    known = _known_spills()
    return {
        name: replace(limit, spilled=max(limit.spilled, known.get(f"{case}/{name}", 0)))
        for name, limit in allowed.items()
    }


@cache
def _known_spills() -> dict[str, int]:
    """Bytes per thread by case and kernel."""
    known: dict[str, int] = json.loads(_SPILLED.read_text(encoding="utf-8"))
    return known


def excesses(kernels: Mapping[str, Usage | None], allowed: Mapping[str, Allowed]) -> Iterator[str]:
    """Where kernels take more than they may."""
    for name, usage in kernels.items():
        if usage is None:
            continue
        most = allowed[name]
        if usage.registers > most.registers:
            yield f"{name}: {usage.registers} registers, {most.registers} allowed"
        if usage.spilled > most.spilled:
            stores_and_loads = f"{usage.stored} + {usage.loaded} spilled"
            yield f"{name}: {usage.stack} bytes of stack, {stores_and_loads}, {most.spilled} allowed"
        if usage.shared > most.shared:
            yield f"{name}: {usage.shared} bytes of shared memory of its own, {most.shared} allowed"


def wrong_instructions(case: Case, found: Set[str]) -> Iterator[str]:
    """What is wrong with the instructions of products, and of what the CTAs of a cluster send each other."""
    # Sparse kernels multiply element by element, and those of single steps have few rows.
    in_fused = case.family in FUSED and case.family is not SPARSE and case.family.scope is not Scope.STEP
    own_products = case.family is ALTERNATING or in_fused
    multiplies = case.family is HEADS or (own_products and has_products(case.cell))
    wanted = f"{'wgmma' if case.family is WIDE else 'mma'}.{case.dtype}" if multiplies and case.dtype != "f32" else None
    if wanted is None and MMA in found:
        yield "products by tensor cores, where none are meant"
    if wanted is not None and wanted not in found:
        yield f"no {wanted}"
    clusters, sends = TARGETS[case.architecture].has_clusters, SENDS in found
    if case.family in FUSED and case.family.scope is Scope.CLUSTER and clusters != sends:
        yield f"no {SENDS}" if clusters else f"{SENDS}, where there are no clusters"


def _check_in(root: str, record: bool, case: Case) -> tuple[Case, tuple[str, ...], dict[str, int]]:
    """Checks a case. `record`: what is spilled beyond the plan is no problem, and returned."""
    # What comes from another process equals a family, and is none of those that are compared by `is`.
    family = next(each for each in (*_FAMILIES, *_SHARED) if each == case.family)
    own = replace(case, family=family)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        if not record:
            return case, check(own, Path(folder)), {}
        new: dict[str, int] = {}

        def look(text: Text, folder: Path) -> Inspected:
            found, allowed = text.compile(folder), sources(own)[1]
            for name, usage in found.kernels.items():
                if usage is not None and usage.spilled > allowed[name].spilled:
                    new[f"{case}/{name}"] = usage.spilled
            _known_spills().update(new)
            return found

        return case, check(own, Path(folder), look=look), new


def main(arguments: Sequence[str]) -> int:
    """Check kernels of the cells that are named, or of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("cells", metavar="CELL", nargs="*", help="shipped cells (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    parser.add_argument("--every", action="store_true", help="every combination of cell, family, dtype, architecture")
    parser.add_argument("--record", action="store_true", help="write what is spilled beyond the plans")
    given = parser.parse_args(arguments)
    own = (cases if given.every else spread)(given.cells or [path.stem for path in shipped_cells()])
    wanted = [*SHARED, *EVERYWHERE, *own]
    begin, failures = time.monotonic(), []
    with tempfile.TemporaryDirectory() as root, ProcessPoolExecutor(given.jobs) as pool:
        checked = pool.map(partial(_check_in, root, given.record), wanted)
        for number, (case, problems, new) in enumerate(checked, 1):
            failures += [(str(case), problem) for problem in problems]
            if new:
                _known_spills().update(new)
                _SPILLED.write_text(f"{json.dumps(_known_spills(), indent=1, sort_keys=True)}\n", encoding="utf-8")
            state = f"{len(failures)} failures, {time.monotonic() - begin:.0f} s"
            said = "; ".join(problems) or "ok"
            print(f"[{number}/{len(wanted)}] {case}: {said} ({state})", file=sys.stderr)
    for name, problem in failures:
        print(f"{name:48}  {problem}")
    print(f"{len(wanted)} cases, {len({name for name, _ in failures})} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
