"""The functions of a cell in plain torch: what runs before, after and, where no kernel does, in its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnncc.analysis.recurrent import CLIP, loop_constants, recurrent_reads
from rnncc.ir.cell import Cell, Node, Pointwise, Role, RowOp, Segment, Value, operands, value_table
from rnncc.ir.row_operator import RowOperator
from rnncc.stages.render.python.batched import batched, bind, hand_on
from rnncc.stages.render.python.code import Emitter, member_places, split_lines, variable
from rnncc.stages.render.python.parameters import ParameterEmitter, Together, in_groups
from rnncc.stages.render.python.patterns import operation_reads, operation_text, recognise
from rnncc.stages.render.python.streams import reached, reads, stacked
from rnncc.stages.render.segments import segment_name


@dataclass(frozen=True, slots=True)
class SegmentFunctions:
    """The bodies of `<name>_batched` and of `<name>_make_step`, and the body and the result of the step that this
    makes."""

    name: str
    batched: tuple[str, ...]
    unpack: tuple[str, ...]
    step: tuple[str, ...]
    result: str


@dataclass(frozen=True, slots=True)
class CellFunctions:
    """The bodies of `<function>_derive`, `<function>_prologue` and `<function>_epilogue`, and those of the segments."""

    name: str
    function: str
    derive: tuple[str, ...]
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    segments: tuple[SegmentFunctions, ...]


def cell_functions(cell: Cell) -> CellFunctions:
    """A cell's functions."""
    table = value_table(cell)
    return CellFunctions(
        cell.name,
        cell.name.lower(),
        _of_parameters(cell, table, for_loops=True),
        _of_parameters(cell, table, for_loops=False),
        _epilogue(cell, table),
        tuple(_segment(cell, index, table) for index in range(len(cell.segments))),
    )


def norms_heads(cell: Cell) -> bool:
    """Whether these functions norm the heads of a value. A cell that takes one head only leaves its norms to torch."""
    over_all_steps = (*(segment.batched for segment in cell.segments), cell.epilogue)
    nodes = (node for nodes in over_all_steps for node in nodes if isinstance(node, RowOp))
    return not cell.single_head_because and any(node.operator is RowOperator.LAYERNORM for node in nodes)


def _of_parameters(cell: Cell, table: Mapping[str, Value], *, for_loops: bool) -> tuple[str, ...]:
    """The prologue's nodes: those that loops read and what these are made of, or all others."""
    weights = {weight.name for segment in cell.segments for weight in segment.weights}
    read = reached(cell.prologue, weights)
    nodes = [node for node in cell.prologue if (node.target in read) is for_loops]
    emitter, places = ParameterEmitter(cell, _torch_linear, _first_input(cell)), member_places(cell)
    given = reads(nodes) - {node.target for node in nodes}
    # Functions of matrices are computed in float32 at least, and rounded where they are done.
    tensors = sorted(name for name in given if table[name].role is not Role.CONSTANT)
    wide = bool(tensors) and any(_works_on_matrices(node, table) for node in nodes)
    lines: list[str] = []
    for each in in_groups(nodes, table, places):
        if isinstance(each, Together):
            lines += emitter.lines_together(each, f"matrices.wide({stacked(each.members, places)})")
            given -= set(each.members) - {name for node in nodes if node not in each.nodes for name in operands(node)}
        else:
            lines += emitter.lines(each)
    lines = bind(cell, given, table, wide=wide) + lines
    if not wide:
        return tuple(lines + hand_on(node.target for node in nodes))
    # What numbers alone make is exact.
    exact = given - set(tensors)
    for node in nodes:
        if exact.issuperset(operands(node)):
            exact.add(node.target)
    lines += hand_on(node.target for node in nodes if node.target in exact)
    rounded_as = _tensor(cell, tensors[0], table)
    return tuple(lines + hand_on((node.target for node in nodes if node.target not in exact), rounded_as))


def _works_on_matrices(node: Node, table: Mapping[str, Value]) -> bool:
    """Whether a node computes a matrix, or a number of one."""
    values = (table[name] for name in (node.target, *operands(node)))
    return isinstance(node, Pointwise) and any(value.columns is not None for value in values)


def _tensor(cell: Cell, name: str, table: Mapping[str, Value]) -> str:
    """The tensor that a value of parameters is, or is a part of."""
    if table[name].role is Role.PARAMETER:
        return f'parameters["{member_places(cell)[name].parameter.attribute}"]'
    return f'values["{name}"]'


def _epilogue(cell: Cell, table: Mapping[str, Value]) -> tuple[str, ...]:
    emitter = Emitter(cell, _own_linear, _first_input(cell), over_steps=True)
    operations = recognise(cell.epilogue, (cell.output,), table)
    read = {name for operation in operations for name in operation_reads(operation)}
    lines = bind(cell, read - {node.target for node in cell.epilogue}, table)
    lines += [operation_text(operation, emitter) for operation in operations]
    return tuple(lines + hand_on(node.target for node in cell.epilogue if node.target == cell.output))


def _segment(cell: Cell, index: int, table: Mapping[str, Value]) -> SegmentFunctions:
    segment = cell.segments[index]
    products = recurrent_reads(segment)
    emitter = Emitter(cell, _torch_linear, "streams[0]", products.aliases)
    new = ", ".join(variable(name) for name in segment.states)
    values = ", ".join(variable(name) for name in segment.sequences)
    return SegmentFunctions(
        segment_name(cell, index),
        batched(cell, index, table, Emitter(cell, _own_linear, _first_input(cell), over_steps=True)),
        tuple(_unpack(segment, table)),
        (*_step_reads(segment, table), *(emitter.node(node) for node in products.nodes)),
        f"({new},), ({values},)",
    )


def _unpack(segment: Segment, table: Mapping[str, Value]) -> list[str]:
    """What make_step does once: it gives names to the weights' members and to the constants."""
    lines = []
    for i, weight in enumerate(segment.weights):
        lines.append(split_lines(weight.members, [table[m].width for m in weight.members], f"weights[{i}]", 0))
    given = len(segment.constants)
    lines += [f"{variable(name)} = constants[{i}]" for i, name in enumerate(segment.constants)]
    if loop_constants(segment) != segment.constants:
        lines.append(f"{CLIP.name} = constants[{given}] if len(constants) > {given} else inf")
    return lines


def _step_reads(segment: Segment, table: Mapping[str, Value]) -> list[str]:
    lines = [
        split_lines(stream.members, [table[m].width for m in stream.members], f"streams[{i}]", -1)
        for i, stream in enumerate(segment.streams)
    ]
    return lines + [f"{variable(f'{name}__1')} = states[{i}]" for i, name in enumerate(segment.states)]


def _torch_linear(operand: str, matrix: str) -> str:
    return f"torch.nn.functional.linear({operand}, {matrix})"


def _own_linear(operand: str, matrix: str) -> str:
    return f"tools.linear({operand}, {matrix})"


def _first_input(cell: Cell) -> str:
    return f'values["{cell.inputs[0].name}"]'
