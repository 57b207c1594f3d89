"""The fused form of a loop, as text: what the fused kernels are rendered from."""

from __future__ import annotations

from collections.abc import Iterator

from rnncc.ir import dim as dims
from rnncc.ir.fused import FusedEdge, FusedLoop, FusedPhase, FusedRow, FusedVector, FusedWrite, MatrixPart, MatrixRule
from rnncc.ir.lowered import NoForm
from rnncc.show.values import show_expr, show_place, show_sparsity


def show_fused(loop: FusedLoop | NoForm) -> Iterator[str]:
    """What a step reads, then its stages and phases in the order in which a kernel runs them, then what it carries."""
    if isinstance(loop, NoForm):
        yield f"no fused form: {loop.reason}"
        return
    yield f"fused, widths {', '.join(map(dims.show, loop.widths))}"
    sized = len(loop.widths) > 1

    def of(width: int) -> str:
        return f" [{dims.show(loop.widths[width])}]" if sized else ""

    yield "  reads"
    for read in loop.reads:
        edge = "" if read.edge is None else f" of the next step, after the last one {show_place(read.edge)}"
        yield f"    {read.name}{of(read.width)} = {show_place(read.place)}{edge}"
    yield from (f"    {_row(row)}" for row in loop.rows)
    yield from (f"    {_vector(vector)}{of(vector.width)}" for vector in loop.vectors)
    for number, stage in enumerate(loop.stages):
        yield f"  {_name(number, loop)}"
        yield from (f"    {statement.target} = {show_expr(statement.expr)}" for statement in stage)
        yield from (f"    {_write(write)}" for write in (*loop.writes, *loop.row_writes) if write.stage == number)
        if number < len(loop.phases):
            relayed = loop.relays is not None and bool(loop.relays.phases[number])
            yield from (f"  {line}" for line in _phase(number, loop.phases[number], relayed))
    yield "  carries"
    yield from (f"    {_edge(edge)}{of(edge.width)}" for edge in loop.edges)
    yield from (f"    {name}, from stage to stage" for name in loop.kept)
    yield from (f"  after the loop {late.slot} = sum of {late.terms} over all heads" for late in loop.late_sums)


def _name(number: int, loop: FusedLoop) -> str:
    """What kernels call a stage."""
    return "start" if number == 0 else "finish" if number == len(loop.phases) else f"middle {number}"


def _row(row: FusedRow) -> str:
    return f"{row.name} = {show_place(row.place)}, one number per {'head' if row.per_head else 'batch entry'}"


def _vector(vector: FusedVector) -> str:
    part = "" if vector.matrix is None else f", of the matrix {_matrix(vector.matrix)}"
    return f"{vector.name} = {show_place(vector.place)}, {'one number' if vector.scalar else 'a number per unit'}{part}"


def _write(write: FusedWrite) -> str:
    return f"{write.value} -> {'the record of ' + write.slot if write.place is None else show_place(write.place)}"


def _edge(edge: FusedEdge) -> str:
    last = "" if edge.last is None else f", at the end in {show_place(edge.last)}"
    return f"{edge.name} = {edge.link} of the step before, at first {show_place(edge.place)}{last}"


def _phase(number: int, phase: FusedPhase, relayed: bool) -> Iterator[str]:
    reduced = f"parts of {', '.join(phase.reduced)}" if phase.reduced else ""
    exchanged = ", ".join(filter(None, (*phase.operands, reduced)))
    joined = "; one weight has all matrices" if phase.joined and phase.operands else ""
    relays = "; all sums go into the next phase" if relayed else ""
    yield f"phase {number}: CTAs exchange {exchanged}{joined}{relays}{show_sparsity(phase.sparsity)}"
    for target, row in zip(phase.sums, phase.matrices, strict=True):
        terms = (
            f"{_matrix(matrix)}{'T' if phase.transposed else ''} @ {operand}"
            for matrix, operand in zip(row, phase.operands, strict=True)
            if matrix is not None
        )
        yield f"  {target} = {' + '.join(terms)}"
    for reduction in phase.reductions:
        results, sources = ", ".join(reduction.results), ", ".join(reduction.sources)
        yield f"  {results} = {reduction.kind.name.lower()} of {sources} over the units of a head"


def _matrix(matrix: MatrixPart | MatrixRule) -> str:
    if isinstance(matrix, MatrixRule):
        unit, term = (f" // {times}" if times > 1 else "" for times in (matrix.unit_times, matrix.term_times))
        return f"(1 where term{term} is {matrix.relation.value.replace('_', ' ')} unit{unit})"
    return f"[{matrix.name}]" if not matrix.part else f"[{matrix.name}, part {matrix.part}]"
