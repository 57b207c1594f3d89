"""Fused kernels compiled for the CPU and run thread by thread (device.h), in place of a loop's entry points."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from rnncc.ir.artifact import File
from rnncc.ir.family import Scope
from rnncc.ir.fused import FusedLoop, FusedVector, FusedWrite, MatrixPart
from rnncc.ir.kernel import EdgeSlot, Place, Program, ReadSlot, StoredSlot, Table
from rnncc.ir.plan import KernelPlan, as_run, fused_programs, loop_name
from rnncc.ir.schedule import FusedKernels, FusedSchedule
from rnncc.machine.paths import templates_dir
from tests.cuda.sources import write_files
from tests.kept import included, kept
from tests.numeric.compare import Case, Problem
from tests.numeric.loops import Loop, Tensors
from tests.rendering import at_first_use

# How many numbers lie before and after each tensor, and which.
_GUARDS, _GUARD = 1024, 512.0
HEADERS = Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_TABLES = {
    "forward": ("STREAMS", "WEIGHTS", "STATES", "SEQUENCES", "FINAL", "SAVED"),
    "backward": (
        "STREAMS", "WEIGHTS", "STATES", "SAVED", "D_SEQUENCES", "D_FINAL", "D_STREAMS", "D_WEIGHTS", "D_STATES",
    ),
}  # fmt: skip
# Before the sources of all kernels, and compiled once.
_COMMON = """
#include <string>
#include "rnncc/cuda/fused/gather.cuh"
#include "rnncc/cuda/fused/grid.cuh"
#include "rnncc/cuda/fused/scatter.cuh"
#include "rnncc/cuda/fused/wide.cuh"
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
# -O0 takes as long to compile, and what it makes is half as fast.
_COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program's kernel for the CPU."""

    program: Program
    loop: FusedLoop
    schedule: FusedSchedule
    library: ctypes.CDLL
    symbol: str
    head_dim: int

    @property
    def parameter_bytes(self) -> int:
        """The size of the kernel's parameter."""
        return int(self.library[f"{self.symbol}_parameter_bytes"]())

    def run(self, ctas: int, cluster: int, seed: int, parameter: ctypes.Array[ctypes.c_char]) -> None:
        """Runs the kernel in one direction. Fails where its threads wait for ever, or reach beyond their memory."""
        function = self.library[f"{self.symbol}_run"]
        function.restype = ctypes.c_char_p
        failure = function(ctas, 1, cluster, ctypes.c_uint64(seed), parameter)
        assert failure is None, failure


def write_headers(folder: Path) -> None:
    """The headers of the GPU kernels, with those of this folder in place of what a CPU does not have."""
    included = folder / "rnncc/cuda"
    shutil.copytree(templates_dir() / "include/rnncc", folder / "rnncc", dirs_exist_ok=True)
    shutil.copytree(HEADERS / "headers", included, dirs_exist_ok=True)
    shutil.copy(HEADERS / "device.h", included)
    for path in included.rglob("*.cuh"):
        text = path.read_text(encoding="utf-8")
        shared = "extern __shared__ __align__(128) char shared[];"
        path.write_text(text.replace(shared, "char* const shared = emulated::shared_memory();"), encoding="utf-8")


@cache
def _headers() -> tuple[Path, Mapping[str, str]]:
    """A folder with the headers, and their texts by path."""
    folder = Path(tempfile.mkdtemp(prefix="rnncc-emulated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_headers(folder)
    files = (path for path in folder.rglob("*") if path.is_file())
    return folder, {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


@cache
def _common(flags: tuple[str, ...]) -> Path:
    """A header of what all kernels include, which is compiled with the flags."""
    folder, _ = _headers()
    header = folder / f"common{len(list(folder.glob('common*.h')))}.h"
    header.write_text(_COMMON, encoding="utf-8")
    _compile((*_COMPILER, *flags, f"-I{folder}", "-x", "c++-header", str(header), "-o", f"{header}.gch"))
    return header


@cache
def _version() -> str:
    return subprocess.run((_COMPILER[0], "--version"), capture_output=True, text=True, check=True).stdout


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def _library(source: str, files: Sequence[File], folder: Path, flags: tuple[str, ...]) -> ctypes.CDLL:
    """A text that includes the files, compiled in a folder and loaded."""
    library, (headers, texts) = folder / "kernels.so", _headers()

    def make() -> bytes:
        write_files(files, folder)
        path = folder / "src/kernels.cpp"
        path.write_text(source, encoding="utf-8")
        compiler = (*_COMPILER, *flags, f"-I{headers}", "-include", str(_common(flags)))
        _compile((*compiler, "-shared", str(path), "-o", str(library)))
        return library.read_bytes()

    own = {file.path: file.text for file in files} | {"src/kernels.cpp": source}
    parts = (part for pair in included("src/kernels.cpp", {**texts, **own}, ("",)) for part in pair)
    library.write_bytes(kept((_version(), *_COMPILER, *flags, _COMMON, *parts), make))
    return ctypes.CDLL(str(library))


def build(plan: KernelPlan, fused: FusedKernels, folder: Path, flags: Sequence[str] = ()) -> dict[str, Kernel]:
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
    library = _library(source, own, folder, tuple(flags))
    return {
        name: Kernel(programs[name], as_run(name, loops[name]), schedule, library, unit.name, fused.head_dim)
        for (name, schedule), unit in zip(fused.kernels, bundle.device_units, strict=True)
    }


class EmulatedCase(Case):
    """The loop runs by emulated kernels, whose `dtype` is that of the problem."""

    def __init__(self, loop: Loop, problem: Problem, kernels: Mapping[str, Kernel], seed: int = 0) -> None:
        super().__init__(loop, problem, seed)
        self.kernels, self.seed = kernels, seed
        # A GPU has lengths in place of the stream that says which steps are an entry's own.
        self.lengths = torch.randint(problem.steps + 1, (problem.batch,))
        for index, stream in enumerate(loop.segment.streams):
            if stream.name == "active__":
                own = torch.arange(problem.steps).unsqueeze(1) < self.lengths
                self.streams[index] = own.unsqueeze(-1).double()

    def measured(self) -> dict[str, float]:
        """The relative error of everything that a call makes."""
        return self.errors(next(iter(self.kernels.values())).library, "")

    def _call(self, library: ctypes.CDLL, direction: str, isa: str, tables: Sequence[Tensors]) -> None:
        training = direction == "backward" or any(tensor is not None for tensor in tables[5])
        kernel = self.kernels[f"{self.loop.name}_{direction if training else 'inference'}"]
        _Call(self, kernel, direction, tables).run()


class _Call:
    """One call of a kernel. It holds copies of the tensors in the dtypes that a GPU's have."""

    def __init__(self, case: EmulatedCase, kernel: Kernel, direction: str, tables: Sequence[Tensors]) -> None:
        self.case, self.kernel, self.direction = case, kernel, direction
        self.given = {Table[name]: list(table) for name, table in zip(_TABLES[direction], tables, strict=True)}
        self.given[Table.ROUNDED] = self.given[Table.SAVED]
        self.copies: dict[tuple[Table, int], Tensor] = {}
        self.records: dict[str, Tensor] = {}
        self.guards: list[Tensor] = []
        self.descending = case.problem.reverse != (direction == "backward")
        self.dtype = case.problem.dtype

    def run(self) -> None:
        case, problem = self.case, self.case.problem
        schedule = self.kernel.schedule
        group = schedule.group_batch or problem.batch
        ctas = -(-problem.batch // group) * problem.heads * schedule.ctas
        parameter = self._parameter(group)
        assert len(parameter) <= self.kernel.parameter_bytes
        memory = ctypes.create_string_buffer(parameter, self.kernel.parameter_bytes)
        cluster = schedule.ctas if schedule.family.scope is Scope.CLUSTER else 1
        self.kernel.run(ctas, cluster, case.seed, memory)
        assert all((guard == _GUARD).all() for guard in self.guards), "a kernel wrote beside a tensor"
        for (table, index), copy in self.copies.items():
            given = self.given[table][index]
            if given is not None:
                given.copy_(copy)
        if self.direction == "backward":
            self._after()

    def _tensor(self, table: Table, index: int) -> Tensor | None:
        """A copy of a tensor of the call, in the dtype that a GPU has it in."""
        given = self.given[table][index]
        if given is None:
            return None
        key = (Table.SAVED if table is Table.ROUNDED else table, index)
        if key not in self.copies:
            dtype = torch.float32 if table is Table.SAVED else self.dtype
            self.copies[key] = self._guarded(given.to(dtype))
        return self.copies[key]

    def _guarded(self, values: Tensor) -> Tensor:
        """A copy between numbers that a kernel must not change."""
        memory = torch.full((values.numel() + 2 * _GUARDS,), _GUARD, dtype=values.dtype)
        self.guards += [memory[:_GUARDS], memory[-_GUARDS:]]
        return memory[_GUARDS:-_GUARDS].view(values.shape).copy_(values)

    def _place(self, place: Place, *, ahead: bool = False) -> bytes:
        tensor = self._tensor(place.table, place.index)
        return _NOWHERE if tensor is None else self._along(tensor, self.case.evaluate(place.offset), ahead)

    def _along(self, tensor: Tensor, offset: int, ahead: bool = False) -> bytes:
        size, (step, entry, _) = tensor.element_size(), tensor.stride()
        first = tensor.shape[0] - 1 if self.descending else 0
        step_bytes = (-step if self.descending else step) * size
        base = tensor.data_ptr() + (first * step + offset) * size + ahead * step_bytes
        return struct.pack("<qqq", base, step_bytes, entry * size)

    def _edge(self, place: Place | None) -> bytes:
        tensor = None if place is None else self._tensor(place.table, place.index)
        if tensor is None:
            return _NO_EDGE
        return struct.pack(
            "<qqii", tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), tensor.dtype == torch.float32, 0
        )

    def _write(self, write: FusedWrite) -> bytes:
        """A tensor of the call, or the record of a slot: parts of a value lie side by side in it."""
        if write.place is not None:
            return self._place(write.place)
        problem, width = self.case.problem, self.case.width(write.slot)
        shape = (problem.steps, problem.batch, width)
        if write.slot not in self.records:
            self.records[write.slot] = self._guarded(torch.full(shape, float("nan"), dtype=self.dtype))
        return self._along(
            self.records[write.slot], write.part * self.case.evaluate(self.kernel.loop.widths[write.width])
        )

    def _parameter(self, group: int) -> bytes:
        case, problem, loop = self.case, self.case.problem, self.kernel.loop
        program = self.kernel.program
        names = list(program.constants)
        values = dict(zip(names, case.constants, strict=False))
        constants = [values[name] for name in loop.constants]
        constants += [0.0] * ((max(1, len(constants)) + 1) // 2 * 2 - len(constants))
        packed = struct.pack("<iiii", problem.steps, problem.batch, problem.heads, group)
        head_dims = [case.evaluate(width) // problem.heads for width in loop.widths]
        head_dims += [0] * (len(head_dims) % 2)
        packed += struct.pack(f"<{len(head_dims)}i", *head_dims)
        lengths = case.lengths.data_ptr() if program.masked else 0
        packed += struct.pack("<qqq", 0, problem.steps * problem.batch, lengths)
        packed += struct.pack(f"<{len(constants)}f", *constants)
        packed += b"".join(_at_least_one(part, empty) for part, empty in self._tensors())
        return packed

    def _tensors(self) -> Iterator[tuple[list[bytes], bytes]]:
        case, problem, loop = self.case, self.case.problem, self.kernel.loop
        known = {matrix.name: matrix for matrix in self.kernel.program.matrices}
        pointers = []
        for row in (row for phase in loop.phases for row in phase.matrices):
            for own in row:
                if not isinstance(own, MatrixPart):
                    pointers.append(struct.pack("<q", 0))
                    continue
                matrix = known[own.name]
                weight = self._tensor(Table.WEIGHTS, matrix.index)
                assert weight is not None
                first = case.evaluate(matrix.offset) + own.part * case.evaluate(matrix.rows) // matrix.parts
                at = weight.data_ptr() + first * weight.shape[1] * weight.element_size()
                pointers.append(struct.pack("<q", at))
        yield pointers, struct.pack("<q", 0)
        yield [struct.pack("<q", self.descending)], b""
        yield [self._place(read.place, ahead=read.edge is not None) for read in loop.reads], _NOWHERE
        yield [_NO_EDGE if read.edge is None else self._edge(read.edge) for read in loop.reads], _NO_EDGE
        yield [self._place(row.place) for row in loop.rows], _NOWHERE
        yield (
            [self._write(w) for w in (*loop.writes, *loop.row_writes)],
            _NOWHERE,
        )
        yield [self._edge(edge.place) for edge in loop.edges], _NO_EDGE
        yield [self._edge(edge.last) for edge in loop.edges], _NO_EDGE
        yield [self._vector(vector) for vector in loop.vectors], _NO_EDGE
        self.exchange = torch.empty(0)
        schedule = self.kernel.schedule
        if schedule.slots is not None:
            group = schedule.group_batch or 1
            places = -(-problem.batch // group) * group * problem.heads
            operands = loop.operands * self.kernel.head_dim * self.dtype.itemsize
            self.exchange = torch.full((schedule.slots, places, operands), 0xFF, dtype=torch.uint8)
        elif schedule.family.scope is Scope.GRID:
            depth = -(-self.kernel.head_dim // 32) * 32
            sources = -(-self.kernel.head_dim // 32) * 16
            reductions = sum(len(phase.reduced) for phase in loop.phases)
            head = loop.operands * depth * self.dtype.itemsize + reductions * sources
            self.exchange = torch.full((problem.steps, problem.batch, problem.heads * head), 0xFF, dtype=torch.uint8)
        step, entry = (*self.exchange.stride(), 0, 0)[:2]
        yield [struct.pack("<qqq", self.exchange.data_ptr(), step, entry)], b""

    def _vector(self, vector: FusedVector) -> bytes:
        weight = self._tensor(Table.WEIGHTS, vector.place.index)
        assert weight is not None
        first = self.case.evaluate(vector.place.offset) * (weight.shape[1] if vector.matrix else 1)
        at = weight.data_ptr() + first * weight.element_size()
        return struct.pack("<qqii", at, not vector.scalar, weight.dtype == torch.float32, 0)

    def _after(self) -> None:
        """Sums over all heads, and the gradients of weights, from what the loop wrote."""
        program, heads = self.kernel.program, self.case.problem.heads
        for late in self.kernel.loop.late_sums:
            (slot,) = (slot for slot in program.slots if slot.name == late.slot)
            assert isinstance(slot, StoredSlot)
            for place in slot.destinations:
                given, offset = self.given[place.table][place.index], self.case.evaluate(place.offset)
                assert given is not None
                given[..., offset] = self.records[late.terms].double().sum(-1).to(given)
        written = {w.slot: w.place for w in self.kernel.loop.writes if not w.part}
        offsets: dict[int, list[tuple[int, Tensor]]] = {}
        known = {matrix.name: matrix for matrix in program.matrices}
        for outer in program.outers:
            matrix = known[outer.matrix]
            cotangent = self._sequence(outer.cotangent, written).double()
            operand = self._sequence(outer.operand, written).double()
            # Rows lie as [parts, heads, ...], and each head's rows meet its own columns.
            shape = (*cotangent.shape[:2], matrix.parts, heads, -1)
            rows = torch.einsum(
                "tbpnu,tbnk->pnuk", cotangent.reshape(shape), operand.reshape(*operand.shape[:2], heads, -1)
            )
            offsets.setdefault(matrix.index, []).append((self.case.evaluate(matrix.offset), rows.flatten(0, 2)))
        for total in program.sums:
            value = self._sequence(total.slot, written).double().sum((0, 1))
            width = self.case.evaluate(total.width)
            value = value if len(value) == width else value.sum().expand(width)
            offsets.setdefault(total.place.index, []).append((self.case.evaluate(total.place.offset), value))
        for zero in (zero for zero in program.zeros if zero.place.table is Table.D_WEIGHTS):
            offsets.setdefault(zero.place.index, [])
        for index, parts in offsets.items():
            given = self.given[Table.D_WEIGHTS][index]
            assert given is not None
            given.zero_()
            for offset, part in parts:
                rows = given[offset : offset + len(part)]
                rows += part.reshape(rows.shape).to(rows)

    def _sequence(self, slot: str, written: Mapping[str, Place | None]) -> Tensor:
        """The values of a slot at all steps."""
        if slot in self.records:
            return self.records[slot]
        place = written.get(slot)
        if place is None:
            found = next(s for s in self.kernel.program.slots if s.name == slot)
            if isinstance(found, EdgeSlot):
                return self._shifted(found)
            assert isinstance(found, ReadSlot | StoredSlot)
            place = found.place if isinstance(found, ReadSlot) else found.destinations[0]
        tensor = self._tensor(place.table, place.index)
        assert tensor is not None
        width, offset = self.case.width(slot), self.case.evaluate(place.offset)
        return tensor[..., offset : offset + width]

    def _shifted(self, slot: EdgeSlot) -> Tensor:
        """The values one step ahead in the order of the loop, and at its end the edge."""
        linked = next(s for s in self.kernel.program.slots if s.name == slot.link)
        sequence = self._sequence(linked.name, {})
        edge = self._tensor(slot.place.table, slot.place.index)
        assert edge is not None
        edge = edge.to(sequence).unsqueeze(0)
        earlier = self.descending == slot.ahead
        return torch.cat((edge, sequence[:-1])) if earlier else torch.cat((sequence[1:], edge))


_NOWHERE = struct.pack("<qqq", 0, 0, 0)
_NO_EDGE = struct.pack("<qqii", 0, 0, 0, 0)


def _at_least_one(parts: list[bytes], empty: bytes) -> bytes:
    return b"".join(parts) if parts else empty
