"""Evaluates a Cell in eager torch, one step after the other: the oracle for tests and for `verify`.

Input: a Cell, its parameters by member, inputs, initial states. Output: every value as a sequence, and final states,
in the dtype of the inputs, differentiable by torch.autograd. Written to be read, not to be fast.
Fails with: KeyError where a parameter, input or size is missing; InternalError for a malformed Cell.

Layout: a value of width k*base under N heads is [..., k, N, base/N], flattened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import torch
from torch import Tensor

from rnncc.analysis.recurrent import recurrent_reads, with_aliases
from rnncc.ir.cell import (
    Cell,
    Contraction,
    Delay,
    Node,
    Pointwise,
    RowOp,
    State,
    Value,
    declared_state,
    value_table,
)
from rnncc.ir.dim import HEADS, ONE, Dim, Grid, evaluate, repeats_whole, split_multiple
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.diagnostics import InternalError
from rnncc.language.operators import OPERATORS
from rnncc.runtime.eager import elementwise, matrices
from rnncc.verify.rows import of_matrices, row_of_heads, start


def _torch_function(name: str) -> Callable[..., Tensor]:
    """The operator table's torch text as a function of tensors."""
    row = OPERATORS[name]
    letters = [f"a{position}" for position in range(row.arity)]
    text = f"lambda {', '.join(letters)}: {row.torch.format(*letters)}"
    function: Callable[..., Tensor] = eval(text, {"torch": torch, "f": elementwise, "m": matrices})
    return function


FUNCTIONS: dict[str, Callable[..., Tensor]] = {name: _torch_function(name) for name in OPERATORS}


class Interpreter:
    """Evaluates nodes on tensors [..., width] (matrices: [width, columns/blocks], as `Value` says).

    values     every value that the nodes name
    sizes      I, H and the declared dims
    like       gives dtype and device of numbers
    """

    def __init__(self, values: Mapping[str, Value], sizes: Mapping[str, int], num_heads: int, like: Tensor) -> None:
        self.values = values
        self.sizes = {**sizes, "num_heads": num_heads}
        self.heads = num_heads
        self.like = like

    def width(self, name: str) -> int:
        """The number of elements of a value (rows of a matrix)."""
        return evaluate(self.values[name].width, self.sizes)

    def number(self, value: float) -> Tensor:
        """A tensor without dimensions."""
        return torch.tensor(value, dtype=self.like.dtype, device=self.like.device)

    def node(self, node: Node, known: Mapping[str, Tensor]) -> Tensor:
        """The node's value from those of its operands."""
        match node:
            case Pointwise(target, expr):
                if self.values[target].columns is not None:
                    return self._matrix_pointwise(target, expr, known)
                return self.pointwise(self.values[target].width, expr, known)
            case Contraction():
                return self._contraction(node, known)
            case RowOp():
                return self._row(node, known)
            case Delay():
                raise InternalError(f"the delay {node.target} is no function of one step")
            case _:
                assert_never(node)

    def expression(self, expr: Expr, look: Callable[[str], Tensor]) -> Tensor:
        """An expression, where `look` gives values that broadcast against each other."""
        match expr:
            case Const(value):
                return self.number(value)
            case Ref(name):
                return look(name)
            case Apply("norm", (matrix,)):
                return matrices.norm(self.expression(matrix, look), self.heads)
            case Apply(operator, arguments):
                return FUNCTIONS[operator](*(self.expression(argument, look) for argument in arguments))
            case _:
                assert_never(expr)

    def pointwise(self, width: Dim, expr: Expr, known: Mapping[str, Tensor]) -> Tensor:
        """An expression as a value of this width. Values with one number per head broadcast over the head."""
        size = evaluate(width, self.sizes)
        if isinstance(expr, Apply) and expr.operator == "norm":
            (matrix,) = references(expr)
            return matrices.norms(self.to_blocks(matrix, known[matrix]), self.heads)
        if isinstance(expr, Apply) and expr.operator == "entries":
            (matrix,) = references(expr)
            return self.to_blocks(matrix, known[matrix]).flatten()
        if width == HEADS or all(self.values[name].width != HEADS for name in references(expr)):
            result = self.expression(expr, lambda name: known[name])
            return result.expand(*result.shape[:-1], size) if result.dim() else result.expand(size)

        def look(name: str) -> Tensor:
            own = self.values[name].width
            # Widths that are equal may be packed in other ways, as 2*H and H + I are: then there is one head.
            return self._cut(known[name], own if own in (ONE, HEADS) else width)

        result = self.expression(expr, look)
        k, head_dim = self._packed(width)
        return result.expand(*result.shape[:-3], k, self.heads, head_dim).flatten(-3)

    def matrix_blocks(self, name: str) -> int:
        """The number of blocks of a matrix."""
        return evaluate(diagonal_blocks(self.values[name].structure), self.sizes)

    def to_blocks(self, name: str, matrix: Tensor) -> Tensor:
        """[width, columns/blocks] -> [blocks, width/blocks, columns/blocks]."""
        blocks = self.matrix_blocks(name)
        k, base = split_multiple(self.values[name].width)
        head_dim = evaluate(base, self.sizes) // blocks
        return matrix.reshape(k, blocks, head_dim, -1).transpose(0, 1).reshape(blocks, k * head_dim, -1)

    def from_blocks(self, name: str, matrix: Tensor) -> Tensor:
        """The inverse of `to_blocks`."""
        blocks = self.matrix_blocks(name)
        k, base = split_multiple(self.values[name].width)
        head_dim = evaluate(base, self.sizes) // blocks
        return matrix.reshape(blocks, k, head_dim, -1).transpose(0, 1).reshape(k * blocks * head_dim, -1)

    def part(self, target: str, expr: Expr, known: Mapping[str, Tensor]) -> Tensor:
        """A part of the expression of `target`: of matrices in their blocks, whatever their shape."""
        if self.values[target].columns is None:
            return self.node(Pointwise(target, expr), known)
        return self._in_blocks(target, expr, known)

    def _matrix_pointwise(self, target: str, expr: Expr, known: Mapping[str, Tensor]) -> Tensor:
        return self.from_blocks(target, self._in_blocks(target, expr, known))

    def _in_blocks(self, target: str, expr: Expr, known: Mapping[str, Tensor]) -> Tensor:
        blocks = self.matrix_blocks(target)

        def look(name: str) -> Tensor:
            value = self.values[name]
            if value.columns is not None:
                return self.to_blocks(name, known[name])
            if value.width == ONE:
                return known[name]
            if value.width == HEADS:
                return matrices.per_block(known[name], max(blocks, self.heads))
            return self.blocked(known[name], value.width, blocks)

        return self.expression(expr, look)

    def _contraction(self, node: Contraction, known: Mapping[str, Tensor]) -> Tensor:
        value = self.values[node.matrix]
        assert value.columns is not None
        matrix = self.to_blocks(node.matrix, known[node.matrix])
        source, result = (value.width, value.columns) if node.transposed else (value.columns, value.width)
        operand = self.blocked(known[node.operand], source, matrix.shape[0])
        equation = "noi,...no->...ni" if node.transposed else "noi,...ni->...no"
        return self.unblocked(torch.einsum(equation, matrix, operand), result, matrix.shape[0])

    def _row(self, node: RowOp, known: Mapping[str, Tensor]) -> Tensor:
        result, operand = self.width(node.target), known[node.operands[0]]
        widths = self.values[node.operands[0]].width, self.values[node.target].width
        first = evaluate(node.offset, self.sizes)
        match node.operator:
            # Pieces lie side by side along k, the outermost axis of the layout: how many heads there are does not
            # matter. A value of inputs alone has no heads, and is cut and joined at any width.
            case RowOperator.SLICE:
                return operand[..., first : first + result]
            case RowOperator.CONCAT:
                # What parameters alone make has no batch.
                parts = [known[name] for name in node.operands]
                batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))  # type: ignore[no-untyped-call]
                return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)
            case RowOperator.PAD:
                return torch.nn.functional.pad(operand, (first, result - first - operand.shape[-1]))
            case RowOperator.REPEAT if repeats_whole(*widths):
                return operand.repeat_interleave(node.times, -1)
            case _ if node.grid is not None:
                return self._of_matrices(node, node.grid, known)
            case _:
                return self._row_by_heads(node, known)

    def _of_matrices(self, node: RowOp, grid: Grid, known: Mapping[str, Tensor]) -> Tensor:
        """An operator of matrices that change. A matrix is [..., N, rows/N, columns/N], a vector [..., N, width/N]."""

        def read(name: str) -> Tensor:
            value, given = self.values[name], known[name]
            if value.grid is None:
                return self._row_of_heads(given, value.width)
            sides = (evaluate(side, self.sizes) // self.heads for side in value.grid.sides)
            return given.reshape(*given.shape[:-1], self.heads, *sides)

        rows, columns = (evaluate(side, self.sizes) // self.heads for side in grid.sides)
        places = evaluate(node.offset, self.sizes)
        made = of_matrices(node, [read(name) for name in node.operands], rows, columns, places)
        if node.makes_matrix:
            return made.flatten(-3)
        return self.unblocked(made, self.values[node.target].width, self.heads)

    def _row_by_heads(self, node: RowOp, known: Mapping[str, Tensor]) -> Tensor:
        result = self.values[node.target].width
        operand = known[node.operands[0]]
        if node.operator is RowOperator.SUM and result == ONE:
            return operand.sum(-1, keepdim=True)
        if node.operator is RowOperator.PER_HEAD:
            units = evaluate(result, self.sizes) // self.heads
            groups = operand.reshape(*operand.shape[:-1], operand.shape[-1] // units, units)
            row = groups.repeat_interleave(self.heads // groups.shape[-2], -2)
        elif node.operator is RowOperator.ARANGE and result == HEADS:
            row = torch.arange(self.heads).to(operand)[:, None]
        else:
            row = self._row_of_heads(operand, self.values[node.operands[0]].width)
            row = row_of_heads(node, row, evaluate(result, self.sizes) // self.heads, evaluate(node.offset, self.sizes))
        return self.unblocked(row, result, self.heads)

    def _row_of_heads(self, value: Tensor, width: Dim) -> Tensor:
        if width == ONE:
            return value.unsqueeze(-1).expand(*value.shape[:-1], self.heads, 1)
        return self.blocked(value, width, self.heads)

    def _packed(self, width: Dim) -> tuple[int, int]:
        """(k, head_dim) of a width that is neither one nor one per head."""
        k, base = split_multiple(width)
        return k, evaluate(base, self.sizes) // self.heads

    def _cut(self, value: Tensor, width: Dim) -> Tensor:
        """A value as [..., k, N, head_dim], sizes 1 where it is narrower."""
        if width == ONE:
            return value[..., None, None]
        if width == HEADS:
            return value[..., None, :, None]
        k, head_dim = self._packed(width)
        return value.reshape(*value.shape[:-1], k, self.heads, head_dim)

    def blocked(self, value: Tensor, width: Dim, blocks: int) -> Tensor:
        """[..., width] -> [..., blocks, width/blocks], where the elements of a block lie k-major."""
        k, base = (1, width) if width == HEADS else split_multiple(width)
        head_dim = evaluate(base, self.sizes) // blocks
        return value.reshape(*value.shape[:-1], k, blocks, head_dim).transpose(-3, -2).flatten(-2)

    def unblocked(self, value: Tensor, width: Dim, blocks: int) -> Tensor:
        """The inverse of `blocked`."""
        k, base = (1, width) if width == HEADS else split_multiple(width)
        head_dim = evaluate(base, self.sizes) // blocks
        return value.reshape(*value.shape[:-1], k, head_dim).transpose(-3, -2).flatten(-3)


def complete_sizes(cell: Cell, sizes: Mapping[str, int], num_heads: int = 1) -> dict[str, int]:
    """I, H and all declared dims: those not given are solved or take their default."""
    known = dict(sizes)
    for size in cell.sizes:
        if size.name not in known:
            if size.solved is not None:
                known[size.name] = evaluate(size.solved, {"num_heads": num_heads, **known})
            elif size.default is not None:
                known[size.name] = evaluate(size.default, {"num_heads": num_heads, **known})
            else:
                raise KeyError(f"the size {size.name} of {cell.name} is missing")
    return known


@dataclass(frozen=True)
class Arguments:
    """What a cell is run on.

    parameters  by member (`W_i`, `b_f`, `beta`, `h0`): vectors [width]; matrices [width, columns/blocks] as packed in
                the module, or in the shape of its `gate_parameters()`
    inputs      [T, B, width] by name; an input per sequence [B, width]
    initial     [B, width] by state; a state not given starts with its declared value
    constants   values other than the declared ones, by name
    sizes       I, H and dims by name
    reset       [T, B]; where != 0 a batch entry restarts from the declared initial values: nothing crosses from the
                step before to that step, nor back in reverse
    lengths     [B]; from step lengths[b] on, entry b keeps its states whatever `reset` says, and its other values
                mean nothing
    recurrent_gradient_clip     bound on what products hand back to earlier values, see `rnncc.analysis.recurrent`
    """

    parameters: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    num_heads: int = 1
    reset: Tensor | None = None
    lengths: Tensor | None = None
    reverse: bool = False
    recurrent_gradient_clip: float = math.inf


def run(cell: Cell, given: Arguments) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run a cell over sequences.

    Returns (every value that a step computes, the previous states s__1 and the output, [T, B, width]; final states,
    [B, width]).
    """
    inputs, lengths, reset = given.inputs, given.lengths, given.reset
    like = inputs[cell.inputs[0].name]
    at_steps = {item.name: not item.per_sequence for item in cell.inputs}
    steps, batch = like.shape[:2]
    known_sizes = complete_sizes(cell, given.sizes, given.num_heads)
    products = [recurrent_reads(segment) for segment in cell.segments]
    aliases = {alias: name for loop in products for alias, name in loop.aliases.items()}
    machine = Interpreter(with_aliases(value_table(cell), aliases), known_sizes, given.num_heads, like)
    fixed = fixed_values(cell, machine, given.parameters, given.constants)
    declared = {
        state.name: _declared(state, cell, machine, fixed).expand(batch, machine.width(state.name))
        for state in cell.states
    }
    states = {state.name: _first(state, cell, given.initial, declared) for state in cell.states}
    nodes: list[Node] = []
    for segment, loop in zip(cell.segments, products, strict=True):
        nodes += (*segment.batched, *loop.nodes)
    nodes += cell.epilogue
    names = [*(f"{name}__1" for name in states), *(node.target for node in nodes)]
    delayed = {
        node.target: like.new_zeros(batch, machine.width(node.target)) for node in nodes if isinstance(node, Delay)
    }
    sequences: dict[str, list[Tensor]] = {name: [] for name in names}
    for t in reversed(range(steps)) if given.reverse else range(steps):
        active = torch.ones_like(like[0, :, :1], dtype=torch.bool) if lengths is None else (t < lengths)[:, None]
        later = t + 1 if given.reverse else t  # of the two steps between which the states pass
        if reset is not None and later < steps:
            restart = (reset[later] != 0)[:, None] & (active if lengths is None else (later < lengths)[:, None])
            states = {name: torch.where(restart, declared[name], value) for name, value in states.items()}
            delayed = {name: torch.where(restart, 0, value) for name, value in delayed.items()}
        known = {**fixed, **{name: value[t] if at_steps[name] else value for name, value in inputs.items()}}
        known |= {f"{name}__1": value for name, value in states.items()}
        for node in nodes:
            if node.target in aliases:
                value = elementwise.clip_gradient(known[aliases[node.target]], given.recurrent_gradient_clip)
            else:
                value = delayed[node.target] if isinstance(node, Delay) else machine.node(node, known)
            known[node.target] = value.expand(batch, machine.width(node.target))
        following = {node.target: known[node.operand] for node in nodes if isinstance(node, Delay)}
        known |= {name: torch.where(active, known[name], old) for name, old in states.items()}
        states = {name: known[name] for name in states}
        delayed = {name: torch.where(active, value, delayed[name]) for name, value in following.items()}
        for name, sequence in sequences.items():
            sequence.append(known[name])
    results = {name: torch.stack(found[::-1] if given.reverse else found) for name, found in sequences.items()}
    if cell.output not in results:
        # It is made of parameters alone, the same at every step.
        results[cell.output] = fixed[cell.output].expand(steps, batch, machine.width(cell.output))
    return results, states


def fixed_values(
    cell: Cell, machine: Interpreter, parameters: Mapping[str, Tensor], constants: Mapping[str, float]
) -> dict[str, Tensor]:
    """Parameters as packed, buffers without a gradient, constants and what the prologue makes of them."""
    fixed: dict[str, Tensor] = {}
    for parameter in cell.parameters:
        for member in parameter.members:
            tensor = parameters[member.name] if parameter.trained else parameters[member.name].detach()
            # A layer's views have the rows of sections and blocks in the order in which they are packed.
            fixed[member.name] = tensor.flatten(0, -2) if tensor.dim() > 2 else tensor
            if parameter.columns is None:
                fixed[member.name] = tensor.flatten()
    for constant in cell.constants:
        value = machine.sizes[constant.size] if constant.size else constants.get(constant.name, constant.value)
        if not isinstance(value, str):
            fixed[constant.name] = machine.number(value)[None]
    for node in cell.prologue:
        fixed[node.target] = machine.node(node, fixed)
    return fixed


def _declared(state: State, cell: Cell, machine: Interpreter, fixed: Mapping[str, Tensor]) -> Tensor:
    root = declared_state(state, {other.name: other for other in cell.states})
    if root.initial is None:
        return fixed[f"{root.name}0"]
    return start(root, machine.number(root.initial), machine.sizes)


def _first(state: State, cell: Cell, initial: Mapping[str, Tensor], declared: Mapping[str, Tensor]) -> Tensor:
    """What a state holds before the sequence; a delay state not given holds its state's value."""
    while state.name not in initial and state.delay_of is not None:
        state = next(other for other in cell.states if other.name == state.delay_of)
    return initial.get(state.name, declared[state.name])
