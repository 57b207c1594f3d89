"""What a segment computes in torch, over all steps, before its loop: the streams. A packed stream takes one product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Cell, Role, Stream, Value, is_per_sequence, operands
from rnncc.stages.render.notation import python_dim
from rnncc.stages.render.python.code import Emitter, MemberPlace, member_places, over_steps, split_lines, variable
from rnncc.stages.render.python.patterns import operation_reads, operation_targets, operation_text, recognise
from rnncc.stages.render.python.streams import PackedStream, loose_names, pack, packed_text, reads, stacked


@dataclass(frozen=True, slots=True)
class _Piece:
    """Lines that make some values from others."""

    makes: tuple[str, ...]
    reads: frozenset[str]
    lines: tuple[str, ...]


def bind(cell: Cell, names: Iterable[str], table: Mapping[str, Value], *, wide: bool = False) -> list[str]:
    """Lines that fetch values which the function itself does not compute. `wide`: 16-bit ones in float32."""
    places = member_places(cell)
    sizes = {constant.name: constant.size for constant in cell.constants if constant.size}
    lines = []
    for name in sorted(names):
        value = table[name]
        match value.role:
            case Role.PARAMETER:
                source = stacked((name,), places)
            case Role.CONSTANT if name in sizes:
                source = f'float(sizes["{sizes[name]}"])'
            case Role.CONSTANT:
                source = f'constants["{name}"]'
            case Role.INPUT | Role.PREVIOUS | Role.NODE:
                source = f'values["{name}"]'
        if wide and value.role is not Role.CONSTANT:
            source = f"matrices.wide({source})"
        lines.append(f"{variable(name)} = {source}")
    return lines


def hand_on(names: Iterable[str], rounded_as: str = "") -> list[str]:
    """Lines that put values where later functions find them, in the dtype of the tensor `rounded_as`, if one is
    given."""
    rounded = f".to({rounded_as}.dtype)" if rounded_as else ""
    return [f'values["{name}"] = {variable(name)}{rounded}' for name in names]


def read_later(cell: Cell, index: int) -> set[str]:
    """What segments after `index`, the epilogue or the caller read."""
    names = reads(cell.epilogue) | {cell.output}
    for segment in cell.segments[index + 1 :]:
        names |= reads(segment.batched) | {member for stream in segment.streams for member in stream.members}
    return names


def batched(cell: Cell, index: int, table: Mapping[str, Value], emitter: Emitter) -> tuple[str, ...]:
    """The body of the function that makes the streams of a segment."""
    segment = cell.segments[index]
    packed = {p.stream.name: p for p in (pack(cell, stream, segment.batched) for stream in segment.streams) if p}
    parts = _in_order(_parts(cell, index, packed, table, emitter))
    made = {node.target for node in segment.batched}
    lines = [line for part in parts for line in part.lines]
    absorbed = _absorbed(cell, index, packed)
    lines += hand_on(sorted((made - set(absorbed) | _members(packed)) & read_later(cell, index)))
    streams = [_stream(stream, table, is_packed=stream.name in packed) for stream in segment.streams]
    # A loop that reads no stream is still given one, which tells it T, B and the dtype.
    lines.append(f"return [{', '.join(streams) if streams else 'tools.shape_stream'}]")
    needed = frozenset(_streamed(cell, index, packed)).union(*(part.reads for part in parts)) - made
    return tuple(bind(cell, needed, table) + lines)


def _parts(
    cell: Cell, index: int, packed: Mapping[str, PackedStream], table: Mapping[str, Value], emitter: Emitter
) -> list[_Piece]:
    """All that is made, in the order of the text. A packed stream stands where its first node does."""
    segment, places = cell.segments[index], member_places(cell)
    absorbed, later = _absorbed(cell, index, packed), read_later(cell, index)
    loose = [node for node in segment.batched if node.target not in absorbed]
    packed_reads = {name: _packed_reads(p, places) for name, p in packed.items()}
    operations = recognise(loose, later | _streamed(cell, index, packed) | set().union(*packed_reads.values()), table)
    used = {name for operation in operations for name in operation_reads(operation)}.union(
        later, *packed_reads.values()
    )
    at = {operation_targets(operation)[0]: operation for operation in operations}
    parts: dict[str, _Piece] = {}
    for node in segment.batched:
        owner = absorbed.get(node.target)
        if owner is not None and owner not in parts:
            stream = packed[owner].stream
            lines = [f"{variable(owner)}__stream = {packed_text(packed[owner], places, table)}"]
            if any(member in used for member in stream.members):
                widths = [table[member].width for member in stream.members]
                lines.append(split_lines(stream.members, widths, f"{variable(owner)}__stream", -1))
            parts[owner] = _Piece(stream.members, frozenset(packed_reads[owner]), tuple(lines))
        elif owner is None and node.target in at:
            operation = at[node.target]
            # The `=` tells it from a stream, which may have the name of a value.
            parts[f"={node.target}"] = _Piece(
                operation_targets(operation),
                frozenset(operation_reads(operation)),
                (operation_text(operation, emitter),),
            )
    return list(parts.values())


def _in_order(parts: Sequence[_Piece]) -> list[_Piece]:
    """The pieces in their order, but each behind those that make its operands. There is such an order: all members of a
    packed stream are made of all its operands, so no operand is made of a member."""
    missing = {name for part in parts for name in part.makes}
    ordered: list[_Piece] = []
    waiting: list[_Piece] = []
    for part in parts:
        waiting.append(part)
        while (ready := next((one for one in waiting if not one.reads & missing), None)) is not None:
            waiting.remove(ready)
            ordered.append(ready)
            missing -= set(ready.makes)
    assert not waiting
    return ordered


def _streamed(cell: Cell, index: int, packed: Mapping[str, PackedStream]) -> set[str]:
    """The members of streams that are not packed."""
    streams = cell.segments[index].streams
    return {member for stream in streams if stream.name not in packed for member in stream.members}


def _members(packed: Mapping[str, PackedStream]) -> set[str]:
    return {member for p in packed.values() for member in p.stream.members}


def _packed_reads(packed: PackedStream, places: Mapping[str, MemberPlace]) -> set[str]:
    """Values that a packed stream's products name one by one."""
    names = {product.operand for product in packed.products}
    for group in (*(product.matrices for product in packed.products), *packed.vectors):
        names |= loose_names(group, places)
    return names


def _stream(stream: Stream, table: Mapping[str, Value], *, is_packed: bool) -> str:
    """A stream of a loop. What is the same at all steps stays as small as it is."""
    per_sequence = is_per_sequence(stream, table)
    if is_packed:
        made = f"{variable(stream.name)}__stream"
        return over_steps(made) if per_sequence else made
    parts = []
    for member in stream.members:
        value = over_steps(variable(member)) if per_sequence else variable(member)
        parts.append(f"({value}, {python_dim(table[member].width)})")
    return f"tools.stream({', '.join(parts)})"


def _absorbed(cell: Cell, index: int, packed: Mapping[str, PackedStream]) -> dict[str, str]:
    """The nodes that a packed stream replaces, each with the stream: all its members, and products that only these
    read."""
    segment = cell.segments[index]
    result: dict[str, str] = {}
    for name, p in packed.items():
        members = set(p.stream.members)
        for target in p.absorbed:
            readers = {node.target for node in segment.batched if target in operands(node)}
            if target in members or (readers <= members and target not in read_later(cell, index)):
                result[target] = name
    return result
