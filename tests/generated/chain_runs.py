"""How a random chain (chains.py) is run on a GPU: at which size, by which kernels, and what comes out.

A package has those fused kernels that the run needs. The alternating ones, which take a minute to compile, it has
only where a loop needs them.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from rnncc.driver import make_product
from rnncc.ir.dim import evaluate
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import LoopKernels
from rnncc.ir.lowered import LoweredCell, NoForm, scan_programs
from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS, Target
from rnncc.language.source import Source
from rnncc.machine.cache import Cache, default_root, digest
from rnncc.machine.targets import known_gpus, own_instructions
from rnncc.pipeline import compile_cells
from rnncc.stages.build import Job, Product, build, find_nvrtc, find_toolchain, first_key
from rnncc.stages.load import load
from rnncc.stages.render.programs import named_programs
from rnncc.stages.schedule import schedule
from rnncc.verify import BOUNDS, Case, relative_error, verify
from rnncc.verify.problem import Problem as Compared
from tests.cuda.harness import DTYPES, kernels_of
from tests.generated.chains import chain

# Heads with their head_dims. One head of many units takes a grid, the others take clusters.
_SIZES = (
    (1, (64, 72, 96, 128, 192, 256)), (1, (384, 512)), (1, (640, 768)), (2, (64, 96, 128, 256, 384)),
    (3, (64, 128, 256)), (4, (64, 128, 192)), (6, (64, 128)), (8, (64, 96)), (12, (64,)),
)  # fmt: skip
_BATCHES = (1, 2, 3, 5, 8, 9, 16, 17, 24, 32, 33)
_STEPS = (1, 2, 3, 7, 16, 25, 40)
_OWN = (8, 16, 24, 40, 64, 96, 128, 256)  # head_dims of values that are not H units wide
# Every so many seeds a chain may have what is not fused.
_OTHERS = 8
_SYMBOL = re.compile(r"_\d+(?:_masked)?_(?:forward|inference|backward)(?:_(?:f32|bf16|f16)_\d+_([a-z]+)_.*)?")


@dataclass(frozen=True, slots=True)
class Run:
    """A chain at a size: `case` has the size, and how the layer is called."""

    seed: int
    text: str
    dtype: str
    case: Case

    @property
    def name(self) -> str:
        """The name of the package."""
        return f"chain{self.seed}"

    def described(self) -> dict[str, Any]:
        """What of it is recorded."""
        return {"dtype": self.dtype, "size": str(self.case)}


def run_of(seed: int, largest: int) -> Run:
    """How a seed's chain is run, with a head_dim of at most `largest`."""
    random = Random(f"run {seed}")
    drawn = chain(seed, others=seed % _OTHERS == _OTHERS - 1)
    heads, head_dims = random.choice(_SIZES)
    head_dim = min(random.choice(head_dims), largest)
    dims = {name: random.choice(_OWN) for name in ("P", "Q")}
    own = {name: min(dims[name], largest) * heads for name in dims if name in drawn.cell.sizes}
    if "K" in drawn.cell.sizes:
        # K is half of H, and its head_dim is a multiple of 8 too.
        head_dim = max(16, head_dim // 16 * 16)
        own["K"] = head_dim // 2 * heads
    case = Case(
        random.choice(_STEPS), random.choice(_BATCHES), heads, reverse=random.random() < 0.25,
        given=random.random() < 0.8, masked=random.random() < 0.4,
        sizes=tuple({"I": head_dim * heads, "H": head_dim * heads, **own}.items()),
    )  # fmt: skip
    return Run(seed, drawn.cell.text, random.choice(("fp32", "bf16")), case)


def request_of(run: Run, gpus: tuple[Target, ...] = ()) -> Request:
    """What is built for a run: its loops' head_dims, for one direction and for both."""
    source = Source(f"{run.name}.rnn", run.text)
    bare = Request(source, run.name, instructions=own_instructions(), gpus=gpus)
    if not gpus:
        return bare
    loops = (form for loop in _plan(bare).loops if not isinstance(loop.fused, NoForm) for form in loop.fused)
    head_dims = sorted({_head_dim(run, loop) for loop in loops})
    heads = (run.case.heads, 2 * run.case.heads)[: 1 + run.case.reverse]
    problems = tuple(Problem(width, each, run.dtype) for width in head_dims for each in heads)
    return replace(bare, architectures=tuple(gpu.architecture for gpu in gpus), problems=problems)


def planned(run: Run, target: Target) -> dict[str, str]:
    """The family of each direction of each loop that is no scan and no walk; `not` and a reason where the alternating
    kernel runs it."""
    found = {}
    for loop in _plan(request_of(run)).loops:
        if loop.masked != run.case.masked:
            continue
        forward, backward = (loop.fused, loop.fused) if isinstance(loop.fused, NoForm) else loop.fused
        if isinstance(loop.scan_forward, NoForm):
            found[f"{loop.segment} forward"] = _family(run, forward, target)
        if isinstance(loop.scan_backward, NoForm):
            found[f"{loop.segment} backward"] = _family(run, backward, target)
    return found


def folder_of(run: Run, device: str) -> Path:
    """The package of a run, from the cache or built now; for a CPU it has no kernels of GPUs."""
    request = request_of(run, (_target(device),) if device == "cuda" else ())
    nvrtc = find_nvrtc(request.architectures, required=True)
    dtype = INDEX_DTYPES[run.dtype]
    # Scans and walks have kernels of their own.
    programs = {program for program, _ in scan_programs(_plan(request))}
    if device != "cuda" or any(each.startswith("not ") for each in planned(run, _target(device)).values()):
        programs |= {named.name for named in named_programs(_plan(request))}
    wanted = tuple(sorted(f"{program}_{dtype}" for program in programs))

    def produce() -> Product:
        made = make_product(request)
        assert made.bundle is not None
        masked = run.case.masked
        units = tuple(
            each for each in made.bundle.device_units
            if each.name.startswith("_")
            or ((each.architectures or each.name in wanted) and ("_masked_" in each.name) == masked)
        )  # fmt: skip
        return replace(made, bundle=replace(made.bundle, device_units=units))

    compiler = find_toolchain()
    key = digest(first_key(request, nvrtc, compiler), *wanted)[:32]
    return build(Job(key, run.name, Cache(default_root()), compiler, nvrtc), produce)


def built(run: Run, device: str) -> tuple[str, dict[str, Any]]:
    """The package's folder, and what is recorded of it. Where it cannot be built, the folder is empty."""
    record: dict[str, Any] = run.described()
    # Processes compile side by side.
    os.environ["MAX_JOBS"] = "1"
    try:
        record["planned"] = planned(run, _target(device))
        return str(folder_of(run, device)), record
    except Exception:
        return "", {**record, "kind": "not built", "detail": traceback.format_exc(limit=-3)}


def judged(run: Run, folder: str, device: str) -> dict[str, Any]:
    """What a run gives on a device, against the float64 reference: outputs, final states and every gradient."""
    # A kernel that is missing is to be seen, not compiled.
    os.environ.update(RNNCC_COMPILE="0", RNNCC_LOG="error")
    cell = compile_cells(request_of(run), "partition").cells[0].cell
    layer_class = getattr(load(Path(folder)), cell.name)
    dtype = DTYPES[run.dtype]
    report = verify(layer_class, cell, device=device, dtypes=(dtype,), cases=(run.case,))
    again = Compared(layer_class, cell, run.case, dtype, device)
    ours = again.ours()
    with torch.no_grad():
        output, _ = again.run_layer(again.inputs, again.initial)
    rows = [(row.quantity, row.error, row.bound) for row in report.rows if row.judged]
    rows.append(("inference", relative_error(output, ours["output"]), BOUNDS[dtype]))
    wrong = {name: f"{error:.1e} > {bound:.1e}" for name, error, bound in rows if not error <= bound}
    name, error, bound = max(rows, key=lambda row: row[1] / row[2])
    found: dict[str, Any] = {"kind": "wrong" if wrong else "ok", "worst": f"{name} {error:.1e} of {bound:.1e}"}
    if device == "cuda":
        found["ran"] = families_of(kernels_of(again.ours), run.name)
    return found | ({"detail": str(wrong)} if wrong else {})


def families_of(symbols: set[str], name: str) -> list[str]:
    """The families of the kernels that ran a package's loops, but for scans and walks, by their symbols."""
    found = (_SYMBOL.fullmatch(symbol.removeprefix(name)) for symbol in symbols if symbol.startswith(f"{name}_"))
    return sorted({match[1] or "alternating" for match in found if match})


def why_not_fused(record: Mapping[str, Any]) -> list[str]:
    """Why not all of a run's loops were fused that are no scans and no walks; nothing where they were."""
    planned = record.get("planned", {}).values()
    reasons = {each.removeprefix("not ") for each in planned if each.startswith("not ")}
    if not reasons and "alternating" in record.get("ran", ()):
        reasons = {"a fused kernel was planned, and the alternating one ran"}
    return sorted(reasons)


def _family(run: Run, form: FusedLoop | NoForm, target: Target) -> str:
    if isinstance(form, NoForm):
        return f"not {form.reason}"
    problem = Problem(_head_dim(run, form), run.case.heads * (1 + run.case.reverse), run.dtype)
    options = (problem, replace(problem, heads=run.case.heads))
    for found in (schedule(form, each, target) for each in options):
        if taken := _taking(found, run.case.batch):
            return taken
    found = schedule(form, options[-1], target, reasons=True)
    quick = [each for each in found.rejected if each.step_us is not None and each.name != "alternating"]
    return "not the alternating kernel is as quick" if quick or found.kernels else "not no family's kernel fits"


def _taking(found: LoopKernels, batch: int) -> str:
    return next((kernel.family.name for kernel in found.kernels if kernel.launches(batch)), "")


def _head_dim(run: Run, loop: FusedLoop) -> int:
    sizes = {**dict(run.case.sizes), "num_heads": run.case.heads}
    return max(evaluate(width, sizes) for width in loop.widths) // run.case.heads


def _plan(request: Request) -> LoweredCell:
    return compile_cells(request, "lower").cells[0].plan


def _target(device: str) -> Target:
    """The GPU that is there; for a CPU the one that plans are made for."""
    if device != "cuda":
        return GPUS["h200"]
    found = known_gpus("auto")
    if not found:
        raise RuntimeError("there is no GPU for which kernels are planned")
    return found[0]
