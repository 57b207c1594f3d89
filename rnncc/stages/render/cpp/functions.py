"""The elementwise functions of a program, as the CPU's driver calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.step import Access, TileStage
from rnncc.stages.render.called import called
from rnncc.stages.render.cpp.expressions import expression_text
from rnncc.stages.render.cpp.names import slot_name
from rnncc.stages.render.programs import NamedProgram


@dataclass(frozen=True, slots=True)
class StageFunction:
    """An elementwise function. The lines `constants` stand at its start, and `entries` at the start of the loop over
    batch entries. `lines` are the body of the loop over units."""

    name: str
    constants: tuple[str, ...]
    entries: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramFunctions:
    """A program's functions, in the order of its stages that have one. `called` are the library's functions that these
    call."""

    name: str
    called: tuple[str, ...]
    functions: tuple[StageFunction, ...]


def program_functions(named: NamedProgram, source: str) -> ProgramFunctions:
    """The elementwise functions of a program."""
    program = named.program
    stages = [stage for stage in program.stages if isinstance(stage, TileStage)]
    calls = called(program)
    made = (
        _function(f"function_{index}", stage, program.step.constants, source, calls.forms)
        for index, stage in enumerate(stages)
    )
    return ProgramFunctions(named.name, calls.names, tuple(made))


def _function(
    name: str, stage: TileStage, constants: Sequence[str], source: str, forms: Mapping[str, str]
) -> StageFunction:
    """The statements of a stage as a function of batch entries and units."""
    entries, lines = [], []
    for load in stage.loads:
        start = _row_of(load.name)
        match load.access:
            case Access.UNIT:
                entries.append(f"const T* const {load.name}__p = {start};")
            case Access.HEAD:
                entries.append(f"const rnncc::Vec<T> {load.name} = rnncc::broadcast({start}[head__]);")
            case Access.ONE:
                entries.append(f"const rnncc::Vec<T> {load.name} = rnncc::broadcast(*{start});")
            case _:
                assert_never(load.access)
    entries += [f"T* const {name}__to = {_row_of(name)};" for name in stage.stored]
    lines += [
        f"const rnncc::Vec<T> {load.name} = rnncc::take<W__>({load.name}__p, u__, n__);"
        for load in stage.loads
        if load.access is Access.UNIT
    ]
    for statement in stage.statements:
        origin = f"  // {source}:{statement.line}" if statement.line else ""
        lines.append(f"const rnncc::Vec<T> {statement.target} = {expression_text(statement.expr, forms)};{origin}")
        if statement.target in stage.stored:
            lines.append(f"rnncc::put<W__>({statement.target}__to, u__, {statement.target}, n__);")
    return StageFunction(
        name,
        tuple(
            # A surrogate's factor is read in the backward alone.
            f"[[maybe_unused]] const rnncc::Vec<T> {constant} = "
            f"rnncc::broadcast(frame__.constants[{constants.index(constant)}]);"
            for constant in stage.constants
        ),
        tuple(entries),
        tuple(lines),
    )


def _row_of(slot: str) -> str:
    """Where the batch entry's row of a slot starts."""
    return f"frame__.at({slot_name(slot)}, b__)"
