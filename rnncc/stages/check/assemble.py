"""The second half of `check`: from equations that are known to be right to the parts of a Cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rnncc.ir.cell import (
    Cell,
    Constant,
    Constraint,
    Delay,
    Input,
    Placement,
    Role,
    Size,
    State,
    Value,
    operands,
)
from rnncc.ir.dim import ONE
from rnncc.ir.structure import block_diagonal
from rnncc.ir.syntax import CellDecl
from rnncc.language.source import NOWHERE
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.families import pack
from rnncc.stages.check.flatten import Flattener
from rnncc.stages.check.heads import Heads, heads
from rnncc.stages.check.hoist import Hoister
from rnncc.stages.check.lints import Subject, lint, live_equations
from rnncc.stages.check.locate import Part, locate
from rnncc.stages.check.mentions import mentioned_names
from rnncc.stages.check.place import Placed, Program, fuse, live, place
from rnncc.stages.check.report import Report
from rnncc.stages.check.resolve import Resolved
from rnncc.stages.check.segments import Assembler
from rnncc.stages.check.shape import Shape, Shapes


def assemble(decl: CellDecl, resolved: Resolved, shapes: Shapes, symbols: Symbols, output: str, report: Report) -> Cell:
    """The Cell; what is found on the way (functions that a loop cannot compute) goes to the report."""
    flattener = Flattener(resolved, shapes, symbols, output, report)
    flat = flattener.run()
    states = _states(symbols, resolved, flat.shapes)
    names = tuple(state.name for state in states)
    delays = {
        name: tuple(f"{name}__delay{step}" for step in range(1, steps)) for name, steps in resolved.state_delays.items()
    }
    inputs = frozenset(symbols.inputs)
    program = Program(live(flat.nodes, (*names, output)), names, delays, inputs, output)
    placed = place(program)
    program = replace(program, nodes=fuse(program.nodes, placed, symbols.states, lambda name: flat.shapes[name].width))
    headed = heads(program.nodes, flat.shapes, placed.last, resolved, symbols, report)
    read = {name for node in program.nodes.values() for name in operands(node)}
    parameters = pack(read, resolved, flat.shapes, headed.blocks, symbols, report)
    located = locate(program, placed)
    constants = frozenset(symbols.constants)
    nodes = Hoister(program, placed, located, flat.shapes, constants, flattener.width, report).run()
    assembler = Assembler(program, nodes, placed, located, parameters, constants)
    segments = assembler.segments()
    live_part = live_equations(resolved, (*symbols.states, output))
    prologue = assembler.part(Part.PROLOGUE)
    mentioned = mentioned_names(decl)
    found = shapes.constraints
    lint(Subject(resolved, symbols, program, prologue, segments, placed, mentioned, live_part, found), report)
    return Cell(
        name=decl.name,
        sizes=_sizes(symbols, shapes),
        constants=_constants(symbols),
        inputs=tuple(
            Input(name, flat.shapes[name].width, given.span, default=symbols.defaults.get(name))
            for name, given in symbols.inputs.items()
        ),
        states=states,
        parameters=parameters,
        prologue=prologue,
        segments=segments,
        epilogue=assembler.part(Part.EPILOGUE),
        output=output,
        values=tuple(_values(symbols, resolved, flat.shapes, headed, placed, assembler, states)),
        constraints=_constraints(shapes, headed),
        comment=decl.comment,
        source=decl.source,
        single_head_because=headed.single,
    )


def _states(symbols: Symbols, resolved: Resolved, shapes: dict[str, Shape]) -> tuple[State, ...]:
    """Every state followed by the hidden states that keep its older values."""
    result: list[State] = []
    for name, declared in symbols.states.items():
        width, initial = shapes[name].width, symbols.initial[name]
        result.append(State(name, width, initial, None, declared.span))
        kept = name
        for step in range(1, resolved.state_delays.get(name, 0)):
            delay = f"{name}__delay{step}"
            result.append(State(delay, width, initial, kept, declared.span))
            kept = delay
    return tuple(result)


def _sizes(symbols: Symbols, shapes: Shapes) -> tuple[Size, ...]:
    return tuple(Size(name, default, shapes.solved.get(name), span) for name, (default, span) in symbols.dims.items())


def _constants(symbols: Symbols) -> tuple[Constant, ...]:
    return tuple(
        Constant(name, constant.value, name in symbols.statics.shaping, constant.span)
        for name, constant in symbols.constants.items()
    )


def _constraints(shapes: Shapes, headed: Heads) -> tuple[Constraint, ...]:
    return (*shapes.constraints, *headed.constraints)


def _values(
    symbols: Symbols,
    resolved: Resolved,
    shapes: dict[str, Shape],
    headed: Heads,
    placed: Placed,
    assembler: Assembler,
    states: tuple[State, ...],
) -> Iterator[Value]:
    """Inputs, constants, members, previous states, then what nodes define in the order they run."""
    for name, given in symbols.inputs.items():
        yield Value(name, Role.INPUT, Placement.X, shapes[name].width, span=given.span)
    for name, constant in symbols.constants.items():
        if name not in symbols.statics.shaping:
            yield Value(name, Role.CONSTANT, Placement.P, ONE, span=constant.span)
    spans = {name: param.span for name, param in symbols.params.items()}
    spans |= {name: member.span for name, member in resolved.members.items()}
    for parameter in assembler.parameters:
        for member in parameter.members:
            span = spans.get(member.name, NOWHERE)
            structure = parameter.structure
            yield Value(member.name, Role.PARAMETER, Placement.P, member.width, parameter.columns, structure, span)
    for state in states:
        yield Value(f"{state.name}__1", Role.PREVIOUS, Placement.S, state.width, span=state.span)
    for name, node in assembler.nodes.items():
        shape = shapes[name]
        columns = shape.columns if shape.kind == "matrix" else None
        structure = block_diagonal(headed.blocks.get(name, ONE))
        placement = Placement.X if isinstance(node, Delay) else placed.placement[name]
        yield Value(name, Role.NODE, placement, shape.width, columns, structure, node.span)
