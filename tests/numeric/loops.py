"""Compiles the generated loops with the C++ compiler, without torch's binding, and calls their entry points by
ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.artifact import Bundle, Unit
from rnncc.ir.cell import Cell, Segment
from rnncc.ir.kernel import KernelPlan
from rnncc.stages.build import toolchain
from rnncc.stages.differentiate import differentiate
from rnncc.stages.lower import lower
from rnncc.stages.mask import mask
from rnncc.stages.render import render

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
LEVELS = {"generic": frozenset(), "v3": {"avx2", "fma", "bmi2"}, "v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}


def processor_levels() -> tuple[str, ...]:
    """The instruction sets that this processor runs, best last."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = set(next(line for line in text.splitlines() if line.startswith("flags")).split())
    return tuple(name for name, needed in LEVELS.items() if needed <= flags)


@dataclass(frozen=True, slots=True)
class Loop:
    """A segment, plain or masked."""

    cell: Cell
    segment: Segment
    adjoint: Adjoint
    name: str


def loops_of(cell: Cell) -> tuple[KernelPlan, tuple[Loop, ...]]:
    """The plan of a cell and its loops: the plain ones, then the masked."""
    masked = mask(cell)
    adjoints, masked_adjoints = differentiate(cell), differentiate(masked)
    found = []
    for variant, form, made in (("", cell, adjoints), ("_masked", masked, masked_adjoints)):
        for index, adjoint in enumerate(made):
            found.append(Loop(form, form.segments[index], adjoint, f"{cell.name.lower()}_{index}{variant}"))
    return lower(cell, adjoints, masked, masked_adjoints), tuple(found)


class Library:
    """A shared library of the loops of some cells for some instruction sets."""

    def __init__(
        self, plans: Sequence[KernelPlan], isas: Sequence[str], suffixes: Sequence[str] = ("f32", "f64")
    ) -> None:
        bundle = render(plans)
        root = Path(tempfile.gettempdir()) / "rnncc-test-objects"
        units = [unit for unit in bundle.units if _wanted(unit, isas, suffixes)]
        texts = "\0".join(file.text for file in bundle.files)
        library = root / f"{hashlib.sha256((texts + repr(units)).encode()).hexdigest()[:24]}.so"
        if not library.exists():
            _build(bundle, units, root, library)
        self.library = ctypes.CDLL(str(library))

    def __getitem__(self, name: str) -> ctypes._NamedFuncPointer:
        return self.library[name]


def _wanted(unit: Unit, isas: Sequence[str], suffixes: Sequence[str]) -> bool:
    return any(unit.path.endswith(f"_{isa}_{suffix}.cpp") for isa in isas for suffix in suffixes)


def _build(bundle: Bundle, units: Sequence[Unit], root: Path, library: Path) -> None:
    root.mkdir(exist_ok=True)
    compiler = toolchain.find_toolchain()
    headers = "".join(file.text for file in bundle.files if file.path.startswith("src/include/"))
    texts = {file.path: file.text for file in bundle.files}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in bundle.files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")

        def compile_unit(unit: Unit) -> Path:
            key = hashlib.sha256((headers + texts[unit.path]).encode()).hexdigest()[:24]
            target = root / f"{key}.o" if unit.shared else folder / f"{unit.path}.o"
            if not target.exists():
                flags = (*toolchain.KERNEL, *toolchain.ISA[unit.isa], "-Werror", "-Isrc/include")
                fresh = folder / f"{unit.path}.fresh.o"
                command = [*compiler.command, *flags, "-c", unit.path, "-o", str(fresh)]
                subprocess.run(command, cwd=folder, check=True)
                fresh.rename(target)
            return target

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compile_unit, units))
        torch_lib = Path(torch.__file__).parent / "lib"
        fresh = folder / "library.so"
        link = [
            *compiler.command,
            "-shared",
            *map(str, objects),
            f"-L{torch_lib}",
            "-ltorch_cpu",
            f"-Wl,-rpath,{torch_lib}",
        ]
        subprocess.run([*link, "-o", str(fresh)], check=True)
        fresh.rename(library)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("step", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
    )


_HEAD = (
    ("steps", ctypes.c_int64),
    ("columns", ctypes.c_int64),
    ("heads", ctypes.c_int64),
    ("sizes", ctypes.c_void_p),
    ("constants", ctypes.c_void_p),
    ("reverse", ctypes.c_bool),
)


class _Forward(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        *(
            (name, ctypes.c_void_p)
            for name in ("streams", "weights", "states", "sequences", "final", "saved", "starts")
        ),
        ("rows", ctypes.c_int64),
    )


class _Backward(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        *(
            (name, ctypes.c_void_p)
            for name in (
                "streams",
                "weights",
                "states",
                "saved",
                "d_sequences",
                "d_final",
                "d_streams",
                "d_weights",
                "d_states",
                "starts",
            )
        ),
        ("rows", ctypes.c_int64),
    )


Tensors = Sequence[Tensor | None]


def _describe(tensors: Tensors) -> ctypes.Array[_Tensor]:
    described = (_Tensor * max(1, len(tensors)))()
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            strides = tensor.stride()
            step, column = (
                (strides[0], strides[1]) if tensor.dim() == 3 else (0, strides[0] if tensor.dim() == 2 else 0)
            )
            described[index] = _Tensor(tensor.data_ptr(), step, column, DTYPES[tensor.dtype])
    return described


def call(
    function: ctypes._NamedFuncPointer,
    shape: tuple[int, int, int],
    sizes: Sequence[int],
    constants: Sequence[float],
    reverse: bool,
    tables: Sequence[Tensors],
) -> int:
    """Calls a forward (six tables) or backward (nine tables) entry point; `shape` is (T, B, heads)."""
    described = [_describe(table) for table in tables]
    size_array = (ctypes.c_int64 * len(sizes))(*sizes)
    constant_array = (ctypes.c_double * max(1, len(constants)))(*constants)
    kind = _Forward if len(tables) == 6 else _Backward
    arguments = kind(
        *shape,
        ctypes.cast(size_array, ctypes.c_void_p),
        ctypes.cast(constant_array, ctypes.c_void_p),
        reverse,
        *(ctypes.cast(table, ctypes.c_void_p) for table in described),
        None,
        shape[0] * shape[1],
    )
    return int(function(ctypes.byref(arguments)))
