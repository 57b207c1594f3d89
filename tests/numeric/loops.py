"""The loops of packages, called by their entry points through ctypes, without torch's binding."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Segment
from rnncc.stages.differentiate import differentiate
from rnncc.stages.mask import mask

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


@dataclass(frozen=True, slots=True)
class Loop:
    """A segment, plain or masked."""

    cell: Cell
    segment: Segment
    adjoint: Adjoint
    name: str
    masked: bool


def loops_of(cell: Cell) -> tuple[Loop, ...]:
    """The loops of a cell: the plain ones, then the masked."""
    found = []
    for masked, form in ((False, cell), (True, mask(cell))):
        for index, adjoint in enumerate(differentiate(form)):
            name = f"{cell.name.lower()}_{index}{'_masked' * masked}"
            found.append(Loop(form, form.segments[index], adjoint, name, masked))
    return tuple(found)


def open_library(package: Path) -> ctypes.CDLL:
    """The library of a package. It has functions name_SET_FILE for each of its sets of instructions."""
    about = json.loads((package / "_rnncc.json").read_text(encoding="utf-8"))
    return ctypes.CDLL(str(package / about["library"]))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("step", ctypes.c_int64),
        ("entry", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
    )


_HEAD = (
    ("steps", ctypes.c_int64),
    ("batch", ctypes.c_int64),
    ("heads", ctypes.c_int64),
    ("sizes", ctypes.c_void_p),
    ("constants", ctypes.c_void_p),
    ("reverse", ctypes.c_bool),
)


_TAIL = (
    ("lengths", ctypes.c_void_p),
    ("biases", ctypes.c_void_p),
    ("bias_count", ctypes.c_int64),
    ("products", ctypes.c_void_p),
)


class _Forward(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        *(
            (name, ctypes.c_void_p)
            for name in ("streams", "weights", "states", "sequences", "final", "saved", "starts")
        ),
        ("rows", ctypes.c_int64),
        *_TAIL,
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
        *_TAIL,
    )


Tensors = Sequence[Tensor | None]


_WEIGHTS = 1  # the place of that table, whose tensors have no strides


def _describe(tensors: Tensors, table: int) -> ctypes.Array[_Tensor]:
    described = (_Tensor * max(1, len(tensors)))()
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            strides = tensor.stride()
            step, entry = (strides[0], strides[1]) if tensor.dim() == 3 else (0, strides[0] if tensor.dim() == 2 else 0)
            entry = 0 if table == _WEIGHTS else entry
            described[index] = _Tensor(tensor.data_ptr(), step, entry, DTYPES[tensor.dtype])
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
    described = [_describe(table, place) for place, table in enumerate(tables)]
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
