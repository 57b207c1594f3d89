"""Random small models for property tests, and their solutions by trying everything."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import strategies as st

from rnncc.constrint import (
    Expression,
    Model,
    Variable,
    all_of,
    any_of,
    ceil_div,
    distinct,
    divides,
    implies,
    lookup,
    maximum,
    minimum,
    round_up,
    table,
    truth,
)
from rnncc.constrint.evaluate import holds, value
from rnncc.constrint.expr import Constant, as_expression

MOST_ASSIGNMENTS = 400


@dataclass(frozen=True)
class Random:
    """A model, and an expression to minimise."""

    model: Model
    objectives: tuple[Expression, ...]

    def assignments(self) -> list[tuple[int, ...]]:
        """Every solution, in the order of the variables' values."""
        constraints = [requirement.constraint for requirement in self.model.requirements]
        domains = [variable.domain for variable in self.model.variables]
        return [values for values in product(*domains) if all(holds(constraint, values) for constraint in constraints)]

    def objective(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The objectives' values."""
        return tuple(value(as_expression(objective), values) for objective in self.objectives)


# Ranges, strided ranges and sets, with negative numbers.
DOMAIN = st.one_of(
    st.tuples(st.integers(-6, 12), st.integers(1, 12)).map(lambda t: range(t[0], t[0] + t[1])),
    st.tuples(st.integers(-9, 30), st.integers(1, 8), st.integers(2, 8)).map(
        lambda t: range(t[0], t[0] + t[1] * t[2], t[2])
    ),
    st.sets(st.integers(-8, 40), min_size=1, max_size=7).map(lambda values: tuple(sorted(values))),
)

# A few values far apart.
SPARSE_DOMAIN = st.sets(st.integers(-8, 40), min_size=3, max_size=6).map(lambda values: tuple(sorted(values)))


def positive(expression: Expression) -> Expression:
    """Something that may divide."""
    return maximum(1, expression)


Recipe = Callable[[Sequence[Expression]], Any]


def combined(function: Callable[..., Any], *parts: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    """What a function makes of the parts, once they are applied to a model's variables."""
    return st.tuples(*parts).map(lambda recipes: lambda variables: function(*(r(variables) for r in recipes)))


def listed(function: Callable[[list[Any]], Any], parts: st.SearchStrategy[list[Recipe]]) -> st.SearchStrategy[Recipe]:
    """The same for a function of a list."""
    return parts.map(lambda recipes: lambda variables: function([r(variables) for r in recipes]))


def number(low: int, high: int) -> st.SearchStrategy[Recipe]:
    """A constant."""
    return st.integers(low, high).map(lambda value: lambda _: value)


# A variable, or another expression that the requirements of a model share.
LEAF = st.integers(0, 6).map(lambda index: lambda operands: operands[index % len(operands)])


def _larger(part: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    """Every operator, on smaller expressions."""
    return st.one_of(
        combined(operator.add, part, part),
        combined(operator.sub, part, part),
        combined(operator.mul, part, part),
        combined(operator.mul, number(-5, 12), part),
        combined(operator.sub, number(-5, 12), part),
        combined(lambda a, b: a // positive(b), part, part),
        combined(lambda a, b: a % positive(b), part, part),
        combined(operator.mod, part, number(1, 9)),
        combined(lambda a, b: ceil_div(a, positive(b)), part, part),
        combined(round_up, part, number(1, 9)),
        # Powers of powers would leave the numbers that a model takes.
        combined(operator.pow, LEAF, number(0, 2)),
        combined(lambda a, n: minimum(maximum(a, -20), 20) ** n, part, number(0, 3)),
        combined(lambda a: 2 ** maximum(0, minimum(a, 6)), part),
        combined(lambda a: lookup(minimum(maximum(a, 0), 3), {0: 5, 1: -1, 2: 5, 3: 2}), part),
        combined(
            lambda a, b: lookup(
                (minimum(maximum(a, 0), 2), minimum(maximum(b, -1), 1)),
                {(x, y): (3 * x - y) % 5 - 1 for x in range(3) for y in range(-1, 2)},
            ),
            part,
            part,
        ),
        combined(minimum, part, part),
        combined(maximum, part, part, number(3, 3)),
        combined(lambda a, b: truth(a <= b), part, part),
    )


EXPRESSION = st.recursive(LEAF, _larger, max_leaves=4)
SIDE = st.one_of(EXPRESSION, number(-10, 60))
COMPARISON = st.one_of(
    *(
        combined(compare, EXPRESSION, SIDE)
        for compare in (operator.eq, operator.ne, operator.le, operator.lt, operator.ge, operator.gt)
    ),
    combined(lambda a, b: divides(positive(a), b), EXPRESSION, SIDE),
)
ROWS = st.lists(st.tuples(st.integers(-4, 14), st.integers(-4, 14)), max_size=8)
TABLE = combined(lambda a, b, rows: table((a, b), rows), EXPRESSION, EXPRESSION, ROWS.map(lambda rows: lambda _: rows))
BASIC = st.one_of(COMPARISON, TABLE)
CONSTRAINT = st.one_of(
    BASIC,
    combined(operator.invert, TABLE),
    combined(implies, BASIC, BASIC),
    listed(any_of, st.lists(BASIC, max_size=3)),
    listed(all_of, st.lists(BASIC, max_size=3)),
    listed(lambda parts: ~all_of(parts), st.lists(BASIC, max_size=3)),
    combined(lambda a, b, c: (a & b) | ~c, BASIC, BASIC, BASIC),
    listed(distinct, st.lists(EXPRESSION, min_size=2, max_size=3)),
)


@st.composite
def sums(draw: st.DrawFn, variables: Sequence[Variable]) -> tuple[Expression, range]:
    """A sum of one to three variables and a constant, and a range that holds its values."""
    low = high = draw(st.integers(-5, 9))
    total: Expression = Constant(low)
    for variable in draw(st.lists(st.sampled_from(variables), min_size=1, max_size=3)):
        factor = draw(st.sampled_from((1, 1, 2, -1)))
        ends = factor * variable.domain[0], factor * variable.domain[-1]
        total, low, high = total + factor * variable, low + min(ends), high + max(ends)
    return total, range(low, high + 1)


@st.composite
def lookups(draw: st.DrawFn, key: Expression, keys: range) -> Expression:
    """What a table gives for a key: 1 or 2 for a few values, 0 for the others."""
    few = draw(st.dictionaries(st.sampled_from(keys), st.sampled_from((1, 2)), min_size=1, max_size=5))
    return lookup(key, {each: few.get(each, 0) for each in keys})


@st.composite
def general_models(draw: st.DrawFn) -> Random:
    """A model of one to four variables and up to five requirements, and one or two objectives."""
    model = drawn_variables(draw, DOMAIN)
    for number in range(draw(st.integers(1, 5))):
        model.require(draw(CONSTRAINT)(model.variables), because=f"requirement {number}: drawn")
    return Random(model, drawn_objectives(draw, model.variables))


@st.composite
def lookup_models(draw: st.DrawFn) -> Random:
    """A model whose one to four requirements share lookups over one or two sums. They leave wide holes in the sums."""
    model = drawn_variables(draw, st.one_of(DOMAIN, SPARSE_DOMAIN, SPARSE_DOMAIN))
    keys = draw(st.lists(sums(model.variables), min_size=1, max_size=2))
    shared = [draw(lookups(*draw(st.sampled_from(keys)))) for _ in range(draw(st.integers(1, 3)))]
    for number in range(draw(st.sampled_from((1, 1, 2)))):
        model.require(shared[number % len(shared)] >= 1, because=f"lookup {number}: drawn")
    operands = [*shared, *model.variables]
    for number in range(draw(st.sampled_from((0, 0, 1, 2)))):
        model.require(draw(COMPARISON)(operands), because=f"requirement {number}: drawn")
    return Random(model, drawn_objectives(draw, operands))


def drawn_variables(draw: st.DrawFn, domains: st.SearchStrategy[Sequence[int]]) -> Model:
    """A model of one to four variables, without requirements."""
    model = Model()
    count, product_so_far = draw(st.integers(1, 4)), 1
    for index in range(count):
        domain = draw(domains)
        product_so_far *= len(domain)
        if product_so_far > MOST_ASSIGNMENTS and index:
            break
        model.choice(f"x{index}", domain)
    return model


def drawn_objectives(draw: st.DrawFn, operands: Sequence[Expression]) -> tuple[Expression, ...]:
    """One or two objectives."""
    return tuple(objective(operands) for objective in draw(st.lists(EXPRESSION, min_size=1, max_size=2)))


def models() -> st.SearchStrategy[Random]:
    """A model of either kind."""
    return st.one_of(general_models(), lookup_models())
