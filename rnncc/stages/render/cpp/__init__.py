"""The C++ of a package: tables of its loops, their functions for a CPU, and what chooses an instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from rnncc.ir.artifact import Bundle, File, Unit
from rnncc.ir.package import Package
from rnncc.ir.plan import KernelPlan
from rnncc.ir.target import COMPUTE_TYPES, EVERY, INSTRUCTION_SETS
from rnncc.stages.render.cpp.functions import program_functions
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cpp.tables import program_tables
from rnncc.stages.render.programs import named_programs
from rnncc.stages.render.templates import text


def cpu_kernels(package: Package) -> Bundle:
    """The driver, whose units are the same for every package, and the loops of each cell."""
    if not package.instructions:
        return Bundle((), (), ())
    made = list(_driver(package))
    for kernels in package.kernels:
        made += _loops(kernels.plan, package)
    headers = [header for kernels in package.kernels for header in _headers(kernels.plan)]
    return Bundle((*headers, *(file for file, _ in made)), tuple(unit for _, unit in made), ())


def _variants(package: Package) -> Iterator[tuple[str, str]]:
    """The instruction sets and compute types that there are kernels for."""
    sets = INSTRUCTION_SETS if package.instructions == EVERY else (package.instructions,)
    return product(sets, package.compute_types)


def _code(package: Package) -> dict[str, str]:
    """What code there is of each compute type, as RNNCC_DISPATCH takes it."""
    sets = package.instructions
    return {each: sets if each in package.compute_types else f"late_{sets}" for each in COMPUTE_TYPES}


def _driver(package: Package) -> Iterator[tuple[File, Unit]]:
    """For each instruction set and compute type a unit; one that chooses among them; and one that registers ops."""
    for isa, compute_type in _variants(package):
        content = text("cpp/core.cpp.j2", isa=isa, suffix=compute_type, scalar=COMPUTE_TYPES[compute_type])
        yield _unit(f"_core_{isa}_{compute_type}", isa, content, shared=True, compute_type=compute_type)
    # What chooses may throw, as the binding does.
    yield _unit("_core", "binding", text("cpp/core_dispatch.cpp.j2", code=_code(package)), shared=True)
    yield _unit("_core_binding", "binding", text("cpp/core_binding.cpp.j2"), shared=True)


def _loops(plan: KernelPlan, package: Package) -> Iterator[tuple[File, Unit]]:
    """For each instruction set and compute type a unit, and one that chooses among them."""
    name, programs = plan.cell.lower(), list(named_programs(plan))
    about = {"cell": plan.cell, "name": name, "programs": programs}
    yield _unit(f"{name}_dispatch", "binding", text("cpp/dispatch.cpp.j2", **about, code=_code(package)))
    for isa, compute_type in _variants(package):
        content = text("cpp/cell.cpp.j2", **about, isa=isa, suffix=compute_type, scalar=COMPUTE_TYPES[compute_type])
        yield _unit(f"{name}_{isa}_{compute_type}", isa, content, compute_type=compute_type)


def _headers(plan: KernelPlan) -> Iterator[File]:
    """The tables, which the host side of GPU kernels reads too, and the functions of a cell."""
    name, programs = plan.cell.lower(), list(named_programs(plan))
    about = {"cell": plan.cell, "name": name, "source": plan.source, "macros": macro_names(plan)}
    tables = [program_tables(program, plan.sizes) for program in programs]
    yield File(f"src/{name}_tables.h", text("cpp/tables.h.j2", **about, programs=tables))
    functions = [program_functions(program, plan.source) for program in programs]
    yield File(f"src/{name}_functions.h", text("cpp/functions.h.j2", **about, programs=functions))


def _unit(name: str, isa: str, content: str, *, shared: bool = False, compute_type: str = "") -> tuple[File, Unit]:
    path = f"src/{name}.cpp"
    return File(path, content), Unit(path, isa, shared, compute_type)
