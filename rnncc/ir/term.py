"""Equations of a typed cell: terms over values, after names are resolved and loops unrolled.

A term still speaks the user's mathematics (products of matrices, layernorm); `partition` cuts it into nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rnncc.ir.dim import ZERO, Dim
from rnncc.ir.expr import exact
from rnncc.language.report import Reported
from rnncc.language.source import NOWHERE, Span


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Num:
    """A literal number."""

    value: float
    span: Span = _span()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Num) and exact(self.value) == exact(other.value)

    def __hash__(self) -> int:
        return hash(exact(self.value))


@dataclass(frozen=True, slots=True)
class Val:
    """A value by its name in the Cell: `x`, `x__1`, `h`, `h__1`, `n_2`, `W_i`, `dt`."""

    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of the table, element by element (of vectors, or of matrices made of parameters)."""

    operator: str
    arguments: tuple[Term, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Argument:
    """The argument of a derivative that the text gives: `u` in `grad=u -> exp(-u**2)`."""

    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Surrogate:
    """`function(operand, grad=…)`: the value of a step function, whose derivative the operator `surrogate` takes from
    `slope`. Nothing but numbers, constants and Arguments stands in the slope."""

    function: str
    operand: Term
    surrogate: str
    slope: Term
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Product:
    """`matrix @ operand`."""

    matrix: Term
    operand: Term
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Row:
    """A function across the units, such as softmax or roll, is applied to its arguments. `times` is
    repeat's. By so many `places` roll moves; its second argument, if it has one, is the fill."""

    function: str
    arguments: tuple[Term, ...]
    times: int = 1
    places: Dim = ZERO
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Share:
    """What target `index` of `targets` gets of `split(operand)`."""

    operand: Term
    targets: tuple[str, ...]
    index: int
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Transposed:
    """`T(matrix)`."""

    matrix: Term
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class OfMatrix:
    """A function of a whole matrix: `expm(matrix)`, `softmax(matrix, axis=rows)`. `diag` takes a vector, or gives the
    diagonal of a matrix that changes; `norm` gives one number per head, and along an axis `sum` a vector. By so many
    `places` `roll` moves; `fill` is what comes in then, if the text says it."""

    function: str
    operand: Term
    axis: str = ""
    span: Span = _span()
    places: Dim = ZERO
    fill: tuple[Term, ...] = ()

    @property
    def operator(self) -> str:
        """Its name in the operator table."""
        function = "shift" if self.fill else self.function
        return f"{function}_{self.axis}" if self.axis else function


@dataclass(frozen=True, slots=True)
class Eye:
    """`eye(dim)`."""

    dim: Dim
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Unflatten:
    """`unflatten(operand, rows, columns)`: a vector as a matrix, row by row within each head."""

    operand: Term
    rows: Dim
    columns: Dim
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Filled:
    """A vector of numbers alone: `ones(dim)`, `arange(dim)`."""

    function: str
    dim: Dim
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class PerHead:
    """`heads(operand, groups)`: a vector of so many groups, one after the other; each head of the result is a copy of
    one of them."""

    operand: Term
    groups: Dim
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Bad:
    """What an error left behind: it fits everywhere, so that one mistake is reported once. `reported` is that error."""

    span: Span = field(compare=False, repr=False)
    reported: Reported = field(compare=False, repr=False)


Term = (
    Num
    | Val
    | Op
    | Argument
    | Surrogate
    | Product
    | Row
    | Share
    | Transposed
    | OfMatrix
    | Eye
    | Unflatten
    | Filled
    | PerHead
    | Bad
)


@dataclass(frozen=True, slots=True)
class Equation:
    """`target = term`, of one gate. `written` is the target as the user spelled it, for messages."""

    target: str
    written: str
    term: Term
    span: Span = _span()
    target_span: Span = _span()


def children(term: Term) -> tuple[Term, ...]:
    """The terms directly inside a term."""
    match term:
        case Op() | Row():
            return term.arguments
        case OfMatrix(_, operand):
            return (operand, *term.fill)
        case Surrogate(_, operand) | PerHead(operand):
            return (operand,)
        case Product(matrix, operand):
            return (matrix, operand)
        case Share(operand) | Unflatten(operand):
            return (operand,)
        case Transposed(matrix):
            return (matrix,)
        case _:
            return ()


def walk(term: Term) -> Iterator[Term]:
    """Yield the term and every term inside it, from left to right."""
    # A stack: generators within generators would pass a part up through every term around it.
    waiting = [term]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += reversed(children(part))


def names(term: Term) -> Iterator[str]:
    """The values a term reads, with repetitions."""
    for inner in walk(term):
        if isinstance(inner, Val):
            yield inner.name


def first_bad(*terms: Term) -> Bad | None:
    """The first part of the terms that was reported, if one was."""
    return next((part for term in terms for part in walk(term) if isinstance(part, Bad)), None)


def negative(value: Term, span: Span) -> Term:
    """`-value`, folded for numbers."""
    return Num(-value.value, span) if isinstance(value, Num) else Op("neg", (value,), span)
