"""The syntax of a cell as it was written: what `parse` returns and `check` reads.

Nothing is resolved here: names are text, every node carries its span.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from rnncc.language.source import NOWHERE, Source, Span

# How deep brackets, operators and loops may be nested (language.md, limits).
DEEPEST = 100


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Number:
    """A literal; `inf` and `pi` are Names. `is_integer` tells `2` from `2.0`."""

    value: float
    is_integer: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Index:
    """`base[index]`: a time (`h[t-1]`) or a loop instance (`n[l]`); `check` tells which. `base[index][time]` is a loop
    instance at another time (`n[l][t-1]`)."""

    base: str
    index: Expression
    time: Expression | None = None
    span: Span = _span()
    base_span: Span = _span()


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments, keyword=value)`."""

    function: str
    arguments: tuple[Expression, ...]
    keywords: tuple[tuple[str, Keyword], ...] = ()
    span: Span = _span()
    function_span: Span = _span()


@dataclass(frozen=True, slots=True)
class Unary:
    """`operator` is `-` or `+`."""

    operator: str
    operand: Expression
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Binary:
    """`operator` is one of `+ - * / // ** @ < <= > >= == !=`."""

    operator: str
    left: Expression
    right: Expression
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class IfElse:
    """`then if condition else otherwise`; the condition must be static."""

    condition: Expression
    then: Expression
    otherwise: Expression
    span: Span = _span()


Expression = Number | Name | Index | Call | Unary | Binary | IfElse


@dataclass(frozen=True, slots=True)
class Lambda:
    """`argument -> body`: a function of one argument, which stands after `keyword=` alone."""

    argument: str
    body: Expression
    span: Span = _span()
    argument_span: Span = _span()


Keyword = Expression | Lambda


def children(node: Keyword) -> tuple[Keyword, ...]:
    """The expressions directly inside one, from left to right."""
    match node:
        case Number() | Name():
            return ()
        case Index(_, index, time):
            return (index,) if time is None else (index, time)
        case Call(_, arguments, keywords):
            return (*arguments, *(value for _, value in keywords))
        case Unary(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case IfElse(condition, then, otherwise):
            return (condition, then, otherwise)
        case Lambda(_, body):
            return (body,)
        case _:
            assert_never(node)


def walk(node: Keyword) -> Iterator[Keyword]:
    """Yield the expression and every one inside it, from left to right."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += reversed(children(part))


@dataclass(frozen=True, slots=True)
class InputDecl:
    """`input x, gap: 1 = 0.5, c: 64 per sequence` gives one InputDecl a name; `width` and `default` are None where not
    written. `input u in place of x` is one too."""

    name: str
    width: Expression | None
    default: Expression | None = None
    per_sequence: bool = False
    in_place_of: str = ""
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class StateDecl:
    """`state h: P = 0`; `initial` is a number expression or the Name `learned`."""

    name: str
    width: Expression | None
    initial: Expression | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class OutputDecl:
    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class DimDecl:
    """`dim P = 64`, or `dim K` without a default."""

    name: str
    value: Expression | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ConstDecl:
    """`const dt = 0.1`, or `const act = tanh` (a Name of a function)."""

    name: str
    value: Expression
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class LocalDecl:
    """`local v: 4*H`: the width of a target."""

    name: str
    width: Expression
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class TypeDecl:
    """`vector`, `matrix(P, H)`, `sparse(density=0.3)`: a name with arguments."""

    name: str
    arguments: tuple[Expression, ...] = ()
    keywords: tuple[tuple[str, Keyword], ...] = ()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ParamDecl:
    """`param gx: vector = 1`; `initial` is an initialiser expression (number, Name or Call). `buffer gx: vector = 1` is
    the same, not trained."""

    name: str
    type: TypeDecl
    initial: Expression | None
    trained: bool = True
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class WeightsDecl:
    """`weights u: vector`: a group, one member for each equation that names it."""

    name: str
    type: TypeDecl
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class InitDecl:
    """`init W = xavier`, `init b_f = 1`."""

    name: str
    value: Expression
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class FunctionDecl:
    """`def gate(u) = sigmoid(W@x + R@u + b)`."""

    name: str
    parameters: tuple[Name, ...]
    body: Expression
    span: Span = _span()
    name_span: Span = _span()


@dataclass(frozen=True, slots=True)
class Target:
    """The left of an equation: `i`, `h[t]` or `n[l]`."""

    name: str
    index: Expression | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class EquationDecl:
    targets: tuple[Target, ...]
    expression: Expression
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ForDecl:
    """`for l in 1..L:`, both ends included."""

    variable: str
    first: Expression
    last: Expression
    body: tuple[Statement, ...]
    span: Span = _span()


Statement = (
    InputDecl
    | StateDecl
    | OutputDecl
    | DimDecl
    | ConstDecl
    | LocalDecl
    | ParamDecl
    | WeightsDecl
    | InitDecl
    | FunctionDecl
    | EquationDecl
    | ForDecl
)


@dataclass(frozen=True, slots=True)
class CellDecl:
    """One `cell NAME` block. `comment` is the run of `#` lines directly above or first inside it, without the `#`."""

    name: str
    statements: tuple[Statement, ...]
    source: Source = field(compare=False, repr=False)
    comment: str = ""
    span: Span = _span()
    name_span: Span = _span()
