"""Fused kernels run on the CPU thread by thread (device.h), in place of a loop's entry points."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rnncc.ir.fused import FusedVector, FusedWrite, MatrixPart
from rnncc.ir.kernel import StoredSlot
from rnncc.ir.step import Edge, Place, Read, Table
from rnncc.stages.schedule.cost import cost_of
from tests.numeric.compare import Case, Problem, lies_once
from tests.numeric.loops import Loop, Tensors

# How many numbers lie before and after each tensor, and which.
_GUARDS, _GUARD = 1024, 96.0
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_TABLES = {
    "forward": ("STREAMS", "WEIGHTS", "STATES", "SEQUENCES", "FINAL", "SAVED"),
    "backward": (
        "STREAMS", "WEIGHTS", "STATES", "SAVED", "D_SEQUENCES", "D_FINAL", "D_STREAMS", "D_WEIGHTS", "D_STATES",
    ),
}  # fmt: skip


class EmulatedCase(Case):
    """The loop runs by emulated kernels, whose `dtype` is that of the problem."""

    def __init__(self, loop: Loop, problem: Problem, kernels: Mapping[str, Any], seed: int = 0) -> None:
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
        Call(self, kernel, direction, tables).run()


class Call:
    """One call of a kernel (compiled.py). It holds copies of the tensors in the dtypes that a GPU's have."""

    def __init__(self, case: EmulatedCase, kernel: Any, direction: str, tables: Sequence[Tensors]) -> None:
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
        self.kernel.run(ctas, schedule.cluster, case.seed, memory)
        self.give_back()

    def give_back(self) -> None:
        """Copy what a kernel wrote to the tensors of the call, and do the work after it."""
        assert all((guard == _GUARD).all() for guard in self.guards), "a kernel wrote beside a tensor"
        for (table, index), copy in self.copies.items():
            given = self.given[table][index]
            if given is not None and not (given.dim() == 3 and lies_once(given)):
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
            once = given.dim() == 3 and lies_once(given)
            copy = self._guarded((given[:1] if once else given).to(dtype))
            self.copies[key] = copy.expand(given.shape)
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
        names = list(program.step.constants)
        values = dict(zip(names, case.constants, strict=False))
        constants = [values[name] for name in loop.constants]
        constants += [0.0] * ((max(1, len(constants)) + 1) // 2 * 2 - len(constants))
        packed = struct.pack("<iiii", problem.steps, problem.batch, problem.heads, group)
        head_dims = [case.evaluate(width) // problem.heads for width in loop.widths]
        head_dims += [0] * (len(head_dims) % 2)
        packed += struct.pack(f"<{len(head_dims)}i", *head_dims)
        lengths = case.lengths.data_ptr() if program.step.masked else 0
        packed += struct.pack("<qqq", 0, problem.steps * problem.batch, lengths)
        packed += struct.pack(f"<{len(constants)}f", *constants)
        packed += b"".join(_at_least_one(part, empty) for part, empty in self._tensors())
        return packed

    def _tensors(self) -> Iterator[tuple[list[bytes], bytes]]:
        case, problem, loop = self.case, self.case.problem, self.kernel.loop
        known = {matrix.name: matrix for matrix in self.kernel.program.step.matrices}
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
        if schedule.exchange_steps is not None:
            group = schedule.group_batch or 1
            places = -(-problem.batch // group) * group * problem.heads
            terms = cost_of(loop, "bf16").exchanged_terms(self.kernel.head_dim, schedule.relayed_head_dim)
            reductions = sum(len(phase.reduced) for phase in loop.phases)
            held = terms * self.dtype.itemsize + reductions * -(-self.kernel.head_dim // 32) * 16
            self.exchange = self._exchange(min(schedule.exchange_steps, problem.steps), places * held)
        step = self.exchange.stride(0)
        yield [struct.pack("<qqq", self.exchange.data_ptr(), step, 0)], b""

    def _exchange(self, *shape: int) -> Tensor:
        """The memory by which the CTAs of a grid send each other values, before any of them has arrived."""
        return self._guarded(torch.full(shape, 0xFF, dtype=torch.uint8))

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
        known = {matrix.name: matrix for matrix in program.step.matrices}
        for outer in program.step.outers:
            matrix = known[outer.matrix]
            cotangent = self._sequence(outer.cotangent, written).double()
            operand = self._sequence(outer.operand, written).double()
            # Rows lie as [parts, heads, ...], and each head's rows meet its own columns.
            shape = (*cotangent.shape[:2], matrix.parts, heads, -1)
            rows = torch.einsum(
                "tbpnu,tbnk->pnuk", cotangent.reshape(shape), operand.reshape(*operand.shape[:2], heads, -1)
            )
            offsets.setdefault(matrix.index, []).append((self.case.evaluate(matrix.offset), rows.flatten(0, 2)))
        for total in program.step.sums:
            value = self._sequence(total.value, written).double().sum((0, 1))
            width = self.case.evaluate(total.width)
            value = value if len(value) == width else value.sum().expand(width)
            offsets.setdefault(total.place.index, []).append((self.case.evaluate(total.place.offset), value))
        for zero in (zero for zero in program.step.zeros if zero.place.table is Table.D_WEIGHTS):
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
            if isinstance(found, Edge):
                return self._shifted(found)
            assert isinstance(found, Read | StoredSlot)
            place = found.place if isinstance(found, Read) else found.destinations[0]
        tensor = self._tensor(place.table, place.index)
        assert tensor is not None
        width, offset = self.case.width(slot), self.case.evaluate(place.offset)
        return tensor[..., offset : offset + width]

    def _shifted(self, slot: Edge) -> Tensor:
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
