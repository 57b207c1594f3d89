"""`render_package`: the Python files and the binding of a package."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import jinja2

from rnncc.analysis.recurrent import recurrent_reads
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.artifact import File
from rnncc.ir.cell import Cell, Segment, value_table
from rnncc.ir.dim import Dim, multiply, show
from rnncc.ir.package import CompiledCell, LoopText, PackagePlan, SegmentBinding
from rnncc.ir.structure import stored_columns
from rnncc.machine.paths import templates_dir
from rnncc.stages.render.python_cell import (
    cell_text,
    saved_names,
    saved_rounded,
    saved_sequence,
    saved_state,
    segment_name,
    sum_dims,
)
from rnncc.version import VERSION


def render_package(stem: str, cells: Sequence[CompiledCell], *, cuda: bool = False) -> tuple[File, ...]:
    """The package's own files: `__init__.py`, a module a cell, `_reference.py`, and `src/binding.cpp` where the cells
    have adjoints, that is kernels; `cuda`: also such for GPUs. Paths are relative to the package."""
    segments = tuple(
        _segment(compiled, index, cuda)
        for compiled in cells
        if compiled.adjoints
        for index in range(len(compiled.cell.segments))
    )
    texts = tuple(cell_text(compiled) for compiled in cells)
    device_ops = ("permute_rows",) if cuda else ()
    plan = PackagePlan(stem, VERSION, texts, segments, "true" if cuda else "false", device_ops)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def text(template: str, **names: object) -> str:
        return environment.get_template(template).render(plan=plan, **names)

    made = [File("__init__.py", text("python/init.py.j2")), File("_reference.py", text("python/reference.py.j2"))]
    made += [File(f"{cell.module}.py", text("python/cell.py.j2", cell=cell)) for cell in plan.cells]
    if plan.segments:
        made.append(File("src/binding.cpp", text("cpu/binding.cpp.j2")))
    return tuple(made)


def _segment(compiled: CompiledCell, index: int, cuda: bool) -> SegmentBinding:
    cell, segment = compiled.cell, compiled.cell.segments[index]
    masked = compiled.masked.segments[index]
    table = value_table(cell)
    to_cpp = _cpp_dims(cell)

    def widths(dims: Sequence[Dim]) -> tuple[str, ...]:
        return tuple(to_cpp(dim) for dim in dims)

    def loop(prefix: str, of: Cell, part: Segment, adjoint: Adjoint) -> LoopText:
        values = value_table(of) | {value.name: value for value in adjoint.values}
        directions = ("forward", "backward")
        return LoopText(
            prefix=prefix,
            weights=len(part.weights),
            saved=len(saved_names(adjoint)),
            saved_sequence=", ".join(str(i) for i in saved_sequence(part, adjoint)),
            saved_state=", ".join(str(i) for i in saved_state(part, adjoint)),
            saved_rounded=", ".join(str(rounded).lower() for rounded in saved_rounded(adjoint)),
            weight_elements=widths([_elements(of, weight.members) for weight in part.weights]),
            saved_widths=widths([values[name].width for name in saved_names(adjoint)]),
            device_functions=tuple(
                f"void {prefix}_{d}_cuda(const rnncc_{d}_call*, int32_t, int32_t);" for d in directions if cuda
            ),
            device_pointers=", ".join(f"{prefix}_{d}_cuda" if cuda else "nullptr" for d in directions),
        )

    name = segment_name(cell, index)
    return SegmentBinding(
        name=name,
        sizes=2 + len(cell.sizes),
        constants=len(segment.constants),
        streams=len(segment.streams),
        states=len(segment.states),
        sequences=len(segment.sequences),
        clips=str(bool(recurrent_reads(segment).aliases)).lower(),
        stream_widths=widths([sum_dims([table[m].width for m in stream.members]) for stream in segment.streams]),
        state_widths=widths([table[state].width for state in segment.states]),
        sequence_widths=widths([table[value].width for value in segment.sequences]),
        plain=loop(name, cell, segment, compiled.adjoints[index]),
        masked=loop(f"{name}_masked", compiled.masked, masked, compiled.masked_adjoints[index]),
    )


def _elements(cell: Cell, members: Sequence[str]) -> Dim:
    """Elements of a weight: rows times what is stored of each."""
    table = value_table(cell)
    rows = sum_dims([table[member].width for member in members])
    first = table[members[0]]
    if first.columns is None:
        return rows
    return multiply(rows, stored_columns(first.columns, first.structure))


def _cpp_dims(cell: Cell) -> Callable[[Dim], str]:
    """Dims as C++ of the op's arguments: `sizes` (I, H, declared dims) and `heads`."""
    places = {name: f"sizes[{i}]" for i, name in enumerate(("I", "H", *(size.name for size in cell.sizes)))}
    places["num_heads"] = "heads"

    def text(dim: Dim) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda m: places[m.group()], show(dim)).replace("//", "/")

    return text
