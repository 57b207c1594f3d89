"""Work that leaves the loops: what depends on parameters only, and sums of products of the inputs.

In every loop expression the terms of a sum that come from inputs or parameters become one batched value
(`i__x = i__W + b_i`), so that the loop reads one stream; subexpressions of parameters become values of the prologue.
Subexpressions of inputs per sequence become values of placement Q, which are computed once.

A loop without products and functions across units reads no narrow input (one number for all units). Its gradient would
be a sum over the units, which would keep the backward loop from being a scan. The largest expression of inputs that
takes one in is batched, at the width of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rnncc.analysis.sums import terms, total
from rnncc.analysis.widths import is_narrow
from rnncc.ir.cell import Node, Placement, Pointwise
from rnncc.ir.expr import Apply, Expr, Ref, apply, references
from rnncc.ir.typed import Shape
from rnncc.language.operators import OPERATORS
from rnncc.language.report import Report
from rnncc.language.source import NOWHERE
from rnncc.stages.partition.flat import FlatCell, Numbered, width_of
from rnncc.stages.partition.locate import Located, Part
from rnncc.stages.partition.place import Placed

_INSTEAD = {
    "leakyrelu": "write 'max(v, 0.01*v)'",
    "elu": "write 'where(v > 0, v, exp(min(v, 0)) - 1)'",
    "mod": "write 'a - c*floor(a/c)'",
}


class _Hoister:
    def __init__(self, flat: FlatCell, placed: Placed, located: Located, report: Report) -> None:
        self.flat, self.placed, self.located, self.report = flat, placed, located, report
        self.inputs = frozenset(given.name for given in flat.typed.inputs)
        self.per_sequence = frozenset(given.name for given in flat.typed.inputs if given.per_sequence)
        self.constants = frozenset(constant.name for constant in flat.typed.constants)
        self.shapes = dict(flat.shapes)
        self.nodes: dict[str, Node] = {}
        # By what they compute and how wide they are: one number may be widened for states of several widths. Placements
        # need no place here, because they follow from what an expression reads.
        self.made: dict[tuple[Expr, Shape], str] = {}
        self.numbered = Numbered()
        # The segments whose loops work across units, or have numbers for all units: no scans.
        self.across = {
            located.segment[name]
            for name, node in flat.nodes.items()
            if located.part[name] is Part.LOOP
            and (not isinstance(node, Pointwise) or is_narrow(flat.shapes[name].width))
        }
        # What is known of the node at hand.
        self.target, self.span, self.segment = "", NOWHERE, 0

    def run(self) -> FlatCell:
        """All nodes, new ones before their first reader."""
        for name, node in self.flat.nodes.items():
            part = self.located.part[name]
            if isinstance(node, Pointwise) and part is not Part.PROLOGUE:
                self.target, self.span = name, node.span
                expr = self.hoist_parameters(node.expr)
                if part is Part.LOOP:
                    self.segment = self.located.segment[name]
                    expr = self.hoist_batched(expr)
                    self.check_functions(expr)
                node = replace(node, expr=expr)
            self.nodes[name] = node
        return replace(self.flat, nodes=self.nodes, shapes=self.shapes)

    def check_functions(self, expr: Expr) -> None:
        """Report a function that loops do not have."""
        if isinstance(expr, Apply):
            if not OPERATORS[expr.operator].in_loop:
                message = f"'{expr.operator}' is not available on values that depend on a state"
                self.report.error("RNN230", message, self.span, help=_INSTEAD.get(expr.operator, ""))
            for argument in expr.arguments:
                self.check_functions(argument)

    def hoist_parameters(self, expr: Expr) -> Expr:
        """The expression with its largest subexpressions of parameters as values of the prologue."""
        if not isinstance(expr, Apply):
            return expr
        kinds = {self.parameter_kind(name) for name in references(expr)}
        if "other" in kinds or "parameter" not in kinds:
            arguments = tuple(self.hoist_parameters(argument) for argument in expr.arguments)
            return Apply(expr.operator, arguments) if "parameter" in kinds else expr
        return self.named_value(expr, Placement.P, Part.PROLOGUE, "")

    def parameter_kind(self, name: str) -> str:
        if name in self.constants:
            return "constant"
        if name in self.flat.nodes or name in self.nodes:
            return "parameter" if self.placed.placement[name] is Placement.P else "other"
        return "other" if name in self.inputs or name in self.placed.owner else "parameter"

    def named_value(self, expr: Expr, placement: Placement, part: Part, suffix: str, shape: Shape | None = None) -> Ref:
        """A named value for an expression; equal expressions of one shape share one. `shape`: that of one wider than
        its operands."""
        shape = shape or Shape(width_of(expr, self.shapes, self.flat.typed.input_dims))
        if (expr, shape) not in self.made:
            name = self.name(suffix)
            self.made[expr, shape] = name
            self.shapes[name] = shape
            self.nodes[name] = Pointwise(name, expr, self.span)
            self.placed.placement[name] = placement
            self.placed.last_segment[name] = max(
                [self.placed.last_segment.get(read, -1) for read in references(expr)], default=-1
            )
            self.located.part[name] = part
        return Ref(self.made[expr, shape])

    def name(self, suffix: str) -> str:
        stem = f"{self.target}__{suffix}"
        if suffix and stem not in self.shapes:
            return stem
        return self.numbered.name(stem, self.shapes, but_one=not suffix)

    def is_input(self, name: str) -> bool:
        """Whether a value is at hand before this segment's loop starts, and is not computed in the loop."""
        placement = self.placed.placement.get(name)
        if placement is None:
            # Inputs, parameters and constants; the previous states of finished segments.
            return self.placed.owner.get(name, -1) < self.segment
        if self.located.part[name] is Part.LOOP:
            return self.located.segment[name] < self.segment
        return self.located.part[name] is not Part.EPILOGUE and self.placed.last_segment.get(name, -1) < self.segment

    def is_per_sequence(self, names: Iterable[str]) -> bool:
        """Whether an expression of these names depends on inputs per sequence, and else on parameters and constants
        alone."""
        placements = {self.placement_of(name) for name in names}
        return Placement.Q in placements and placements <= {Placement.P, Placement.Q}

    def placement_of(self, name: str) -> Placement:
        if name in self.placed.placement:
            return self.placed.placement[name]
        if name in self.inputs:
            return Placement.Q if name in self.per_sequence else Placement.X
        return Placement.S if name in self.placed.owner else Placement.P

    def hoist_batched(self, expr: Expr) -> Expr:
        """The expression with sums of input terms, and what a loop cannot or should not compute, batched."""
        if self.is_to_be_widened(expr):
            once = self.is_per_sequence(references(expr))
            placement, suffix = (Placement.Q, "c") if once else (Placement.X, "x")
            return self.named_value(expr, placement, Part.BATCHED, suffix, self.shapes[self.target])
        if not isinstance(expr, Apply):
            return expr
        if expr.operator == "neg":
            # A sign alone is not worth another tensor.
            return Apply("neg", (self.hoist_batched(expr.arguments[0]),))
        if self.is_per_sequence(references(expr)):
            return self.named_value(expr, Placement.Q, Part.BATCHED, "c")
        if not OPERATORS[expr.operator].in_loop and all(self.is_input(name) for name in references(expr)):
            return self.named_value(expr, Placement.X, Part.BATCHED, "x")
        if expr.operator in ("add", "sub"):
            return self.hoist_sum(expr)
        return Apply(expr.operator, tuple(self.hoist_batched(argument) for argument in expr.arguments))

    def is_to_be_widened(self, expr: Expr) -> bool:
        """Whether an expression of inputs takes a narrow one into a wide loop without products."""
        names = tuple(references(expr))
        return (
            self.segment not in self.across
            and all(self.is_input(name) for name in names)
            and any(self.placement_of(name) is not Placement.P and is_narrow(self.shapes[name].width) for name in names)
        )

    def hoist_sum(self, expr: Apply) -> Expr:
        signed = terms(expr)
        batched = [each for each in signed if all(self.is_input(name) for name in references(each[1]))]
        rest = [each for each in signed if each not in batched]
        if self.located.is_worth_batching(batched):
            head = self.named_value(total(batched), Placement.X, Part.BATCHED, "x")
            inner = [(negative, self.hoist_batched(term)) for negative, term in rest]
            return total([(False, head), *inner])
        once = [each for each in batched if self.is_once(each[1])]
        if len(once) > 1 and self.is_per_sequence(name for _, term in once for name in references(term)):
            head = self.named_value(total(once), Placement.Q, Part.BATCHED, "c")
            inner = [(negative, self.hoist_batched(term)) for negative, term in signed if (negative, term) not in once]
            return total([(False, head), *inner])
        arguments = tuple(self.keep_sum(argument) for argument in expr.arguments)
        return Apply(expr.operator, arguments)

    def is_once(self, term: Expr) -> bool:
        """Whether a term is computed once per call."""
        return all(self.placement_of(name) in (Placement.P, Placement.Q) for name in references(term))

    def keep_sum(self, expr: Expr) -> Expr:
        """A part of a sum that stays as it is; the terms may hold sums of their own."""
        if isinstance(expr, Apply) and expr.operator in ("add", "sub"):
            return Apply(expr.operator, tuple(self.keep_sum(argument) for argument in expr.arguments))
        if isinstance(expr, Apply) and expr.operator == "neg":
            return apply("neg", self.keep_sum(expr.arguments[0]))
        return self.hoist_batched(expr)


def hoist(flat: FlatCell, placed: Placed, located: Located, report: Report) -> FlatCell:
    """The cell with what leaves its loops as nodes of their own, which `placed` and `located` take in. Reports
    RNN230 for a function that a loop cannot compute."""
    return _Hoister(flat, placed, located, report).run()
