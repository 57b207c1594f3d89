"""The LoopInfo of a program: its loop in the form that kernels of its own take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rnncc.ir.dim import Dim, named
from rnncc.ir.fused import FusedLoop, FusedWrite, MatrixPart, MatrixRule
from rnncc.ir.scan import ScanLoop
from rnncc.ir.step import Place
from rnncc.ir.structure import DENSER
from rnncc.stages.render.cpp.initialisers import designated, numbers, row, rows, struct
from rnncc.stages.render.cpp.names import matrix_name, slot_name

# The index of a dim of the program.
DimIndex = Callable[[Dim], str | None]


def loop_info(form: FusedLoop | ScanLoop | None, dim: DimIndex) -> Iterator[str]:
    """The LoopInfo of a program in that form, behind the arrays that it points to. Without a form nothing is set."""
    if form is None:
        yield "static constexpr LoopInfo info = {};"
        return
    arrays = {name: (type, entries) for name, type, entries in _arrays(form, dim) if entries}
    for name, (type, entries) in arrays.items():
        yield numbers(f"info_{name}", entries) if type == "int16_t" else rows(type, f"info_{name}", entries)
    own = _of_fused(form, dim) if isinstance(form, FusedLoop) else {"units": dim(form.width)}
    constants = {name: f"{{info_{name}, {len(entries)}}}" for name, (_, entries) in arrays.items()}
    yield struct("LoopInfo", "info", **own, handed=len(form.kept) or None, **constants)


def _of_fused(loop: FusedLoop, dim: DimIndex) -> dict[str, str | int | None]:
    """The members that a loop without products does not set."""
    is_sparse = any(phase.sparsity for phase in loop.phases)
    return {
        "sums": max(len(phase.sums) for phase in loop.phases) or None,
        "operands": loop.operands or None,
        "reductions": sum(len(phase.reduced) for phase in loop.phases) or None,
        "relayed": loop.relays.count if loop.relays else None,
        "relayed_width": loop.relays.width or None if loop.relays else None,
        "denser_dim": dim(named(DENSER)) if is_sparse else None,
    }


def _arrays(form: FusedLoop | ScanLoop, dim: DimIndex) -> Iterator[tuple[str, str, list[str]]]:
    """The arrays in the order of LoopInfo: name, type of the elements, and these."""
    if isinstance(form, FusedLoop):
        parts = (part for phase in form.phases for line in phase.matrices for part in line)
        yield "widths", "int16_t", [dim(width) or "0" for width in form.widths]
        yield "matrices", "LoopMatrix", [f"    {_matrix(part)}," for part in parts]
    edges = (
        row(edge.name, first=_place(edge.place, dim), last=_place(edge.last, dim), has_last=edge.last is not None)
        for edge in form.edges
    )
    yield "edges", "LoopEdge", [*edges]
    reads = (
        row(read.name, place=_place(read.place, dim), end=_place(read.edge, dim), shifted=read.edge is not None)
        for read in form.reads
    )
    yield "reads", "LoopRead", [*reads]
    yield "rows", "LoopPlace", [f"    /* {each.name} */ {_place(each.place, dim)}," for each in form.rows]
    vectors = (
        row(each.name, place=_place(each.place, dim), part=_matrix(each.matrix), wide=not each.scalar)
        for each in form.vectors
    )
    yield "vectors", "LoopVector", [*vectors]
    writes = [_write(write, is_scalar=False) for write in form.writes]
    if isinstance(form, FusedLoop):
        writes += [_write(write, is_scalar=True) for write in form.row_writes]
    yield "writes", "LoopWrite", writes
    if isinstance(form, FusedLoop):
        late = (row("", sum=slot_name(each.slot), terms=slot_name(each.terms)) for each in form.late_sums)
        yield "late", "LoopLate", [*late]
    else:
        yield "totals", "int16_t", [slot_name(name) for name in form.totals]


def _place(place: Place | None, dim: DimIndex) -> str | None:
    if place is None:
        return None
    return designated(table=place.table.value, index=place.index, offset=dim(place.offset))


def _matrix(part: MatrixPart | MatrixRule | None) -> str:
    if isinstance(part, MatrixPart):
        return designated(matrix=matrix_name(part.name), part=part.part or None)
    return designated(matrix=-1)


def _write(write: FusedWrite, *, is_scalar: bool) -> str:
    return row(
        write.value,
        slot=slot_name(write.slot or write.value),
        part=write.part or None,
        place=-1 if write.place is None else write.destination or None,
        scalar=is_scalar,
    )
