"""The specs of a cell: what its module says about it, in the classes of `rnncc.runtime.spec`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from rnncc.analysis.recurrent import recurrent_reads
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import (
    Cell,
    Constraint,
    Delay,
    Input,
    Member,
    Parameter,
    Segment,
    State,
    Stream,
    Value,
    Weight,
    declared_names,
    declared_state,
    is_per_sequence,
    value_table,
    without_heads,
)
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.dim import HEADS, ONE, Dim, Grid, split_multiple
from rnncc.ir.formula import Applied, Number, Outer, Part, Size, Vector
from rnncc.ir.fused import FusedLoop
from rnncc.ir.structure import DENSER, BlockDiagonal, Dense, Sparsity
from rnncc.language.source import file_name
from rnncc.stages.render.notation import dim_name, python_dim
from rnncc.stages.render.python.batched import read_later
from rnncc.stages.render.python.streams import reached
from rnncc.stages.render.python.whole import whole_product
from rnncc.stages.render.python.written import Call, Written, call, string, strings, written
from rnncc.stages.render.segments import (
    has_matrices,
    saved_names,
    saved_rounded,
    saved_sequence,
    saved_state,
    segment_name,
    single_name,
)


def cell_spec(compiled: CompiledCell) -> str:
    """The CellSpec of a module, as the text of the assignment to `SPEC`."""
    cell = compiled.cell
    table = value_table(cell)
    function = cell.name.lower()
    regularisation = call(
        "_spec.Regularisation", zoneout=strings(cell.zoneout), recurrent_dropout=_true(cell.recurrent_dropout)
    )
    spec = call(
        "_spec.CellSpec",
        name=string(cell.name),
        source_name=string(file_name(cell.source)),
        sizes=tuple(
            _spec("SizeSpec", size.name, default=_width(size.default), solved=_width(size.solved))
            for size in cell.sizes
        ),
        constants=tuple(
            _spec("ConstantSpec", each.name, value=_literal(each.value), shaping=_true(each.shaping))
            for each in cell.constants
            if not each.size
        ),
        inputs=tuple(_input(item) for item in cell.inputs if not item.drawn),
        states=tuple(_state(state) for state in cell.states),
        parameters=tuple(_parameter(parameter) for parameter in cell.parameters),
        segments=tuple(_segment(compiled, index, table) for index in range(len(cell.segments))),
        output=string(cell.output),
        output_width=_width(table[cell.output].width),
        constraints=tuple(_constraint(constraint) for constraint in cell.constraints),
        derive=f"_reference.{function}_derive",
        prologue=f"_reference.{function}_prologue",
        epilogue=f"_reference.{function}_epilogue",
        classes=tuple(
            strings((", ".join(declared_names(cell, segment)), recurrence.kind.value, recurrence.form, recurrence.why))
            for segment, recurrence in zip(cell.segments, compiled.recurrences, strict=True)
        ),
        value_delays=tuple(_value_delays(cell, table)) or None,
        masks=tuple(_mask(item) for item in cell.inputs if item.drawn) or None,
        regularisation=regularisation if cell.zoneout or cell.recurrent_dropout else None,
        single_head_because=string(cell.single_head_because) if cell.single_head_because else None,
        denser=string(DENSER) if any(size.name == DENSER for size in cell.sizes) else None,
        single=_single(compiled),
    )
    return written(spec, start="SPEC = ")


def _spec(kind: str, name: str, **named: Written | None) -> Call:
    return call(f"_spec.{kind}", string(name), **named)


def _width(dim: Dim | None) -> str | None:
    """A dim as a function of the sizes."""
    return None if dim is None else f"lambda n: {python_dim(dim, 'n')}"


def _true(value: bool) -> str | None:
    return "True" if value else None


def _literal(value: float | int | str) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return string(value) if isinstance(value, str) else repr(value)


def _literals(values: Iterable[float | int]) -> tuple[Written, ...]:
    return tuple(map(_literal, values))


def _input(item: Input) -> Call:
    default = None if item.default is None else _literal(item.default)
    per_sequence = _true(item.per_sequence)
    matrix = _sides(item.grid)
    return _spec(
        "InputSpec", item.name, width=_width(item.width), default=default, per_sequence=per_sequence, matrix=matrix
    )


def _mask(item: Input) -> Call:
    return _spec("MaskSpec", item.name, width=_width(item.width), drawn=string(item.drawn), of=string(item.of))


def _state(state: State) -> Call:
    initial = "None" if state.initial is None else _literal(state.initial)
    delay_of = None if state.delay_of is None else string(state.delay_of)
    return _spec(
        "StateSpec",
        state.name,
        width=_width(state.width),
        initial=initial,
        delay_of=delay_of,
        matrix=_sides(state.grid),
        diagonal=_true(state.diagonal),
    )


def _sides(grid: Grid | None) -> tuple[str, ...] | None:
    """The rows and columns of a matrix as functions of the sizes."""
    return None if grid is None else tuple(f"lambda n: {python_dim(side, 'n')}" for side in grid.sides)


def _value_delays(cell: Cell, table: Mapping[str, Value]) -> Iterator[Call]:
    """The states that older inputs and older values are read from."""
    nodes = [*(node for segment in cell.segments for node in segment.batched), *cell.epilogue]
    kept = {node.target: node.operand for node in nodes if isinstance(node, Delay)}
    for name in cell.delays:
        yield _spec("StateSpec", name, width=_width(table[name].width), initial="0.0", delay_of=string(kept[name]))


def _parameter(parameter: Parameter) -> Call:
    match parameter.structure:
        case Dense():
            blocks = None
        case BlockDiagonal(count):
            blocks = _width(count)
        case _:
            assert_never(parameter.structure)
    return _spec(
        "ParameterSpec",
        parameter.name,
        attribute=string(parameter.attribute),
        members=tuple(map(_member, parameter.members)),
        columns=_width(parameter.columns),
        blocks=blocks,
        is_bias=_true(parameter.is_bias),
        sparsity=None if parameter.sparsity is None else _sparsity(parameter.sparsity),
        trained=None if parameter.trained else "False",
        matrix=_sides(parameter.grid),
    )


def _sparsity(sparsity: Sparsity) -> Call:
    return call(
        "_spec.SparsitySpec",
        density=_literal(sparsity.density),
        block=None if sparsity.block == 1 else str(sparsity.block),
        drawn=_true(sparsity.drawn),
    )


def _member(member: Member) -> Call:
    k, initialiser = split_multiple(member.width)[0], member.initialiser
    return _spec(
        "MemberSpec",
        member.name,
        width=_width(member.width),
        k=None if k == 1 else str(k),
        initialiser=None if initialiser.kind == "default" else string(initialiser.kind),
        values=_literals(initialiser.values) or None,
        formula=None if initialiser.formula is None else _formula(initialiser.formula.root),
    )


def _formula(part: Part) -> Written:
    """A formula as tuples: a name, and what it is applied to."""
    match part:
        case Number(value):
            return string("number"), _literal(value)
        case Size(dim):
            return string("size"), f"lambda n: {python_dim(dim, 'n')}"
        case Vector(function, dim):
            # The numbers of heads are no parts of anything.
            parts = 0 if dim == HEADS else split_multiple(dim)[0]
            return string(function), f"lambda n: {python_dim(dim, 'n')}", str(parts)
        case Applied(operator, arguments):
            return string(operator), *map(_formula, arguments)
        case Outer(left, right):
            return string("outer"), _formula(left), _formula(right)
        case _:
            assert_never(part)


def _constraint(constraint: Constraint) -> Call:
    words = {"I": "input_size", "H": "hidden_size"}
    return call(
        "_spec.ConstraintSpec",
        left=_width(constraint.left),
        right=_width(constraint.right),
        left_text=string(dim_name(constraint.left, words)),
        right_text=string(dim_name(constraint.right, words)),
        why=string(constraint.why),
        divides=_true(constraint.divides),
    )


def _segment(compiled: CompiledCell, index: int, table: Mapping[str, Value]) -> Call:
    cell = compiled.cell
    segment, masked = cell.segments[index], compiled.masked.segments[index]
    states = {state.name: state for state in cell.states}
    declared = [declared_state(states[name], states) for name in segment.states]
    weights = [weight.name for weight in masked.weights]
    later = read_later(cell, index)
    name = segment_name(cell, index)
    return call(
        "_spec.SegmentSpec",
        name=string(name),
        states=tuple(_state(states[state]) for state in segment.states),
        streams=tuple(_stream(cell, index, stream, table) for stream in segment.streams),
        sequences=_tensors(segment.sequences, table),
        needed=_literals(i for i, sequence in enumerate(segment.sequences) if sequence in later),
        constants=strings(segment.constants),
        clips=str(bool(recurrent_reads(segment).aliases)),
        initials=tuple(
            str(weights.index(f"{state.name}0")) if state.initial is None else _literal(state.initial)
            for state in declared
        ),
        learned=_literals(state.initial is None for state in declared),
        has_borders=_true(has_matrices(cell, segment)),
        plain=_loop(cell, segment, compiled.adjoints[index : index + 1]),
        masked=_loop(compiled.masked, masked, compiled.masked_adjoints[index : index + 1]),
        batched=f"_reference.{name}_batched",
        make_step=f"_reference.{name}_make_step",
        whole=_whole(compiled, index),
        fused_widths=_fused_widths(compiled, index, table[segment.states[0]].width),
    )


def _single(compiled: CompiledCell) -> Call | None:
    """The single step that has an op of its own: its streams are the product with the weight of the first."""
    if compiled.single is None or compiled.plan.single is None:
        return None
    cell, _ = compiled.single
    (segment,), table = cell.segments, value_table(cell)
    streamed = (name for stream in segment.streams for name in stream.members)
    whole = without_heads(segment.nodes, segment.sequences)
    values = (*streamed, *(node.target for node in segment.nodes))
    widths = dict.fromkeys(table[name].width for name in values if name not in whole)
    (weight,) = (parameter for parameter in cell.parameters if parameter.name == segment.streams[0].name)
    return call(
        "_spec.SingleSpec",
        name=string(single_name(cell.name)),
        states=tuple(map(_state, cell.states)),
        sequences=_tensors(segment.sequences, table),
        constants=strings(segment.constants),
        plain=call("_spec.LoopSpec", weights=tuple(_weight(cell, each, table) for each in segment.weights)),
        whole=_spec("ProductSpec", weight.attribute, reads_streams="False"),
        divided=tuple(f"lambda n: {python_dim(width, 'n')}" for width in widths if width not in (ONE, HEADS)) or None,
        one_head=_true(bool(cell.single_head_because)),
        further=strings([each.name for each in cell.inputs[1:]]) or None,
    )


def _whole(compiled: CompiledCell, index: int) -> Call | None:
    product = whole_product(compiled.cell)
    if product is None or not compiled.adjoints:
        return None
    biases = tuple(
        _spec("BiasSpec", bias.attribute, **{key: _width(getattr(bias, key)) for key in ("row", "column", "rows")})
        for bias in product.biases
    )
    reads_streams = str(bool(compiled.adjoints[index].streams_read))
    return _spec("ProductSpec", product.weight, reads_streams=reads_streams, biases=biases)


def _fused_widths(compiled: CompiledCell, index: int, first: Dim) -> tuple[str, ...] | None:
    """The widths of a segment's fused loop, where they are not that of the first state alone."""
    loops = compiled.plan.plain_loops() if compiled.adjoints else ()
    forms = (loop.fused_forward for loop in loops if loop.segment == index)
    widths = next((form.widths for form in forms if isinstance(form, FusedLoop)), (first,))
    return None if widths == (first,) else tuple(f"lambda n: {python_dim(width, 'n')}" for width in widths)


def _tensors(names: Sequence[str], table: Mapping[str, Value]) -> tuple[Written, ...]:
    return tuple(_spec("TensorSpec", name, width=_width(table[name].width)) for name in names)


def _stream(cell: Cell, index: int, stream: Stream, table: Mapping[str, Value]) -> Call:
    nodes = [node for segment in cell.segments[: index + 1] for node in segment.batched]
    finished = [name for segment in cell.segments[:index] for name in segment.sequences]
    read = reached(nodes, stream.members)
    made_of = tuple(name for name in finished if name in read)
    return _spec(
        "StreamSpec",
        stream.name,
        members=_tensors(stream.members, table),
        finished=strings(made_of) or None,
        is_sequence=_true(stream.members == made_of),
        per_sequence=_true(is_per_sequence(stream, table)),
    )


def _loop(cell: Cell, segment: Segment, adjoints: Sequence[Adjoint]) -> Call:
    table = value_table(cell)
    weights = tuple(_weight(cell, weight, table) for weight in segment.weights)
    if not adjoints:
        return call("_spec.LoopSpec", weights=weights)
    (adjoint,) = adjoints
    table |= {value.name: value for value in adjoint.values}
    return call(
        "_spec.LoopSpec",
        weights=weights,
        saved=_tensors(saved_names(adjoint), table),
        saved_sequence=_literals(saved_sequence(segment, adjoint)),
        saved_state=_literals(saved_state(segment, adjoint)),
        saved_rounded=_literals(saved_rounded(adjoint)),
    )


def _weight(cell: Cell, weight: Weight, table: Mapping[str, Value]) -> Call:
    parameters = {parameter.name: parameter for parameter in cell.parameters}
    is_matrix = _true(table[weight.members[0]].columns is not None)
    if weight.name in parameters:
        attribute = string(parameters[weight.name].attribute)
        return _spec("WeightSpec", weight.name, attribute=attribute, is_matrix=is_matrix)
    read = reached(cell.prologue, weight.members)
    made_of = strings([p.attribute for p in cell.parameters if any(member.name in read for member in p.members)])
    return _spec("WeightSpec", weight.name, made_of=made_of, is_matrix=is_matrix)
