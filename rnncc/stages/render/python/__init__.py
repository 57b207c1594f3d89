"""The Python of a package: a module for each cell, and the functions of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnncc.ir.artifact import File
from rnncc.ir.cell import Cell
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.language.source import escaped, file_name
from rnncc.stages.render.python.functions import cell_functions
from rnncc.stages.render.python.specs import cell_spec
from rnncc.stages.render.templates import text
from rnncc.version import VERSION


def python_files(request: Request, compiled: Sequence[CompiledCell]) -> Iterator[File]:
    """Makes `__init__.py`, `_reference.py` and one module per cell."""
    about = {"package": request.name, "version": VERSION}
    cells = [each.cell for each in compiled]
    modules = [{"cell": cell.name, "function": cell.name.lower(), "module": _module(cell)} for cell in cells]
    yield File("__init__.py", text("python/init.py.j2", **about, modules=modules))
    yield File("_reference.py", text("python/reference.py.j2", cells=list(map(cell_functions, cells))))
    for each, names in zip(compiled, modules, strict=True):
        cell = each.cell
        content = text(
            "python/cell.py.j2",
            **about,
            **names,
            source=escaped(repr(file_name(cell.source))),
            description=[escaped(line) for line in cell.comment.split("\n")] if cell.comment else [],
            spec=cell_spec(each),
        )
        yield File(f"{_module(cell)}.py", content)


def _module(cell: Cell) -> str:
    # Not `_lstm`: a package also has `_reference` and `_runtime`, and a cell may be called Reference.
    return f"_cell_{cell.name.lower()}"
