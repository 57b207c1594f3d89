"""Functions of parameters as lines of torch code. They run at every call, and with matrices that takes time. So what an
expression has several times is computed once, and matrices that go through the same function go through it together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Node, Pointwise, Role, Value
from rnncc.ir.dim import HEADS, Dim, constant, scale, split_multiple
from rnncc.ir.expr import Apply, Const, Expr, Ref, references, substitute
from rnncc.ir.structure import BlockDiagonal
from rnncc.stages.render.notation import python_dim
from rnncc.stages.render.python.code import Emitter, MemberPlace, variable
from rnncc.stages.render.python.streams import neighbours


@dataclass(frozen=True, slots=True)
class Together:
    """Nodes that are the same function, each of one matrix: of `members`, which are neighbours in a parameter."""

    nodes: tuple[Pointwise, ...]
    members: tuple[str, ...]


def in_groups(
    nodes: Sequence[Node], table: Mapping[str, Value], places: Mapping[str, MemberPlace]
) -> Iterator[Node | Together]:
    """The nodes in their order. Those that go together stand where the first of them does."""
    alike: dict[object, list[tuple[Pointwise, str]]] = {}
    for node in nodes:
        if isinstance(node, Pointwise) and (member := _only_matrix(node, table)):
            function = substitute(node.expr, {member: Ref("")})
            key = (function, *((value.width, value.columns, value.structure) for value in _both(node, member, table)))
            alike.setdefault(key, []).append((node, member))
    together: dict[str, Together] = {}
    for pairs in alike.values():
        members = tuple(member for _, member in pairs)
        if len(pairs) > 1 and neighbours(members, places):
            group = Together(tuple(node for node, _ in pairs), members)
            together |= {node.target: group for node in group.nodes}
    for node in nodes:
        own = together.get(node.target)
        if own is None:
            yield node
        elif own.nodes[0] is node:
            yield own


def _both(node: Pointwise, member: str, table: Mapping[str, Value]) -> tuple[Value, Value]:
    return table[node.target], table[member]


def _only_matrix(node: Pointwise, table: Mapping[str, Value]) -> str:
    """The member of a parameter that a node reads, where it makes a matrix of a matrix, and reads nothing else but
    numbers. Blocks are those of heads, since norms are of each head."""
    read = [name for name in dict.fromkeys(references(node.expr)) if table[name].role is not Role.CONSTANT]
    if len(read) != 1 or table[read[0]].role is not Role.PARAMETER or isinstance(node.expr, Ref):
        return ""
    for value in _both(node, read[0], table):
        has_own_blocks = isinstance(value.structure, BlockDiagonal) and value.structure.blocks != HEADS
        if value.columns is None or has_own_blocks or split_multiple(value.width)[0] != 1:
            return ""
    same = len({table[name].structure for name in (node.target, read[0])}) == 1
    return read[0] if same else ""


class ParameterEmitter(Emitter):
    """Turns nodes that read parameters into lines."""

    # The variables of the node's expressions that have one.
    _known: Mapping[Expr, str] = {}
    # How many matrices the member `_member` stands for, which lie in a variable one below the other.
    _member, _copies, _all = "", 1, ""

    def lines(self, node: Node) -> list[str]:
        """A node."""
        self._known = {}
        shared = self._shared(node) if isinstance(node, Pointwise) else []
        return [*shared, self.node(node)]

    def lines_together(self, group: Together, source: str) -> list[str]:
        """Nodes that go together. `source`: their matrices, one below the other."""
        first, target = group.nodes[0], self.table[group.nodes[0].target]
        self._member, self._copies, self._all = group.members[0], len(group.nodes), f"{variable(first.target)}__all"
        made = [f"{self._all} = {source}", *self._shared(first)]
        text = f"rows.from_blocks({self.expression(first.expr, target)}, {self._blocks(target)}, 1)"
        names = ", ".join(variable(node.target) for node in group.nodes)
        self._member, self._copies, self._all = "", 1, ""
        return [*made, f"{names} = {text}.split({python_dim(target.width)})"]

    def _shared(self, node: Pointwise) -> list[str]:
        """Lines that give a variable to what the node's expression has several times."""
        made: list[str] = []
        known: dict[Expr, str] = {}
        self._known, target = known, self.table[node.target]
        for part in _repeated(node.expr):
            text = self.expression(part, target)
            if not text.isidentifier() and not self.is_number(part):
                name = f"{variable(node.target)}__shared{len(made)}"
                made.append(f"{name} = {text}")
                known[part] = name
        return made

    def _blocks(self, value: Value) -> str:
        """How many blocks the matrices together have."""
        own: Dim = value.structure.blocks if isinstance(value.structure, BlockDiagonal) else constant(1)
        return python_dim(scale(own, self._copies))

    def operand(self, expr: Expr, target: Value) -> str:
        """An expression, or the variable that has it."""
        return self._known.get(expr) or super().operand(expr, target)

    def reference(self, name: str, target: Value) -> str:
        """A value, or all matrices that it stands for."""
        if name == self._member:
            return f"rows.to_blocks({self._all}, {self._blocks(self.table[name])}, 1)"
        return super().reference(name, target)

    def norm(self, norm: Apply, target: Value, function: str) -> str:
        """A norm of a matrix, or of each of those that it stands for."""
        if not self._member:
            return super().norm(norm, target, function)
        return f"matrices.{function}({self.expression(norm.arguments[0], target)}, {self._blocks(target)})"


def _repeated(expr: Expr) -> list[Expr]:
    """The parts that an expression has several times, each behind its own parts."""
    counts: Counter[Expr] = Counter()
    found: list[Expr] = []

    def visit(part: Expr) -> None:
        counts[part] += 1
        if counts[part] > 1:
            return
        for argument in part.arguments if isinstance(part, Apply) else ():
            visit(argument)
        found.append(part)

    visit(expr)
    return [part for part in found if counts[part] > 1 and not isinstance(part, Const)]
