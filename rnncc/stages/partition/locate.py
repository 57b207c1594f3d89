"""Where each node runs: in a loop, batched before one, in the prologue or the epilogue; what sinks into loops.

A loop reads pre-activations: elementwise values of inputs are computed in it, unless batched work needs them too. So
are matrices that change, whatever makes them: for all steps they would take as much memory as all states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rnncc.analysis import graph
from rnncc.analysis.sums import Signed, is_linear_in, terms
from rnncc.ir.cell import Node, Placement, Pointwise, RowOp, operands
from rnncc.ir.expr import Apply, Expr, references
from rnncc.language.diagnostics import InternalError
from rnncc.language.operators import OPERATORS
from rnncc.stages.partition.flat import FlatCell
from rnncc.stages.partition.place import Placed


class Part(Enum):
    """The part of a cell that a node runs in."""

    PROLOGUE = "prologue"
    BATCHED = "batched"
    LOOP = "loop"
    EPILOGUE = "epilogue"


@dataclass(slots=True)
class Located:
    """Where each node runs. `hoist` adds the nodes that it makes.

    part     of every node
    segment  the number of the segment in whose loop a node runs
    heavy    batched values that are products, row functions or made of the latter: what a loop should read as it is
    uses     how often each value is read in the text of all nodes

    A value of placement Q is never heavy: it is [B, width], and a loop reads it as it is.
    """

    part: dict[str, Part] = field(default_factory=dict)
    segment: dict[str, int] = field(default_factory=dict)
    heavy: set[str] = field(default_factory=set)
    uses: dict[str, int] = field(default_factory=dict)

    def is_worth_batching(self, signed: Sequence[Signed]) -> bool:
        """Whether terms of inputs are worth one batched value: two and more, one of which takes in a product that
        nothing else reads, or holds such a product under a scale. The loop then reads the sum as it is."""
        return len(signed) > 1 and any(self._takes_in(term) for _, term in signed)

    def _takes_in(self, term: Expr) -> bool:
        return any(
            name in self.heavy and self.uses.get(name, 0) == 1 and is_linear_in(term, name) for name in references(term)
        )


def in_loop(expr: Expr) -> bool:
    """Whether every operator of an expression may stand in a loop."""
    match expr:
        case Apply(operator, arguments):
            return OPERATORS[operator].in_loop and all(in_loop(argument) for argument in arguments)
        case _:
            return True


def is_hidden(expr: Expr, name: str) -> bool:
    """Whether an operator that may not stand in a loop takes in a value."""
    if not isinstance(expr, Apply):
        return False
    if not OPERATORS[expr.operator].in_loop:
        return name in references(expr)
    return any(is_hidden(argument, name) for argument in expr.arguments)


def occurrences(nodes: Mapping[str, Node]) -> dict[str, int]:
    """How often each value is read in the text of all nodes."""
    uses: dict[str, int] = {}
    for node in nodes.values():
        for name in references(node.expr) if isinstance(node, Pointwise) else operands(node):
            uses[name] = uses.get(name, 0) + 1
    return uses


class _Locator:
    def __init__(self, flat: FlatCell, placed: Placed) -> None:
        self.flat, self.placed = flat, placed
        self.located = Located(uses=occurrences(flat.nodes))
        reads = {name: operands(node) for name, node in flat.nodes.items()}
        self.order = graph.sort(reads) or []
        self.readers: dict[str, list[str]] = {}
        for name, read in reads.items():
            for operand in read:
                self.readers.setdefault(operand, []).append(name)

    def run(self) -> Located:
        for name in self.order:
            self.locate_one(name)
        for name in reversed(self.order):
            if self.placed.placement[name] is Placement.X:
                self.sink_input(name)
        return self.located

    def put(self, name: str, part: Part, segment: int | None = None) -> None:
        self.located.part[name] = part
        if segment is not None:
            self.located.segment[name] = segment

    def locate_one(self, name: str) -> None:
        node = self.flat.nodes[name]
        match self.placed.placement[name]:
            case Placement.P:
                self.put(name, Part.PROLOGUE)
            case Placement.S:
                self.put(name, Part.LOOP, self.placed.owner[name])
            case Placement.Q:
                self.put(name, Part.BATCHED)
            case Placement.X:
                heavy = not isinstance(node, Pointwise) or any(self.is_row(operand) for operand in operands(node))
                if heavy and not self.is_of_matrices(node):
                    self.located.heavy.add(name)
            case Placement.Y:
                self.sink_output(name, node)

    def is_row(self, name: str) -> bool:
        node = self.flat.nodes.get(name)
        if not isinstance(node, RowOp) or self.is_of_matrices(node):
            return False
        return self.placed.placement[name] is Placement.X

    def is_of_matrices(self, node: Node) -> bool:
        """Whether a node makes or takes a matrix that changes with the step."""
        return any(self.flat.shapes[name].grid is not None for name in (node.target, *operands(node)))

    def sink_output(self, name: str, node: Node) -> None:
        """An elementwise value of Y is computed in the last loop it reads from, where all it reads is at hand."""
        last = self.placed.last_segment[name]
        ready = all(self.at_hand(operand, last) for operand in operands(node))
        fits = in_loop(node.expr) if isinstance(node, Pointwise) else self.is_of_matrices(node)
        if ready and fits:
            self.put(name, Part.LOOP, last)
        else:
            self.put(name, Part.EPILOGUE)

    def hides(self, reader: str, name: str) -> bool:
        """Whether a function that loops do not have takes in the value: it is then batched, and what it reads too."""
        node = self.flat.nodes[reader]
        return isinstance(node, Pointwise) and is_hidden(node.expr, name)

    def at_hand(self, name: str, segment: int) -> bool:
        """Whether a value can be read in the loop of a segment."""
        placement = self.placed.placement.get(name)
        if placement in (None, Placement.S, Placement.P):
            return True
        if placement is Placement.Y:
            return self.located.part[name] is Part.LOOP
        return self.placed.last_segment[name] < segment

    def sink_input(self, name: str) -> None:
        """An elementwise value of X is computed in the loop, where one loop alone reads it."""
        node = self.flat.nodes[name]
        readers = self.readers.get(name, [])
        loops = {self.located.segment[reader] if self.located.part[reader] is Part.LOOP else -1 for reader in readers}
        if isinstance(node, Pointwise):
            worth_batching = not self.is_of_matrices(node) and self.located.is_worth_batching(terms(node.expr))
            fits = in_loop(node.expr) and not worth_batching
        else:
            fits = self.is_of_matrices(node)
        sinks = (
            fits
            and name != self.flat.typed.output
            and len(loops) == 1
            and -1 not in loops
            and name not in self.located.heavy
            and not any(self.hides(reader, name) for reader in readers)
        )
        if sinks:
            self.put(name, Part.LOOP, loops.pop())
        else:
            # Which segment it is batched for is known once hoisting has made the last readers.
            self.put(name, Part.BATCHED)


def locate(flat: FlatCell, placed: Placed) -> Located:
    """Decide where every node runs; see the module's docstring."""
    located = _Locator(flat, placed).run()
    if located.part.keys() != flat.nodes.keys():
        raise InternalError("a node has no place")
    return located
