"""Names for the parts of a forward equation that its reverse reads.

A nonlinear call becomes a node of its own (`i__sigmoid = sigmoid(i)`), and so does a call's argument that is more
than a name: then the reverse is written in the call's value, that value can be saved, and a cotangent of the argument
is computed once. The arithmetic is that of the user, operation for operation.

Norms and softmax are taken apart (rnncc/analysis/norms.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from rnncc.analysis.norms import NORMS, apart
from rnncc.ir.cell import Node, Placement, Pointwise, Role, RowOp, Value, rename
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.language.operators import OPERATORS
from rnncc.language.source import Span
from rnncc.language.surrogates import DERIVATIVES

NARROW = (ONE, HEADS)


def constants_of(values: Mapping[str, Value]) -> frozenset[str]:
    """The names of the constants among values."""
    return frozenset(name for name, value in values.items() if value.role is Role.CONSTANT)


def is_constant(expr: Expr, constants: Collection[str]) -> bool:
    """Whether nothing but numbers and constants stand in it, so that no gradient flows through it."""
    return all(name in constants for name in references(expr))


def is_opaque(operator: str) -> bool:
    """Whether an operator's derivative is zero wherever it exists, and needs no value."""
    return not OPERATORS[operator].smooth


def is_arithmetic(expr: Apply, constants: Collection[str]) -> bool:
    """Whether sympy differentiates this operation itself: sums, products, small powers, division by a constant."""
    match expr:
        case Apply("add" | "sub" | "mul" | "neg"):
            return True
        case Apply("div", (_, denominator)):
            return is_constant(denominator, constants)
        case Apply("pow", (_, Const(exponent))):
            return exponent in (1.0, 2.0, 3.0, 4.0)
        case _:
            return False


def without_derivatives(node: Node) -> Node:
    """The node without what it says of derivatives: its value alone."""
    return replace(node, expr=_value(node.expr)) if isinstance(node, Pointwise) else node


def _value(expr: Expr) -> Expr:
    match expr:
        case Apply("detach", (operand,)):
            return _value(operand)
        case Apply(operator, (_, value, _)) if operator in DERIVATIVES:
            return _value(value)
        case Apply(operator, arguments):
            return Apply(operator, tuple(map(_value, arguments)))
        case _:
            return expr


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with another part in place of an old one."""
    if expr == old:
        return new
    if not isinstance(expr, Apply):
        return expr
    return Apply(expr.operator, tuple(_replaced(argument, old, new) for argument in expr.arguments))


class Normaliser:
    """Rewrites nodes one by one; `values` grows by the names given."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)
        self._constants = constants_of(values)
        self.new: list[Value] = []
        self._named: dict[tuple[Expr, Dim], str] = {}
        self._rows: dict[RowOp, str] = {}  # without their targets
        self._nodes: list[Node] = []
        self._target = ""
        self._span = Span(0, 0)

    def nodes(self, node: Node) -> tuple[Node, ...]:
        """The node, behind the nodes that name its parts."""
        self._nodes = []
        self._target, self._span = node.target, node.span
        if isinstance(node, RowOp):
            if node.operator not in NORMS:
                self._rows.setdefault(replace(node, target=""), node.target)
                return (node,)
            node = self._apart(node)
        if isinstance(node, Pointwise):
            expr = self._root(node.expr)
            self._named.setdefault((expr, self.values[node.target].width), node.target)
            node = replace(node, expr=expr)
        return (*self._nodes, node)

    def _apart(self, norm: RowOp) -> Node:
        """The last part of a norm, after those that it needs and that are not there yet."""
        *parts, last = apart(norm)
        known: dict[str, str] = {}
        for part in parts:
            own = rename(part, known)
            match own:
                case Pointwise(_, expr):
                    known[part.target] = self._name(self._root(expr), part.target).name
                case RowOp():
                    known[part.target] = self._row(own)
        return rename(last, known)

    def _row(self, node: RowOp) -> str:
        """The name of a reduction in a loop, whose values have heads."""
        key = replace(node, target="")
        if key not in self._rows:
            self._rows[key] = self._value(node.target, HEADS)
            self._nodes.append(replace(node, target=self._rows[key]))
        return self._rows[key]

    def _root(self, expr: Expr) -> Expr:
        if not isinstance(expr, Apply) or is_constant(expr, self._constants):
            return expr
        if is_arithmetic(expr, self._constants):
            return Apply(expr.operator, tuple(self._inline(argument) for argument in expr.arguments))
        call = self._call(expr)
        known = self._named.get((call, self.values[self._target].width))
        return call if known is None else Ref(known)

    def _call(self, expr: Apply) -> Apply:
        if expr.operator == "epsilon":
            # It depends on the dtype alone; its argument would keep a value alive for nothing.
            return Apply("epsilon", (Const(0.0),))
        if expr.operator in DERIVATIVES:
            # The derivative is a function of the operand alone, which is there for the reverse: it needs no name.
            operand = self._atom(expr.arguments[0])
            value, slope = (_replaced(argument, expr.arguments[0], operand) for argument in expr.arguments[1:])
            return Apply(expr.operator, (operand, value, slope))
        return Apply(expr.operator, tuple(self._atom(argument) for argument in expr.arguments))

    def _inline(self, expr: Expr) -> Expr:
        """The expression with calls replaced by names."""
        if not isinstance(expr, Apply) or is_constant(expr, self._constants):
            return expr
        if is_arithmetic(expr, self._constants):
            result = Apply(expr.operator, tuple(self._inline(argument) for argument in expr.arguments))
            # What is one number for many units is computed, and its cotangent summed, once.
            narrower = self._width(result) in NARROW and self.values[self._target].width not in NARROW
            return self._name(result, f"{self._target}__part") if narrower else result
        call = self._call(expr)
        if is_opaque(call.operator):
            return call
        first = next((a.name for a in call.arguments if isinstance(a, Ref)), self._target)
        return self._name(call, f"{first}__{call.operator}")

    def _atom(self, expr: Expr) -> Expr:
        """The argument of a call: a name, a number or an opaque call."""
        result = self._inline(expr)
        if isinstance(result, Apply) and not is_constant(result, self._constants) and not is_opaque(result.operator):
            return self._name(result, f"{self._target}__in")
        return result

    def _name(self, expr: Expr, wish: str) -> Ref:
        if isinstance(expr, Ref):
            return expr
        width = self._width(expr)
        known = self._named.get((expr, width))
        if known is None:
            known = self._named[expr, width] = self._value(wish, width)
            self._nodes.append(Pointwise(known, expr, self._span))
        return Ref(known)

    def _value(self, wish: str, width: Dim) -> str:
        name, number = wish, 2
        while name in self.values:
            name, number = f"{wish}{number}", number + 1
        target = self.values.get(self._target)
        grid = target.grid if target is not None and target.width == width else None
        self.values[name] = Value(name, Role.NODE, Placement.S, width, span=self._span, grid=grid)
        self.new.append(self.values[name])
        return name

    def _width(self, expr: Expr) -> Dim:
        """The width of a part of the target's equation: that of the target, unless everything in it is narrower."""
        widths = {self.values[name].width for name in references(expr)}
        if widths <= {ONE}:
            return ONE
        return HEADS if widths <= {ONE, HEADS} else self.values[self._target].width
