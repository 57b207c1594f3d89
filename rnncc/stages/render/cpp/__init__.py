"""The C++ of a package: tables of its loops, their functions for a CPU, and what chooses an instruction set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import product

from rnncc.ir.artifact import Bundle, File, Unit
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.request import Request
from rnncc.ir.target import COMPUTE_TYPES, CPU_FILES, EVERY, INSTRUCTION_SETS, compute_type_of
from rnncc.stages.render.cpp.functions import spaces_of
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cpp.tables import program_tables
from rnncc.stages.render.programs import cpu_programs, named_programs
from rnncc.stages.render.templates import text


def cpu_kernels(request: Request, cells: Sequence[CompiledCell]) -> Bundle:
    """The driver, whose units are the same for every package, and the loops of each cell."""
    if not request.instructions:
        return Bundle((), (), ())
    made = list(_driver(request))
    for each in cells:
        made += _loops(each.plan, request)
    headers = [header for each in cells for header in _headers(each.plan)]
    return Bundle((*headers, *(file for file, _ in made)), tuple(unit for _, unit in made), ())


def _instruction_sets(request: Request) -> Collection[str]:
    return INSTRUCTION_SETS if request.instructions == EVERY else (request.instructions,)


def _is_masked(cpu_file: str) -> bool:
    return cpu_file not in COMPUTE_TYPES


def _compute_types(request: Request) -> list[str]:
    """What the request's files compute in."""
    return list(dict.fromkeys(map(compute_type_of, request.cpu_files)))


def _choice(request: Request, files: Sequence[str], there: Collection[str]) -> str:
    """The files that a call chooses from, by its dtype, and what code there is of each, as RNNCC_DISPATCH takes them.
    `there`: those that are compiled with the package."""
    return ", ".join(f"{file}, {'' if file in there else 'late_'}{request.instructions}" for file in files)


def processor_needs() -> list[str]:
    """What a processor must have for each instruction set, in lines that dispatch.h expects before it."""
    lines, before = [], ""
    for name, features in INSTRUCTION_SETS.items():
        if features:
            needs = " | ".join([*([before] if before else []), *(f"RNNCC_{each.upper()}" for each in sorted(features))])
            before = f"RNNCC_{name.upper()}"
            lines.append(f"#define {before} ({needs})")
    return lines


def _driver(request: Request) -> Iterator[tuple[File, Unit]]:
    """For each instruction set and compute type a unit; one that chooses among them; and one that registers ops."""
    for isa, compute_type in product(_instruction_sets(request), _compute_types(request)):
        content = text("cpp/core.cpp.j2", isa=isa, suffix=compute_type, scalar=COMPUTE_TYPES[compute_type])
        yield _unit(f"_core_{isa}_{compute_type}", isa, content, shared=True, compute_type=compute_type)
    # What chooses may throw, as the binding does.
    chosen = _choice(request, tuple(COMPUTE_TYPES), _compute_types(request))
    content = text("cpp/core_dispatch.cpp.j2", chosen=chosen, needs=processor_needs())
    yield _unit("_core", "binding", content, shared=True)
    yield _unit("_core_binding", "binding", text("cpp/core_binding.cpp.j2"), shared=True)


def _loops(plan: LoweredCell, request: Request) -> Iterator[tuple[File, Unit]]:
    """A unit for each instruction set and file of CPU kernels. Another unit chooses among them."""
    name, programs = plan.cell.lower(), list(cpu_programs(plan))
    about = {"cell": plan.cell, "name": name}
    files = {masked: [file for file in CPU_FILES if _is_masked(file) == masked] for masked in (False, True)}
    chosen = {masked: _choice(request, own, request.cpu_files) for masked, own in files.items()}
    content = text("cpp/dispatch.cpp.j2", **about, programs=programs, chosen=chosen, needs=processor_needs())
    yield _unit(f"{name}_dispatch", "binding", content)
    # Compute types of which the library has both files: it has their common functions once.
    twice = {each for each, files in Counter(map(compute_type_of, request.cpu_files)).items() if files > 1}
    common = spaces_of(f"{name}_shared", programs, plan.source)[1] if twice else ()
    for isa, file in product(_instruction_sets(request), request.cpu_files):
        compute_type, masked = compute_type_of(file), _is_masked(file)
        own = [each for each in programs if each.program.step.masked == masked]
        calls = f"with{'' if masked else 'out'} lengths or resets"
        code = {"isa": isa, "file": file, "scalar": COMPUTE_TYPES[compute_type], "calls": calls}
        lent = {
            "common": common if compute_type in twice else (),
            "declared": "extern template" if masked else "template",
        }
        content = text("cpp/cell.cpp.j2", **about, programs=own, **code, **lent)
        yield _unit(f"{name}_{isa}_{file}", isa, content, compute_type=compute_type)


def _headers(plan: LoweredCell) -> Iterator[File]:
    """The tables, which GPU kernels read too, those of a single step, and the functions of a cell."""
    name, programs = plan.cell.lower(), list(cpu_programs(plan))
    about = {"cell": plan.cell, "name": name, "source": plan.source}
    on_gpus = list(named_programs(plan))
    tables = {f"{name}_tables.h": on_gpus, f"{name}_tables_of_step.h": programs[len(on_gpus) :]}
    tables = {file: own for file, own in tables.items() if own}
    for file, own in tables.items():
        made = [program_tables(program, plan.sizes) for program in own]
        macros = macro_names(each.program for each in own)
        yield File(f"src/{file}", text("cpp/tables.h.j2", **about, macros=macros, programs=made))
    spaces, _ = spaces_of(f"{name}_shared", programs, plan.source)
    has_matrices = any(space.matrices for space in spaces)
    content = text("cpp/functions.h.j2", **about, tables=list(tables), spaces=spaces, has_matrices=has_matrices)
    yield File(f"src/{name}_functions.h", content)


def _unit(name: str, isa: str, content: str, *, shared: bool = False, compute_type: str = "") -> tuple[File, Unit]:
    path = f"src/{name}.cpp"
    return File(path, content), Unit(path, isa, shared, compute_type)
