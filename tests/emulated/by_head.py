"""Kernels that give each head to a CTA, thread by thread on the CPU (device.h), in place of a loop's entry points."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rnncc.analysis.by_head import HeadTile, head_form
from rnncc.ir.cell import ACTIVE
from rnncc.ir.kernel import Program, Slot, StoredSlot
from rnncc.ir.lowered import LoweredCell, loop_name
from rnncc.ir.step import Edge, MatrixStage, Place, Read, Table, Vector
from rnncc.stages.render.cpp.tables import dims_of
from rnncc.stages.render.programs import readers, slot_table
from tests.emulated.compiled import library_of_kernels
from tests.emulated.fused import Call, EmulatedCase
from tests.numeric.loops import Tensors
from tests.rendering import for_gpus

_WARPS = 8
_COMMON = """
#include <string>
#include "rnncc/cuda/launch.h"
#include "rnncc/cuda/by_head/loop.cuh"
"""
_DRIVER = """
#include "{symbol}.cu"
extern "C" int64_t {symbol}_parameter_bytes() {{ return sizeof(rnncc::HeadCall<rnncc::{program}::Loop>); }}
extern "C" const char* {symbol}_run(int ctas, int shared, uint64_t seed, const void* parameter) {{
  static std::string problem;
  const auto kernel = [](const void* p) {{ {name}(*static_cast<const rnncc::HeadCall<rnncc::{program}::Loop>*>(p)); }};
  try {{
    emulated::launch({{ctas, 1, 1, rnncc::THREADS, shared, seed}}, kernel, parameter);
  }} catch (const std::exception& error) {{
    problem = error.what();
    return problem.c_str();
  }}
  return nullptr;
}}
"""
# Tables whose tensors are float on a GPU, whatever the streams are.
_FLOATS = (Table.STATES, Table.FINAL, Table.SAVED, Table.D_FINAL, Table.D_STATES)


@dataclass(frozen=True, slots=True)
class HeadKernel:
    """A program's kernel for the CPU. `loop` says what a fused kernel would leave for later: nothing."""

    program: Program
    library: ctypes.CDLL
    symbol: str
    loop: Any = field(default_factory=lambda: SimpleNamespace(late_sums=(), writes=()))


def build(plan: LoweredCell, tile: HeadTile, dtype: str, folder: Path) -> dict[str, HeadKernel]:
    """The kernels of a tile by their programs' names."""
    bundle = for_gpus([plan])
    programs = {
        f"{loop_name(plan, loop)}_{direction}": program
        for loop in plan.loops
        for direction, program in (("forward", loop.forward), ("backward", loop.backward))
        if head_form(program)
    }
    own = [file for file in bundle.files if not file.path.startswith(bundle.include)]
    names = {program: f"{program}{tile.name}" for program in programs}
    source = "".join(
        _DRIVER.format(symbol=f"{name}_{dtype}", name=name, program=program) for program, name in names.items()
    )
    library = library_of_kernels(source, own, folder, common=_COMMON)
    return {name: HeadKernel(program, library, f"{names[name]}_{dtype}") for name, program in programs.items()}


class HeadCase(EmulatedCase):
    """The loop runs by emulated kernels, whose dtype is that of the problem."""

    def _call(self, library: ctypes.CDLL, direction: str, isa: str, tables: Sequence[Tensors]) -> None:
        _HeadCall(self, self.kernels[f"{self.loop.name}_{direction}"], direction, tables).run()


class _HeadCall(Call):
    def run(self) -> None:
        kernel, problem = self.kernel, self.case.problem
        symbol = kernel.symbol
        offsets, floats = self._offsets()
        parameter = self._head_parameter(offsets)
        assert len(parameter) == kernel.library[f"{symbol}_parameter_bytes"]()
        run = kernel.library[f"{symbol}_run"]
        run.restype = ctypes.c_char_p
        memory = ctypes.create_string_buffer(parameter, len(parameter))
        failure = run(problem.batch * problem.heads, 4 * floats, ctypes.c_uint64(self.case.seed), memory)
        assert failure is None, failure
        self.give_back()

    def _tensor(self, table: Table, index: int) -> Tensor | None:
        given = self.given[table][index]
        key = (Table.SAVED if table is Table.ROUNDED else table, index)
        if given is not None and key not in self.copies:
            dtype = torch.float32 if table in _FLOATS else self.dtype
            self.copies[key] = self._guarded(given.to(dtype))
        return self.copies.get(key)

    def _own(self, width: int) -> int:
        return 1 if width == 1 else width // self.case.problem.heads

    def _offsets(self) -> tuple[list[int], int]:
        """Where the vectors of a head lie in shared memory, and how many floats there are."""
        program, evaluate = self.kernel.program, self.case.evaluate
        form, table, read = head_form(program), slot_table(program), readers(program)
        assert form is not None
        grids = [stage for stage in program.stages if isinstance(stage, MatrixStage)]
        columns = self._own(evaluate(grids[0].grid.columns))
        sums = max(stage.of_columns(largest=False) + stage.of_columns(largest=True) for stage in grids)
        floats = max(_WARPS, sums * _WARPS * columns)
        linked = {slot.link for slot in program.slots if isinstance(slot, Edge)}
        offsets = []
        for slot, is_matrix in zip(program.slots, form.matrices, strict=True):
            offsets.append(floats)
            if is_matrix:
                continue
            steps = 0
            match slot:
                case StoredSlot():
                    steps = (1 + (slot.name in linked)) * (slot.name in read)
                case Read():
                    steps = 2 * (slot.name != ACTIVE)
                case Edge():
                    steps = 2 * isinstance(table[slot.link], Read)
                case Vector():
                    steps = 1
            floats += steps * self._own(evaluate(slot.width))
        return offsets, floats

    def _head_parameter(self, offsets: list[int]) -> bytes:
        case, problem, program = self.case, self.case.problem, self.kernel.program
        weights = program.step.weights
        named = [*(each.rows for each in weights), *(each.columns for each in weights)]
        # Those of weights may stand among the others once more.
        others = sorted(
            ((index, dim) for dim, index in dims_of(program).items() if index > len(named)), key=lambda pair: pair[0]
        )
        dims = [0, *map(case.evaluate, named), *(case.evaluate(dim) for _, dim in others)]
        own = [*map(self._own, dims)]
        constants = list(case.constants)[: len(program.step.constants)]
        lengths = case.lengths.data_ptr() if program.step.masked else 0
        packed = struct.pack(
            "<qqqqqq", problem.steps, problem.batch, problem.heads, 0, problem.steps * problem.batch, lengths
        )
        packed += _array("q", dims, 1) + _array("i", own, 2) + _array("i", offsets, 2) + _array("f", constants, 2)
        return packed + struct.pack("<qqqq", self.descending, 0, 0, 0) + b"".join(self._direction())

    def _direction(self) -> Iterator[bytes]:
        program, read = self.kernel.program, readers(self.kernel.program)
        places = [self._slot(slot) for slot in program.slots if _has_place(slot, read)]
        yield b"".join(places) or struct.pack("<qqqq", 0, 0, 0, 0)
        stored = [slot for slot in program.slots if isinstance(slot, StoredSlot)]
        outputs = [self._output(place) for slot in stored for place in slot.destinations]
        yield b"".join(outputs) or _NOWHERE
        yield b"".join(self._record(slot) for slot in stored if slot.name in program.step.kept) or _NOWHERE
        yield struct.pack("<q", 0)
        yield b"".join(self._final(final.place) for final in program.step.finals) or _NOWHERE

    def _slot(self, slot: Slot) -> bytes:
        if isinstance(slot, StoredSlot) or slot.name == ACTIVE:
            return struct.pack("<qqqq", 0, 0, 0, 0)
        assert isinstance(slot, Read | Edge | Vector)
        tensor = self._tensor(slot.place.table, slot.place.index)
        if tensor is None:
            zeros = self._guarded(torch.zeros(self.case.evaluate(slot.width)))
            return struct.pack("<qqqq", zeros.data_ptr(), 0, 0, 0)
        if isinstance(slot, Edge):
            return struct.pack("<qqqq", tensor.data_ptr(), 0, tensor.stride(0), 0)
        base = tensor.data_ptr() + self.case.evaluate(slot.place.offset) * tensor.element_size()
        if isinstance(slot, Vector):
            return struct.pack("<qqqq", base, 0, 0, 0)
        return struct.pack("<qqqq", base, tensor.stride(0), tensor.stride(1), 0)

    def _output(self, place: Place) -> bytes:
        tensor = self._tensor(place.table, place.index)
        if tensor is None:
            return _NOWHERE
        base = tensor.data_ptr() + self.case.evaluate(place.offset) * tensor.element_size()
        return struct.pack("<qqq", base, tensor.stride(0), tensor.stride(1))

    def _record(self, slot: StoredSlot) -> bytes:
        problem = self.case.problem
        shape = (problem.steps, problem.batch, self.case.evaluate(slot.width))
        record = self.records[slot.name] = self._guarded(torch.full(shape, float("nan"), dtype=self.dtype))
        return struct.pack("<qqq", record.data_ptr(), record.stride(0), record.stride(1))

    def _final(self, place: Place) -> bytes:
        tensor = self._tensor(place.table, place.index)
        return _NOWHERE if tensor is None else struct.pack("<qqq", tensor.data_ptr(), 0, tensor.stride(0))


_NOWHERE = struct.pack("<qqq", 0, 0, 0)


def _has_place(slot: Slot, read: Mapping[str, bool]) -> bool:
    return slot.name in read if isinstance(slot, StoredSlot) else isinstance(slot, Read | Edge | Vector)


def _array(kind: str, values: Sequence[float], multiple: int) -> bytes:
    """Numbers, at least one, and so many that their bytes are a multiple of eight."""
    count = -(-max(1, len(values)) // multiple) * multiple
    return struct.pack(f"<{count}{kind}", *values, *[0] * (count - len(values)))
