"""Packages of texts: without kernels, where no compiler runs and layers compute in eager torch; and with kernels for
float64, which most comparisons ask for. And what is built for this processor alone."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from rnncc import driver
from rnncc.driver import load_module, make_product
from rnncc.ir.cell import Cell
from rnncc.ir.request import Request
from rnncc.language.read import from_text, read_request
from rnncc.language.source import Source
from rnncc.machine.cache import Cache, default_root, digest
from rnncc.machine.targets import own_instructions
from rnncc.pipeline import compile_cells
from rnncc.stages.build import Job, build, own_code
from rnncc.stages.load import load

# Of what a package is built for, one combination: it is compiled in a sixth of the time.
ONE_LIBRARY: dict[str, Any] = {"instructions": own_instructions(), "cpu_files": ("f32", "f32_masked")}


def build_one_library(patch: pytest.MonkeyPatch) -> None:
    """From now on `rnncc build`, in this process, builds ONE_LIBRARY alone."""
    build_all = driver.build_package

    def build_one(request: Request, *arguments: Any) -> Any:
        return build_all(replace(request, **ONE_LIBRARY), *arguments)

    patch.setattr(driver, "build_package", build_one)


def reference_package(source: Source, stem: str) -> tuple[ModuleType, list[Cell]]:
    """A package without kernels, and its cells."""
    cells = compile_cells(Request(source, stem, instructions=""), "partition").cells
    return reference_module(source, stem), [made.cell for made in cells]


def reference_module(source: Source, stem: str) -> ModuleType:
    """A package without kernels."""
    key = digest(stem, source.text, own_code())[:32]
    job = Job(key, stem, Cache(default_root()))
    return load(build(job, lambda: make_product(Request(source, stem, instructions=""))))


def eager_package(text: str, name: str) -> ModuleType:
    """The same of a text, with the arguments of float64_package."""
    return reference_module(from_text(f"<{name}>", text), name)


def float64_package(text: str, name: str = "cell") -> ModuleType:
    """A package as `rnncc.compile` gives it, whose kernels for float64 are compiled now; those for other dtypes, and
    for lengths and resets, when a call first needs them."""
    return load_module(Request(from_text(f"<{name}>", text), name), ("f64",))


def float64_cell(file: str) -> ModuleType:
    """The same of a shipped cell, as `rnncc.load` gives it."""
    return load_module(read_request(file), ("f64",))


def text_of(name: str, text: str) -> str:
    """Of a text with several cells, one."""
    (found,) = (part for part in re.split(r"(?m)^(?=cell )", text) if part.startswith(f"cell {name}\n"))
    return found
