"""The reverse sweep over one segment's nodes.

Each value collects what the nodes that read it give to its cotangent. Nodes are visited last to first, so that a
value's cotangent is complete when its own node is reached.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import assert_never

from rnncc.analysis.recurrent import CLIP
from rnncc.ir.adjoint import OuterProduct
from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, Segment, Value, operands
from rnncc.ir.dim import add, constant, scale
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE
from rnncc.stages.differentiate.cotangents import Cotangents, Slice
from rnncc.stages.differentiate.derivatives import contributions
from rnncc.stages.differentiate.grids import reverse_of_matrices
from rnncc.stages.differentiate.normalise import constants_of


class Sweep(Cotangents):
    """The state of the sweep. `nodes` and `new` (their values) grow; the yields are complete after `run`. `aliases`:
    of earlier values, `RecurrentReads.aliases`. `untrained`: weights that have no gradient."""

    def __init__(
        self,
        segment: Segment,
        values: Mapping[str, Value],
        aliases: Container[str] = (),
        untrained: Collection[str] = (),
    ) -> None:
        super().__init__(values)
        self.outer_products: list[OuterProduct] = []
        self.stream_cotangents: list[tuple[str, str]] = []
        self.vector_cotangents: list[tuple[str, str]] = []
        self.state_cotangents: list[tuple[str, str]] = []
        self._segment = segment
        self._constants = constants_of(values)
        self._aliases = aliases
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
            cotangent = self.complete(node.target, node.span)
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
            width, grid = self.values[name].width, self.values[name].grid
            self.give(name, Ref(self.value(f"d_{name}__{kind}", width, NOWHERE, grid)), width, NOWHERE)

    def _yield(self, pairs: list[tuple[str, str]], key: str, name: str, narrow: bool = True) -> None:
        cotangent = self.complete(name, None, narrow)
        if cotangent is not None:
            pairs.append((key, cotangent))

    # One node.

    def _reverse(self, node: Node, d: str) -> None:
        match node:
            case Pointwise(alias, Ref(earlier), span) if alias in self._aliases:
                width = self.values[earlier].width
                self.give(earlier, Ref(self.pointwise(f"d_{alias}__clipped", width, _clipped(d), span)), width, span)
            case Pointwise():
                self._reverse_pointwise(node, d)
            case Contraction(target, matrix, operand, transposed, span):
                if operand in self._differentiable:
                    name = self.value(f"d_{operand}__from_{target}", self.values[operand].width, span)
                    self.nodes.append(Contraction(name, matrix, d, not transposed, span))
                    self.give(operand, Ref(name), self.values[operand].width, span)
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
        temporaries, pairs = contributions(node.target, node.expr, d, wanted, shared, self._constants)
        grid = self.values[node.target].grid
        for name, expr in temporaries:
            self.nodes.append(Pointwise(self.value(name, width, node.span, grid), expr, node.span))
        for name, expr in pairs:
            self.give(name, expr, width, node.span)

    def _reverse_row(self, node: RowOp, d: str) -> None:
        target, span = node.target, node.span
        if node.operator is RowOperator.CONCAT:
            offset = constant(0)
            for name in node.operands:
                width = self.values[name].width
                if name in self._differentiable:
                    wanted = RowOp(f"d_{name}__from_{target}", RowOperator.SLICE, (d,), offset, span=span)
                    part = self.row(width, wanted)
                    self.give(name, Ref(part), width, span)
                offset = add(offset, width)
            return
        if node.grid is not None:
            reverse_of_matrices(self, node, node.grid, d, self._differentiable)
            return
        name = node.operands[0]
        width, result = self.values[name].width, self.values[target].width
        offset, times = node.offset, node.times
        match node.operator:
            case RowOperator.SUM:
                self.give(name, Ref(d), result, span)
                return
            case RowOperator.SLICE:
                self.collect(name, span).slices.append(Slice(node.offset, result, d))
                return
            case RowOperator.MAX:
                self.give(name, self._share_of_largest(node, d), width, span)
                return
            case RowOperator.SQUARES | RowOperator.VARIANCE:
                # The mean gets nothing: deviations from it have the sum zero.
                if node.operator is RowOperator.VARIANCE:
                    spread = RowOp(f"d_{name}__from_{target}", RowOperator.SPREAD, (d,), span=span)
                    d = self.row(width, spread)
                twice = apply("mul", Const(2.0), Ref(d))
                self.give(name, apply("mul", twice, self._known(apply("sub", *map(Ref, node.operands)))), width, span)
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
            case RowOperator.ROLL | RowOperator.SHIFT:
                reverse, offset = node.operator, scale(offset, -1)
            case _:
                # Norms were taken apart.
                raise InternalError(f"{target} has no derivative")
        part = self.row(width, RowOp(f"d_{name}__from_{target}", reverse, (d,), offset, times, span=span))
        self.give(name, Ref(part), width, span)

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
        again = self.row(result, RowOp(f"{node.target}__again", RowOperator.MAX, (name,), span=span))
        is_largest = self.pointwise(f"d_{name}__is_largest", width, apply("eq", Ref(name), Ref(again)), span)
        count = self.row(result, RowOp(f"d_{name}__count", RowOperator.SUM, (is_largest,), span=span))
        share = self.pointwise(f"d_{name}__share", result, apply("div", Ref(d), Ref(count)), span)
        return apply("mul", Ref(is_largest), Ref(share))


def _clipped(d: str) -> Expr:
    """A cotangent within the bound. A bound of zero makes a zero of a NaN too, as detaching would."""
    bound = Ref(CLIP.name)
    return apply("where", bound, apply("clamp", Ref(d), apply("neg", bound), bound), Const(0.0))


def _differentiable(segment: Segment, values: Mapping[str, Value], untrained: Collection[str]) -> set[str]:
    """The values that a gradient may flow through: everything but what depends on constants and buffers alone."""
    found = {member for stream in segment.streams for member in stream.members}
    found |= {member for weight in segment.weights for member in weight.members if member not in untrained}
    found |= {f"{state}__1" for state in segment.states}
    for node in segment.nodes:
        if any(name in found for name in operands(node)):
            found.add(node.target)
    return found & set(values)
