"""The device code of a program: one struct for each tile stage, and what the drivers of a GPU must know of its slots.

A struct has four functions of one element (a column of the batch and a unit): `early` loads what no other thread
writes during the loop, `late` what earlier stages wrote, `compute` does the statements and publishes what other threads
read, `keep` stores the rest. The driver (templates/include/rnncc/cuda/sequence.cuh) calls the first before it waits for
other threads, the second before the stage's products, the last after it told others that it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.dim import ONE, Dim
from rnncc.ir.kernel import (
    Access,
    EdgeSlot,
    Load,
    Product,
    Program,
    ReadSlot,
    RowStage,
    Slot,
    StoredSlot,
    TileSlot,
    TileStage,
    VectorSlot,
    ViewSlot,
)
from rnncc.ir.structure import BlockDiagonal, Dense
from rnncc.language.diagnostics import InternalError
from rnncc.stages.render.cpp import expression_text

_INDEX = {Access.UNIT: "at__.unit", Access.HEAD: "at__.head", Access.ONE: "0"}


@dataclass(frozen=True, slots=True)
class Image:
    """A stored slot as products read it: [`parts`, `blocks`, …], or one block where the matrix is dense."""

    slot: str
    parts: int
    blocks: Dim


@dataclass(frozen=True, slots=True)
class FieldText:
    """A value that `early` or `late` loads, or `keep` stores; `code` does it."""

    name: str
    code: str


@dataclass(frozen=True, slots=True)
class StageText:
    """A tile stage's struct; `lines` are the body of `compute`, `kept` the values that `keep` stores."""

    name: str
    early: tuple[FieldText, ...]
    late: tuple[FieldText, ...]
    lines: tuple[str, ...]
    kept: tuple[FieldText, ...]


@dataclass(frozen=True, slots=True)
class DeviceText:
    """A program's structs, and the calls that make a step."""

    stages: tuple[StageText, ...]
    calls: tuple[str, ...]


def _table(program: Program) -> dict[str, Slot]:
    return {slot.name: slot for slot in program.slots}


def _stored(table: Mapping[str, Slot], name: str) -> str | None:
    """The stored slot behind a name, or None."""
    slot = table[name]
    while isinstance(slot, EdgeSlot | ViewSlot):
        slot = table[slot.link]
    return slot.name if isinstance(slot, StoredSlot) else None


def image_of(program: Program, product: Product) -> Image:
    """The image that a product reads."""
    table = _table(program)
    slot = table[product.operand]
    if isinstance(slot, EdgeSlot) and not slot.ahead:
        slot = table[slot.link]
    if not isinstance(slot, StoredSlot):
        raise InternalError(f"the product's operand {product.operand} is not made by a stage")
    matrix = next(matrix for matrix in program.matrices if matrix.name == product.matrices[0])
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
    """Stored slots that are read from memory by stages, row operators or the end of the loop; and whether, during the
    loop, by other threads than the one that wrote the element."""
    table = _table(program)
    homes = _homes(program)
    found: dict[str, bool] = {}

    def read(name: str, shared: bool) -> None:
        stored = _stored(table, name)
        if stored is not None:
            found[stored] = found.get(stored, False) or shared

    for final in program.finals:
        read(final.slot, False)
    for stage in program.stages:
        match stage:
            case TileStage():
                for load in stage.loads:
                    if not isinstance(table[load.slot], TileSlot):
                        read(load.slot, not _is_early(load, stage, table, homes))
            case RowStage():
                for name in stage.operands:
                    read(name, True)
            case _:
                assert_never(stage)
    return found


def _homes(program: Program) -> dict[str, tuple[Dim, Dim]]:
    """Width and blocks of the tile stage that stores each value."""
    return {
        statement.target: (stage.width, stage.blocks)
        for stage in program.stages
        if isinstance(stage, TileStage)
        for statement in stage.statements
        if statement.stored
    }


def device_text(name: str, program: Program, source: str) -> DeviceText:
    """The program's device code."""
    homes = _homes(program)
    stages, calls = [], []
    for index, stage in enumerate(program.stages):
        match stage:
            case TileStage():
                stages.append(_stage_text(f"{name}_{index}", stage, program, homes, source))
                calls.append(f"tile_stage<{index}, {name}_{index}>(run__);")
            case RowStage():
                calls.append(f"row_stage<{index}>(run__);")
            case _:
                assert_never(stage)
    return DeviceText(tuple(stages), tuple(calls))


def _stage_text(
    name: str, stage: TileStage, program: Program, homes: Mapping[str, tuple[Dim, Dim]], source: str
) -> StageText:
    table = _table(program)
    numbers = {slot.name: index for index, slot in enumerate(program.slots)}
    early, late, lines, kept = [], [], [], []
    for load in stage.loads:
        if isinstance(table[load.slot], TileSlot):
            lines.append(f"const float {load.slot} = sums__[{stage.accumulators.index(load.slot)}];")
            continue
        field = FieldText(load.slot, f"rnncc::load<{numbers[load.slot]}>(run__, at__.column, {_INDEX[load.access]})")
        if _is_early(load, stage, table, homes):
            early.append(field)
            lines.append(f"const float {load.slot} = early__.{load.slot};")
        else:
            late.append(field)
            lines.append(f"const float {load.slot} = late__.{load.slot};")
    lines += [
        f"const float {constant} = run__.plan.constants[{program.constants.index(constant)}];"
        for constant in stage.constants
    ]
    for statement in stage.statements:
        origin = f"  // {source}:{statement.line}" if statement.line else ""
        lines.append(f"const float {statement.target} = {expression_text(statement.expr)};{origin}")
        if statement.stored:
            arguments = f"<{numbers[statement.target]}>(run__, at__.column, at__.unit"
            lines.append(f"rnncc::publish{arguments}, {statement.target});")
            kept.append(FieldText(statement.target, f"rnncc::keep{arguments}, kept__.{statement.target});"))
    lines.append(f"return {{{', '.join(field.name for field in kept)}}};")
    return StageText(name, tuple(early), tuple(late), tuple(lines), tuple(kept))


def _is_early(load: Load, stage: TileStage, table: Mapping[str, Slot], homes: Mapping[str, tuple[Dim, Dim]]) -> bool:
    """Whether the element is the call's, or was written by the same thread in an earlier step."""
    slot = table[load.slot]
    match slot:
        case ReadSlot() | VectorSlot():
            return True
        case EdgeSlot():
            if isinstance(table[slot.link], ReadSlot):
                return True
            own = homes.get(slot.link) == (stage.width, stage.blocks)
            return own and load.access is Access.UNIT and not slot.ahead
        case StoredSlot() | ViewSlot() | TileSlot():
            return False
        case _:
            assert_never(slot)
