"""Cuts a cell into its parts: prologue, segments with what every loop reads and yields, and epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnncc.analysis import graph
from rnncc.ir.cell import Contraction, Node, Parameter, Placement, Segment, Weight, operands
from rnncc.ir.typed import delay_states
from rnncc.language.diagnostics import InternalError
from rnncc.stages.partition.flat import FlatCell
from rnncc.stages.partition.locate import Located, Part
from rnncc.stages.partition.place import Placed
from rnncc.stages.partition.streams import streams


@dataclass(frozen=True, slots=True)
class CellParts:
    """The parts of a cell, each in dependence order; `order` is that of all its nodes."""

    prologue: tuple[Node, ...]
    segments: tuple[Segment, ...]
    epilogue: tuple[Node, ...]
    order: tuple[Node, ...]


class _Cutter:
    def __init__(self, flat: FlatCell, placed: Placed, located: Located, parameters: Sequence[Parameter]) -> None:
        self.flat, self.placed = flat, placed
        self.part_of, self.segment_of = dict(located.part), dict(located.segment)
        self.constants = frozenset(constant.name for constant in flat.typed.constants)
        self.parameter_of = {member.name: parameter for parameter in parameters for member in parameter.members}
        order = graph.sort({name: operands(node) for name, node in flat.nodes.items()})
        if order is None:
            raise InternalError("hoisting made a cycle")
        self.nodes = {name: flat.nodes[name] for name in order}
        self.count = len(placed.segments)
        self.batch_inputs()

    def run(self) -> CellParts:
        loops = [self.part(Part.LOOP, position) for position in range(self.count)]
        read_outside = self.read_outside()
        segments = tuple(self.segment(position, loop, read_outside) for position, loop in enumerate(loops))
        return CellParts(self.part(Part.PROLOGUE), segments, self.part(Part.EPILOGUE), tuple(self.nodes.values()))

    def batch_inputs(self) -> None:
        """Batched nodes run before the first segment that reads them; what no segment reads, in the epilogue."""
        first: dict[str, int] = {}
        for name in reversed(self.nodes):
            part = self.part_of[name]
            if part is Part.BATCHED:
                position = first.get(name, self.count)
                self.segment_of[name] = position
                if position == self.count:
                    self.part_of[name] = Part.EPILOGUE
            position = self.segment_of.get(name, self.count)
            for operand in operands(self.nodes[name]):
                first[operand] = min(first.get(operand, self.count), position)

    def part(self, part: Part, segment: int | None = None) -> tuple[Node, ...]:
        """The nodes of one part, in order."""
        return tuple(
            node
            for name, node in self.nodes.items()
            if self.part_of[name] is part and (segment is None or self.segment_of[name] == segment)
        )

    def read_outside(self) -> set[str]:
        """Values that something other than their own loop reads."""
        found = {self.flat.typed.output}
        for name, node in self.nodes.items():
            in_loop = self.part_of[name] is Part.LOOP
            for operand in operands(node):
                home = self.home(operand)
                if home is not None and not (in_loop and self.segment_of[name] == home):
                    found.add(operand)
        return found

    def home(self, name: str) -> int | None:
        """The segment whose loop yields a value."""
        if name in self.nodes:
            return self.segment_of[name] if self.part_of[name] is Part.LOOP else None
        return self.placed.owner.get(name)

    def segment(self, position: int, loop: tuple[Node, ...], read_outside: set[str]) -> Segment:
        states = self.placed.segments[position]
        inside = {node.target for node in loop}
        previous = {f"{state}__1" for state in states}
        read = list(dict.fromkeys(operand for node in loop for operand in operands(node)))
        outside = [name for name in read if name not in inside and name not in previous]
        weights: dict[str, Weight] = {}
        arriving: list[str] = []
        for name in outside:
            if name in self.constants:
                continue
            if name in self.parameter_of:
                parameter = self.parameter_of[name]
                weights[parameter.name] = Weight(parameter.name, tuple(member.name for member in parameter.members))
            elif self.placed.placement.get(name) is Placement.P:
                weights[name] = Weight(name, (name,))
            else:
                arriving.append(name)
        hidden = {delay for state in states for delay in delay_states(self.flat.typed, state)}
        visible = [state for state in states if state not in hidden]
        # Only what is batched for the same segment can come from one product.
        batched = self.part(Part.BATCHED, position)
        yielded = [name for name in (*(node.target for node in loop), *sorted(previous)) if name in read_outside]
        return Segment(
            states=states,
            streams=streams(arriving, {node.target: node for node in batched}, self.parameter_of),
            weights=tuple(weights.values()),
            constants=tuple(name for name in outside if name in self.constants),
            batched=batched,
            nodes=loop,
            sequences=tuple(dict.fromkeys([*visible, *yielded])),
            phases=max(depths(loop).values(), default=0),
        )


def depths(loop: Sequence[Node]) -> Mapping[str, int]:
    """How many products of a step follow each other up to each value of its loop, that of the value included."""
    depth: dict[str, int] = {}
    for node in loop:
        below = max((depth.get(operand, 0) for operand in operands(node)), default=0)
        depth[node.target] = below + isinstance(node, Contraction)
    return depth


def cut(flat: FlatCell, placed: Placed, located: Located, parameters: Sequence[Parameter]) -> CellParts:
    """Cut a cell whose nodes have their places."""
    return _Cutter(flat, placed, located, parameters).run()
