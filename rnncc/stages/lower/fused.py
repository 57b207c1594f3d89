"""Whether a program fits the fused kernels, and how.

It does if a step has one stage with products, all of whose operands and sums are units of the heads, and everything
else is elementwise over the same units.
"""

from __future__ import annotations

from rnncc.diagnostics import InternalError
from rnncc.ir.dim import ONE
from rnncc.ir.expr import references
from rnncc.ir.fused import FusedEdge, FusedLoop, FusedRead, FusedRow, FusedStatement, FusedVector, FusedWrite
from rnncc.ir.kernel import (
    EdgeSlot,
    Program,
    ReadSlot,
    Slot,
    StoredSlot,
    TileSlot,
    TileStage,
    VectorSlot,
    ViewSlot,
)


class _Unfit(Exception):
    """Says in words why a program does not fit."""


def fuse(program: Program) -> FusedLoop | str:
    """The fused form, or why there is none."""
    try:
        return _Fuser(program).loop()
    except _Unfit as reason:
        return str(reason)


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots: dict[str, Slot] = {slot.name: slot for slot in program.slots}

    def loop(self) -> FusedLoop:
        stages = []
        for stage in self.program.stages:
            if not isinstance(stage, TileStage):
                raise _Unfit(f"a step takes the {stage.operator.value} of a row")
            stages.append(stage)
        with_products = [index for index, stage in enumerate(stages) if stage.products]
        if len(with_products) != 1:
            raise _Unfit(f"a step has {len(with_products)} products that wait for each other")
        middle = with_products[0]
        product_stage = stages[middle]
        self.width, self.blocks = product_stage.width, product_stage.blocks
        for stage in stages:
            if stage.width != self.width or stage.parts != 1:
                raise _Unfit("values of a step have several widths")
        sums, operands, matrices, transposed = self._products(product_stage)
        start = self._statements(stages[:middle])
        finish = self._statements(stages[middle:])
        edges = self._edges()
        made_early = {statement.target for statement in start}
        made_late = {statement.target for statement in finish}
        used_late = {name for statement in finish for name in references(statement.expr)}
        wanted_later = {edge.link for edge in edges}
        kept = tuple(
            statement.target for statement in start if statement.target in used_late or statement.target in wanted_later
        )
        for operand in operands:
            if operand in made_late:
                raise _Unfit(f"the operand {operand} is made by the product itself")
        used = used_late | {name for statement in start for name in references(statement.expr)} | set(operands)
        reads, rows, vectors = self._reads(used)
        return FusedLoop(
            sums,
            operands,
            matrices,
            transposed,
            reads,
            rows,
            vectors,
            self.program.constants,
            edges,
            kept,
            start,
            finish,
            self._writes(made_early, made_late),
        )

    def _products(self, stage: TileStage) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, ...], ...], bool]:
        known = {matrix.name: matrix for matrix in self.program.matrices}
        operands = tuple(dict.fromkeys(product.operand for product in stage.products))
        table: dict[tuple[str, str], str] = {}
        for product in stage.products:
            if product.parts != 1 or self.slots[product.operand].width != self.width:
                raise _Unfit(f"the operand {product.operand} has another width than the sums")
            for offset, name in enumerate(product.matrices):
                if known[name].blocks != self.blocks or known[name].parts != 1:
                    raise _Unfit(f"{name} has blocks of its own")
                table[stage.accumulators[product.first + offset], product.operand] = name
        if len({product.transposed for product in stage.products}) != 1:
            raise InternalError("products of a stage have matrices and transposed ones")
        sums = stage.accumulators
        if len(table) != len(sums) * len(operands):
            raise _Unfit("not every sum of a step takes every operand")
        matrices = tuple(tuple(table[accumulator, operand] for operand in operands) for accumulator in sums)
        return sums, operands, matrices, stage.products[0].transposed

    def _statements(self, stages: list[TileStage]) -> tuple[FusedStatement, ...]:
        return tuple(
            FusedStatement(statement.target, statement.expr, statement.line)
            for stage in stages
            for statement in stage.statements
        )

    def _edges(self) -> tuple[FusedEdge, ...]:
        finals = {final.slot: final.place for final in self.program.finals}
        edges = []
        for slot in self.program.slots:
            if isinstance(slot, EdgeSlot) and isinstance(self.slots[slot.link], StoredSlot):
                if slot.width != self.width or slot.ahead:
                    raise _Unfit(f"{slot.name} has another width than the sums")
                edges.append(FusedEdge(slot.name, slot.link, slot.place, finals.get(slot.name)))
        if not set(finals) <= {edge.name for edge in edges}:
            raise _Unfit("a final state is no value of the step")
        return tuple(edges)

    def _reads(self, used: set[str]) -> tuple[tuple[FusedRead, ...], tuple[FusedRow, ...], tuple[FusedVector, ...]]:
        reads: list[FusedRead] = []
        rows: list[FusedRow] = []
        vectors: list[FusedVector] = []
        for slot in self.program.slots:
            if slot.name not in used:
                continue
            match slot:
                case ReadSlot() if slot.width == self.width:
                    reads.append(FusedRead(slot.name, slot.place))
                case ReadSlot() if slot.width == ONE:
                    rows.append(FusedRow(slot.name, slot.place))
                case EdgeSlot() if isinstance(link := self.slots[slot.link], ReadSlot) and slot.width == self.width:
                    reads.append(FusedRead(slot.name, link.place, slot.place))
                case VectorSlot() if slot.width in (self.width, ONE):
                    vectors.append(FusedVector(slot.name, slot.place, slot.width == ONE))
                case StoredSlot() | TileSlot():
                    pass
                case EdgeSlot() if isinstance(self.slots[slot.link], StoredSlot):
                    pass
                case ReadSlot() | EdgeSlot() | VectorSlot() | ViewSlot():
                    raise _Unfit(f"{slot.name} has another width than the sums")
        return tuple(reads), tuple(rows), tuple(vectors)

    def _writes(self, early: set[str], late: set[str]) -> tuple[FusedWrite, ...]:
        writes = []
        for slot in self.program.slots:
            if not isinstance(slot, StoredSlot):
                continue
            if slot.name not in early and slot.name not in late:
                raise InternalError(f"nothing makes {slot.name}")
            writes += [FusedWrite(slot.name, place, slot.name in early) for place in slot.destinations]
            if slot.kept and not slot.destinations:
                writes.append(FusedWrite(slot.name, None, slot.name in early))
        return tuple(writes)
