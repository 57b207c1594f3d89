"""Segments: the parts of the program put together, with what every loop reads and yields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnncc.ir.cell import Contraction, Node, Parameter, Placement, Pointwise, Segment, Stream, Weight, operands
from rnncc.language.diagnostics import InternalError
from rnncc.stages.check import graph
from rnncc.stages.check.locate import Located, Part
from rnncc.stages.check.place import Placed, Program
from rnncc.stages.check.streams import streams


class Assembler:
    """Cuts the final nodes into prologue, segments and epilogue."""

    def __init__(
        self,
        program: Program,
        nodes: Mapping[str, Node],
        placed: Placed,
        located: Located,
        parameters: Sequence[Parameter],
        constants: frozenset[str],
    ) -> None:
        self.program, self.placed, self.located = program, placed, located
        self.parameters, self.constants = parameters, constants
        self.parameter_of = {member.name: parameter for parameter in parameters for member in parameter.members}
        order = graph.sort({name: operands(node) for name, node in nodes.items()})
        if order is None:
            raise InternalError("hoisting made a cycle")
        self.nodes = {name: nodes[name] for name in order}
        self.count = len(placed.segments)
        self.batch_inputs()

    def batch_inputs(self) -> None:
        """Batched nodes run before the first segment that reads them; what no segment reads, in the epilogue."""
        first: dict[str, int] = {}
        for name in reversed(self.nodes):
            part = self.located.part[name]
            if part is Part.BATCHED:
                position = first.get(name, self.count)
                self.located.segment[name] = position
                if position == self.count:
                    self.located.part[name] = Part.EPILOGUE
            position = self.located.segment.get(name, self.count)
            for operand in operands(self.nodes[name]):
                first[operand] = min(first.get(operand, self.count), position)

    def part(self, part: Part, segment: int | None = None) -> tuple[Node, ...]:
        """The nodes of one part, in order."""
        return tuple(
            node
            for name, node in self.nodes.items()
            if self.located.part[name] is part and (segment is None or self.located.segment[name] == segment)
        )

    def segments(self) -> tuple[Segment, ...]:
        loops = [self.part(Part.LOOP, position) for position in range(self.count)]
        read_outside = self.read_outside(loops)
        return tuple(self.segment(position, loops[position], read_outside) for position in range(self.count))

    def read_outside(self, loops: Sequence[tuple[Node, ...]]) -> set[str]:
        """Values that something other than their own loop reads."""
        found = {self.program.output}
        for name, node in self.nodes.items():
            in_loop = self.located.part[name] is Part.LOOP
            for operand in operands(node):
                home = self.home(operand)
                if home is not None and not (in_loop and self.located.segment[name] == home):
                    found.add(operand)
        return found

    def home(self, name: str) -> int | None:
        """The segment whose loop yields a value."""
        if name in self.nodes:
            return self.located.segment[name] if self.located.part[name] is Part.LOOP else None
        return self.placed.owner.get(name)

    def segment(self, position: int, loop: tuple[Node, ...], read_outside: set[str]) -> Segment:
        states = self.placed.segments[position]
        hidden = {delay for delays in self.program.delays.values() for delay in delays}
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
        visible = [state for state in states if state not in hidden]
        batched = self.part(Part.BATCHED, position)
        yielded = [name for name in (*inside_order(loop), *sorted(previous)) if name in read_outside]
        return Segment(
            states=states,
            streams=self.streams(arriving, {node.target: node for node in batched}),
            weights=tuple(weights.values()),
            constants=tuple(name for name in outside if name in self.constants),
            batched=batched,
            nodes=loop,
            sequences=tuple(dict.fromkeys([*visible, *yielded])),
            phases=phases(loop),
        )

    def streams(self, arriving: list[str], batched: Mapping[str, Node]) -> tuple[Stream, ...]:
        """Only what is batched for the same segment can come from one product."""
        return streams(arriving, batched, self.parameter_of)


def inside_order(loop: tuple[Node, ...]) -> tuple[str, ...]:
    """The loop's values in order."""
    return tuple(node.target for node in loop)


def phases(loop: Sequence[Node]) -> int:
    """The length of the longest chain of dependent products in a step."""
    depth: dict[str, int] = {}
    for node in loop:
        below = max((depth.get(operand, 0) for operand in operands(node)), default=0)
        depth[node.target] = below + isinstance(node, Contraction)
    return max(depth.values(), default=0)


__all__ = ["Assembler", "Pointwise", "phases"]
