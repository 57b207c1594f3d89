"""Packages without kernels: no compiler runs, and layers compute in eager torch."""

from __future__ import annotations

from types import ModuleType

from rnncc.cache import Cache, default_root, digest
from rnncc.ir.cell import Cell
from rnncc.ir.package import CompiledCell
from rnncc.paths import templates_dir
from rnncc.source import Source
from rnncc.stages.build import Product, build, own_code
from rnncc.stages.check import check
from rnncc.stages.load import load
from rnncc.stages.mask import mask
from rnncc.stages.parse import parse
from rnncc.stages.render.python import plan_package, render_package


def reference_package(source: Source, stem: str) -> tuple[ModuleType, list[Cell]]:
    """A package without kernels, and its cells."""
    cells = [check(declaration)[0] for declaration in parse(source)]

    def produce() -> Product:
        plan = plan_package(stem, "test", [CompiledCell(cell, mask(cell)) for cell in cells])
        names = tuple(cell.name for cell in cells)
        return Product(render_package(plan, templates_dir()), None, names, missing="made without kernels")

    package = build(digest(stem, source.text, own_code())[:32], stem, produce, None, Cache(default_root()))
    return load(package), cells
