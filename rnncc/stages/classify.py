"""`classify`: the recurrence class of every segment (docs/language.md, "What the compiler finds out by itself").

Input: a Cell. Output: one Recurrence a segment. An abstract interpretation: every value of the loop's body is free of
the segment's previous states, affine in them, a clamp of such a value, any function unit by unit, or a mixture of
units; the new states' forms give the class. A state that is a matrix decides it alone. No algebra system: coefficients
are built on the way.
Fails with: InternalError only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.analysis.affine import ZERO, Affine, fold, free, in_names, linear, own
from rnncc.ir.cell import Cell, Contraction, Delay, Node, Pointwise, RowOp, Segment, State, operands
from rnncc.ir.dim import show
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, operators, references, substitute
from rnncc.ir.recurrence import Recurrence, RecurrenceKind
from rnncc.language.diagnostics import InternalError
from rnncc.language.operators import OPERATORS
from rnncc.language.source import Span, line_and_column

LARGEST_COUPLING = 3
# Operations that are shown within another expression, where nothing else is made of them.
MOST_INLINE = 32


@dataclass(frozen=True, slots=True)
class _Beyond:
    """Not affine. `rank` orders clamp, elementwise and dense; `what` stands at `span` and prevents better."""

    rank: int
    what: str
    span: Span


_CLAMP, _ELEMENTWISE, _DENSE = 1, 2, 3
_Form = Affine | _Beyond


def classify(cell: Cell) -> tuple[Recurrence, ...]:
    """Return one Recurrence for each segment of the cell, in order."""
    return tuple(_Classifier(cell, segment).recurrence() for segment in cell.segments)


class _Classifier:
    def __init__(self, cell: Cell, segment: Segment) -> None:
        self._cell = cell
        self._segment = segment
        self._span = Span(0, 0)
        self._forms: dict[str, _Form] = {f"{state}__1": own(state) for state in segment.states}
        # Coefficients that are operations, by name: each is made once, however many others are made of it.
        self._named: dict[str, Expr] = {}

    def recurrence(self) -> Recurrence:
        """The segment's class from the forms of its new states."""
        states = self._segment.states
        if matrices := [state for state in self._cell.states if state.name in states and state.grid is not None]:
            return Recurrence(states, RecurrenceKind.MATRIX, "", self._matrices(matrices))
        for node in self._segment.nodes:
            form = self._node(node)
            if isinstance(form, Affine) and form.slopes:
                form = in_names(form, node.target, self._name)
            elif _is_free(form) and node.target not in states:
                # A value free of states goes by its name.
                form = free(node.target)
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
            return Recurrence(states, RecurrenceKind.ELEMENTWISE, "", self._coupled())
        shape = f"affine{len(states)}" if coupled else "diagonal"
        why = "every new state is affine in the previous ones, with coefficients free of them"
        return self._affine(shape, why, matrix, tuple(form.offset for form in affine))

    def _affine(
        self, shape: str, why: str, matrix: tuple[tuple[Expr, ...], ...], offset: tuple[Expr, ...]
    ) -> Recurrence:
        """The class with its coefficients; what only one of them is made of stands in it again."""
        roots = [*(entry for row in matrix for entry in row), *offset]
        uses: dict[str, int] = {}
        waiting = [name for root in roots for name in references(root)]
        while waiting:
            name = waiting.pop()
            uses[name] = uses.get(name, 0) + 1
            if name in self._named and uses[name] == 1:
                waiting += references(self._named[name])
        inlined: dict[str, Expr] = {}
        shared: list[tuple[str, Expr]] = []
        for name, expr in self._named.items():
            if name in uses:
                whole = substitute(expr, inlined)
                if uses[name] == 1 and len(list(operators(whole))) <= MOST_INLINE:
                    inlined[name] = whole
                else:
                    shared.append((name, whole))
        rows = tuple(tuple(substitute(entry, inlined) for entry in row) for row in matrix)
        offsets = tuple(substitute(entry, inlined) for entry in offset)
        return Recurrence(self._segment.states, RecurrenceKind.AFFINE, shape, why, rows, offsets, tuple(shared))

    def _name(self, name: str, expr: Expr) -> Expr:
        self._named[name] = expr
        return Ref(name)

    def _matrices(self, states: list[State]) -> str:
        """Which states are matrices."""
        return ", ".join(
            f"{state.name} is a matrix, {' x '.join(map(show, state.grid.sides))}{self._line(state.span)}"
            for state in states
            if state.grid is not None
        )

    def _coupled(self) -> str:
        return f"{len(self._segment.states)} states are coupled, and a scan takes up to {LARGEST_COUPLING}"

    def _beyond(self, forms: list[_Beyond]) -> Recurrence:
        states = self._segment.states
        # The first of the worst classes counts, in the order of the text.
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
                return self._mixing(node, f"{self._group(matrix)}@{self._shown(operand)} mixes the units of a state")
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
            return free(node.target)
        dense = [form for form in forms if isinstance(form, _Beyond) and form.rank == _DENSE]
        return dense[0] if dense else _Beyond(_DENSE, what, node.span)

    def _of(self, name: str) -> _Form:
        return self._forms.get(name, free(name))

    def _group(self, matrix: str) -> str:
        for parameter in self._cell.parameters:
            if any(member.name == matrix for member in parameter.members):
                # A factor of a matrix of low rank, `R__v`, is a part of what its user wrote as R.
                return parameter.name.partition("__")[0]
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
                return Affine((), expr)
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
            return Affine((), apply("epsilon", ZERO))
        freed = [_is_free(form) for form in forms]
        if all(freed):
            return Affine((), fold(operator, *(form.offset for form in _affine(forms))))
        if worst is None:
            found = linear(operator, _affine(forms))
            if found is not None and len(found.slopes) > LARGEST_COUPLING:
                return _Beyond(_ELEMENTWISE, self._coupled(), self._span)
            if found is not None:
                return found
        if _keeps_clamp(operator, freed):
            return worst or _Beyond(_CLAMP, f"{operator} clamps an affine map of the state", self._span)
        return _Beyond(_ELEMENTWISE, _why_not_affine(operator, freed), self._span)


def _is_free(form: _Form) -> bool:
    return isinstance(form, Affine) and not form.slopes


def _affine(forms: list[_Form]) -> list[Affine]:
    return [form for form in forms if isinstance(form, Affine)]


def _keeps_clamp(operator: str, free: list[bool]) -> bool:
    """Whether the operator makes a clamp of an affine map, or a clamp of a clamp, out of one."""
    others = [index for index, is_free in enumerate(free) if not is_free]
    return len(others) == 1 and others[0] in OPERATORS[operator].clamps


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
