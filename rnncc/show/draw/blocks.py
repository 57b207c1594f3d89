"""Values become boxes: products on the same operands are one block, and the gates that are made of them its tiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from rnncc.ir.typed import Typed
from rnncc.show.draw.graph import Box, Graph, Kind, Tile, Wire
from rnncc.show.draw.labels import width
from rnncc.show.draw.values import HOLE, Value, Values
from rnncc.show.typed import shown_shape

# Functions one after the other are one box where the label is at most so wide, at a font size of 1.
_SHORT = 7.0


@dataclass
class _Boxes:
    """Where each value comes out: the box and its port."""

    values: Values
    boxes: list[Box] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, box: Box, *numbers: int) -> None:
        """A box for these values, one at each port."""
        for port, number in enumerate(numbers):
            self.places[number] = (len(self.boxes), port)
        self.boxes.append(box)

    def name(self, *numbers: int) -> str:
        """What equations call a value."""
        for number in numbers:
            for name in self.values.names.get(number, ()):
                # The boxes of states and of the output have their names.
                if name not in {*(state.name for state in self.values.cell.states), self.values.cell.output}:
                    return self.values.labels.value(name)
        return ""

    def title(self, *numbers: int) -> str:
        """The equations of values."""
        return "; ".join(title for number in numbers for title in self.values.titles.get(number, ()))


def graph(cell: Typed) -> Graph:
    """The picture's boxes and wires for one step of a cell."""
    values = Values(cell)
    values.build()
    results = {state.name: values.of(state.name) for state in cell.states}
    if cell.output not in results:
        results[cell.output] = values.of(cell.output)
    fused = _fused(values, set(results.values()))
    made = _Boxes(values)
    inner = {number for chain in fused.values() for number in chain[:-1]}
    groups = _groups(values)
    for number, value in enumerate(values.all):
        if number in made.places or number in inner:
            continue
        chain = fused.get(number, (number,))
        first = values.all[chain[0]]
        if first.role == "affine":
            _block(made, [_ending(fused, member) for member in groups[_likeness(first)]])
        elif first.role == "split":
            # Each target may have parameters of its own, and then another value is split for it.
            whole = ("split", first.fixed, first.reads)
            parts = [k for k, other in enumerate(values.all) if (other.role, other.fixed, other.reads) == whole]
            parts.sort(key=lambda part: values.all[part].port)
            _block(made, [_ending(fused, part) for part in parts], Kind.ROWS)
        else:
            made.add(_single(made, chain, value), chain[-1])
    _results(made, results)
    wires = tuple(_wires(made, fused, results))
    reads = Counter(wire.target for wire in wires)
    boxes = tuple(replace(box, reads=reads[number]) for number, box in enumerate(made.boxes))
    return Graph(cell.name, boxes, wires)


def _fused(values: Values, results: set[int]) -> dict[int, tuple[int, ...]]:
    """By its last value, each chain that is one box: a product and functions of it, or functions of functions."""
    uses = Counter(number for value in values.all for number, _ in value.reads)
    uses.update(results)
    chains: dict[int, tuple[int, ...]] = {}
    # What a value reads has a smaller number.
    for number, value in enumerate(values.all):
        if value.role != "unary":
            continue
        (operand, _), *_ = value.reads
        before = chains.get(operand, (operand,))
        role = values.all[operand].role
        if uses[operand] == 1 and role in ("affine", "unary", "split") and _fits(values, (*before, number)):
            chains.pop(operand, None)
            chains[number] = (*before, number)
    return chains


def _fits(values: Values, chain: tuple[int, ...]) -> bool:
    return width(_composed(values, chain), 1) <= _SHORT


def _composed(values: Values, chain: tuple[int, ...]) -> str:
    """The label of functions one after the other: `2 σ`, `1 + tanh`, `exp(−k ·)`."""
    label = ""
    for number in chain:
        value = values.all[number]
        if value.role != "unary":
            continue
        if not label:
            label = value.label
        elif HOLE in value.label:
            label = value.label.replace(HOLE, label)
        else:
            label = f"{value.label}({label})"
    return label


def _likeness(value: Value) -> tuple[object, ...]:
    """What products of one block have in common: operands, and the label, which names groups and not gates."""
    return value.label, value.reads


def _groups(values: Values) -> dict[tuple[object, ...], list[int]]:
    found: dict[tuple[object, ...], list[int]] = {}
    for number, value in enumerate(values.all):
        if value.role == "affine":
            found.setdefault(_likeness(value), []).append(number)
    return found


def _ending(fused: dict[int, tuple[int, ...]], first: int) -> tuple[int, ...]:
    """The chain that begins with a value."""
    return next((chain for chain in fused.values() if chain[0] == first), (first,))


def _block(made: _Boxes, chains: list[tuple[int, ...]], kind: Kind = Kind.BLOCK) -> None:
    tiles = [Tile(_composed(made.values, chain), made.name(*reversed(chain)), made.title(*chain)) for chain in chains]
    title = made.title(*(number for chain in chains for number in chain))
    label = made.values.all[chains[0][0]].label
    if len(tiles) == 1 and not tiles[0].function and not tiles[0].name:
        made.add(Box(kind, label, title), chains[0][-1])
    else:
        made.add(Box(kind, label, title, tiles=tuple(tiles)), *(chain[-1] for chain in chains))


def _single(made: _Boxes, chain: tuple[int, ...], value: Value) -> Box:
    title, name = made.title(*chain), made.name(*reversed(chain))
    matrix = made.values.is_matrix(chain[-1])
    match value.role:
        case "source":
            is_input = value.source in {given.name for given in made.values.cell.inputs}
            is_past = value.source in made.values.past
            kind = Kind.INPUT if is_input else Kind.PAST if is_past else Kind.FUNCTION
            return Box(kind, value.label, title, is_matrix=matrix)
        case "unary":
            return Box(Kind.FUNCTION, _composed(made.values, chain), title, name, is_matrix=matrix)
        case "rows":
            return Box(Kind.ROWS, value.label, title, name, marks=_marks(value), is_matrix=matrix)
        case _:
            return Box(Kind.POINT, value.label, title, name, marks=_marks(value), is_matrix=matrix)


def _marks(value: Value) -> tuple[str, ...]:
    """What the values are that a box reads, where each has a place of its own. Signs stand beside wires."""
    marks = tuple(mark for _, mark in value.reads)
    return marks if marks and all(marks) and not set(marks) <= {"−", "÷"} else ()


def _results(made: _Boxes, results: dict[str, int]) -> None:
    """A box for each state after the step, and one for an output that is no state."""
    states = {state.name for state in made.values.cell.states}
    for name in results:
        label, is_output = made.values.labels.value(name), name == made.values.cell.output
        if name in states:
            shape = made.values.cell.shapes[name]
            matrix = shape.kind == "changing"
            title = f"state {name} after the step" + (f", {shown_shape(shape)}" if matrix else "")
            made.add(Box(Kind.NEXT, label, title, is_output=is_output, is_matrix=matrix))
        else:
            made.add(Box(Kind.OUTPUT, label, f"output {name}", is_output=True))


def _wires(made: _Boxes, fused: dict[int, tuple[int, ...]], results: dict[str, int]) -> list[Wire]:
    found: dict[Wire, None] = {}
    ends = {number: chain[-1] for chain in fused.values() for number in chain}
    for number, value in enumerate(made.values.all):
        place = made.places.get(ends.get(number, number))
        if place is None or (number in ends and number != fused[ends[number]][0]):
            continue
        for operand, mark in value.reads:
            source, port = made.places[ends.get(operand, operand)]
            found[Wire(source, port, place[0], mark)] = None
    first = len(made.boxes) - len(results)
    for position, number in enumerate(results.values()):
        source, port = made.places[ends.get(number, number)]
        found[Wire(source, port, first + position)] = None
    return list(found)
