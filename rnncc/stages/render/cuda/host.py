"""The host side of a cell's GPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.analysis.by_head import HeadForm
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.family import Scope
from rnncc.ir.layout import ScanKernels, ScanLayouts
from rnncc.ir.lowered import loop_name
from rnncc.stages.render.cpp.initialisers import designated
from rnncc.stages.render.programs import NamedProgram, named_programs
from rnncc.stages.render.templates import text


@dataclass(frozen=True, slots=True)
class HostProgram:
    """The function that runs a program. `kernels`: what its kernels' names begin with; `scans`: the members of its
    ScanForms, if it has any. `has_single`, `by_head`: as a NamedProgram has them."""

    name: str
    direction: str
    kernels: str
    scans: tuple[str, ...]
    has_single: bool
    by_head: HeadForm | None


def host_text(cell: CompiledCell) -> str:
    """The functions that run a cell's programs on a GPU."""
    scans = {kernels.program: kernels for kernels in cell.scans}

    def host_program(named: NamedProgram) -> HostProgram:
        scan = scans.get(named.name)
        kernels, forms = (scan.made_for, _forms(scan)) if scan else (named.name, ())
        return HostProgram(named.name, named.direction, kernels, forms, named.has_single, named.by_head)

    programs = [host_program(named) for named in named_programs(cell.plan)]
    # The plain loops, and whether both programs of each run a single step.
    single = {program.name: program.has_single for program in programs}
    loops = [loop_name(cell.plan, loop) for loop in cell.plan.plain_loops()]
    adding = [(loop, single[f"{loop}_forward"] and single[f"{loop}_backward"]) for loop in loops]
    about = {"cell": cell.plan.cell, "name": cell.plan.cell.lower()}
    return text("cuda/host.cpp.j2", **about, programs=programs, adding=adding)


def _forms(kernels: ScanKernels) -> tuple[str, ...]:
    """The members of a ScanForms: a form for elements of 32 bits, and one for those of 16."""
    forms = ("vectorised", "tall", "narrow", "newton")
    pairs = {form: (_form(kernels.full, form), _form(kernels.half, form)) for form in forms}
    return tuple(f".{form} = {{{full},\n     {half}}}," for form, (full, half) in pairs.items() if full or half)


def _form(layouts: ScanLayouts, form: str) -> str:
    """A ScanForm; nothing where there is no such kernel."""
    shape = dict(layouts.forms).get(form)
    if shape is None:
        return ""
    alone = shape.family.scope is Scope.THREAD  # each thread walks through all steps of its channels
    return designated(
        vector=shape.vector,
        threads=shape.threads,
        groups=shape.threads if alone else 32,
        steps=0 if alone else shape.warps * shape.steps,
        shared_bytes=shape.shared_bytes,
        peer_bytes=shape.peer_bytes,
        least_shared_bytes=shape.least_shared_bytes,
        least_ctas=shape.least_ctas,
    )
