"""A loop's entry points against the float64 interpreter and torch's autograd: outputs, final states, every gradient."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rnncc.analysis.recurrent import CLIP, loop_constants, recurrent_reads, with_aliases
from rnncc.analysis.untrained import untrained
from rnncc.ir.cell import Role, Stream, Value, is_per_sequence, operands, value_table
from rnncc.ir.dim import HEADS, ONE, Dim, evaluate
from rnncc.ir.structure import diagonal_blocks
from rnncc.runtime.eager.elementwise import clip_gradient
from rnncc.runtime.spec import number_of
from rnncc.verify.reference import Interpreter, complete_sizes
from tests.numeric.loops import Loop, Tensors, call

MASKS = ("reset__", "active__")


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes and layout of one comparison. `batch_first`: streams and sequences are views of [B, T, …]. `partial`: some
    sequences, gradients and final states are not given or wanted. `clip`: of the recurrent gradient."""

    steps: int
    batch: int
    sizes: Mapping[str, int]
    heads: int = 1
    dtype: torch.dtype = torch.float32
    reverse: bool = False
    batch_first: bool = False
    partial: bool = False
    clip: float = math.inf


def heads_fit(loop: Loop, sizes: Mapping[str, int], heads: int) -> bool:
    """Whether every width that heads share divides by their number."""
    known = {**complete_sizes(loop.cell, sizes, heads), "num_heads": heads}
    segment = loop.segment
    names = {name for node in segment.nodes for name in (node.target, *operands(node))} - set(segment.constants)
    table = value_table(loop.cell)
    matrices = [table[name] for name in sorted(names) if table[name].columns is not None]
    widths = [table[name].width for name in names] + [value.columns for value in matrices if value.columns is not None]
    return all(evaluate(width, known) % heads == 0 for width in widths if width not in (ONE, HEADS))


# Cells that divide by what is positive where their equations make it: the time since the step before, sums of squares.
DIVIDES_BY_STREAMS = ("LTC_Pairs", "RWKV7", "Titans")


def lies_once(tensor: Tensor) -> bool:
    """Whether a tensor [T, B, width] has one step in memory, for all steps."""
    return tensor.shape[0] > 1 and tensor.stride(0) == 0


class Case:
    """Random tensors of a loop, what the interpreter makes of them, and what the kernel does."""

    def __init__(self, loop: Loop, problem: Problem, seed: int = 0) -> None:
        self.loop, self.problem = loop, problem
        self.values: dict[str, Value] = value_table(loop.cell) | {value.name: value for value in loop.adjoint.values}
        self.sizes = complete_sizes(loop.cell, problem.sizes, problem.heads)
        members = (member for parameter in loop.cell.parameters for member in parameter.members)
        self.starts = {member.name: member.initialiser for member in members}
        self.compute = torch.float64 if problem.dtype == torch.float64 else torch.float32
        torch.manual_seed(seed)
        segment = loop.segment
        self.streams = [self._stream(stream) for stream in segment.streams]
        self.weights = [self._weight(weight.members) for weight in segment.weights]
        fixed = untrained(loop.cell)
        self.trained = [not fixed.issuperset(weight.members) for weight in segment.weights]
        # Positive, because some cells divide by a state.
        self.states = [
            self._rounded(0.1 + 0.8 * torch.rand(problem.batch, self.width(name))) for name in segment.states
        ]
        self.constants = [self._constant(name) for name in loop_constants(segment)]
        skipped = problem.partial
        self.given = [not (skipped and index % 2) for index in range(len(segment.sequences))]
        self.d_sequences = [
            self._rounded(torch.randn(problem.steps, problem.batch, self.width(name))) for name in segment.sequences
        ]
        self.d_final = [self._rounded(torch.randn(problem.batch, self.width(name))) for name in segment.states]
        self.given_final = [not (skipped and index % 2 == 0) for index in range(len(segment.states))]

    def width(self, name: str) -> int:
        """Elements of a value (rows of a matrix)."""
        return self.evaluate(self.values[name].width)

    def evaluate(self, dim: Dim) -> int:
        """The value of a dim."""
        return evaluate(dim, {**self.sizes, "num_heads": self.problem.heads})

    def _rounded(self, tensor: Tensor) -> Tensor:
        """Float64 numbers that the dtype can hold."""
        return tensor.to(self.problem.dtype).double()

    def _stream(self, stream: Stream) -> Tensor:
        """A stream; one that is the same at all steps lies in memory once."""
        shape, members = (self.problem.steps, self.problem.batch), stream.members
        if members[0] in MASKS:
            return (torch.rand(*shape, 1) < (0.3 if members[0] == "reset__" else 0.8)).double()
        width, once = sum(self.width(name) for name in members), is_per_sequence(stream, self.values)
        low = 0.5 if self.loop.cell.name in DIVIDES_BY_STREAMS else -0.9
        made = self._rounded(low + (0.9 - low) * torch.rand(1 if once else shape[0], shape[1], width))
        return made.expand(*shape, width)

    def _weight(self, members: tuple[str, ...]) -> Tensor:
        rows = sum(self.width(name) for name in members)
        first = self.values[members[0]]
        if first.columns is None:
            # Of what the prologue makes RGLRU's is the logarithm of a decay.
            sign = 1 if first.role is Role.PARAMETER else -1
            return self._rounded(sign * (0.3 + 0.4 * torch.rand(rows)))
        columns = self.evaluate(first.columns) // self.evaluate(diagonal_blocks(first.structure))
        start = self.starts.get(members[0])
        if start is not None and start.kind == "uniform":
            # What the cell divides by may be positive between these bounds alone, as LTC's.
            low, high = start.values
            return self._rounded(low + (high - low) * torch.rand(rows, columns))
        return self._rounded(0.6 * torch.randn(rows, columns) / columns**0.5)

    def _constant(self, name: str) -> float:
        if name == CLIP.name:
            return self.problem.clip
        # A function that a constant names is part of the loop already.
        numbers = [each for each in self.loop.cell.constants if not isinstance(each.value, str)]
        known = {each.name: float(each.value) for each in numbers}
        return number_of(name, known, {**self.sizes, "num_heads": self.problem.heads})

    def laid_out(self, *, batch_first: bool) -> Case:
        """The same tensors and reference, in that layout."""
        other = copy(self)
        other.problem = replace(self.problem, batch_first=batch_first)
        return other

    @cached_property
    def reference(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Sequences, final states, and the gradients of streams, weights and states (zeros where none flows)."""
        return self.evaluated(torch.float64)

    def evaluated(self, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The same, computed in a dtype."""
        problem, segment = self.problem, self.loop.segment
        given_tensors = (*self.streams, *self.weights, *self.states)
        leaves = [tensor.contiguous().to(dtype, copy=True).requires_grad_() for tensor in given_tensors]
        streams = leaves[: len(self.streams)]
        weights = leaves[len(self.streams) : len(self.streams) + len(self.weights)]
        products = recurrent_reads(segment)
        values = with_aliases(self.values, products.aliases)
        machine = Interpreter(values, self.sizes, problem.heads, torch.zeros((), dtype=dtype))
        fixed = {
            name: torch.tensor([value], dtype=dtype)
            for name, value in zip(loop_constants(segment), self.constants, strict=True)
        }
        for weight, tensor, trained in zip(segment.weights, weights, self.trained, strict=True):
            fixed |= self._split(weight.members, tensor if trained else tensor.detach(), 0)
        states = dict(zip(segment.states, leaves[len(leaves) - len(self.states) :], strict=True))
        sequences: dict[str, list[Tensor]] = {name: [] for name in segment.sequences}
        order = range(problem.steps)
        for t in reversed(order) if problem.reverse else order:
            known = dict(fixed)
            for stream, tensor in zip(segment.streams, streams, strict=True):
                known |= self._split(stream.members, tensor[t], -1)
            known |= {f"{name}__1": value for name, value in states.items()}
            for node in products.nodes:
                if node.target in products.aliases:
                    known[node.target] = clip_gradient(known[products.aliases[node.target]], problem.clip)
                    continue
                known[node.target] = machine.node(node, known).expand(problem.batch, self.width(node.target))
            states = {name: known[name] for name in states}
            for name, found in sequences.items():
                found.append(known[name])
        empty = [torch.zeros(0, problem.batch, self.width(name), dtype=dtype) for name in sequences]
        outputs = [
            torch.stack(found[::-1] if problem.reverse else found) if found else empty[index]
            for index, found in enumerate(sequences.values())
        ]
        loss = torch.zeros((), dtype=torch.float64)
        for output, d, given in zip(outputs, self.d_sequences, self.given, strict=True):
            loss = loss + (output * d).sum() * given
        for state, d, given in zip(states.values(), self.d_final, self.given_final, strict=True):
            loss = loss + (state * d).sum() * given
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        flat = [torch.zeros_like(leaf) if d is None else d for leaf, d in zip(leaves, gradients, strict=True)]
        return [output.detach() for output in outputs], [state.detach() for state in states.values()], flat

    def _split(self, members: tuple[str, ...], tensor: Tensor, axis: int) -> dict[str, Tensor]:
        pieces = torch.split(tensor, [self.width(name) for name in members], axis)
        return dict(zip(members, pieces, strict=True))

    def _input(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if tensor.dim() == 3 and lies_once(tensor):
            return self._input(tensor[:1], dtype).expand(tensor.shape)
        given = tensor.to(dtype)
        if self.problem.batch_first and given.dim() == 3:
            return given.transpose(0, 1).contiguous().transpose(0, 1)
        return given.contiguous()

    def _output(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A poisoned buffer."""
        return self._input(torch.full(shape, float("nan")), dtype)

    def _call(self, library: ctypes.CDLL, direction: str, isa: str, tables: Sequence[Tensors]) -> None:
        file = ("f64" if self.compute == torch.float64 else "f32") + "_masked" * self.loop.masked
        problem = self.problem
        shape = (problem.steps, problem.batch, problem.heads)
        sizes = [self.sizes["I"], self.sizes["H"], *(self.sizes[size.name] for size in self.loop.cell.sizes)]
        entry = library[f"{self.loop.name}_{direction}_{isa}_{file}"]
        assert call(entry, shape, sizes, self.constants, problem.reverse, tables) == 0

    def kernel(self, library: ctypes.CDLL, isa: str) -> tuple[list[Tensor | None], list[Tensor], list[Tensor | None]]:
        """The same from the kernel; None where not given or not wanted."""
        problem, segment, adjoint = self.problem, self.loop.segment, self.loop.adjoint
        dtype, flat = problem.dtype, (problem.steps, problem.batch)
        masked = [stream.name in MASKS for stream in segment.streams]
        streams = [
            self._input(tensor, self.compute if mask else dtype)
            for tensor, mask in zip(self.streams, masked, strict=True)
        ]
        weights = [self._input(tensor, dtype) for tensor in self.weights]
        states = [self._input(tensor, dtype) for tensor in self.states]
        sequences = [
            self._output((*flat, self.width(name)), dtype) if given else None
            for name, given in zip(segment.sequences, self.given, strict=True)
        ]
        final = [self._output((problem.batch, self.width(name)), dtype) for name in segment.states]
        saved = [
            self._output((*flat, self.width(name)), self.compute) for name in (*adjoint.saved, *adjoint.saved_states)
        ]
        tables: list[Tensors] = [streams, weights, states, sequences, final, saved]
        self._call(library, "forward", isa, tables)
        bare = [self._output(tuple(tensor.shape), dtype) if tensor is not None else None for tensor in sequences]
        bare_final = [self._output(tuple(tensor.shape), dtype) for tensor in final]
        tables = [streams, weights, states, bare, bare_final, [None] * len(saved)]
        self._call(library, "forward", isa, tables)
        for training, inference in zip((*sequences, *final), (*bare, *bare_final), strict=True):
            assert training is None or inference is None or torch.equal(training, inference)
        d_sequences = [
            self._input(d, dtype) if given else None for d, given in zip(self.d_sequences, self.given, strict=True)
        ]
        d_final = [
            self._input(d, dtype) if given else None for d, given in zip(self.d_final, self.given_final, strict=True)
        ]
        d_streams = [
            None if mask else self._output(tuple(tensor.shape), dtype)
            for tensor, mask in zip(self.streams, masked, strict=True)
        ]
        d_weights = [
            self._output(tuple(tensor.shape), dtype) if trained else None
            for tensor, trained in zip(self.weights, self.trained, strict=True)
        ]
        d_states = [self._output(tuple(tensor.shape), dtype) for tensor in self.states]
        tables = [streams, weights, states, saved, d_sequences, d_final, d_streams, d_weights, d_states]
        self._call(library, "backward", isa, tables)
        return sequences, final, [*d_streams, *d_weights, *d_states]

    def errors(self, library: ctypes.CDLL, isa: str) -> dict[str, float]:
        """The relative error of everything that was asked for."""
        return self.distances(self.kernel(library, isa))

    def eager_errors(self) -> dict[str, float]:
        """The relative errors of an eager loop in the problem's dtype."""
        return self.distances(self.evaluated(self.problem.dtype))

    def distances(self, found: tuple[Tensors, Tensors, Tensors]) -> dict[str, float]:
        """‖found - reference‖ / ‖reference‖ of everything that was found (an absolute distance below 1e-3)."""
        segment = self.loop.segment
        expected = self.reference
        names: tuple[tuple[str, ...], ...] = (
            segment.sequences,
            tuple(f"{name} final" for name in segment.states),
            tuple(
                f"d_{name}"
                for name in (
                    *(stream.name for stream in segment.streams),
                    *(weight.name for weight in segment.weights),
                    *segment.states,
                )
            ),
        )
        errors = {}
        for group, labels in enumerate(names):
            for label, our, their in zip(labels, found[group], expected[group], strict=True):
                if our is not None and their.numel():
                    # Equal infinities (a state that restarts at -inf) are no error.
                    wrong = torch.where(our.double() == their, 0, our.double() - their)
                    size = torch.where(their.isinf(), 0, their).norm()
                    errors[label] = float(wrong.norm() / max(float(size), 0.1))
        return errors
