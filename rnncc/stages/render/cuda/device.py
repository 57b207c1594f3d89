"""The device code of a program: one struct for each tile stage.

A struct has four functions of one element (a batch entry and a unit). `early` loads what no other thread writes during
the loop, and `late` what earlier stages wrote. `compute` does the statements and publishes what other threads read, and
`store_rest` writes results to all other places. The driver of a sequence (templates/include/rnncc/cuda/sequence.cuh)
calls `early` before it waits for other threads, `late` before the stage's products, and `store_rest` after it told
others that it is done. The driver of a single step (single.cuh) calls them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import assert_never

from rnncc.analysis.by_head import HeadForm
from rnncc.ir.artifact import File
from rnncc.ir.dim import Dim
from rnncc.ir.kernel import Program, TileSlot
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.scan import ScanLoop
from rnncc.ir.step import Access, MatrixStage, RowStage, Statement, TileStage
from rnncc.stages.render.cpp.expressions import expression_text
from rnncc.stages.render.cpp.names import macro_names, slot_name
from rnncc.stages.render.cuda.scalars import SCALARS
from rnncc.stages.render.programs import NamedProgram, homes_of, is_early, named_programs, slot_table
from rnncc.stages.render.templates import text

_OF_UNITS = {Access.UNIT: "at__.unit", Access.HEAD: "at__.head", Access.ONE: "0"}
_INDEX = {
    Access.UNIT: "at__.unit()",
    Access.ROW: "at__.row()",
    Access.COLUMN: "at__.in_row()",
    Access.HEAD: "at__.head",
    Access.ONE: "0",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A value that `early` or `late` loads, or `store_rest` writes; `code` does it."""

    name: str
    code: str


@dataclass(frozen=True, slots=True)
class StageStruct:
    """A tile stage's struct; `lines` are the body of `compute`, `results` the values that `store_rest` writes."""

    name: str
    early: tuple[Field, ...]
    late: tuple[Field, ...]
    lines: tuple[str, ...]
    results: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class SumOf:
    """What lines of a matrix add up to: the slot that it goes to, its source, and whether it is the largest element."""

    slot: str
    source: str
    largest: str


@dataclass(frozen=True, slots=True)
class MatrixStruct:
    """The struct of a stage of a matrix's elements; `lines` are the body of `element`."""

    name: str
    lines: tuple[str, ...]
    rows: tuple[SumOf, ...]
    columns: tuple[SumOf, ...]


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A program's structs: of tile stages, and of stages of matrices. `order`: what stands for each stage of a step.
    `has_single`, `by_head`: as a NamedProgram has them."""

    name: str
    stages: tuple[StageStruct, ...]
    matrices: tuple[MatrixStruct, ...]
    order: tuple[str, ...]
    has_single: bool
    by_head: HeadForm | None


def alternating_files(plan: LoweredCell) -> Iterator[File]:
    """A header of device code, and files for each program and dtype: the alternating kernel, and that of a single step.
    There are none where no loop has a product."""
    programs = device_programs(plan)
    if not programs:
        return
    cell, name = plan.cell, plan.cell.lower()
    about = {"cell": cell, "name": name}
    content = text(
        "cuda/device.cuh.j2", **about, programs=programs, source=plan.source, macros=macro_names(plan.programs())
    )
    yield File(f"src/{name}_device.cuh", content)
    for program, scalar in product(programs, SCALARS):
        content = text("cuda/kernels.cu.j2", **about, program=program, scalar=scalar)
        yield File(f"src/{program.name}_{scalar.suffix}.cu", content)
    for program, scalar in product((program for program in programs if program.has_single), SCALARS):
        content = text("cuda/single.cu.j2", **about, program=program, scalar=scalar)
        yield File(f"src/{program.name}_single_{scalar.suffix}.cu", content)
    for program, scalar in product(programs, SCALARS):
        for tile in program.by_head.tiles if program.by_head else ():
            symbol = program.name + tile.name
            content = text("cuda/by_head.cu.j2", **about, program=program, scalar=scalar, tile=tile, symbol=symbol)
            yield File(f"src/{symbol}_{scalar.suffix}.cu", content)


def device_programs(plan: LoweredCell) -> tuple[DeviceProgram, ...]:
    """The programs that have an alternating kernel: all that are no scan."""
    return tuple(
        device_program(named, plan.source) for named in named_programs(plan) if not isinstance(named.form, ScanLoop)
    )


def device_program(named: NamedProgram, source: str) -> DeviceProgram:
    """The program's device code."""
    program = named.program
    homes = homes_of(program)
    stages, matrices, order = [], [], []
    for index, stage in enumerate(program.stages):
        match stage:
            case TileStage():
                stages.append(_stage_struct(f"Stage{index}", stage, program, homes, source))
                order.append(f"Stage{index}")
            case MatrixStage():
                matrices.append(_matrix_struct(f"Stage{index}", stage, program, source))
                order.append(f"Stage{index}")
            case RowStage():
                order.append("RowStage")
            case _:
                assert_never(stage)
    return DeviceProgram(named.name, tuple(stages), tuple(matrices), tuple(order), named.has_single, named.by_head)


def _matrix_struct(name: str, stage: MatrixStage, program: Program, source: str) -> MatrixStruct:
    lines = [
        f"const float {load.local} = rnncc::load<{slot_name(load.name)}>(run__, at__.entry, {_INDEX[load.access]});"
        for load in stage.loads
    ]
    lines += _constants(stage, program)
    for statement in stage.statements:
        lines.append(_statement(statement, source))
        if statement.target in stage.stored:
            slot = slot_name(statement.target)
            lines.append(f"if (STORES__) rnncc::store<{slot}>(run__, at__.entry, at__.unit(), {statement.target});")
    rows, columns = (
        tuple(
            SumOf(slot_name(each.target), each.source, str(each.largest).lower())
            for each in stage.reductions
            if each.axis is axis
        )
        for axis in (Access.ROW, Access.COLUMN)
    )
    for what, sums in (("rows", rows), ("columns", columns)):
        for index, each in enumerate(sums):
            total, operator = f"sums__.{what}[{index}]", "max" if each.largest == "true" else "sum"
            lines.append(f"{total} = rnncc::combine(rnncc::RowOperator::{operator}, {total}, {each.source});")
    return MatrixStruct(name, tuple(lines), rows, columns)


def _constants(stage: TileStage | MatrixStage, program: Program) -> list[str]:
    """Lines that take over constants."""
    return [
        f"const float {constant} = run__.plan.constants[{program.step.constants.index(constant)}];"
        for constant in stage.constants
    ]


def _statement(statement: Statement, source: str) -> str:
    origin = f"  // {source}:{statement.line}" if statement.line else ""
    return f"const float {statement.target} = {expression_text(statement.expr)};{origin}"


def _stage_struct(
    name: str, stage: TileStage, program: Program, homes: Mapping[str, tuple[Dim, Dim]], source: str
) -> StageStruct:
    table = slot_table(program)
    early, late, lines, results = [], [], [], []
    for load in stage.loads:
        if isinstance(table[load.name], TileSlot):
            lines.append(f"const float {load.name} = sums__[{stage.accumulators.index(load.name)}];")
            continue
        field = Field(load.name, f"rnncc::load<{slot_name(load.name)}>(run__, at__.entry, {_OF_UNITS[load.access]})")
        if is_early(load, stage, table, homes):
            early.append(field)
            lines.append(f"const float {load.name} = early__.{load.name};")
        else:
            late.append(field)
            lines.append(f"const float {load.name} = late__.{load.name};")
    lines += _constants(stage, program)
    for statement in stage.statements:
        lines.append(_statement(statement, source))
        if statement.target in stage.stored:
            arguments = f"<{slot_name(statement.target)}>(run__, at__.entry, at__.unit"
            lines.append(f"rnncc::publish{arguments}, {statement.target});")
            results.append(Field(statement.target, f"rnncc::store_rest{arguments}, results__.{statement.target});"))
    lines.append(f"return {{{', '.join(field.name for field in results)}}};")
    return StageStruct(name, tuple(early), tuple(late), tuple(lines), tuple(results))
