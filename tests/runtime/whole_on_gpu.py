"""The op of a whole layer as packages with GPU kernels have it (whole_gpu.h), with the CPU's loops in the place of a
GPU's: what it does around the loop runs on the CPU's tensors then. Or with a GPU's loops, of which a single step runs
on the CPU's tensors too (whole_single.py)."""

from __future__ import annotations

import ctypes
import importlib
import re
import subprocess
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.build.toolchain import BINDING
from tests.emulated.compiled import library_of
from tests.runtime import whole_single
from tests.shared_objects import WHOLE, shared_object

LOOP = """
int32_t {loop}(const rnncc_{way}_call*);
void {loop}_cuda(const rnncc_{way}_call* calls, int32_t count, int32_t) {{
  if (calls->products) make_given_products(calls->products, calls->streams->dtype);
  for (int32_t i = 0; i < count; ++i) {{
    rnncc_{way}_call call = calls[i];
    call.products = nullptr;  // they are made
    if ({loop}(&call) != 0) throw std::runtime_error("the loop failed");
  }}
}}
"""
MOST_SHORT_WORK = 2000  # of these calls
_SHORT = "MOST_SHORT_WORK = int64_t(1) << 25;"
# The namespaces of the ops.
WHOLE_CALLS, SINGLE = "rnncc_whole_on_gpu", "rnncc_single_on_gpu"
LIBRARIES: list[torch.library.Library] = []
# The products that a loop of a GPU makes first, on the CPU: tests/cuda/test_small_products.py has the same library.
SMALL_PRODUCTS = Path(__file__).parents[1] / "cuda" / "small_products.cpp"


def build(folder: Path, module: Any, source: Source, space: str, left_out: Container[str] = ()) -> None:
    """Compiles the library into that folder, for the loaded module of the source's cells. `space`: the namespace of its
    ops. In that of SINGLE, calls of one step run as on a GPU; `left_out`: kernels of theirs that no call asks for."""
    request = replace(read_request("lstm"), source=source, architectures=("sm_90a",), instructions="generic")
    made = compile_cells(request)
    texts = {file.path: file.text for file in (*made.files, *made.bundle.files)}
    binding = texts["src/binding.cpp"]
    # The CPU's kernels of both ops are those for a GPU.
    texts["src/binding.cpp"] = re.sub(r"rnncc::whole_(forward|backward)_op<", r"rnncc::whole_\1_on_gpu_op<", binding)
    if space == SINGLE:
        loops = whole_single.build_loops(texts, folder, left_out)
    else:
        _take_loops_of_cpus(texts)
        given = library_of(SMALL_PRODUCTS, folder / "given")
        loops = ["src/loops.cpp", str(given), f"-Wl,-rpath,{given.parent}"]
    units = ["src/binding.cpp", "src/_core_cuda.cpp", *loops]
    for path, text in texts.items():
        if path in units or path.endswith("_tables.h") or path.startswith("src/include/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    (package,) = Path(module.__file__).parent.glob("lib*.so")
    torch_lib = Path(torch.__file__).parent / "lib"
    subprocess.run(
        ["g++", *BINDING, "-Werror", "-shared", "-Wl,-Bsymbolic", "-Isrc/include", f"-DRNNCC_SPACE={space}", *units,
         str(shared_object(WHOLE)), str(package), f"-Wl,-rpath,{package.parent}", f"-L{torch_lib}",
         f"-Wl,-rpath,{torch_lib}", "-ltorch_cpu", "-lc10", "-o", "lib.so"],
        cwd=folder, check=True,
    )  # fmt: skip


def _take_loops_of_cpus(texts: dict[str, str]) -> None:
    # Some of the products of tests are so large that torch makes them.
    header = "src/include/rnncc/torch/whole_gpu.h"
    assert _SHORT in texts[header]
    texts[header] = texts[header].replace(_SHORT, f"MOST_SHORT_WORK = {MOST_SHORT_WORK};")
    # Unlike those of a GPU, they take no saved values of 16 bits.
    texts["src/binding.cpp"] = re.sub(
        r"_saved_rounded\[\] = .*;", lambda line: line[0].replace("true", "false"), texts["src/binding.cpp"]
    )
    loops = sorted(set(re.findall(r"void (\w+_(forward|backward))_cuda\(", texts["src/binding.cpp"])))
    asked = re.findall(r"bool \w+_cuda\(.*\)", texts["src/binding.cpp"])
    stand_ins = "".join(LOOP.format(loop=loop, way=way) for loop, way in loops)
    stand_ins += "".join(f"{function} {{ return false; }}\n" for function in asked)
    texts["src/loops.cpp"] = (
        '#include <stdexcept>\n#include "rnncc/core/call.h"\n'
        f'extern "C" {{void make_given_products(const void*, int32_t);{stand_ins}}}\n'
    )


def launches_of_given_products(folder: Path) -> int:
    """How often products were made so far that a loop was given, by the library of that folder."""
    library = ctypes.CDLL(str(folder / "given/libsmall_products.so"))
    return ctypes.c_int64.in_dll(library, "launches_of_given_products").value


def products_of_cublas(folder: Path) -> int:
    """How many products cuBLAS has made so far, for the library that was built in that folder for single steps."""
    return ctypes.c_int64.in_dll(ctypes.CDLL(str(folder / "lib.so")), "products_of_cublas").value


def take(folder: Path, module: Any, space: str, cells: Sequence[Any]) -> None:
    """From now on the module's layers call the ops of the library of that folder, which take the dtypes of a GPU.
    `space`: their namespace; `cells`: the specs of all."""
    opened = ctypes.CDLL(str(folder / "lib.so")).rnncc_register
    opened.restype = ctypes.c_char_p
    assert opened() is None
    runtime = importlib.import_module(f"{module.__name__}._runtime.modules.whole")
    package = importlib.import_module(f"{module.__name__}._runtime.package")
    runtime.__dict__["WHOLE_DTYPES"] = runtime.__dict__["RECORDED_DTYPES"] = runtime._GPU_DTYPES
    library = torch.library.Library(space, "FRAGMENT")  # type: ignore[no-untyped-call]
    LIBRARIES.append(library)
    for cell in cells:
        (segment,) = cell.segments
        package.kernels()[0].whole[segment.name] = runtime.WholeOps(library, space, cell, segment)
