"""What the names of a cell mean on a page: which have a time, which are numbers, and whose parameter a group is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rnncc.ir.dim import HEADS, ONE
from rnncc.ir.syntax import (
    Binary,
    Call,
    CellDecl,
    ConstDecl,
    DimDecl,
    EquationDecl,
    Expression,
    ForDecl,
    FunctionDecl,
    Keyword,
    Name,
    Statement,
    Unary,
    walk,
)
from rnncc.ir.term import names as read
from rnncc.ir.typed import GroupMember, Shape, Typed, written
from rnncc.language.functions import MATRIX_FUNCTIONS, OF_VECTORS_TOO
from rnncc.language.operators import OPERATORS
from rnncc.show.latex.functions import function_name
from rnncc.show.latex.names import function
from rnncc.show.latex.pieces import Formula

_PAST = re.compile(r"\w+__\d+")


@dataclass(frozen=True, slots=True)
class Target:
    """What an equation defines: a name of the text, and the number of the round of a loop."""

    name: str
    round: str = ""


@dataclass(frozen=True)
class Names:
    """A cell as written, and what `check` found out about it."""

    written: CellDecl
    typed: Typed

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """The targets of the typed cell, by the names that they have there: `n_1` is round 1 of n."""
        found = {}
        for equation in self.typed.equations:
            base, _, index = equation.written.partition("[")
            index = index.rstrip("]")
            found[equation.target] = Target(base, "" if index == "t" else index)
        return found

    @cached_property
    def members(self) -> Mapping[str, GroupMember]:
        """Parameters of groups by their full names. The factors of a matrix of low rank are one: R_i."""
        return {f"{written(each.group)}_{each.target}": each for each in self.typed.members}

    def is_shared(self, group: str) -> bool:
        """Whether a group has one parameter alone, which needs no subscript."""
        return len({each.target for each in self.typed.members if each.written == group}) == 1

    @cached_property
    def groups(self) -> frozenset[str]:
        """Groups of parameters."""
        return frozenset(written(group.name) for group in self.typed.groups)

    @cached_property
    def per_sequence(self) -> frozenset[str]:
        """Inputs that have no time."""
        return frozenset(given.name for given in self.typed.inputs if given.per_sequence)

    @cached_property
    def timed(self) -> frozenset[str]:
        """Names of the text whose values change from step to step."""
        changing = {given.name for given in self.typed.inputs} - self.per_sequence
        changing |= {state.name for state in self.typed.states}
        size = -1
        while size < len(changing):
            size = len(changing)
            for equation in self.typed.equations:
                if any(name in changing or _PAST.fullmatch(name) for name in read(equation.term)):
                    changing.add(equation.target)
        return frozenset(self.targets[name].name if name in self.targets else name for name in changing)

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes by the names of the text; of a loop's values, those of a round."""
        own = {target.name: self.typed.shapes[name] for name, target in self.targets.items()}
        return {**self.typed.shapes, **own}

    @cached_property
    def matrices(self) -> frozenset[str]:
        """Names of matrices that change from step to step, which papers print bold."""
        given = {item.name for item in self.typed.inputs if item.grid is not None}
        return frozenset(given.union(name for name, shape in self.shapes.items() if shape.kind == "changing"))

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Names of single numbers: constants, sizes, and values of width 1 or one per head."""
        statements = self.written.statements
        named = {each.name for each in statements if isinstance(each, ConstDecl | DimDecl)} - set(self.functions)
        narrow = {name for name, shape in self.shapes.items() if not shape.is_matrix and shape.width in (ONE, HEADS)}
        return frozenset(named | narrow | {"I", "H", "num_heads", "inf", "pi"}) | self.variables

    def is_matrix(self, expression: Expression) -> bool:
        """Whether an expression is a matrix that parameters make."""
        match expression:
            case Name(name):
                types = {group.name: group.type for group in self.typed.groups}
                found = types.get(name) or self.shapes.get(name)
                return found is not None and found.is_matrix
            case Unary(_, operand):
                return self.is_matrix(operand)
            case Binary("@", _, operand):
                return self.is_matrix(operand)
            case Binary(_, left, right):
                return self.is_matrix(left) or self.is_matrix(right)
            case Call(function, arguments):
                made = function in MATRIX_FUNCTIONS and function not in OF_VECTORS_TOO
                return made or (function in OPERATORS and any(map(self.is_matrix, arguments)))
            case _:
                return False

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """Constants that are functions, and which ones."""
        return {
            each.name: each.value.name
            for each in self.written.statements
            if isinstance(each, ConstDecl) and isinstance(each.value, Name) and each.value.name in OPERATORS
        }

    def function(self, written: str) -> Formula:
        """A function as the page has it: in a cell with a value `sigma`, the sigmoid is no σ."""
        letter = {"sigmoid": "sigma", "heaviside": "Theta"}.get(written)
        return function(written) if letter in self.shapes else function_name(written)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables of loops."""
        return frozenset(each.variable for each in statements(self.written.statements) if isinstance(each, ForDecl))

    @cached_property
    def definitions(self) -> Mapping[str, FunctionDecl]:
        """The functions of the cell's own."""
        return {each.name: each for each in self.written.statements if isinstance(each, FunctionDecl)}

    @cached_property
    def gated(self) -> frozenset[str]:
        """Functions of the cell's own whose parameters are those of the equation that calls them."""
        found: set[str] = set()
        # A definition stands above its calls.
        for definition in self.definitions.values():
            own = {parameter.name for parameter in definition.parameters}
            if (mentioned(definition.body) - own) & (self.groups | found):
                found.add(definition.name)
        return frozenset(found)

    def callers(self, function: str) -> tuple[Target, ...]:
        """The targets of the equations that call a function of the cell's own, or one that calls it."""
        calling = {function}
        for definition in self.definitions.values():
            if mentioned(definition.body) & calling:
                calling.add(definition.name)
        found = [
            Target(target.name)
            for each in statements(self.written.statements)
            if isinstance(each, EquationDecl) and mentioned(each.expression) & calling
            for target in each.targets
        ]
        return tuple(dict.fromkeys(found))


def mentioned(expression: Keyword) -> set[str]:
    """Every name in an expression, also of what is called."""
    found = set()
    for node in walk(expression):
        found |= {value for value in (getattr(node, key, None) for key in ("name", "base", "function")) if value}
    return found


def statements(given: Iterable[Statement]) -> Iterable[Statement]:
    """All statements, and those inside loops."""
    for statement in given:
        yield statement
        if isinstance(statement, ForDecl):
            yield from statements(statement.body)


def is_time(index: Expression) -> bool:
    """Whether an index is one of time, such as `t-1`."""
    return any(isinstance(node, Name) and node.name == "t" for node in walk(index))
