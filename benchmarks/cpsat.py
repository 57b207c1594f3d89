"""ConstrINT's models in OR-tools' CP-SAT: the same expressions, operation by operation. Needs `pip install ortools`."""

from __future__ import annotations

from typing import Any, assert_never

from ortools.sat.python import cp_model

from rnncc.constrint import Expression, Model, Variable
from rnncc.constrint.domain import Domain
from rnncc.constrint.expr import (
    Apply,
    Comparison,
    Conjunction,
    Constant,
    Disjunction,
    Lookup,
    Node,
    Relation,
    Table,
    Truth,
    as_expression,
)

# (what CP-SAT calls it: a number or a linear expression, its least and greatest value)
Value = tuple[Any, int, int]


class Translation:
    """One CP-SAT model. Equal subtrees of the same objects share their variables."""

    def __init__(self, model: Model, given: dict[Variable, int]) -> None:
        self.model = cp_model.CpModel()
        self.known: dict[int, Value] = {}
        self.products: dict[Any, Value] = {}
        self.variables = [self._declare(variable, given.get(variable)) for variable in model.variables]
        for requirement in model.requirements:
            self.impose(requirement.constraint)

    def _declare(self, variable: Variable, given: int | None) -> Value:
        domain: Domain = variable.domain if given is None else (given,)
        low, high = domain[0], domain[-1]
        if isinstance(domain, range) and domain.step == 1:
            return self.model.new_int_var(low, high, variable.name), low, high
        return self.model.new_int_var_from_domain(cp_model.Domain.from_values(list(domain)), variable.name), low, high

    def new(self, low: int, high: int) -> Any:
        """An auxiliary variable."""
        return self.model.new_int_var(low, high, "")

    def value(self, tree: Node) -> Value:
        """An expression."""
        if id(tree) not in self.known:
            self.known[id(tree)] = self._value(tree)
        return self.known[id(tree)]

    def _value(self, tree: Node) -> Value:
        match tree:
            case Constant(number):
                return number, number, number
            case Variable(_, index, _):
                return self.variables[index]
            case Lookup(keys, table):
                entries = [self.value(key) for key in keys]
                rows = [
                    (*row, result)
                    for row, result in table.items()
                    if all(low <= each <= high for each, (_, low, high) in zip(row, entries, strict=True))
                ]
                results = [row[-1] for row in rows]
                result = self.new(min(results), max(results))
                self.model.add_allowed_assignments([*(entry for entry, _, _ in entries), result], rows)
                return result, min(results), max(results)
            case Truth(constraint):
                return self.literal(constraint), 0, 1
            case Apply("min" | "max" as operator, arguments):
                values = [self.value(argument) for argument in arguments]
                pick = min if operator == "min" else max
                low, high = pick(value[1] for value in values), pick(value[2] for value in values)
                result = self.new(low, high)
                add = self.model.add_min_equality if operator == "min" else self.model.add_max_equality
                add(result, [value[0] for value in values])
                return result, low, high
            case Apply(operator, (left, right)):
                return self._binary(operator, self.value(left), self.value(right))
            case Apply():
                raise ValueError(tree.operator)
            case _:
                assert_never(tree)

    def _binary(self, operator: str, left: Value, right: Value) -> Value:
        (a, low, high), (b, least, most) = left, right
        match operator:
            case "+":
                return a + b, low + least, high + most
            case "-":
                return a - b, low - most, high - least
            case "*":
                ends = [x * y for x in (low, high) for y in (least, most)]
                if low == high or least == most:
                    return (a * least if least == most else b * low), min(ends), max(ends)
                result = self.new(min(ends), max(ends))
                self.model.add_multiplication_equality(result, [a, b])
                return result, min(ends), max(ends)
            case "//" | "ceil_div":
                # CP-SAT rounds towards zero: shift to what is not negative. All our dividends are.
                if low < 0:
                    raise ValueError("a negative dividend is not translated")
                numerator = a + b - 1 if operator == "ceil_div" else a
                ends = [(x + (y - 1 if operator == "ceil_div" else 0)) // y for x in (low, high) for y in (least, most)]
                result = self.new(min(ends), max(ends))
                self.model.add_division_equality(result, numerator, b)
                return result, min(ends), max(ends)
            case "%":
                result = self.new(0, most - 1)
                self.model.add_modulo_equality(result, a, b)
                return result, 0, most - 1
            case "**" if least == most:
                value: Value = left
                for _ in range(least - 1):
                    value = self._binary("*", value, left)
                return value
            case _:
                raise ValueError(operator)

    def impose(self, constraint: Relation) -> None:
        """A constraint that must hold."""
        match constraint:
            case Comparison():
                self.model.add(self.compared(constraint))
            case Table(expressions, rows, True):
                self.model.add_allowed_assignments([self.value(part)[0] for part in expressions], rows)
            case Table(expressions, rows, _):
                self.model.add_forbidden_assignments([self.value(part)[0] for part in expressions], rows)
            case Conjunction(parts):
                for part in parts:
                    self.impose(part)
            case Disjunction(parts):
                self.model.add_bool_or([self.literal(part) for part in parts])
            case _:
                assert_never(constraint)

    def literal(self, constraint: Relation) -> Any:
        """A truth value that is 1 exactly where a comparison holds."""
        if not isinstance(constraint, Comparison):
            raise ValueError("only comparisons are reified")
        opposite = {"==": "!=", "!=": "==", "<=": ">", ">": "<=", "<": ">=", ">=": "<"}[constraint.operator]
        result = self.model.new_bool_var("")
        self.model.add(self.compared(constraint)).only_enforce_if(result)
        self.model.add(self.compared(Comparison(opposite, constraint.left, constraint.right))).only_enforce_if(~result)
        return result

    def compared(self, comparison: Comparison) -> Any:
        """A comparison as CP-SAT writes it."""
        left, right = self.value(comparison.left)[0], self.value(comparison.right)[0]
        match comparison.operator:
            case "==":
                return left == right
            case "!=":
                return left != right
            case "<=":
                return left <= right
            case "<":
                return left < right
            case ">=":
                return left >= right
            case _:
                return left > right


def solve(model: Model, objective: Expression | None, given: dict[Variable, int], seconds: float) -> int | str:
    """The optimum (0 if there is nothing to minimise), or `infeasible`, or `limit`."""
    translation = Translation(model, given)
    if objective is not None:
        translation.model.minimize(translation.value(as_expression(objective))[0])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(translation.model)
    if status == cp_model.INFEASIBLE:
        return "infeasible"
    if status == cp_model.OPTIMAL:
        return round(solver.objective_value) if objective is not None else 0
    if status == cp_model.UNKNOWN or status == cp_model.FEASIBLE:
        return "limit"
    raise ValueError(solver.status_name())
