"""Cell → the text of its module: the SPEC and the reference functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rnncc.analysis.recurrent import CLIP, loop_constants, recurrent_reads
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import (
    Cell,
    Delay,
    Input,
    Node,
    Parameter,
    Segment,
    State,
    Stream,
    Value,
    Weight,
    declared_names,
    declared_state,
    operands,
    value_table,
)
from rnncc.ir.dim import ONE, Dim, split_multiple
from rnncc.ir.package import CompiledCell
from rnncc.language.source import escaped, file_name
from rnncc.stages.render.notation import python_dim
from rnncc.stages.render.python.batched import batched, bind, keep, read_later
from rnncc.stages.render.python.code import Emitter, split_lines, variable
from rnncc.stages.render.python.patterns import operation_reads, operation_text, recognise
from rnncc.stages.render.python.streams import reads
from rnncc.stages.render.segments import saved_names, saved_rounded, saved_sequence, saved_state, segment_name


@dataclass(frozen=True, slots=True)
class SegmentLines:
    """One segment: `<name>_batched` and `<name>_make_step` in `_reference.py`, its SegmentSpec in the cell's module."""

    name: str
    batched: tuple[str, ...]
    unpack: tuple[str, ...]
    step: tuple[str, ...]
    result: str
    states: tuple[str, ...]
    streams: tuple[str, ...]
    sequences: tuple[str, ...]
    needed: str
    constants: str
    clips: bool
    initials: str
    learned: str
    plain: str
    masked: str


@dataclass(frozen=True, slots=True)
class CellModule:
    """One cell's module. Every tuple holds lines that are complete Python (or constructor arguments), but for
    `description`: lines of a docstring, as `source_in_docstring` is part of one."""

    name: str
    function: str
    module: str
    heading: str
    description: tuple[str, ...]
    sizes: tuple[str, ...]
    constants: tuple[str, ...]
    inputs: tuple[str, ...]
    masks: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    constraints: tuple[str, ...]
    regularisation: tuple[str, ...]
    classes: tuple[str, ...]
    segments: tuple[SegmentLines, ...]
    derive: tuple[str, ...]
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    output: str
    output_width: str
    input_delays: tuple[str, ...]
    single_head_because: str
    source_name: str
    source_in_docstring: str


def width(dim: Dim) -> str:
    """A dim as a function of the sizes."""
    return f"lambda n: {python_dim(dim, 'n')}"


def cell_module(compiled: CompiledCell) -> CellModule:
    """Everything the templates print for one cell."""
    cell = compiled.cell
    table = value_table(cell)
    lower = cell.name.lower()
    return CellModule(
        name=cell.name,
        function=lower,
        # Not `_{lower}`: a package has `_reference` and `_runtime`, and a cell may be called so.
        module=f"_cell_{lower}",
        heading=_heading(cell),
        description=tuple(map(escaped, cell.comment.split("\n"))) if cell.comment else (),
        sizes=tuple(_size(size.name, size.default, size.solved) for size in cell.sizes),
        constants=tuple(
            f"_spec.ConstantSpec({constant.name!r}, {_literal(constant.value)}, {constant.shaping})"
            for constant in cell.constants
        ),
        inputs=tuple(_input(item) for item in cell.inputs if not item.drawn),
        masks=tuple(
            f"_spec.MaskSpec({i.name!r}, {width(i.width)}, {i.drawn!r}, {i.of!r})" for i in cell.inputs if i.drawn
        ),
        states=tuple(_state(state) for state in cell.states),
        parameters=tuple(_parameter(parameter) for parameter in cell.parameters),
        constraints=tuple(
            f"_spec.ConstraintSpec({width(c.left)}, {width(c.right)}, {_phrase(c.left)!r}, {_phrase(c.right)!r}, "
            f"{c.why!r}, {c.divides})"
            for c in cell.constraints
        ),
        regularisation=_regularisation(cell),
        classes=tuple(
            repr((", ".join(declared_names(cell, segment)), recurrence.kind.value, recurrence.form, recurrence.why))
            for segment, recurrence in zip(cell.segments, compiled.recurrences, strict=True)
        ),
        segments=tuple(_segment(compiled, index, table) for index in range(len(cell.segments))),
        derive=_of_parameters(cell, table, for_loops=True),
        prologue=_of_parameters(cell, table, for_loops=False),
        epilogue=_epilogue(cell, table),
        output=repr(cell.output),
        output_width=width(table[cell.output].width),
        input_delays=tuple(_input_delays(cell, table)),
        single_head_because=repr(cell.single_head_because),
        source_name=repr(file_name(cell.source)),
        source_in_docstring=escaped(repr(file_name(cell.source))),
    )


def _heading(cell: Cell) -> str:
    return f"{cell.name}: a recurrent cell"


def _literal(value: float | int | str) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float({str(value)!r})"
    return repr(value)


def _phrase(dim: Dim) -> str:
    """A dim in the words of the constructor: `input_size`, `4*hidden_size`."""
    text = python_dim(dim, "@")
    for name, word in (("I", "input_size"), ("H", "hidden_size")):
        text = text.replace(f'@["{name}"]', word)
    return text.replace('@["', "").replace('"]', "")


def _size(name: str, default: int | None, solved: Dim | None) -> str:
    return f"_spec.SizeSpec({name!r}, {default!r}, {width(solved) if solved is not None else None})"


def _input(item: Input) -> str:
    default = "" if item.default is None else f", {_literal(item.default)}"
    return f"_spec.InputSpec({item.name!r}, {width(item.width)}{default})"


def _state(state: State) -> str:
    initial = "None" if state.initial is None else _literal(state.initial)
    return f"_spec.StateSpec({state.name!r}, {width(state.width)}, {initial}, {state.delay_of!r})"


def _input_delays(cell: Cell, table: Mapping[str, Value]) -> Iterator[str]:
    """What `x[t-1]` and older inputs read, by input and age."""
    nodes = [*(node for segment in cell.segments for node in segment.batched), *cell.epilogue]
    kept = {node.operand: node.target for node in nodes if isinstance(node, Delay)}
    for item in cell.inputs:
        operand = item.name
        while operand in kept:
            target = kept[operand]
            yield f"_spec.StateSpec({target!r}, {width(table[target].width)}, 0.0, {operand!r})"
            operand = target


def _parameter(parameter: Parameter) -> str:
    members = "".join(
        f"_spec.MemberSpec({member.name!r}, {width(member.width)}, {split_multiple(member.width)[0]}, "
        f"{member.initialiser.kind!r}, "
        f"{tuple(member.initialiser.values)!r}), "
        for member in parameter.members
    )
    columns = width(parameter.columns) if parameter.columns is not None else "None"
    blocks = width(parameter.blocks) if parameter.columns is not None and parameter.blocks != ONE else "None"
    return (
        f"_spec.ParameterSpec({parameter.name!r}, {parameter.attribute!r}, ({members}), "
        f"{columns}, {blocks}, {parameter.is_bias})"
    )


def _torch_linear(operand: str, matrix: str) -> str:
    return f"torch.nn.functional.linear({operand}, {matrix})"


def _own_linear(operand: str, matrix: str) -> str:
    return f"tools.linear({operand}, {matrix})"


def _first_input(cell: Cell) -> str:
    return f'values["{cell.inputs[0].name}"]'


def _external(nodes: Sequence[Node], extra: Iterable[str] = ()) -> set[str]:
    made = {node.target for node in nodes}
    return (reads(nodes) | set(extra)) - made


def _of_parameters(cell: Cell, table: Mapping[str, Value], *, for_loops: bool) -> tuple[str, ...]:
    """The prologue's nodes: those that loops read and what these are made of, or all others."""
    weights = {weight.name for segment in cell.segments for weight in segment.weights}
    reached = _reached(cell.prologue, weights)
    nodes = [node for node in cell.prologue if (node.target in reached) is for_loops]
    emitter = Emitter(cell, _torch_linear, _first_input(cell))
    lines = bind(cell, _external(nodes), table)
    lines += [emitter.node(node) for node in nodes]
    return tuple(lines + keep(node.target for node in nodes))


def _reached(nodes: Sequence[Node], names: Iterable[str]) -> set[str]:
    """The names, and all that the nodes make them of."""
    made = {node.target: node for node in nodes}
    waiting, reached = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += operands(made[name]) if name in made else ()
    return reached


def _epilogue(cell: Cell, table: Mapping[str, Value]) -> tuple[str, ...]:
    emitter = Emitter(cell, _own_linear, _first_input(cell))
    operations = recognise(cell.epilogue, (cell.output,), table)
    read = {name for operation in operations for name in operation_reads(operation)}
    lines = bind(cell, read - {node.target for node in cell.epilogue}, table)
    lines += [operation_text(operation, emitter) for operation in operations]
    return tuple(lines + keep(node.target for node in cell.epilogue if node.target == cell.output))


def _regularisation(cell: Cell) -> tuple[str, ...]:
    """A keyword of the spec, for a cell that has zoneout or recurrent dropout compiled in."""
    if not (cell.zoneout or cell.recurrent_dropout):
        return ()
    return (f"regularisation=_spec.Regularisation({cell.zoneout!r}, {cell.recurrent_dropout})",)


def _segment(compiled: CompiledCell, index: int, table: Mapping[str, Value]) -> SegmentLines:
    cell = compiled.cell
    segment, masked = cell.segments[index], compiled.masked.segments[index]
    states = {state.name: state for state in cell.states}
    products = recurrent_reads(segment)
    emitter = Emitter(cell, _torch_linear, "streams[0]", products.aliases)
    later = read_later(cell, index)
    new = ", ".join(variable(name) for name in segment.states)
    values = ", ".join(variable(name) for name in segment.sequences)
    initials, learned = _initials(segment, masked, states)
    return SegmentLines(
        name=segment_name(cell, index),
        batched=batched(cell, index, table, Emitter(cell, _own_linear, _first_input(cell))),
        unpack=tuple(_unpack(segment, table)),
        step=tuple(_step_reads(segment, table)) + tuple(emitter.node(node) for node in products.nodes),
        result=f"({new},), ({values},)",
        states=tuple(_state(states[name]) for name in segment.states),
        streams=tuple(_stream_spec(cell, index, stream, table) for stream in segment.streams),
        sequences=tuple(f"_spec.TensorSpec({name!r}, {width(table[name].width)})" for name in segment.sequences),
        needed=repr(tuple(i for i, name in enumerate(segment.sequences) if name in later)),
        constants=repr(tuple(segment.constants)),
        clips=bool(products.aliases),
        initials=initials,
        learned=learned,
        plain=_loop(cell, segment, compiled.adjoints[index : index + 1]),
        masked=_loop(compiled.masked, masked, compiled.masked_adjoints[index : index + 1]),
    )


def _stream_spec(cell: Cell, index: int, stream: Stream, table: Mapping[str, Value]) -> str:
    nodes = [node for segment in cell.segments[: index + 1] for node in segment.batched]
    finished = [name for segment in cell.segments[:index] for name in segment.sequences]
    read = _reached(nodes, stream.members)
    made_of = tuple(name for name in finished if name in read)
    members = "".join(f"_spec.TensorSpec({member!r}, {width(table[member].width)}), " for member in stream.members)
    return f"_spec.StreamSpec({stream.name!r}, ({members}), {made_of!r}, {stream.members == made_of})"


def _unpack(segment: Segment, table: Mapping[str, Value]) -> list[str]:
    """What make_step does once: names for the weights' members and the constants."""
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


def _initials(segment: Segment, masked: Segment, states: Mapping[str, State]) -> tuple[str, str]:
    weights = [weight.name for weight in masked.weights]
    initials, learned = [], []
    for name in segment.states:
        state = declared_state(states[name], states)
        learned.append(state.initial is None)
        initials.append(str(weights.index(f"{state.name}0")) if state.initial is None else _literal(state.initial))
    return f"({', '.join(initials)},)", repr(tuple(learned))


def _loop(cell: Cell, segment: Segment, adjoints: Sequence[Adjoint]) -> str:
    table = value_table(cell)
    weights = "".join(f"{_weight(cell, weight, table)}, " for weight in segment.weights)
    if not adjoints:
        return f"_spec.LoopSpec(({weights}))"
    table |= {value.name: value for value in adjoints[0].values}
    saved = "".join(f"_spec.TensorSpec({name!r}, {width(table[name].width)}), " for name in saved_names(adjoints[0]))
    flags = ", ".join(
        repr(entries)
        for entries in (
            saved_sequence(segment, adjoints[0]), saved_state(segment, adjoints[0]), saved_rounded(adjoints[0])
        )
    )  # fmt: skip
    return f"_spec.LoopSpec(({weights}), ({saved}), {flags})"


def _weight(cell: Cell, weight: Weight, table: Mapping[str, Value]) -> str:
    parameters = {parameter.name: parameter for parameter in cell.parameters}
    is_matrix = table[weight.members[0]].columns is not None
    if weight.name in parameters:
        return f"_spec.WeightSpec({weight.name!r}, {parameters[weight.name].attribute!r}, (), {is_matrix})"
    read = _reached(cell.prologue, weight.members)
    made_of = tuple(p.attribute for p in cell.parameters if any(member.name in read for member in p.members))
    return f"_spec.WeightSpec({weight.name!r}, '', {made_of!r}, {is_matrix})"
