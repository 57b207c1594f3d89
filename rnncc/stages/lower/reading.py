"""How a loop without products is read, and what says that a program does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.fused import FusedEdge, FusedRead, FusedRow, FusedStatement, FusedVector, FusedWrite
from rnncc.ir.kernel import EdgeSlot, Program, ReadSlot, Slot, StoredSlot, TileSlot, TileStage, VectorSlot, ViewSlot
from rnncc.language.diagnostics import InternalError


class Unfit(Exception):
    """Says in words why a program does not fit."""


class Reader:
    """Reads a program in which every unit of a batch entry is alone. All methods raise Unfit."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots: dict[str, Slot] = {slot.name: slot for slot in program.slots}

    def stages(self) -> list[TileStage]:
        """The stages, where all of them are elementwise but for their products."""
        stages = []
        for stage in self.program.stages:
            if not isinstance(stage, TileStage):
                raise Unfit(f"a step takes the {stage.operator.value} of a row")
            stages.append(stage)
        return stages

    def width(self, stages: Sequence[TileStage], width: Dim) -> Dim:
        """`width`, where all stages have it."""
        if any(stage.width != width or stage.parts != 1 for stage in stages):
            raise Unfit("values of a step have several widths")
        return width

    def statements(self, stages: Sequence[TileStage]) -> tuple[FusedStatement, ...]:
        """Their statements, in order."""
        return tuple(
            FusedStatement(statement.target, statement.expr, statement.line)
            for stage in stages
            for statement in stage.statements
        )

    def edges(self, width: Dim) -> tuple[FusedEdge, ...]:
        """The values that live from step to step."""
        finals = {final.slot: final.place for final in self.program.finals}
        edges = []
        for slot in self.program.slots:
            if isinstance(slot, EdgeSlot) and isinstance(self.slots[slot.link], StoredSlot):
                if slot.width != width or slot.ahead:
                    raise Unfit(f"{slot.name} has another width than the others")
                edges.append(FusedEdge(slot.name, slot.link, slot.place, finals.get(slot.name)))
        if not set(finals) <= {edge.name for edge in edges}:
            raise Unfit("a final state is no value of the step")
        return tuple(edges)

    def reads(
        self, used: set[str], width: Dim
    ) -> tuple[tuple[FusedRead, ...], tuple[FusedRow, ...], tuple[FusedVector, ...]]:
        """The tensors that the names in `used` stand for, without the mask of active steps, which kernels know
        themselves."""
        reads: list[FusedRead] = []
        rows: list[FusedRow] = []
        vectors: list[FusedVector] = []
        for slot in self.program.slots:
            if slot.name not in used or slot.name == ACTIVE:
                continue
            match slot:
                case ReadSlot() if slot.width == width:
                    reads.append(FusedRead(slot.name, slot.place))
                case ReadSlot() if slot.width == ONE:
                    rows.append(FusedRow(slot.name, slot.place))
                case EdgeSlot() if isinstance(link := self.slots[slot.link], ReadSlot) and slot.width == width:
                    reads.append(FusedRead(slot.name, link.place, slot.place))
                case VectorSlot() if slot.width in (width, ONE):
                    vectors.append(FusedVector(slot.name, slot.place, slot.width == ONE))
                case StoredSlot() | TileSlot():
                    pass
                case EdgeSlot() if isinstance(self.slots[slot.link], StoredSlot):
                    pass
                case ReadSlot() | EdgeSlot() | VectorSlot() | ViewSlot():
                    raise Unfit(f"{slot.name} has another width than the others")
        return tuple(reads), tuple(rows), tuple(vectors)

    def writes(self, made: Mapping[str, int]) -> tuple[FusedWrite, ...]:
        """What goes to memory of what the stages of a step make; `made`: the stage of each value."""
        writes = []
        for slot in self.program.slots:
            if not isinstance(slot, StoredSlot):
                continue
            if slot.name not in made:
                raise InternalError(f"nothing makes {slot.name}")
            writes += [
                FusedWrite(slot.name, place, made[slot.name], destination=index)
                for index, place in enumerate(slot.destinations)
            ]
            if slot.kept and not slot.destinations:
                writes.append(FusedWrite(slot.name, None, made[slot.name]))
        return tuple(writes)
