"""The host side of a cell's GPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.package import CellKernels
from rnncc.ir.schedule import ScanKernels, ScanSchedule
from rnncc.stages.render.programs import named_programs
from rnncc.stages.render.templates import text


@dataclass(frozen=True, slots=True)
class HostProgram:
    """What runs a program; `scans` is its ScanForms, or nothing."""

    name: str
    direction: str
    scans: str


def host_text(cell: CellKernels) -> str:
    """The functions that run a cell's programs on a GPU."""
    forms = {kernels.program: _forms(kernels) for kernels in cell.scans}
    programs = [
        HostProgram(named.name, named.direction, forms.get(named.name, "")) for named in named_programs(cell.plan)
    ]
    return text("cuda/host.cpp.j2", cell=cell.plan.cell, name=cell.plan.cell.lower(), programs=programs)


def _forms(kernels: ScanKernels) -> str:
    """A ScanForms."""

    def form(schedule: ScanSchedule, name: str) -> str:
        shape = dict(schedule.forms).get(name)
        if shape is None:
            return _row(*([0] * 8))
        groups, steps = (shape.threads, 0) if schedule.family_of(name) == "walk" else (32, shape.warps * shape.steps)
        shared = (shape.shared_bytes, shape.peer_bytes, shape.least_shared_bytes)
        return _row(shape.vector, shape.threads, groups, steps, *shared, shape.least_blocks)

    sizes, names = (kernels.full, kernels.half), ("wide", "tall", "narrow", "newton")
    return _row(*(_row(*(form(schedule, name) for schedule in sizes)) for name in names))


def _row(*entries: str | int) -> str:
    return "{" + ", ".join(map(str, entries)) + "}"
