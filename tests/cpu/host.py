"""Builds the CPU header library for tests, one shared library for each x86-64 level that this machine runs."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rnncc.language.operator_row import Operator
from rnncc.language.operators import OPERATORS
from rnncc.machine.paths import templates_dir
from rnncc.stages.build.toolchain import FLOATS, ISA

HERE = Path(__file__).resolve().parent
_RUNS = {"AVX512": ("generic", "v3", "v4"), "AVX2": ("generic", "v3"), "DEFAULT": ("generic",)}
FLAGS = (
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
)

Array = np.ndarray[Any, np.dtype[Any]]
Floating = type[np.float32] | type[np.float64]
# The functions of cpu/math.h that the operator table names, each with its row.
FUNCTIONS: dict[str, Operator] = {
    name: row
    for row in OPERATORS.values()
    for name in [row.cpp.partition("(")[0]]
    if name and row.cpp == f"{name}({', '.join(f'{{{i}}}' for i in range(row.arity))})"
}
_MACROS = {1: "UNARY", 2: "BINARY", 3: "TERNARY"}


def write_functions(folder: Path) -> None:
    """Writes what tests/cpu/host.cpp includes: a line for each function of the table."""
    lines = [f"{_MACROS[row.arity]}({name})\n" for name, row in FUNCTIONS.items()]
    (folder / "functions.inc").write_text("".join(lines), encoding="utf-8")


def runs_here(level: str) -> bool:
    """Whether this machine can execute code of the level."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return level in _RUNS.get(torch.backends.cpu.get_cpu_capability(), ("generic",))


def build(
    source: str, level: str, folder: Path, *flags: str, header: str = "templates/include/rnncc/cpu/math_….h"
) -> ctypes.CDLL:
    """Compiles tests/cpu/`source` for `level` into `folder` and loads it; skips where the machine lacks the level.
    `header`: where operators have their functions."""
    if not runs_here(level):
        pytest.skip(f"this machine does not run x86-64 level {level}")
    target = folder / f"{Path(source).stem}_{level}.so"
    torch_lib = Path(torch.__file__).parent / "lib"
    done = subprocess.run(
        ["g++", *FLAGS, *FLOATS, *ISA[level], f"-I{templates_dir() / 'include'}", f"-I{folder}", str(HERE / source)]
        + ["-o", str(target)]
        + (list(flags) or [f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-ltorch_cpu", "-lc10"]),
        stderr=subprocess.PIPE,
        text=True,
    )
    if missing := sorted(set(re.findall(r"(\w+). is not a member of .rnncc", done.stderr))):
        pytest.fail(f"write {', '.join(f'rnncc::{name}' for name in missing)} in {header}")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(target))


def suffix(array: Array) -> str:
    """The C functions' suffix for an array's dtype: "float" or "double"."""
    return {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}[array.dtype]


def call(library: ctypes.CDLL, name: str, *arguments: Array | int | float | bool | None, restype: Any = None) -> Any:
    """Calls a C function: arrays as pointers to their first element, None as null, int as int64_t, float as C float."""
    function = library[name]
    function.restype = restype
    values: list[Any] = []
    for argument in arguments:
        match argument:
            case np.ndarray():
                values.append(ctypes.c_void_p(argument.ctypes.data))
            case None:
                values.append(ctypes.c_void_p(0))
            case bool():
                values.append(ctypes.c_bool(argument))
            case int():
                values.append(ctypes.c_int64(argument))
            case float():
                values.append(ctypes.c_float(argument))
    return function(*values)


def apply(library: ctypes.CDLL, name: str, *arguments: Array) -> Array:
    """The library's function of every element, or of every pair or triple of elements."""
    y = np.full_like(arguments[0], np.nan)
    call(library, f"{name}_{suffix(y)}", y, *arguments, len(y))
    return y
