"""The C++ of a package: tables of its loops, their functions for a CPU, and what chooses an instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.ir.artifact import Bundle, File, Unit
from rnncc.ir.package import Package
from rnncc.ir.plan import KernelPlan
from rnncc.ir.target import EVERY, INSTRUCTION_SETS
from rnncc.stages.render.cpp.functions import program_functions
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cpp.tables import program_tables
from rnncc.stages.render.programs import named_programs
from rnncc.stages.render.templates import text


@dataclass(frozen=True, slots=True)
class Scalar:
    """A compute type: its C++ name, and what symbols call it."""

    name: str
    suffix: str


SCALARS = (Scalar("float", "f32"), Scalar("double", "f64"))


def cpu_kernels(package: Package) -> Bundle:
    """The driver, whose units are the same for every package, and the loops of each cell."""
    if not package.instructions:
        return Bundle((), (), ())
    made = list(_driver(package.instructions))
    for kernels in package.kernels:
        made += _loops(kernels.plan, package.instructions)
    headers = [header for kernels in package.kernels for header in _headers(kernels.plan)]
    return Bundle((*headers, *(file for file, _ in made)), tuple(unit for _, unit in made), ())


def _sets(instructions: str) -> tuple[str, ...]:
    return tuple(INSTRUCTION_SETS) if instructions == EVERY else (instructions,)


def _driver(instructions: str) -> Iterator[tuple[File, Unit]]:
    """For each instruction set and compute type a unit; one that chooses among them; and one that registers ops."""
    for isa in _sets(instructions):
        for scalar in SCALARS:
            content = text("cpp/core.cpp.j2", isa=isa, scalar=scalar)
            yield _unit(f"_core_{isa}_{scalar.suffix}", isa, content, shared=True, is_double=scalar.name == "double")
    chooses = text("cpp/core_dispatch.cpp.j2", instructions=instructions)
    yield _unit("_core", "generic", chooses, shared=True)
    yield _unit("_core_binding", "binding", text("cpp/core_binding.cpp.j2"), shared=True)


def _loops(plan: KernelPlan, instructions: str) -> Iterator[tuple[File, Unit]]:
    """For each instruction set and compute type a unit, and one that chooses among them."""
    name, programs = plan.cell.lower(), list(named_programs(plan))
    chooses = text("cpp/dispatch.cpp.j2", cell=plan.cell, instructions=instructions, programs=programs)
    yield _unit(f"{name}_dispatch", "generic", chooses)
    for isa in _sets(instructions):
        for scalar in SCALARS:
            content = text("cpp/cell.cpp.j2", cell=plan.cell, name=name, isa=isa, scalar=scalar, programs=programs)
            yield _unit(f"{name}_{isa}_{scalar.suffix}", isa, content, is_double=scalar.name == "double")


def _headers(plan: KernelPlan) -> Iterator[File]:
    """The tables, which the host side of GPU kernels reads too, and the functions of a cell."""
    name, programs = plan.cell.lower(), list(named_programs(plan))
    about = {"cell": plan.cell, "name": name, "source": plan.source, "macros": macro_names(plan)}
    tables = [program_tables(program, plan.sizes) for program in programs]
    yield File(f"src/{name}_tables.h", text("cpp/tables.h.j2", **about, programs=tables))
    functions = [program_functions(program, plan.source) for program in programs]
    yield File(f"src/{name}_functions.h", text("cpp/functions.h.j2", **about, programs=functions))


def _unit(name: str, isa: str, content: str, *, shared: bool = False, is_double: bool = False) -> tuple[File, Unit]:
    path = f"src/{name}.cpp"
    return File(path, content), Unit(path, isa, shared, is_double)
