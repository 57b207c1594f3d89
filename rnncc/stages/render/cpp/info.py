"""The LoopInfo of a program: its loop in the form that kernels of its own take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rnncc.ir.dim import Dim, named
from rnncc.ir.fused import FusedLoop, FusedRead, FusedVector, FusedWrite, MatrixPart
from rnncc.ir.kernel import Program
from rnncc.ir.scan import ScanLoop
from rnncc.ir.structure import DENSER
from rnncc.stages.render.cpp.initialisers import numbers, struct
from rnncc.stages.render.cpp.names import matrix_name, slot_name


def loop_info(form: FusedLoop | ScanLoop | None, program: Program, dim: Callable[[Dim], str | None]) -> Iterator[str]:
    """The LoopInfo of a program in that form, behind the arrays that it points to. Without a form nothing is set.
    `dim`: the index of a dim of the program."""
    if form is None:
        yield "static constexpr LoopInfo info = {};"
        return
    fused = form if isinstance(form, FusedLoop) else None
    phases = fused.phases if fused else ()
    matrices = [part for phase in phases for row in phase.matrices for part in row]
    row_writes = fused.row_writes if fused else ()
    late_sums = fused.late_sums if fused else ()
    totals = form.totals if isinstance(form, ScanLoop) else ()
    finals = [final.edge for final in program.step.finals]

    def place_of(write: FusedWrite) -> int:
        return -1 if write.place is None else write.destination

    lists: dict[str, list[str | int]] = {
        "width_dims": [dim(width) or "0" for width in (fused.widths if fused else ())],
        "matrices": [matrix_name(part.name) if isinstance(part, MatrixPart) else -1 for part in matrices],
        "matrix_parts": [part.part if isinstance(part, MatrixPart) else 0 for part in matrices],
        "edge_slots": [slot_name(edge.name) for edge in form.edges],
        "edge_finals": [finals.index(edge.name) if edge.name in finals else -1 for edge in form.edges],
        "read_slots": [slot_name(_slot(read)) for read in form.reads],
        "read_parts": [read.part for read in form.reads],
        "row_slots": [slot_name(row.name) for row in form.rows],
        "vector_slots": [-1 if vector.matrix else slot_name(_slot(vector)) for vector in form.vectors],
        "vector_matrices": [matrix_name(vector.matrix) if vector.matrix else -1 for vector in form.vectors],
        "vector_parts": [vector.part for vector in form.vectors],
        "write_slots": [slot_name(_slot(write)) for write in form.writes],
        "write_parts": [write.part for write in form.writes],
        "write_places": [place_of(write) for write in form.writes],
        "row_write_slots": [slot_name(_slot(write)) for write in row_writes],
        "row_write_places": [place_of(write) for write in row_writes],
        "late_slots": [slot_name(late.slot) for late in late_sums],
        "late_terms": [slot_name(late.terms) for late in late_sums],
        "total_slots": [slot_name(name) for name in totals],
    }
    counts = {
        "products": len(matrices),
        "sums": max((len(phase.sums) for phase in phases), default=0),
        "operands": sum(len(phase.operands) for phase in phases),
        "reductions": sum(len(phase.reduced) for phase in phases),
        "edges": len(form.edges),
        "reads": len(form.reads),
        "rows": len(form.rows),
        "vectors": len(form.vectors),
        "writes": len(form.writes),
        "row_writes": len(row_writes),
        "late_sums": len(late_sums),
        "totals": len(totals),
        "widths": len(fused.widths) if fused else 0,
        "handed": len(form.kept),
        "relayed": fused.relays.count if fused and fused.relays else 0,
        "relayed_width": fused.relays.width if fused and fused.relays else 0,
    }
    yield from (numbers(f"info_{name}", entries) for name, entries in lists.items() if entries)
    yield struct(
        "LoopInfo",
        "info",
        **{name: count or None for name, count in counts.items()},
        denser_dim=dim(named(DENSER)) if any(phase.sparsity for phase in phases) else None,
        **{name: f"info_{name}" if entries else None for name, entries in lists.items()},
    )


def _slot(of: FusedRead | FusedVector | FusedWrite) -> str:
    """The slot that holds it. Where values have no parts, it is the value's own."""
    return of.slot or (of.value if isinstance(of, FusedWrite) else of.name)
