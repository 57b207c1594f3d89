"""The stages in order: the only module that knows the order.

    text ─parse→ CellDecl ─check→ Typed ─partition→ Cell ─regularise→ Cell
    Cell ─classify→ Recurrence        Cell ─mask→ masked Cell        each of both Cells ─differentiate→ Adjoint
    Cell ─single→ Cell of one step, or None
    all Cells and their Adjoints ─lower→ LoweredCell ─schedule→ kernels of GPUs
    all of these ─render→ files of a package

`driver` builds and loads what comes out. A stage is imported where it runs, so that a command pays for the stages it
needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rnncc.ir.artifact import Bundle
from rnncc.ir.compilation import Compilation, CompiledCell
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.report import attempt, in_order

# The stages in order, and the field of a CompiledCell that holds what each makes; `render` makes files of all cells.
STAGES = {
    "parse": "declaration",
    "check": "typed",
    "partition": "cell",
    "regularise": "cell",
    "classify": "recurrences",
    "mask": "masked",
    "differentiate": "adjoints",
    "lower": "plan",
    "schedule": "fused",
    "render": "",
}


def compile_cells(request: Request, until: str = "render") -> Compilation:
    """A text's cells, with all that the stages up to `until` make of them. Raises RnnccError: every mistake found;
    ValueError for a stage that does not run."""
    for stage, made in run_stages(request):
        if stage == until:
            return made
    raise ValueError(f"no stage '{until}' runs for this request")


def run_stages(request: Request) -> Iterator[tuple[str, Compilation]]:
    """Runs a stage whenever the next one is asked for: its name, and what is made so far. Raises RnnccError: every
    RNN1xx of the text or, where there are none, every RNN2xx of every cell."""
    made = Compilation(request)
    for stage, made in _stages_of_cells(request):
        yield stage, made
    yield from _stages_of_kernels(made)


def kernels_of(request: Request, cells: tuple[CompiledCell, ...]) -> Bundle:
    """The kernels that the stages after `lower` make for a request, of its text's cells as `lower` made them."""
    from rnncc.stages import render

    own = tuple(each for each in cells if request.cell in ("", each.name))
    return render.kernels(request, _scheduled(request, own))


def _stages_of_cells(request: Request) -> Iterator[tuple[str, Compilation]]:
    """The stages up to `lower`. They depend on the request's text, the options of its program and the cell it names."""
    from rnncc.stages.parse import parse

    declarations = parse(request.source)
    cells = tuple(map(CompiledCell, declarations))
    yield "parse", Compilation(request, cells)

    from rnncc.stages.check import check, constants_of
    from rnncc.stages.partition import partition

    checked = attempt(check, declarations, constants_of(declarations, request.constants))
    if checked.errors:
        # A cell without a mistake so far may have one that `partition` finds: one run reports all.
        raise RnnccError(*in_order((*checked.errors, *attempt(partition, checked.made).errors)))
    cells = tuple(map(CompiledCell, declarations, checked.made, checked.warnings))
    yield "check", Compilation(request, cells)

    placed = attempt(partition, checked.made)
    if placed.errors:
        raise RnnccError(*placed.errors)
    cells = tuple(
        replace(each, cell=cell, warnings=in_order(each.warnings + found))
        for each, cell, found in zip(cells, placed.made, placed.warnings, strict=True)
        if request.cell in ("", each.name)
    )
    yield "partition", Compilation(request, cells)

    if request.zoneout or request.recurrent_dropout:
        from rnncc.stages.regularise import regularise

        masks = request.zoneout, request.recurrent_dropout
        cells = tuple(replace(each, cell=regularise(each.cell, *masks)) for each in cells)
    yield "regularise", Compilation(request, cells)

    from rnncc.stages.classify import classify

    cells = tuple(replace(each, recurrences=classify(each.cell)) for each in cells)
    yield "classify", Compilation(request, cells)

    from rnncc.stages.mask import mask

    cells = tuple(replace(each, masked=mask(each.cell)) for each in cells)
    yield "mask", Compilation(request, cells)

    if request.has_kernels:
        from rnncc.stages.differentiate import differentiate, forward_only

        cells = tuple(
            replace(each, adjoints=differentiate(each.cell), masked_adjoints=differentiate(each.masked))
            for each in cells
        )
        yield "differentiate", Compilation(request, cells)

        from rnncc.stages.lower import lower
        from rnncc.stages.render.python.whole import whole_product
        from rnncc.stages.single import single

        steps = (None if whole_product(each.cell) else single(each.cell) for each in cells)
        cells = tuple(
            replace(each, single=None if step is None else (step, forward_only(step)))
            for each, step in zip(cells, steps, strict=True)
        )
        cells = tuple(
            replace(each, plan=lower(each.cell, each.adjoints, each.masked, each.masked_adjoints, each.single))
            for each in cells
        )
        yield "lower", Compilation(request, cells)


def _stages_of_kernels(made: Compilation) -> Iterator[tuple[str, Compilation]]:
    """The stages after `lower`."""
    request, cells = made.request, made.cells
    if request.has_kernels:
        cells = _scheduled(request, cells)
        yield "schedule", Compilation(request, cells)

    from rnncc.stages.render import render

    yield "render", Compilation(request, cells, *render(request, cells))


def _scheduled(request: Request, cells: tuple[CompiledCell, ...]) -> tuple[CompiledCell, ...]:
    if not (request.is_for_gpus or request.gpus):
        return cells
    from rnncc.stages.schedule.kernels import fused_kernels, scan_kernels  # its import takes a while

    newton = request.newton and request.has_clusters
    return tuple(
        replace(
            each,
            scans=scan_kernels(each.plan, newton=newton) if request.is_for_gpus else (),
            fused=tuple(
                found
                for gpu in request.gpus
                for found in fused_kernels(each.plan, request.problems, gpu, request.programs)
            ),
        )
        for each in cells
    )


def shared_kernels(request: Request) -> Bundle:
    """The kernels that are the same for every cell, of all packages for the same processors and kinds of devices."""
    from rnncc.stages import render

    return render.shared_kernels(request)
