"""Small functions of a cell: `def gate(u) = sigmoid(W@x + R@u + b)` is written out where it is called.

Input: the statements of a cell. Output: the same without a `def`, nor a call of one. Nothing after this pass knows that
there were any, but for the spans: what comes from a `def` stands there, and remembers the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from rnncc.ir.syntax import (
    DEEPEST,
    Binary,
    Call,
    CellDecl,
    EquationDecl,
    Expression,
    ForDecl,
    FunctionDecl,
    IfElse,
    Index,
    Keyword,
    Lambda,
    Name,
    Number,
    Statement,
    Unary,
    children,
    walk,
)
from rnncc.language.diagnostics import Label
from rnncc.language.names import instead_of_reserved, reserved
from rnncc.language.report import Report, Reported
from rnncc.language.source import Origin, Span
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.mentions import names_in
from rnncc.stages.check.resolve import MOST_NODES, MOST_NODES_IN_CELL

# Begins the names that stand for what was reported, one for each report. No text has such a name.
_WRONG = "?"


@dataclass(frozen=True, slots=True)
class _Extent:
    """How many names, numbers and operators an expression has, and how deep they are nested."""

    nodes: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Use:
    """A call that is being written out: the arguments by parameter, and where what is written comes from."""

    function: FunctionDecl
    arguments: Mapping[str, Expression]
    origins: tuple[Origin, ...]


class _Expander:
    def __init__(self, decl: CellDecl, symbols: Symbols, report: Report) -> None:
        self.decl, self.symbols, self.report = decl, symbols, report
        # Those read so far, whose bodies call none of the others.
        self.known: dict[str, FunctionDecl] = {}
        self.all = {item.name: item for item in reversed(decl.statements) if isinstance(item, FunctionDecl)}
        self.loops: frozenset[str] = frozenset()
        # What has been written out.
        self.nodes = 0

    def run(self) -> CellDecl:
        if not self.all:
            return self.decl
        return replace(self.decl, statements=tuple(self.statements(self.decl.statements, top=True)))

    def statements(self, statements: tuple[Statement, ...], *, top: bool) -> Iterator[Statement]:
        for statement in statements:
            match statement:
                case EquationDecl():
                    yield replace(statement, expression=self.right_side(statement.expression))
                case ForDecl():
                    outer = self.loops
                    self.loops = outer | {statement.variable}
                    yield replace(statement, body=tuple(self.statements(statement.body, top=False)))
                    self.loops = outer
                case FunctionDecl() if top:
                    self.define(statement)
                case _:
                    yield statement

    def define(self, function: FunctionDecl) -> None:
        if self.all[function.name] is not function:
            return
        names: dict[str, Span] = {}
        for parameter in function.parameters:
            self.parameter(parameter, names)
        wrong: Reported | None = None
        for part in walk(function.body):
            if isinstance(part, Lambda) and part.argument in names:
                name, note = part.argument, Label(names[part.argument], f"'{part.argument}' stands here")
                message = f"the argument of a derivative needs a name of its own: '{name}' is a parameter"
                span = part.argument_span
                wrong = self.report.error("RNN218", message, span, help="choose another name", notes=(note,))
        body = self.right_side(function.body) if wrong is None else self.wrong(wrong, function.body.span)
        self.known[function.name] = replace(function, body=body)

    def parameter(self, parameter: Name, earlier: dict[str, Span]) -> None:
        """Enter a parameter. In its body it hides what else has its name, but for functions: calls of these are written
        out first."""
        name, span = parameter.name, parameter.span
        why = reserved(name)
        if why:
            self.report.error("RNN217", f"'{name}' is {why}", span, "a reserved name", instead_of_reserved(name))
        elif name in earlier:
            message = f"two parameters are called '{name}'"
            self.report.error("RNN218", message, span, notes=(Label(earlier[name], "the first one"),))
        elif name in self.all:
            message = f"the parameter '{name}' has the name of a function"
            note = Label(self.all[name].name_span, f"'{name}' stands here")
            self.report.error("RNN218", message, span, help="call the parameter something else", notes=(note,))
        earlier.setdefault(name, span)

    def right_side(self, expression: Expression) -> Expression:
        """What stands behind a `=`. Calls may stand deep in it."""
        made = self.expression(expression)
        too_large = self.too_large(_extent(made, {}), expression.span)
        return self.wrong(too_large, expression.span) if too_large else made

    def wrong(self, reported: Reported, span: Span) -> Name:
        """What stands for something that was reported."""
        name = f"{_WRONG}{len(self.symbols.ignored)}"
        self.symbols.ignored[name] = reported
        return Name(name, span)

    def too_large(self, extent: _Extent, span: Span) -> Reported | None:
        """An error where what is written out is beyond a limit of the language."""
        if self.nodes > MOST_NODES_IN_CELL:
            what = f"the cell has more than {MOST_NODES_IN_CELL:,} operators and names"
        elif extent.nodes > MOST_NODES:
            what = f"the equation has more than {MOST_NODES:,} operators and names"
        elif extent.depth > DEEPEST:
            what = f"the equation is nested more than {DEEPEST} deep"
        else:
            return None
        help = "give a part of it a name, in an equation of its own"
        reported = self.report.error("RNN221", f"{what} once its functions are written out", span, help=help)
        if self.nodes > MOST_NODES_IN_CELL:
            self.report.stop()
        return reported

    def expression(self, expression: Expression) -> Expression:
        """The expression with every call of a `def` written out."""
        match expression:
            case Number() | Name():
                return expression
            case Call(function, arguments, keywords):
                inside = replace(
                    expression,
                    arguments=tuple(map(self.expression, arguments)),
                    keywords=tuple((name, self.keyword(value)) for name, value in keywords),
                )
                return self.call(inside) if function in self.all else inside
            case Index(_, index, time):
                time = None if time is None else self.expression(time)
                return replace(expression, index=self.expression(index), time=time)
            case Unary(_, operand):
                return replace(expression, operand=self.expression(operand))
            case Binary(_, left, right):
                return replace(expression, left=self.expression(left), right=self.expression(right))
            case IfElse(condition, then, otherwise):
                return replace(
                    expression,
                    condition=self.expression(condition),
                    then=self.expression(then),
                    otherwise=self.expression(otherwise),
                )
            case _:
                assert_never(expression)

    def keyword(self, value: Keyword) -> Keyword:
        return replace(value, body=self.expression(value.body)) if isinstance(value, Lambda) else self.expression(value)

    def call(self, call: Call) -> Expression:
        """What a call of a `def` stands for; its arguments hold no call of one."""
        function = self.known.get(call.function)
        if function is None:
            return self.wrong(self.too_early(call), call.span)
        note = (Label(function.name_span, "defined here"),)
        wrong: Reported | None = None
        for keyword, value in call.keywords:
            message, help = f"'{function.name}' takes no argument '{keyword}'", "arguments are given in their order"
            wrong = self.report.error("RNN204", message, value.span, help=help, notes=note)
        wanted, given = len(function.parameters), len(call.arguments)
        if wanted != given:
            plural = "" if wanted == 1 else "s"
            message = f"'{function.name}' takes {wanted} argument{plural}, not {given}"
            wrong = self.report.error("RNN204", message, call.span, notes=note)
        if wrong is not None:
            return self.wrong(wrong, call.span)
        arguments = {each.name: value for each, value in zip(function.parameters, call.arguments, strict=True)}
        extent = _extent(function.body, {name: _extent(value, {}) for name, value in arguments.items()})
        self.nodes += extent.nodes
        if too_large := self.too_large(extent, call.span):
            return self.wrong(too_large, call.span)
        here = Origin(replace(call.span, origins=()), f"in this call of '{function.name}'")
        return self.written_out(function.body, _Use(function, arguments, (here, *call.span.origins)))

    def too_early(self, call: Call) -> Reported:
        name = call.function
        defined = self.all[name]
        place = (Label(defined.name_span, "defined here"),)
        if defined.span.start <= call.span.start < defined.span.end:
            message, help = f"'{name}' calls itself", "a function is written out where it is called, so it has an end"
        else:
            message, help = f"'{name}' is called before it is defined", f"write the 'def' of '{name}' above"
        return self.report.error("RNN203", message, call.span, "too early", help, place)

    def written_out(self, body: Expression, use: _Use) -> Expression:
        """A part of a body with the arguments in it."""
        span = Span(body.span.start, body.span.end, (*body.span.origins, *use.origins))
        match body:
            case Number():
                return replace(body, span=span)
            case Name(name) if name in use.arguments:
                argument = use.arguments[name]
                used = Origin(replace(body.span, origins=()), f"used here, as '{name}'")
                return replace(argument, span=replace(argument.span, origins=(*argument.span.origins, used)))
            case Name(name):
                wrong = self.loop_variable(name, span, use)
                return self.wrong(wrong, span) if wrong else Name(name, span)
            case Index():
                return self.index_written_out(body, span, use)
            case Call(function, arguments, keywords):
                found = self.plain(function, span, use, "cannot be called")
                if isinstance(found, Reported):
                    return self.wrong(found, span)
                if found.name in self.all:
                    message = f"'{function}' stands for '{found.name}': only functions of the language are passed on"
                    return self.wrong(self.report.error("RNN203", message, span, "calls a parameter"), span)
                positional = tuple(self.written_out(argument, use) for argument in arguments)
                named = tuple((name, self.keyword_written_out(value, use)) for name, value in keywords)
                return Call(found.name, positional, named, span, found.span)
            case Unary(operator, operand):
                return Unary(operator, self.written_out(operand, use), span)
            case Binary(operator, left, right):
                return Binary(operator, self.written_out(left, use), self.written_out(right, use), span)
            case IfElse(condition, then, otherwise):
                chosen, other = self.written_out(then, use), self.written_out(otherwise, use)
                return IfElse(self.written_out(condition, use), chosen, other, span)
            case _:
                assert_never(body)

    def index_written_out(self, body: Index, span: Span, use: _Use) -> Expression:
        index = self.written_out(body.index, use)
        time = None if body.time is None else self.written_out(body.time, use)
        argument = use.arguments.get(body.base)
        if isinstance(argument, Index) and argument.time is None and time is None and "t" not in names_in(argument):
            # `v[t-1]` of a loop's value: `u[l][t-1]`.
            return Index(argument.base, argument.index, index, span, argument.base_span)
        found = self.plain(body.base, span, use, "has no time and no index")
        if isinstance(found, Reported):
            return self.wrong(found, span)
        if wrong := self.loop_variable(body.base, span, use):
            return self.wrong(wrong, span)
        return Index(found.name, index, time, span, found.span)

    def keyword_written_out(self, value: Keyword, use: _Use) -> Keyword:
        if not isinstance(value, Lambda):
            return self.written_out(value, use)
        place = value.argument_span
        argument_span = Span(place.start, place.end, (*place.origins, *use.origins))
        span = Span(value.span.start, value.span.end, (*value.span.origins, *use.origins))
        # The argument of a derivative has the name of no parameter.
        return Lambda(value.argument, self.written_out(value.body, use), span, argument_span)

    def plain(self, name: str, span: Span, use: _Use, what: str) -> Name | Reported:
        """What stands before a bracket: a parameter there must be given a plain name."""
        argument = use.arguments.get(name, Name(name, span))
        if isinstance(argument, Name):
            return argument
        message = f"'{name}' stands for an expression, which {what}"
        return self.report.error("RNN216", message, span, "not a name", f"pass a plain name as '{name}'")

    def loop_variable(self, name: str, span: Span, use: _Use) -> Reported | None:
        """An error where a body reads the turn of a loop around its call, which it does not know."""
        if name not in self.loops or name in use.arguments:
            return None
        message = f"'{use.function.name}' does not know the loop variable '{name}'"
        help = f"make '{name}' an argument, under another name"
        return self.report.error("RNN202", message, span, "not defined", help)


def _extent(expression: Keyword, arguments: Mapping[str, _Extent]) -> _Extent:
    """The extent of an expression in which parameters have that of their arguments."""
    if isinstance(expression, Name):
        return arguments.get(expression.name, _Extent(1, 1))
    found = [_extent(each, arguments) for each in children(expression)]
    return _Extent(1 + sum(each.nodes for each in found), 1 + max((each.depth for each in found), default=0))


def expand(decl: CellDecl, symbols: Symbols, report: Report) -> CellDecl:
    """Write out all calls of functions that the cell defines; see the module's docstring."""
    return _Expander(decl, symbols, report).run()
