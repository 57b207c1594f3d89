"""The reverse sweep over one segment's nodes.

Each value collects what the nodes that read it give to its cotangent. Nodes are visited last to first, so that a
value's cotangent is complete when its own node is reached.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from rnncc.analysis.recurrent import CLIP
from rnncc.ir.adjoint import OuterProduct
from rnncc.ir.cell import (
    Contraction,
    Delay,
    Node,
    Placement,
    Pointwise,
    Role,
    RowOp,
    RowOperator,
    Segment,
    Value,
    operands,
)
from rnncc.ir.dim import HEADS, ONE, Dim, add, constant
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE, Span
from rnncc.stages.differentiate.normalise import NARROW
from rnncc.stages.differentiate.symbolic import contributions

# Terms of a sum in one equation, as many as a chain of the text may have (rnncc/stages/parse/lexer.py). Equations that
# share a parameter give it a term each, and there may be a thousand of them: too deep for what walks expressions.
LONGEST_SUM = 100


@dataclass(frozen=True, slots=True)
class _Slice:
    """The cotangent of a slice of a value, which starts at `offset`."""

    offset: Dim
    width: Dim
    cotangent: str


@dataclass(slots=True)
class _Collected:
    """What has been given to one cotangent: expressions by their width, and slices."""

    terms: list[tuple[Expr, Dim]] = field(default_factory=list)
    slices: list[_Slice] = field(default_factory=list)
    span: Span = NOWHERE


class Sweep:
    """The state of the sweep. `nodes` and `new` (their values) grow; the yields are complete after `run`. `aliases`:
    of earlier values, `RecurrentReads.aliases`. `untrained`: weights that have no gradient."""

    def __init__(
        self,
        segment: Segment,
        values: Mapping[str, Value],
        aliases: Container[str] = (),
        untrained: Collection[str] = (),
    ) -> None:
        self.values = dict(values)
        self.new: list[Value] = []
        self.nodes: list[Node] = []
        self.outer_products: list[OuterProduct] = []
        self.stream_cotangents: list[tuple[str, str]] = []
        self.vector_cotangents: list[tuple[str, str]] = []
        self.state_cotangents: list[tuple[str, str]] = []
        self._segment = segment
        self._aliases = aliases
        self._collected: dict[str, _Collected] = {}
        self._untrained = untrained
        self._differentiable = _differentiable(segment, self.values, untrained)

    def run(self) -> None:
        """Fill in everything."""
        segment = self._segment
        self._seed(segment.states, "carry")
        self._seed(segment.sequences, "sequence")
        for node in reversed(segment.nodes):
            if node.target not in self._differentiable:
                continue
            cotangent = self._complete(node.target, node.span)
            if cotangent is not None:
                self._reverse(node, cotangent)
        self.outer_products.reverse()
        for state in segment.states:
            self._yield(self.state_cotangents, state, f"{state}__1")
        for stream in segment.streams:
            for member in stream.members:
                self._yield(self.stream_cotangents, member, member)
        for weight in segment.weights:
            for member in weight.members:
                if self.values[member].columns is None:
                    self._yield(self.vector_cotangents, member, member, narrow=False)

    def _seed(self, names: tuple[str, ...], kind: str) -> None:
        """What comes from outside the step, first in every sum."""
        for name in names:
            width = self.values[name].width
            self._give(name, Ref(self._value(f"d_{name}__{kind}", width, NOWHERE)), width, NOWHERE)

    def _yield(self, pairs: list[tuple[str, str]], key: str, name: str, narrow: bool = True) -> None:
        cotangent = self._complete(name, None, narrow)
        if cotangent is not None:
            pairs.append((key, cotangent))

    # Making nodes.

    def _value(self, wish: str, width: Dim, span: Span) -> str:
        name, number = wish, 2
        while name in self.values:
            name, number = f"{wish}_{number}", number + 1
        self.values[name] = Value(name, Role.NODE, Placement.S, width, span=span)
        self.new.append(self.values[name])
        return name

    def _pointwise(self, wish: str, width: Dim, expr: Expr, span: Span) -> str:
        name = self._value(wish, width, span)
        self.nodes.append(Pointwise(name, expr, span))
        return name

    def _row(self, width: Dim, node: RowOp) -> str:
        """Add the node. Where the name of its target is taken, it gets another."""
        name = self._value(node.target, width, node.span)
        self.nodes.append(replace(node, target=name))
        return name

    # Collecting cotangents.

    def _collect(self, name: str, span: Span) -> _Collected:
        collected = self._collected.setdefault(name, _Collected())
        collected.span = span
        return collected

    def _give(self, name: str, expr: Expr, width: Dim, span: Span) -> None:
        self._collect(name, span).terms.append((expr, width))

    def _complete(self, name: str, span: Span | None, narrow: bool = True) -> str | None:
        """The cotangent of a value as a name; None where nothing reached it.

        Where the value is one number for many units, what came per unit is summed over the units; not so with
        `narrow` False (a weight) if everything came in one width.
        """
        collected = self._collected.pop(name, None)
        if collected is None:
            return None
        span = collected.span if span is None else span
        width = self.values[name].width
        if not narrow and len(widths := {found for _, found in collected.terms}) == 1 and width in NARROW:
            width = widths.pop()
        terms = [expr for expr, found in collected.terms if not _is_wider(found, width)]
        for wide in dict.fromkeys(found for _, found in collected.terms if _is_wider(found, width)):
            wish = f"d_{name}__units"
            parts = self._sum(wish, wide, [expr for expr, found in collected.terms if found == wide], span)
            whole = parts.name if isinstance(parts, Ref) else self._pointwise(wish, wide, parts, span)
            terms.append(Ref(self._row(width, RowOp(f"d_{name}__sum", RowOperator.SUM, (whole,), span=span))))
        terms += [Ref(part) for part in self._unslice(name, collected.slices, span)]
        total = self._sum(f"d_{name}", width, terms, span)
        if isinstance(total, Ref) and self.values[total.name].width == width:
            return total.name
        return self._pointwise(f"d_{name}", width, total, span)

    def _sum(self, wish: str, width: Dim, terms: list[Expr], span: Span) -> Expr:
        """The terms added up in order, negated ones subtracted. A long sum goes on from a named part of it."""
        first = next((position for position, term in enumerate(terms) if not _is_negative(term)), 0)
        result = terms[first]
        for number, term in enumerate((*terms[:first], *terms[first + 1 :]), start=1):
            if number % LONGEST_SUM == 0:
                result = Ref(self._pointwise(f"{wish}__part", width, result, span))
            match term:
                case Apply("neg", (inner,)):
                    result = apply("sub", result, inner)
                case _:
                    result = apply("add", result, term)
        return result

    def _unslice(self, name: str, slices: list[_Slice], span: Span) -> list[str]:
        """The cotangents of slices as cotangents of the whole: laid side by side if they tile it, else padded."""
        whole = self.values[name].width
        starts = {piece.offset: piece for piece in slices}
        tiles: list[_Slice] = []
        end = constant(0)
        while end in starts and len(tiles) < len(slices):
            tiles.append(starts[end])
            end = add(end, starts[end].width)
        if slices and len(tiles) == len(slices) and end == whole:
            row = tuple(piece.cotangent for piece in tiles)
            return [self._row(whole, RowOp(f"d_{name}__tiles", RowOperator.CONCAT, row, span=span))]
        padded = f"d_{name}__padded"
        return [
            self._row(whole, RowOp(padded, RowOperator.PAD, (piece.cotangent,), piece.offset, span=span))
            for piece in slices
        ]

    # One node.

    def _reverse(self, node: Node, d: str) -> None:
        match node:
            case Pointwise(alias, Ref(earlier), span) if alias in self._aliases:
                width = self.values[earlier].width
                self._give(earlier, Ref(self._pointwise(f"d_{alias}__clipped", width, _clipped(d), span)), width, span)
            case Pointwise():
                self._reverse_pointwise(node, d)
            case Contraction(target, matrix, operand, transposed, span):
                if operand in self._differentiable:
                    name = self._value(f"d_{operand}__from_{target}", self.values[operand].width, span)
                    self.nodes.append(Contraction(name, matrix, d, not transposed, span))
                    self._give(operand, Ref(name), self.values[operand].width, span)
                pair = (operand, d) if transposed else (d, operand)
                if matrix not in self._untrained:
                    self.outer_products.append(OuterProduct(matrix, *pair))
            case RowOp():
                self._reverse_row(node, d)
            case Delay():
                raise InternalError(f"the delay {node.target} stands in a loop")
            case _:
                assert_never(node)

    def _reverse_pointwise(self, node: Pointwise, d: str) -> None:
        wanted = tuple(name for name in operands(node) if name in self._differentiable)
        width = self.values[node.target].width
        shared = f"d_{node.target}__shared"
        temporaries, pairs = contributions(node.target, node.expr, d, wanted, shared, self.values)
        for name, expr in temporaries:
            self.nodes.append(Pointwise(self._value(name, width, node.span), expr, node.span))
        for name, expr in pairs:
            self._give(name, expr, width, node.span)

    def _reverse_row(self, node: RowOp, d: str) -> None:
        target, span = node.target, node.span
        if node.operator is RowOperator.CONCAT:
            offset = constant(0)
            for name in node.operands:
                width = self.values[name].width
                if name in self._differentiable:
                    wanted = RowOp(f"d_{name}__from_{target}", RowOperator.SLICE, (d,), offset, span=span)
                    part = self._row(width, wanted)
                    self._give(name, Ref(part), width, span)
                offset = add(offset, width)
            return
        name = node.operands[0]
        width, result = self.values[name].width, self.values[target].width
        match node.operator:
            case RowOperator.SUM:
                self._give(name, Ref(d), result, span)
                return
            case RowOperator.SLICE:
                self._collect(name, span).slices.append(_Slice(node.offset, result, d))
                return
            case RowOperator.MAX:
                self._give(name, self._share_of_largest(node, d), width, span)
                return
            case RowOperator.SQUARES | RowOperator.VARIANCE:
                # The mean gets nothing: deviations from it have the sum zero.
                if node.operator is RowOperator.VARIANCE:
                    spread = RowOp(f"d_{name}__from_{target}", RowOperator.SPREAD, (d,), span=span)
                    d = self._row(width, spread)
                twice = apply("mul", Const(2.0), Ref(d))
                self._give(name, apply("mul", twice, self._known(apply("sub", *map(Ref, node.operands)))), width, span)
                return
            case RowOperator.MEAN:
                reverse = RowOperator.SPREAD
            case RowOperator.SPREAD:
                reverse = RowOperator.MEAN
            case RowOperator.CUMSUM:
                reverse = RowOperator.CUMSUM_REVERSED
            case RowOperator.CUMSUM_REVERSED:
                reverse = RowOperator.CUMSUM
            case RowOperator.REPEAT:
                reverse = RowOperator.SEGMENT_SUM
            case RowOperator.SEGMENT_SUM:
                reverse = RowOperator.REPEAT
            case RowOperator.PAD:
                reverse = RowOperator.SLICE
            case RowOperator.LAYERNORM | RowOperator.RMSNORM | RowOperator.SOFTMAX:
                raise InternalError(f"{target} was not taken apart")
            case _:
                assert_never(node.operator)
        part = self._row(width, RowOp(f"d_{name}__from_{target}", reverse, (d,), node.offset, node.times, span=span))
        self._give(name, Ref(part), width, span)

    def _known(self, expr: Expr) -> Expr:
        """The name of an expression, if a forward node gives it one."""
        named = (node.target for node in self._segment.nodes if isinstance(node, Pointwise) and node.expr == expr)
        return next(map(Ref, named), expr)

    def _share_of_largest(self, node: RowOp, d: str) -> Expr:
        """What each unit gets of a maximum's cotangent: the largest share it, the others get none.

        The maximum is taken again, of the values as they are here. They may have been rounded when they were saved, and
        would then differ from the maximum of those that were not.
        """
        (name,) = node.operands
        width, result, span = self.values[name].width, self.values[node.target].width, node.span
        again = self._row(result, RowOp(f"{node.target}__again", RowOperator.MAX, (name,), span=span))
        is_largest = self._pointwise(f"d_{name}__is_largest", width, apply("eq", Ref(name), Ref(again)), span)
        count = self._row(result, RowOp(f"d_{name}__count", RowOperator.SUM, (is_largest,), span=span))
        share = self._pointwise(f"d_{name}__share", result, apply("div", Ref(d), Ref(count)), span)
        return apply("mul", Ref(is_largest), Ref(share))


def _clipped(d: str) -> Expr:
    """A cotangent within the bound. A bound of zero makes a zero of a NaN too, as detaching would."""
    bound = Ref(CLIP.name)
    return apply("where", bound, apply("clamp", Ref(d), apply("neg", bound), bound), Const(0.0))


def _is_wider(found: Dim, width: Dim) -> bool:
    """Whether a term has more units than the value it is for."""
    return found != width and (width == ONE or (width == HEADS and found != ONE))


def _is_negative(term: Expr) -> bool:
    return isinstance(term, Apply) and term.operator == "neg"


def _differentiable(segment: Segment, values: Mapping[str, Value], untrained: Collection[str]) -> set[str]:
    """The values that a gradient may flow through: everything but what depends on constants and buffers alone."""
    found = {member for stream in segment.streams for member in stream.members}
    found |= {member for weight in segment.weights for member in weight.members if member not in untrained}
    found |= {f"{state}__1" for state in segment.states}
    for node in segment.nodes:
        if any(name in found for name in operands(node)):
            found.add(node.target)
    return found & set(values)
