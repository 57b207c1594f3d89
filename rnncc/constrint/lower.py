"""From expressions to a Program: every nonlinear operation gets an auxiliary variable and one propagator.

Linear parts are collected into forms `Σ coefficient · variable + constant`, so `4 * a * b - a * b` is one product and
one coefficient. Equal operations on equal arguments share their variable: what one constraint learns about
`count * tile`, every other that mentions it knows.

Auxiliary variables are total functions of the user's, so their definitions forbid nothing; that is what makes a
conflict a set of requirements alone. Hence the conditions on divisors, exponents and tables, checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import product
from math import gcd, prod
from typing import assert_never

from rnncc.constrint import text
from rnncc.constrint.domain import LARGEST, Domain
from rnncc.constrint.errors import ModelError
from rnncc.constrint.evaluate import OPERATORS
from rnncc.constrint.expr import (
    Apply,
    Comparison,
    Conjunction,
    Constant,
    Disjunction,
    Lookup,
    Node,
    Relation,
    Requirement,
    Table,
    Truth,
    Variable,
    negation,
)
from rnncc.constrint.functions import Maximum, Minimum, Power, Product, Quotient
from rnncc.constrint.relations import (
    AtMost,
    Both,
    Congruence,
    Differ,
    Either,
    Equal,
    NoTableRow,
    Same,
    TableRows,
    Terms,
)
from rnncc.constrint.store import Condition, Program, Propagator

# (terms, constant): the sum of coefficient times variable, variables ascending, no coefficient zero.
Form = tuple[Terms, int]

# An exponent that varies, or the key of a table, is tried value by value.
LARGEST_TABLE = 4096


def combine(left: Form, right: Form, factor: int = 1) -> Form:
    """`left + factor * right`."""
    terms = dict(left[0])
    for variable, coefficient in right[0]:
        terms[variable] = terms.get(variable, 0) + factor * coefficient
    return tuple(sorted((v, c) for v, c in terms.items() if c)), left[1] + factor * right[1]


def scale(form: Form, factor: int) -> Form:
    """`factor * form`."""
    return combine(((), 0), form, factor)


class Lowering:
    """Builds one Program; use `require` and `variable`, then `program`."""

    def __init__(self, variables: Iterable[Variable]) -> None:
        self.domains: list[Domain] = [variable.domain for variable in variables]
        self.user_variable_count = len(self.domains)
        self.propagators: list[Propagator] = []
        self.owners: list[int | None] = []
        self.defined: list[int | None] = []
        self.known: dict[Hashable, int] = {}
        # A model uses many of its expressions several times. (Their hashes are their identities, so none are compared.)
        self.forms: dict[Node, Form] = {}

    def program(self, requirements: tuple[Requirement, ...]) -> Program:
        """What has been lowered so far. Owners are positions in `requirements`."""
        owners, defined = tuple(self.owners), tuple(self.defined)
        domains, propagators = tuple(self.domains), tuple(self.propagators)
        return Program(domains, self.user_variable_count, propagators, owners, defined, requirements)

    # Requirements

    def require(self, constraint: Relation, owner: int) -> None:
        """Add the propagators of a requirement."""
        match constraint:
            case Conjunction(parts):
                for part in parts:
                    self.require(part, owner)
            case Comparison("==", Apply("%", (number, divisor)), Constant(0)):
                # number == quotient * divisor: through the product, a known number draws its divisors.
                quotient, by = self.variable(Apply("//", (number, divisor))), self.variable(divisor)
                self._post(Product(quotient, by, self.variable(number)), owner)
            case Comparison("==", left, right) if (defined := self._function_of(left, right)) is not None:
                self._post(defined, owner)
            case Comparison("==", left, right):
                self._equality(combine(self.form(left), self.form(right), -1), owner)
            case _:
                self._post(self.condition(constraint), owner)

    def _function_of(self, left: Node, right: Node) -> Propagator | None:
        """`Product(count, tile, dim)` for `dim == count * tile`: no variable between."""
        if isinstance(left, Apply):
            left, right = right, left
        match left, right:
            case Variable(_, index, _), Apply("*", (one, two)):
                factors = self.form(one), self.form(two)
                if all(terms for terms, _ in factors):
                    a, b = (self._as_variable(factor) for factor in factors)
                    if len({a, b, index}) == 3 and ("*", min(a, b), max(a, b)) not in self.known:
                        return Product(a, b, index)
        return None

    def _equality(self, form: Form, owner: int | None) -> None:
        terms, constant = form
        common = gcd(*(coefficient for _, coefficient in terms), constant)
        if common > 1:
            terms, constant = (
                tuple((variable, coefficient // common) for variable, coefficient in terms),
                constant // common,
            )
        match [coefficient for _, coefficient in terms], constant:
            case (([1, -1] | [-1, 1]), 0):
                self._post(Same(terms[0][0], terms[1][0]), owner)
            case _:
                self._post(Equal(terms, constant), owner)
                self._post(Congruence(terms, constant), owner)

    def _post(self, propagator: Propagator, owner: int | None = None) -> None:
        """Add a propagator, of a requirement or of the auxiliary variable that was made last."""
        self.propagators.append(propagator)
        self.owners.append(owner)
        self.defined.append(len(self.domains) - 1 if owner is None else None)

    # Conditions

    def condition(self, constraint: Relation) -> Condition:
        """A constraint as something that can be tested as well as imposed."""
        match constraint:
            case Comparison(operator, left, right):
                return self._comparison(operator, combine(self.form(left), self.form(right), -1))
            case Table(expressions, rows, allowed):
                columns = tuple(self.variable(expression) for expression in expressions)
                return TableRows(columns, rows) if allowed else NoTableRow(columns, rows)
            case Conjunction(parts):
                return Both(tuple(self.condition(part) for part in parts))
            case Disjunction(parts):
                return Either(tuple(self.condition(part) for part in parts))
            case _:
                assert_never(constraint)

    def _comparison(self, operator: str, difference: Form) -> Condition:
        terms, constant = difference
        match operator:
            case "==":
                return Equal(terms, constant)
            case "!=":
                return Differ(terms, constant)
            case "<=":
                return AtMost(terms, constant)
            case "<":
                return AtMost(terms, constant + 1)
            case ">=":
                return AtMost(*scale(difference, -1))
            case _:
                negative, negated = scale(difference, -1)
                return AtMost(negative, negated + 1)

    # Expressions

    def variable(self, expression: Node) -> int:
        """The variable that holds an expression's value."""
        return self._as_variable(self.form(expression))

    def form(self, expression: Node) -> Form:
        """An expression as a linear form over variables, auxiliary ones included."""
        form = self.forms.get(expression)
        if form is None:
            form = self.forms[expression] = self._form(expression)
        return form

    def _form(self, expression: Node) -> Form:
        match expression:
            case Constant(value):
                return (), value
            case Variable(name, index, domain):
                if index >= self.user_variable_count or self.domains[index] is not domain:
                    raise ModelError(f"{name} is a variable of another model")
                return ((index, 1),), 0
            case Lookup(keys, table):
                return self._lookup(tuple(map(self.form, keys)), table, expression)
            case Truth(constraint):
                return self._truth(constraint)
            case Apply("+", (left, right)):
                return combine(self.form(left), self.form(right))
            case Apply("-", (left, right)):
                return combine(self.form(left), self.form(right), -1)
            case Apply("min" | "max" as operator, arguments):
                return self._extremum(operator, [self.form(argument) for argument in arguments])
            case Apply(operator, (left, right)):
                try:
                    return self._binary(operator, self.form(left), self.form(right))
                except ModelError as error:
                    raise ModelError(f"{text.expression(expression)}: {error}") from None
            case Apply(operator, arguments):
                raise ModelError(f"{operator} takes two arguments, not {len(arguments)}")
            case _:
                assert_never(expression)

    def _binary(self, operator: str, left: Form, right: Form) -> Form:
        """`* // % ** ceil_div` of two forms."""
        low = self._bounds(right)[0]
        if operator in ("//", "%", "ceil_div") and low < 1:
            raise ModelError(f"the divisor must be positive, and it may be {low}")
        if operator == "**" and low < 0:
            raise ModelError(f"the exponent must not be negative, and it may be {low}")
        if not left[0] and not right[0]:
            return (), OPERATORS[operator](left[1], right[1])
        match operator:
            case "*":
                return self._product(left, right)
            case "//":
                return ((self._quotient(left, right, 0), 1),), 0
            case "ceil_div":
                return ((self._quotient(left, right, 1), 1),), 0
            case "%":
                return self._remainder(left, right)
            case "**":
                return self._power(left, right)
            case _:
                raise ModelError(f"unknown operator {operator}")

    def _product(self, left: Form, right: Form) -> Form:
        if not left[0] or not right[0]:
            form, factor = (right, left[1]) if not left[0] else (left, right[1])
            return scale(form, factor)
        # 2a · 3b is 6 · (a · b), so that a · b is shared.
        factor, factors = 1, []
        for form in (left, right):
            match form:
                case ((variable, coefficient),), 0:
                    factor *= coefficient
                    factors.append(variable)
                case _:
                    factors.append(self._as_variable(form))
        one, other = sorted(factors)
        if one == other:
            return (((self._square(one, 2), factor),), 0)
        (a, b), (c, d) = self._ends(one), self._ends(other)
        ends = (a * c, a * d, b * c, b * d)
        result = self._define(("*", one, other), min(ends), max(ends), lambda result: Product(one, other, result))
        return ((result, factor),), 0

    def _quotient(self, left: Form, right: Form, shift: int) -> int:
        """The variable of `left / right`, rounded down (shift 0) or up (shift 1)."""
        one, other = self._as_variable(left), self._as_variable(right)
        if one == other:
            return self._as_variable(((), 1))
        (a, b), (c, d) = self._ends(one), self._ends(other)
        ends = [(end - shift) // by + shift for end in (a, b) for by in (c, d)]
        return self._define(
            ("/", shift, one, other), min(ends), max(ends), lambda result: Quotient(one, other, result, shift)
        )

    def _remainder(self, left: Form, right: Form) -> Form:
        """`left - right * (left // right)`, known to be in 0 .. right - 1."""
        whole = self._product(right, (((self._quotient(left, right, 0), 1),), 0))
        difference = combine(left, whole, -1)
        key = ("%", difference)
        if key not in self.known:
            result = self._auxiliary(0, self._bounds(right)[1] - 1)
            self.known[key] = result
            self._equality(combine(difference, (((result, 1),), 0), -1), None)
            self._post(AtMost(*combine((((result, 1),), 1), right, -1)))
        return ((self.known[key], 1),), 0

    def _power(self, base: Form, exponent: Form) -> Form:
        if not exponent[0]:
            match exponent[1]:
                case 0:
                    return (), 1
                case 1:
                    return base
                case degree:
                    return ((self._square(self._as_variable(base), degree), 1),), 0
        if base[0]:
            raise ModelError("the base or the exponent must be a constant")
        return self._tabulated((exponent,), lambda power: int(base[1] ** power), ("**", base[1]))

    def _square(self, base: int, degree: int) -> int:
        low, high = self._ends(base)
        ends = [low**degree, high**degree] + [0] * (degree % 2 == 0 and low < 0 < high)
        return self._define(("power", base, degree), min(ends), max(ends), lambda result: Power(base, degree, result))

    def _lookup(self, keys: tuple[Form, ...], table: Mapping[tuple[int, ...], int], expression: Lookup) -> Form:
        def entry(*values: int) -> int:
            if values not in table:
                missing = values[0] if len(values) == 1 else values
                raise ModelError(f"{text.expression(expression)}: the table has no entry for {missing}")
            return table[values]

        return self._tabulated(keys, entry, ("lookup", tuple(table.items())))

    def _tabulated(self, keys: tuple[Form, ...], function: Callable[..., int], name: Hashable) -> Form:
        """A function of some arguments, which is tabled value by value."""
        values = [self._values(key) for key in keys]
        if prod(map(len, values)) > LARGEST_TABLE:
            raise ModelError(f"more than {LARGEST_TABLE} values to tabulate")
        rows = tuple((*row, function(*row)) for row in product(*values))
        if not any(terms for terms, _ in keys):
            return (), rows[0][-1]
        arguments = tuple(map(self._as_variable, keys))
        results = [row[-1] for row in rows]
        result = self._define(
            (name, arguments), min(results), max(results), lambda result: TableRows((*arguments, result), rows)
        )
        return ((result, 1),), 0

    def _extremum(self, operator: str, arguments: list[Form]) -> Form:
        if not arguments:
            raise ModelError(f"{operator} of nothing")
        if all(not terms for terms, _ in arguments):
            return (), OPERATORS[operator](*[constant for _, constant in arguments])
        variables = tuple(sorted({self._as_variable(argument) for argument in arguments}))
        if len(variables) == 1:
            return ((variables[0], 1),), 0
        pick, extremum = (min, Minimum) if operator == "min" else (max, Maximum)
        lows, highs = zip(*(self._ends(variable) for variable in variables), strict=True)
        result = self._define(
            (operator, variables), pick(lows), pick(highs), lambda result: extremum(variables, result)
        )
        return ((result, 1),), 0

    def _truth(self, constraint: Relation) -> Form:
        holds, fails = self.condition(constraint), self.condition(negation(constraint))

        def switch(result: int) -> Propagator:
            true, false = Equal(((result, 1),), -1), Equal(((result, 1),), 0)
            return Either((Both((true, holds)), Both((false, fails))))

        return ((self._define(("truth", constraint), 0, 1, switch), 1),), 0

    # Variables

    def _as_variable(self, form: Form) -> int:
        """The variable that equals a form: itself, or an auxiliary one."""
        match form:
            case ((variable, 1),), 0:
                return variable
        if form not in self.known:
            result = self._auxiliary(*self._bounds(form))
            self.known[form] = result
            if form[0]:
                self._equality(combine(form, (((result, 1),), 0), -1), None)
        return self.known[form]

    def _define(self, key: Hashable, low: int, high: int, propagator: Callable[[int], Propagator]) -> int:
        """The variable of an operation, made at its first use."""
        if key not in self.known:
            self.known[key] = self._auxiliary(low, high)
            self._post(propagator(self.known[key]))
        return self.known[key]

    def _auxiliary(self, low: int, high: int) -> int:
        if low < -LARGEST or high > LARGEST:
            raise ModelError(f"a value may reach {low if low < -LARGEST else high}, beyond 2**62")
        self.domains.append(range(low, high + 1))
        return len(self.domains) - 1

    def _ends(self, variable: int) -> tuple[int, int]:
        return self.domains[variable][0], self.domains[variable][-1]

    def _values(self, form: Form) -> Domain:
        """The values of a form, or all between its bounds."""
        match form:
            case ((variable, 1),), 0:
                return self.domains[variable]
        low, high = self._bounds(form)
        return range(low, high + 1)

    def _bounds(self, form: Form) -> tuple[int, int]:
        low = high = form[1]
        for variable, factor in form[0]:
            ends = [factor * end for end in self._ends(variable)]
            low, high = low + min(ends), high + max(ends)
        return low, high
