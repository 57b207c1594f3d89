"""What the later stages make, as text: recurrence classes, reverse programs, kernel plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.kernel import Program, Slot, StoredSlot, TileSlot, ViewSlot
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.recurrence import Recurrence
from rnncc.ir.step import Edge, MatrixStage, Read, RowStage, Stage, TileStage, Vector
from rnncc.show.fused import show_fused
from rnncc.show.values import show_expr, show_grid, show_node, show_place


def show_recurrence(recurrence: Recurrence) -> Iterator[str]:
    """The class of a segment, with A and b where it is affine, behind what they share."""
    form = f" {recurrence.form}" if recurrence.form else ""
    yield f"states {', '.join(recurrence.states)}: {recurrence.kind.value}{form}: {recurrence.why}"
    yield from (f"  {name} = {show_expr(value)}" for name, value in recurrence.shared)
    for state, row, offset in zip(recurrence.states, recurrence.matrix, recurrence.offset, strict=False):
        terms = [
            f"({show_expr(coefficient)}) * {previous}[t-1]"
            for previous, coefficient in zip(recurrence.states, row, strict=True)
        ]
        yield f"  {state}[t] = {' + '.join(terms)} + {show_expr(offset)}"


def show_adjoint(adjoint: Adjoint) -> Iterator[str]:
    """One backward step, top to bottom."""
    yield f"backward of states {', '.join(adjoint.segment.states)}"
    yield f"  saved {_names(adjoint.saved)}; state sequences {_names(adjoint.saved_states)}"
    yield f"  in the streams' dtype {_names(adjoint.rounded)}"
    yield f"  reads of the streams {_names(adjoint.streams_read)}"
    if adjoint.recompute:
        yield "  recompute"
        yield from (f"    {show_node(one)}" for one in adjoint.recompute)
    yield "  step"
    yield from (f"    {show_node(one)}" for one in adjoint.nodes)
    yield "  yields"
    yield from (f"    gradient of {state}[t-1]: {value}" for state, value in adjoint.state_cotangents)
    yield from (f"    gradient of {member}[t]: {value}" for member, value in adjoint.stream_cotangents)
    yield from (f"    {p.matrix}: sum of {p.cotangent} x {p.operand}" for p in adjoint.outer_products)
    yield from (f"    {member}: sum of {value}" for member, value in adjoint.vector_cotangents)


def show_plan(plan: LoweredCell) -> Iterator[str]:
    """The loops of a cell: slots and stages of both directions, and their fused form."""
    yield f"kernels of {plan.cell}, sizes {', '.join(dims.show(dims.named(size)) for size in plan.sizes)}"
    for loop in plan.loops:
        directions = ("forward", loop.forward, loop.fused_forward), ("backward", loop.backward, loop.fused_backward)
        for direction, program, fused in directions:
            yield f"  segment {loop.segment}{'_masked' if loop.masked else ''} {direction}"
            yield from (f"    {line}" for line in _program(program))
            yield from (f"    {line}" for line in show_fused(fused))


def _program(program: Program) -> Iterator[str]:
    yield "slots"
    yield from (f"  {slot.name} [{dims.show(slot.width)}]: {_slot(slot)}" for slot in program.slots)
    for stage, waits in zip(program.stages, program.barriers, strict=True):
        yield from _stage(stage, waits)
    yield from (f"at the end {show_place(final.place)} = {final.edge}" for final in program.step.finals)
    yield from (f"after the loop d_{o.matrix} = sum of {o.cotangent} x {o.operand}" for o in program.step.outers)
    yield from (f"after the loop {show_place(s.place, s.width)} = sum of {s.value}" for s in program.step.sums)
    yield from (f"{show_place(zero.place, zero.width)} = 0" for zero in program.step.zeros)


def _slot(slot: Slot) -> str:
    match slot:
        case Read():
            return f"read from {show_place(slot.place)}"
        case Edge():
            return f"{slot.link} a step {'later' if slot.ahead else 'earlier'}, at the edge {show_place(slot.place)}"
        case Vector():
            return f"vector {show_place(slot.place)}"
        case StoredSlot():
            places = ", ".join(show_place(place) for place in slot.destinations)
            return f"stored in {places or 'a workspace'}"
        case ViewSlot():
            return f"part of {slot.link} from {dims.show(slot.offset)}"
        case TileSlot():
            return "accumulator"
        case _:
            assert_never(slot)


def _stage(stage: Stage, waits: bool) -> Iterator[str]:
    barrier = ", after a barrier" if waits else ""
    match stage:
        case TileStage():
            yield f"stage over {dims.show(stage.width)} units{barrier}"
            for product in stage.products:
                matrices = ", ".join(product.matrices)
                first = stage.accumulators[product.first : product.first + len(product.matrices)]
                sign = "+=" if product.accumulate else "="
                transposed = "T" if product.transposed else ""
                yield f"  {', '.join(first)} {sign} [{matrices}]{transposed} @ {product.operand}"
            for statement in stage.statements:
                stored = "  -> stored" if statement.target in stage.stored else ""
                yield f"  {statement.target} = {show_expr(statement.expr)}{stored}"
        case MatrixStage():
            yield f"stage over the elements of {show_grid(stage.grid)}{barrier}"
            for load in stage.loads:
                if load.called:
                    yield f"  {load.local} = {load.name} by {load.access.value}"
            for statement in stage.statements:
                stored = "  -> stored" if statement.target in stage.stored else ""
                yield f"  {statement.target} = {show_expr(statement.expr)}{stored}"
            for reduction in stage.reductions:
                what = "largest element" if reduction.largest else "sum"
                yield f"  {reduction.target} = {what} of each {reduction.axis.value} of {reduction.source}"
        case RowStage():
            shape = "" if stage.grid is None else f", {show_grid(stage.grid)}"
            yield f"row {stage.target} = {stage.operator.value}({', '.join(stage.operands)}{shape}){barrier}"
        case _:
            assert_never(stage)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) if names else "none"
