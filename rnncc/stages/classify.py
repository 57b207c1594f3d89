"""`classify`: the recurrence class of every segment (language.md, Semantics 7).

Input: a Cell. Output: one Recurrence a segment. An abstract interpretation: every value of the loop's body is free of
the segment's previous states, affine in them, a clamp of such a value, any function unit by unit, or a mixture of
units; the new states' forms give the class. No algebra system: coefficients are built on the way.
Fails with: InternalError only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from rnncc.diagnostics import InternalError
from rnncc.ir.cell import Cell, Contraction, Delay, Node, Pointwise, RowOp, Segment, operands
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply
from rnncc.ir.recurrence import Recurrence, RecurrenceKind
from rnncc.source import Span, line_and_column

ZERO, ONE = Const(0.0), Const(1.0)
# Coefficients are printed as trees. Shared subexpressions can make them exponentially larger than the text; beyond
# this many operations a scan would not pay anyway.
LARGEST_COEFFICIENTS = 1_000
LARGEST_COUPLING = 3


@dataclass(frozen=True, slots=True)
class _Affine:
    """`Σ slopes[s] * s[t-1] + offset`; free of states where `slopes` is empty. `size` counts the operations."""

    slopes: tuple[tuple[str, Expr], ...]
    offset: Expr
    size: int


@dataclass(frozen=True, slots=True)
class _Beyond:
    """Not affine. `rank` orders clamp, elementwise and dense; `what` stands at `span` and prevents better."""

    rank: int
    what: str
    span: Span


_CLAMP, _ELEMENTWISE, _DENSE = 1, 2, 3
_Form = _Affine | _Beyond


def classify(cell: Cell) -> tuple[Recurrence, ...]:
    """One Recurrence for each segment of the cell, in order."""
    return tuple(_Classifier(cell, segment).recurrence() for segment in cell.segments)


class _Classifier:
    def __init__(self, cell: Cell, segment: Segment) -> None:
        self._cell = cell
        self._segment = segment
        self._span = Span(0, 0)
        self._forms: dict[str, _Form] = {f"{state}__1": _Affine(((state, ONE),), ZERO, 0) for state in segment.states}

    def recurrence(self) -> Recurrence:
        """The segment's class from the forms of its new states."""
        states = self._segment.states
        for node in self._segment.nodes:
            form = self._node(node)
            # A value free of states goes by its name.
            self._forms[node.target] = _free(node.target) if _is_free(form) else form
            if node.target in states:
                self._forms[node.target] = form
        forms = [self._forms[state] for state in states]
        beyond = [form for form in forms if isinstance(form, _Beyond)]
        if beyond:
            return self._beyond(beyond)
        affine = _affine(forms)
        slopes = [dict(form.slopes) for form in affine]
        matrix = tuple(tuple(row.get(state, ZERO) for state in states) for row in slopes)
        coupled = any(set(row) - {state} for row, state in zip(slopes, states, strict=True))
        if coupled and len(states) > LARGEST_COUPLING:
            why = f"{len(states)} states are coupled, and a scan takes up to {LARGEST_COUPLING}"
            return Recurrence(states, RecurrenceKind.ELEMENTWISE, "", why)
        shape = f"affine{len(states)}" if coupled else "diagonal"
        why = "every new state is affine in the previous ones, with coefficients free of them"
        return Recurrence(states, RecurrenceKind.AFFINE, shape, why, matrix, tuple(form.offset for form in affine))

    def _beyond(self, forms: list[_Beyond]) -> Recurrence:
        states = self._segment.states
        # The first of the worst, in the order of the text.
        worst = min(forms, key=lambda form: (-form.rank, form.span.start))
        why = f"{worst.what}{self._line(worst.span)}"
        if worst.rank == _DENSE:
            return Recurrence(states, RecurrenceKind.DENSE, "", why)
        form = "clamp" if worst.rank == _CLAMP and len(states) == 1 else ""
        return Recurrence(states, RecurrenceKind.ELEMENTWISE, form, why)

    def _line(self, span: Span) -> str:
        text = self._cell.source.text
        return f" (line {line_and_column(self._cell.source, span.start)[0]})" if text else ""

    # Nodes.

    def _node(self, node: Node) -> _Form:
        self._span = node.span
        match node:
            case Pointwise(_, expr):
                return self._expression(expr)
            case Contraction(_, matrix, operand):
                return self._mixing(node, f"{self._family(matrix)}@{self._shown(operand)} mixes the units of a state")
            case RowOp():
                what = f"{node.operator.value} works across the units of {self._shown(node.operands[0])}"
                return self._mixing(node, what)
            case Delay():
                raise InternalError(f"the delay {node.target} stands in a loop")
            case _:
                assert_never(node)

    def _mixing(self, node: Node, what: str) -> _Form:
        forms = [self._of(name) for name in operands(node)]
        if all(_is_free(form) for form in forms):
            return _free(node.target)
        dense = [form for form in forms if isinstance(form, _Beyond) and form.rank == _DENSE]
        return dense[0] if dense else _Beyond(_DENSE, what, node.span)

    def _of(self, name: str) -> _Form:
        return self._forms.get(name, _free(name))

    def _family(self, matrix: str) -> str:
        for parameter in self._cell.parameters:
            if any(member.name == matrix for member in parameter.members):
                return parameter.name
        return "(…)" if "__" in matrix else matrix

    def _shown(self, name: str) -> str:
        """The name as its user wrote it; `(…)` for a value of the compiler's."""
        for state in self._segment.states:
            if name == f"{state}__1":
                root, delay = state, 1
                while (parent := self._parent(root)) is not None:
                    root, delay = parent, delay + 1
                return f"{root}[t-{delay}]"
            if name == state:
                return f"{name}[t]"
        return "(…)" if "__" in name else name

    def _parent(self, state: str) -> str | None:
        return next(other.delay_of for other in self._cell.states if other.name == state)

    # Expressions.

    def _expression(self, expr: Expr) -> _Form:
        match expr:
            case Const():
                return _Affine((), expr, 0)
            case Ref(name):
                return self._of(name)
            case Apply(operator, arguments):
                forms = [self._expression(argument) for argument in arguments]
                return self._apply(operator, forms)
            case _:
                assert_never(expr)

    def _apply(self, operator: str, forms: list[_Form]) -> _Form:
        worst = max((form for form in forms if isinstance(form, _Beyond)), key=lambda form: form.rank, default=None)
        if worst is not None and worst.rank > _CLAMP:
            return worst
        if operator == "epsilon":
            # A number of the dtype, whatever it is asked of.
            return _Affine((), apply("epsilon", ZERO), 1)
        free = [_is_free(form) for form in forms]
        if all(free):
            return _Affine((), _combine(operator, forms), 1 + sum(form.size for form in _affine(forms)))
        if worst is None:
            found = _linear(operator, _affine(forms))
            if found is not None:
                if found.size <= LARGEST_COEFFICIENTS:
                    return found
                what = f"the coefficients of the states take more than {LARGEST_COEFFICIENTS} operations"
                return _Beyond(_ELEMENTWISE, what, self._span)
        if _keeps_clamp(operator, free):
            return worst or _Beyond(_CLAMP, f"{operator} clamps an affine map of the state", self._span)
        return _Beyond(_ELEMENTWISE, _why_not_affine(operator, free), self._span)


def _free(name: str) -> _Affine:
    return _Affine((), Ref(name), 0)


def _is_free(form: _Form) -> bool:
    return isinstance(form, _Affine) and not form.slopes


def _affine(forms: list[_Form]) -> list[_Affine]:
    return [form for form in forms if isinstance(form, _Affine)]


def _combine(operator: str, forms: list[_Form]) -> Expr:
    return _fold(operator, *(form.offset for form in _affine(forms)))


def _linear(operator: str, forms: list[_Affine]) -> _Affine | None:
    """The result where the operator keeps affine values affine; None where it does not."""
    size = 1 + sum(form.size for form in forms)
    match operator, forms:
        case "add" | "sub", [a, b]:
            return _pairwise(forms, size, lambda x, y: _fold(operator, x, y))
        case "neg", [a]:
            return _each(a, size, lambda x: _fold("neg", x))
        case "mul", [a, b] if not b.slopes:
            return _each(a, size, lambda x: _fold("mul", x, b.offset))
        case "mul", [a, b] if not a.slopes:
            return _each(b, size, lambda x: _fold("mul", a.offset, x))
        case "div", [a, b] if not b.slopes:
            return _each(a, size, lambda x: _fold("div", x, b.offset))
        case "where", [c, a, b] if not c.slopes:
            return _pairwise([a, b], size, lambda x, y: x if x == y == ZERO else apply("where", c.offset, x, y))
        case "pow", [a, b] if b.offset == ONE and not b.slopes:
            return a
        case _:
            return None


def _pairwise(forms: list[_Affine], size: int, make: Callable[[Expr, Expr], Expr]) -> _Affine:
    a, b = forms
    left, right = dict(a.slopes), dict(b.slopes)
    slopes = {state: make(left.get(state, ZERO), right.get(state, ZERO)) for state in {**left, **right}}
    return _made(slopes, make(a.offset, b.offset), size)


def _each(form: _Affine, size: int, make: Callable[[Expr], Expr]) -> _Affine:
    return _made({state: make(slope) for state, slope in form.slopes}, make(form.offset), size)


def _made(slopes: Mapping[str, Expr], offset: Expr, size: int) -> _Affine:
    kept = tuple((state, slope) for state, slope in slopes.items() if slope != ZERO)
    return _Affine(kept, offset, size * (1 + len(kept)))


def _keeps_clamp(operator: str, free: list[bool]) -> bool:
    """Whether the operator makes a clamp of an affine map, or a clamp of a clamp, out of one (x ↦ clamp(ax + b, l, u)
    is closed under composition, whatever the sign of a)."""
    match operator:
        case "relu" | "hardtanh" | "hardsigmoid" | "neg":
            return True
        case "add" | "sub" | "mul" | "max" | "min":
            return sum(free) == 1
        case "div":
            return free[1]
        case "clamp":
            return free[1] and free[2]
        case "where":
            return free[0] and sum(free) == 2
        case _:
            return False


def _why_not_affine(operator: str, free: list[bool]) -> str:
    match operator:
        case "mul":
            return "a product of two values that depend on states"
        case "div":
            return "a division by a value that depends on a state"
        case "where" if not free[0]:
            return "a choice that depends on a state"
        case "max" | "min" | "clamp":
            return f"{operator} of several values that depend on states"
        case "add" | "sub" | "where":
            return "a clamp of a state joined with another value that depends on states"
        case "pow":
            return "a power of a state"
        case _:
            return f"{operator} of a state"


def _fold(operator: str, *arguments: Expr) -> Expr:
    """`Apply`, with 0 and 1 folded where a coefficient of nothing or of the state itself brings them in."""
    match operator, arguments:
        case "add", (x, Const(0.0)) | (Const(0.0), x):
            return x
        case "sub", (x, Const(0.0)):
            return x
        case "sub", (Const(0.0), x):
            return _fold("neg", x)
        case "mul", (Const(0.0), _) | (_, Const(0.0)):
            return ZERO
        case "mul", (x, Const(1.0)) | (Const(1.0), x):
            return x
        case "mul", (x, Const(-1.0)) | (Const(-1.0), x):
            return _fold("neg", x)
        case "div", (Const(0.0), _):
            return ZERO
        case "div", (x, Const(1.0)):
            return x
        case "neg", (Const(value),):
            return Const(-value) if value else ZERO
        case "neg", (Apply("neg", (x,)),):
            return x
        case "add", (x, Apply("neg", (y,))):
            return _fold("sub", x, y)
        case "sub", (x, Apply("neg", (y,))):
            return _fold("add", x, y)
        case "add", (Const(a), Const(b)):
            return Const(a + b)
        case "sub", (Const(a), Const(b)):
            return Const(a - b)
        case "mul", (Const(a), Const(b)):
            return Const(a * b)
        case _:
            return apply(operator, *arguments)
