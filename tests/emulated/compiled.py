"""Fused kernels compiled for the CPU, on the headers of this folder in place of what a CPU does not have."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from rnncc.ir.artifact import File
from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import Program
from rnncc.ir.layout import FusedKernels, KernelLayout
from rnncc.ir.lowered import LoweredCell, as_run, fused_programs, loop_name
from rnncc.machine.paths import templates_dir
from rnncc.stages.build.shared import included
from tests.cuda.sources import write_files
from tests.kept import kept
from tests.rendering import at_first_use

HEADERS = Path(__file__).resolve().parent
TESTS = HEADERS.parent
# Before the sources of all kernels, and compiled once.
_COMMON = """
#include <string>
#include "rnncc/cuda/fused/families/gather.cuh"
#include "rnncc/cuda/fused/families/grid.cuh"
#include "rnncc/cuda/fused/families/scatter.cuh"
#include "rnncc/cuda/fused/families/sparse.cuh"
#include "rnncc/cuda/fused/families/wide.cuh"
"""
# Each kernel calls its shape `FusedShape`. Those of one library have names of their own.
_DRIVER = """
#define FusedShape {symbol}_shape
#include "{symbol}.cu"
extern "C" int64_t {symbol}_parameter_bytes() {{ return sizeof(rnncc::FusedCall<rnncc::FusedShape::Step>); }}
extern "C" const char* {symbol}_run(int ctas, int directions, int cluster, uint64_t seed, const void* parameter) {{
  static std::string problem;
  using Shape = rnncc::FusedShape;
  const auto kernel = [](const void* p) {{ {symbol}(*static_cast<const rnncc::FusedCall<Shape::Step>*>(p)); }};
  try {{
    emulated::launch({{ctas, directions, cluster, Shape::THREADS, Shape::SHARED_BYTES, seed}}, kernel, parameter);
  }} catch (const std::exception& error) {{
    problem = error.what();
    return problem.c_str();
  }}
  return nullptr;
}}
#undef FusedShape
"""
# -O1 takes half as long again to compile, and what -O0 makes is half as fast.
_COMPILER = ("g++", "-std=c++17", "-Og", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program's kernel for the CPU."""

    program: Program
    loop: FusedLoop
    schedule: KernelLayout
    library: ctypes.CDLL
    symbol: str
    head_dim: int

    @property
    def parameter_bytes(self) -> int:
        """The size of the kernel's parameter."""
        return int(self.library[f"{self.symbol}_parameter_bytes"]())

    def run(self, ctas: int, cluster: int, seed: int, parameter: ctypes.Array[ctypes.c_char]) -> None:
        """Run the kernel in one direction. Fails where its threads wait for ever, or reach beyond their memory."""
        function = self.library[f"{self.symbol}_run"]
        function.restype = ctypes.c_char_p
        failure = function(ctas, 1, cluster, ctypes.c_uint64(seed), parameter)
        assert failure is None, failure


def write_headers(folder: Path) -> None:
    """The headers of the GPU kernels, with those of this folder in place of what a CPU does not have."""
    included = folder / "rnncc/cuda"
    shutil.copytree(templates_dir() / "include/rnncc", folder / "rnncc", dirs_exist_ok=True)
    shutil.copytree(HEADERS / "headers", included, dirs_exist_ok=True)
    for name in ("device.h", "launch.h"):
        shutil.copy(HEADERS / name, included)
    for path in included.rglob("*.cuh"):
        text = path.read_text(encoding="utf-8")
        shared = "extern __shared__ __align__(128) char shared[];"
        path.write_text(text.replace(shared, "char* const shared = emulated::shared_memory();"), encoding="utf-8")


def library_of(source: Path, folder: Path) -> Path:
    """A library, in the folder, of C functions over the headers of the GPU kernels."""
    headers, texts = _headers()
    target = folder / f"lib{source.stem}.so"
    torch_lib = Path(torch.__file__).parent / "lib"
    linked = ("-Wl,-Bsymbolic", f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-ltorch_cpu", "-lc10")

    def make() -> bytes:
        _compile((*_COMPILER, "-shared", f"-I{headers}", str(source), "-o", str(target), *linked))
        return target.read_bytes()

    # It may include what lies beside it, and in this folder.
    own = {path.relative_to(TESTS).as_posix(): path.read_text() for path in (*HEADERS.glob("*.h"), source)}
    parts = (part for pair in included(source.relative_to(TESTS).as_posix(), {**texts, **own}, ("",)) for part in pair)
    folder.mkdir(parents=True, exist_ok=True)
    target.write_bytes(kept((_version(), *_COMPILER, *linked, *parts), make))
    return target


@cache
def _headers() -> tuple[Path, Mapping[str, str]]:
    """A folder with the headers, and their texts by path."""
    folder = Path(tempfile.mkdtemp(prefix="rnncc-emulated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_headers(folder)
    files = (path for path in folder.rglob("*") if path.is_file())
    return folder, {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


@cache
def _common(text: str, flags: tuple[str, ...]) -> Path:
    """A header of what all kernels include, which is compiled with the flags."""
    folder, texts = _headers()
    header = folder / f"common{len(list(folder.glob('common*.h')))}.h"
    header.write_text(text, encoding="utf-8")
    compiled = header.with_suffix(".h.gch")

    def make() -> bytes:
        _compile((*_COMPILER, *flags, f"-I{folder}", "-x", "c++-header", str(header), "-o", str(compiled)))
        return compiled.read_bytes()

    parts = (part for pair in included(header.name, {**texts, header.name: text}, ("",)) for part in pair)
    compiled.write_bytes(kept((_version(), *_COMPILER, *flags, *parts), make))
    return header


@cache
def _version() -> str:
    return subprocess.run((_COMPILER[0], "--version"), capture_output=True, text=True, check=True).stdout


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def library_of_kernels(
    source: str, files: Sequence[File], folder: Path, flags: tuple[str, ...] = (), common: str = _COMMON
) -> ctypes.CDLL:
    """A text that includes the files, compiled in a folder and loaded. `common`: what all kernels include."""
    library, (headers, texts) = folder / "kernels.so", _headers()

    def make() -> bytes:
        write_files(files, folder)
        path = folder / "src/kernels.cpp"
        path.write_text(source, encoding="utf-8")
        compiler = (*_COMPILER, *flags, f"-I{headers}", "-include", str(_common(common, flags)))
        _compile((*compiler, "-shared", str(path), "-o", str(library)))
        return library.read_bytes()

    own = {file.path: file.text for file in files} | {"src/kernels.cpp": source}
    parts = (part for pair in included("src/kernels.cpp", {**texts, **own}, ("",)) for part in pair)
    folder.mkdir(parents=True, exist_ok=True)
    library.write_bytes(kept((_version(), *_COMPILER, *flags, common, *parts), make))
    return ctypes.CDLL(str(library))


def build(plan: LoweredCell, fused: FusedKernels, folder: Path, flags: Sequence[str] = ()) -> dict[str, Kernel]:
    """The kernels by their programs' names. `flags`: for the compiler."""
    bundle = at_first_use(plan, [fused])
    loops = dict(fused_programs(plan))
    programs = {
        f"{loop_name(plan, loop)}_{direction}": program
        for loop in plan.loops
        for direction, program in (
            ("forward", loop.forward), ("inference", loop.forward), ("backward", loop.backward),
        )
    }  # fmt: skip
    # All kernels are one unit, which the compiler reads once.
    source = "".join(_DRIVER.format(symbol=unit.name) for unit in bundle.device_units)
    own = [file for file in bundle.files if not file.path.startswith(bundle.include)]
    library = library_of_kernels(source, own, folder, tuple(flags))
    return {
        name: Kernel(programs[name], as_run(name, loops[name]), schedule, library, unit.name, fused.head_dim)
        for (name, schedule), unit in zip(fused.kernels, bundle.device_units, strict=True)
    }
