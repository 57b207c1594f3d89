"""The stages in order: the only module that knows the order.

    text ─parse→ CellDecl ─check→ Typed ─partition→ Cell ─regularise→ Cell
    Cell ─classify→ Recurrence        Cell ─mask→ masked Cell        each of both Cells ─differentiate→ Adjoint
    both Cells and their Adjoints ─lower→ KernelPlan ─schedule→ kernels of GPUs
    all of these ─render→ files of a package

`driver` builds and loads what comes out. A stage is imported where it runs, so that a command pays for the stages it
needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add

from rnncc.ir.compilation import Compilation
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.report import attempt, in_order

# What `compile_cells` runs, in order, and the field that holds what a stage made last.
STAGES = {
    "parse": "declarations",
    "check": "typed",
    "partition": "cells",
    "regularise": "cells",
    "classify": "recurrences",
    "mask": "masked",
    "differentiate": "adjoints",
    "lower": "plans",
    "schedule": "fused",
    "render": "files",
}


def compile_cells(request: Request, until: str = "render") -> Compilation:
    """A text's cells, with all that the stages up to `until` make of them. Raises RnnccError: every mistake found."""
    if until not in STAGES:
        raise ValueError(f"no stage is called '{until}'")
    made = Compilation(request)
    for stage in run_stages(made):
        if stage == until:
            break
    return made


def run_stages(made: Compilation) -> Iterator[str]:
    """Runs a stage whenever the next name is asked for, and says which it was. Raises RnnccError: every RNN1xx of the
    text or, where there are none, every RNN2xx of every cell."""
    request = made.request

    from rnncc.stages.parse import parse

    made.declarations = parse(request.source)
    yield "parse"

    from rnncc.stages.check import check, constants_of
    from rnncc.stages.partition import partition

    checked = attempt(check, made.declarations, constants_of(made.declarations, request.constants))
    if checked.errors:
        # A cell without a mistake so far may have one that `partition` finds: one run reports all.
        raise RnnccError(*in_order((*checked.errors, *attempt(partition, checked.made).errors)))
    made.typed, made.warnings = checked.made, checked.warnings
    yield "check"

    placed = attempt(partition, made.typed)
    if placed.errors:
        raise RnnccError(*placed.errors)
    made.cells = placed.made
    made.warnings = tuple(in_order(each) for each in map(add, checked.warnings, placed.warnings))
    yield "partition"

    if request.zoneout or request.recurrent_dropout:
        from rnncc.stages.regularise import regularise

        made.cells = tuple(regularise(cell, request.zoneout, request.recurrent_dropout) for cell in made.cells)
    yield "regularise"

    from rnncc.stages.classify import classify

    made.recurrences = tuple(map(classify, made.cells))
    yield "classify"

    from rnncc.stages.mask import mask

    made.masked = tuple(map(mask, made.cells))
    yield "mask"

    from rnncc.stages.differentiate import differentiate

    made.adjoints, made.masked_adjoints = tuple(map(differentiate, made.cells)), tuple(map(differentiate, made.masked))
    yield "differentiate"

    from rnncc.stages.lower import lower

    made.plans = tuple(map(lower, made.cells, made.adjoints, made.masked, made.masked_adjoints))
    yield "lower"

    from rnncc.stages.schedule.kernels import fused_kernels, scan_kernels

    newton = request.newton and request.has_clusters
    made.scans = tuple(scan_kernels(plan, newton=newton) if request.is_for_gpus else () for plan in made.plans)
    made.fused = tuple(
        tuple(found for gpu in request.gpus for found in fused_kernels(plan, request.problems, gpu))
        for plan in made.plans
    )
    yield "schedule"

    from rnncc.stages.render import render

    made.files, made.bundle = render(made.package())
    yield "render"
