"""The Python of a package: a module for each cell, and the reference functions of all."""

from __future__ import annotations

from collections.abc import Iterator

from rnncc.ir.artifact import File
from rnncc.ir.package import Package
from rnncc.stages.render.python.module import cell_module
from rnncc.stages.render.templates import text
from rnncc.version import VERSION


def python_files(package: Package) -> Iterator[File]:
    """`__init__.py`, `_reference.py` and a module a cell."""
    cells = [cell_module(compiled) for compiled in package.cells]
    about = {"package": package.name, "version": VERSION, "cells": cells}
    yield File("__init__.py", text("python/init.py.j2", **about))
    yield File("_reference.py", text("python/reference.py.j2", **about))
    for cell in cells:
        yield File(f"{cell.module}.py", text("python/cell.py.j2", version=VERSION, cell=cell))
