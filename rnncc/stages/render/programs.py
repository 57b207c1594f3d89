"""The programs of a cell by name, and what their tables and their device code need to know: which of a program's slots
are read from memory, and by whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

from rnncc.analysis.by_head import HeadForm, head_form
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import Program, Slot, StoredSlot, TileSlot, ViewSlot
from rnncc.ir.lowered import LoweredCell, NoForm, loop_name
from rnncc.ir.scan import ScanLoop
from rnncc.ir.step import Access, Edge, Load, MatrixStage, Product, Read, RowStage, TileStage, Vector
from rnncc.ir.structure import BlockDiagonal, Dense
from rnncc.language.diagnostics import InternalError
from rnncc.stages.render.segments import single_name

# A call of one step runs launch by launch where a program has so few, else as the alternating kernel.
MOST_SINGLE_LAUNCHES = 4


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """One direction of a loop, which is `forward` or `backward`. `form` is the one form in which it has kernels of its
    own, if it has one."""

    name: str
    direction: str
    program: Program
    form: FusedLoop | ScanLoop | None

    @property
    def by_head(self) -> HeadForm | None:
        """What its kernels are that give each head of a batch entry to a CTA, where the step works on matrices."""
        return head_form(self.program)

    @property
    def has_single(self) -> bool:
        """Whether there are kernels for a call of one step, beside the alternating kernel."""
        if isinstance(self.form, ScanLoop) or self.program.step.masked:
            return False
        return launches(self.program) <= MOST_SINGLE_LAUNCHES


def launches(program: Program) -> int:
    """How many launches run a single step. templates/include/rnncc/cuda/single_call.h says which stages each runs."""
    pairs = zip(pairwise(program.stages), program.barriers[1:], strict=True)
    return 1 + sum(waits or not all(isinstance(each, TileStage) for each in both) for both, waits in pairs)


def named_programs(plan: LoweredCell) -> Iterator[NamedProgram]:
    """All programs of a cell, in the order of its files."""
    for loop in plan.loops:
        for direction, program, fused, scan in (
            ("forward", loop.forward, loop.fused_forward, loop.scan_forward),
            ("backward", loop.backward, loop.fused_backward, loop.scan_backward),
        ):
            form = next((form for form in (fused, scan) if not isinstance(form, NoForm)), None)
            yield NamedProgram(f"{loop_name(plan, loop)}_{direction}", direction, program, form)


def cpu_programs(plan: LoweredCell) -> Iterator[NamedProgram]:
    """All programs that a CPU runs."""
    yield from named_programs(plan)
    if plan.single is not None:
        yield NamedProgram(f"{single_name(plan.cell)}_forward", "forward", plan.single, None)


@dataclass(frozen=True, slots=True)
class Image:
    """A stored slot as products read it: [`parts`, `blocks`, …], or one block where the matrix is dense."""

    slot: str
    parts: int
    blocks: Dim


def slot_table(program: Program) -> dict[str, Slot]:
    """The slots by name."""
    return {slot.name: slot for slot in program.slots}


def image_of(program: Program, product: Product) -> Image:
    """The image that a product reads."""
    table = slot_table(program)
    slot = table[product.operand]
    if isinstance(slot, Edge) and not slot.ahead:
        slot = table[slot.link]
    if not isinstance(slot, StoredSlot):
        raise InternalError(f"the product's operand {product.operand} is not made by a stage")
    matrix = next(matrix for matrix in program.step.matrices if matrix.name == product.matrices[0])
    match matrix.structure:
        case Dense():
            return Image(slot.name, 1, ONE)
        case BlockDiagonal(blocks):
            return Image(slot.name, product.parts, blocks)
        case _:
            assert_never(matrix.structure)


def product_images(program: Program) -> list[Image]:
    """Every image that the program's products read, once."""
    stages = [stage for stage in program.stages if isinstance(stage, TileStage)]
    return list(dict.fromkeys(image_of(program, product) for stage in stages for product in stage.products))


def readers(program: Program) -> dict[str, bool]:
    """The stored slots that stages, row operators or the end of the loop read from memory. The value says whether,
    during the loop, an element is read by another thread than the one that wrote it."""
    table = slot_table(program)
    homes = homes_of(program)
    found: dict[str, bool] = {}

    def read(name: str, shared: bool) -> None:
        slot = table[name]
        while isinstance(slot, Edge | ViewSlot):
            slot = table[slot.link]
        if isinstance(slot, StoredSlot):
            found[slot.name] = found.get(slot.name, False) or shared

    for final in program.step.finals:
        read(final.edge, False)
    for stage in program.stages:
        match stage:
            case TileStage():
                for load in stage.loads:
                    if not isinstance(table[load.name], TileSlot):
                        read(load.name, not is_early(load, stage, table, homes))
            case MatrixStage():
                for load in stage.loads:
                    read(load.name, True)
            case RowStage():
                for name in stage.operands:
                    read(name, True)
            case _:
                assert_never(stage)
    return found


def homes_of(program: Program) -> dict[str, tuple[Dim, Dim]]:
    """For each stored value the width and the blocks of the tile stage that stores it."""
    return {name: (stage.width, stage.blocks) for stage in program.step.tiles for name in stage.stored}


def is_early(load: Load, stage: TileStage, table: Mapping[str, Slot], homes: Mapping[str, tuple[Dim, Dim]]) -> bool:
    """Whether the call gives the element, or the same thread wrote it in an earlier step."""
    slot = table[load.name]
    match slot:
        case Read() | Vector():
            return True
        case Edge():
            if isinstance(table[slot.link], Read):
                return True
            own = homes.get(slot.link) == (stage.width, stage.blocks)
            return own and load.access is Access.UNIT and not slot.ahead
        case StoredSlot() | ViewSlot() | TileSlot():
            return False
        case _:
            assert_never(slot)
