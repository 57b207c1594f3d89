"""The values of a step as a graph in which equal ones are one: what the boxes of a picture are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import assert_never

from rnncc.ir.dim import ONE, Dim, as_int, show
from rnncc.ir.term import (
    Argument,
    Bad,
    Equation,
    Eye,
    Filled,
    Num,
    OfMatrix,
    Op,
    PerHead,
    Product,
    Row,
    Share,
    Surrogate,
    Term,
    Transposed,
    Unflatten,
    Val,
    children,
    walk,
)
from rnncc.ir.term import names as read
from rnncc.ir.typed import Typed
from rnncc.language.diagnostics import InternalError
from rnncc.show.draw.labels import width
from rnncc.show.draw.names import PAST, NameLabels
from rnncc.show.draw.sums import addends, factors
from rnncc.show.draw.terms import COMPARISONS, function_label, term_label
from rnncc.show.typed import show_term

# Where a value stands in the label of a function of it.
HOLE = "•"
# A function of one value has its formula in its box where that is at most so wide, at a font size of 1.
_SHORT = 9.0


@dataclass(frozen=True, slots=True)
class Value:
    """`role` is source, affine, unary, nary, rows or split. `reads` are values by number, each with a mark; of `split`,
    `port` says which part it is.

    Two values with one label may differ. These tell them apart:

    fixed  what the label is made of beside values: parameters of gates, numbers, functions of matrices; the name of a
           source; the targets of a split
    width  of a named value, where another width has the same formula (a number, and the same one for all units)
    """

    role: str
    label: str
    reads: tuple[tuple[int, str], ...] = ()
    fixed: tuple[Term | str, ...] = ()
    port: int = 0
    width: Dim | None = None

    @property
    def source(self) -> str:
        """The name of an input or of an earlier value."""
        return self.fixed[0] if self.role == "source" and isinstance(self.fixed[0], str) else ""


@dataclass
class Values:
    """The values of a cell's step, each once. `names`: those that equations give a value, by its number; `titles`:
    these equations."""

    cell: Typed
    all: list[Value] = field(default_factory=list)
    names: dict[int, list[str]] = field(default_factory=dict)
    titles: dict[int, list[str]] = field(default_factory=dict)
    _numbers: dict[Value, int] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)

    @cached_property
    def labels(self) -> NameLabels:
        """How the picture shows names."""
        return NameLabels(self.cell)

    @property
    def equations(self) -> Mapping[str, Equation]:
        """By their targets."""
        return self.labels.equations

    @cached_property
    def drawn(self) -> frozenset[str]:
        """Values that depend on an input or a state. Others are parameters and numbers: parts of labels."""
        found = {given.name for given in self.cell.inputs} | {state.name for state in self.cell.states}
        for target in self.order:
            if self.depends(self.equations[target].term, found):
                found.add(target)
        return frozenset(found)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The targets of equations, each after those that it reads."""
        reads = {
            target: set(read(equation.term)) & self.equations.keys() for target, equation in self.equations.items()
        }
        return tuple(TopologicalSorter(reads).static_order())

    def depends(self, term: Term, drawn: frozenset[str] | set[str] | None = None) -> bool:
        """Whether a term is drawn, and no part of a label."""
        known = self.drawn if drawn is None else drawn
        return any(isinstance(part, Val) and (part.name in known or PAST.fullmatch(part.name)) for part in walk(term))

    @property
    def past(self) -> frozenset[str]:
        """Values of earlier steps that the step reads."""
        return frozenset(value.source for value in self.all if PAST.fullmatch(value.source))

    def build(self) -> None:
        """All values of the step that it computes."""
        for target in self.order:
            if target in self.drawn:
                self.of(target)

    def of(self, name: str) -> int:
        """The number of the value with a name."""
        if name in self._done:
            return self._done[name]
        equation = self.equations.get(name)
        if equation is None or PAST.fullmatch(name):
            number = self._add(Value("source", self.labels.value(name), fixed=(name,)))
        else:
            number = self._build(equation.term)
            width = self.cell.shapes[name].width
            if any(self.cell.shapes[other].width != width for other in self.names.get(number, ())):
                number = self._add(replace(self.all[number], width=width))
            self.names.setdefault(number, []).append(name)
            self.titles.setdefault(number, []).append(f"{equation.written} = {show_term(equation.term)}")
        self._done[name] = number
        return number

    def _add(self, value: Value) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self.all)
            self.all.append(value)
        return self._numbers[value]

    def _build(self, term: Term) -> int:
        if not self.depends(term):
            # What numbers and parameters make stands for itself.
            label = self.labels.text(term)
            return self._add(Value("source", label if width(label, 1) <= _SHORT else "parameters", fixed=(term,)))
        match term:
            case Val(name):
                return self.of(name)
            case Op(("add" | "sub" | "neg"), _):
                return self._sum(term)
            case Op(("mul" | "div"), _):
                return self._product(term)
            case Op(operator, arguments):
                return self._function(operator, arguments, term)
            case Surrogate(function, operand):
                return self._unary(function_label(function), self._build(operand))
            case Product(matrix, Transposed(vector)) if not self.labels.is_matrix(vector):
                return self._add(Value("nary", "⊗", ((self._build(matrix), "rows"), (self._build(vector), "columns"))))
            case Product(matrix, operand) if self.depends(matrix):
                return self._add(Value("nary", "@", ((self._build(matrix), "left"), (self._build(operand), "right"))))
            case Product():
                return self._affine([(1, term)])
            case PerHead(operand):
                return self._row("heads", operand)
            case Row("roll", (operand, *_), places=places):
                known = as_int(places)
                moved = show(places) if known is None else f"{known:+d}"
                return self._row(f"{function_label('roll')} {moved.replace('-', '−')}", operand)
            case Transposed(matrix):
                return self._unary(f"{HOLE}^{{T}}", self._build(matrix))
            case OfMatrix(function, matrix, axis):
                return self._row(f"{function_label(function)} of {axis}" if axis else function_label(function), matrix)
            case Unflatten(vector):
                return self._row("unflatten", vector)
            case Row(function, arguments, times):
                label = function_label(function) + (f" ×{times}" if function == "repeat" else "")
                marks = [str(number) for number, _ in enumerate(arguments, 1)] if len(arguments) > 1 else [""]
                reads = tuple((self._build(each), mark) for each, mark in zip(arguments, marks, strict=True))
                return self._add(Value("rows", label, reads))
            case Share(operand, targets, index):
                return self._add(Value("split", "split", ((self._build(operand), ""),), fixed=targets, port=index))
            case Num() | Argument() | Eye() | Filled() | Bad():
                raise InternalError(f"a picture has no box for {term}")
            case _:
                assert_never(term)

    def is_matrix(self, number: int) -> bool:
        """Whether a value that has a name is a matrix that changes with the step."""
        names = [self.all[number].source, *self.names.get(number, ())]
        return any(name in self.cell.shapes and self.cell.shapes[name].kind == "changing" for name in names)

    def _fixed(self, term: Term) -> tuple[Term, ...]:
        """The largest parts of a term that are not drawn, from left to right."""
        if not self.depends(term):
            return (term,)
        return tuple(part for child in children(term) for part in self._fixed(child))

    def _row(self, label: str, operand: Term) -> int:
        return self._add(Value("rows", label, ((self._build(operand), ""),)))

    def _unary(self, label: str, operand: int, *fixed: Term) -> int:
        return self._add(Value("unary", label, ((operand, ""),), fixed))

    def _single(self, term: Term) -> int | None:
        """A function of one named value whose formula is short is one box."""
        leaves: set[str] = set()
        stack: list[Term] = [term]
        while stack:
            part = stack.pop()
            if not self.depends(part):
                continue
            match part:
                case Val(name):
                    leaves.add(name)
                case Op(_, arguments):
                    stack += arguments
                case _:
                    return None
        if len(leaves) != 1:
            return None
        (leaf,) = leaves
        operand = self.of(leaf)
        label = self.labels.text(
            term, {part: HOLE for part in walk(term) if isinstance(part, Val) and part.name == leaf}
        )
        if label.count(HOLE) > 1 or self.all[operand].role == "source" or operand in self.names:
            label = self.labels.text(term)
        return self._unary(label, operand, *self._fixed(term)) if width(label, 1) <= _SHORT else None

    def _sum(self, term: Term) -> int:
        terms = list(addends(term, 1))
        products = [each for each in terms if self._is_linear(each[1], strict=True)]
        if products:
            linear = [each for each in terms if self._is_linear(each[1]) or not self.depends(each[1])]
            others = [each for each in terms if each not in linear]
            made = self._affine(linear)
            if not others:
                return made
            return self._nary(
                "+", [(made, ""), *((self._build(part), "−" if sign < 0 else "") for sign, part in others)]
            )
        if (single := self._single(term)) is not None:
            return single
        fixed = [(sign, part) for sign, part in terms if not self.depends(part)]
        drawn = [(sign, part) for sign, part in terms if self.depends(part)]
        if len(drawn) == 1:
            (_, part) = drawn[0]
            label = self._signed(terms, {part: HOLE})
            return self._unary(label, self._build(part), *(each for _, each in fixed))
        reads = [(self._build(part), "−" if sign < 0 else "") for sign, part in drawn]
        made = self._nary("+", reads)
        if not fixed:
            return made
        return self._unary(self._signed([*fixed], {}, first=HOLE), made, *(part for _, part in fixed))

    def _nary(self, label: str, reads: list[tuple[int, str]]) -> int:
        return self._add(Value("nary", label, tuple(reads)))

    def _signed(self, terms: list[tuple[int, Term]], known: Mapping[Term, str], first: str = "") -> str:
        text = first
        for sign, part in terms:
            shown = term_label(part, lambda each: known.get(each) or self.labels.shown(each), 3 if sign < 0 else 2)
            if text:
                text += f" {'−' if sign < 0 else '+'} {shown}"
            else:
                text = ("−" if sign < 0 else "") + shown
        return text

    def _is_linear(self, term: Term, *, strict: bool = False) -> bool:
        """Whether a term is a parameter times a value. `strict`: a matrix, or a vector of parameters."""
        match term:
            case Product(matrix, operand):
                outer = isinstance(operand, Transposed) and not self.labels.is_matrix(operand.matrix)
                return not outer and not self.depends(matrix)
            case Op("mul", (left, right)):
                coefficient, value = (left, right) if self.depends(right) else (right, left)
                if self.depends(coefficient) or not isinstance(value, Val):
                    return False
                is_vector = isinstance(coefficient, Val) and self.cell.shapes[coefficient.name].width != ONE
                return is_vector or not strict
            case _:
                return False

    def _affine(self, terms: list[tuple[int, Term]]) -> int:
        reads: dict[int, str] = {}
        text, fixed = "", list[Term]()
        for sign, term in terms:
            shown = self._linear(term, reads, fixed)
            text += f" {'−' if sign < 0 else '+'} {shown}" if text else ("−" if sign < 0 else "") + shown
        return self._add(Value("affine", text, tuple(reads.items()), tuple(fixed)))

    def _linear(self, term: Term, reads: dict[int, str], fixed: list[Term]) -> str:
        match term:
            case Product(Val(left) as outer, Product(Val(right) as inner, operand)) if (
                left.replace("__u", "__v") == right != left
            ):
                # The two factors of a matrix of low rank are one.
                fixed += [outer, inner]
                return f"{self.labels.by_group(outer)} {self._operand(operand, reads)}"
            case Product(matrix, operand):
                fixed.append(matrix)
                shown = term_label(matrix, self.labels.by_group, 3)
                shown = shown if width(shown, 1) <= _SHORT else "(…)"
                return f"{shown} {self._operand(operand, reads)}"
            case Op("mul", (left, right)) if self.depends(term):
                coefficient, value = (left, right) if self.depends(right) else (right, left)
                fixed.append(coefficient)
                is_vector = isinstance(coefficient, Val) and self.cell.shapes[coefficient.name].width != ONE
                sign = "⊙" if is_vector else " "
                return f"{term_label(coefficient, self.labels.by_group, 3)}{sign}{self._operand(value, reads)}"
            case _:
                fixed.append(term)
                return term_label(term, self.labels.by_group, 2)

    def _operand(self, operand: Term, reads: dict[int, str]) -> str:
        number = self._build(operand)
        reads[number] = ""
        if self.all[number].role == "source":
            return self.all[number].label
        return self.labels.value(operand.name) if isinstance(operand, Val) else HOLE

    def _product(self, term: Term) -> int:
        if self._is_linear(term, strict=True):
            return self._affine([(1, term)])
        if (single := self._single(term)) is not None:
            return single
        parts = factors(term, 1)
        fixed = [(power, part) for power, part in parts if not self.depends(part)]
        drawn = [(power, part) for power, part in parts if self.depends(part)]
        numbers = [(self._build(part), "÷" if power < 0 else "") for power, part in drawn]
        if fixed:
            # The numbers stand before the first factor.
            numbers[0] = (
                self._scaled(fixed, numbers[0], len(numbers) == 1),
                "" if len(numbers) == 1 else numbers[0][1],
            )
            if len(numbers) == 1:
                return numbers[0][0]
        if len(numbers) == 1:
            number, mark = numbers[0]
            return self._unary(f"1/{HOLE}", number) if mark else number
        return self._nary("×", numbers)

    def _scaled(self, fixed: list[tuple[int, Term]], read: tuple[int, str], alone: bool) -> int:
        above = [term_label(part, self.labels.shown, 4) for power, part in fixed if power > 0]
        if above and above[0].startswith("(−"):
            # Nothing stands before the sign.
            above[0] = above[0][1:-1]
        below = [term_label(part, self.labels.shown, 4) for power, part in fixed if power < 0]
        number, mark = read
        if mark and alone:
            below.append(HOLE)
        else:
            above.append(HOLE)
        over = "/" + (below[0] if len(below) == 1 else f"({' '.join(below)})") if below else ""
        return self._unary((" ".join(above) or "1") + over, number, *(part for _, part in fixed))

    def _function(self, operator: str, arguments: tuple[Term, ...], term: Term) -> int:
        drawn = [each for each in arguments if self.depends(each)]
        if len(arguments) == 1:
            return self._unary(function_label(operator), self._build(arguments[0]))
        if (single := self._single(term)) is not None:
            return single
        if len(drawn) == 1:
            label = self.labels.text(term, {drawn[0]: HOLE})
            return self._unary(label, self._build(drawn[0]), *(each for each in arguments if each not in drawn))
        if operator in ("max", "min") and len(drawn) == 2:
            return self._nary(operator, [(self._build(each), "") for each in drawn])
        marks = ("if", "then", "else") if operator == "where" else ("a", "b", "c")
        pairs = list(zip(arguments, marks, strict=False))
        reads = tuple((self._build(each), mark) for each, mark in pairs if self.depends(each))
        fixed = "".join(f", {mark} {self.labels.text(each)}" for each, mark in pairs if not self.depends(each))
        label = f"a {COMPARISONS[operator]} b" if operator in COMPARISONS else function_label(operator)
        apart = tuple(each for each in arguments if not self.depends(each))
        return self._add(Value("nary", label + fixed, reads, apart))
