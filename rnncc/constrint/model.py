"""The model: variables and named requirements, and the questions one can ask of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from rnncc.constrint import domain as sets
from rnncc.constrint import order as orders
from rnncc.constrint import text
from rnncc.constrint.bound import minimum
from rnncc.constrint.domain import LARGEST
from rnncc.constrint.errors import ModelError, WrongAnswer
from rnncc.constrint.explain import Infeasible
from rnncc.constrint.expr import (
    Comparison,
    Constant,
    Constraint,
    Expression,
    Node,
    Operand,
    Requirement,
    Variable,
    as_expression,
    as_relation,
    maximum,
)
from rnncc.constrint.order import Branch
from rnncc.constrint.problem import Lowered, Problem, Solution
from rnncc.constrint.search import Search
from rnncc.constrint.store import Limits, Meter

# An expression alone means its small values first.
Order = Sequence[Expression | Branch]
Given = Mapping[Variable, int]
DEFAULT_LIMITS = Limits()


class Model:
    """Variables and requirements. Every question takes

    - `given`: values of some variables for this question only; they take part in explanations;
    - `where`: the same, but no explanation names them. To ask again with other values is quicker than with `given`;
    - `order`: what to decide first, and by which values (`ascending` unless said otherwise, see `order`);
    - `limits`: when to give up, by LimitReached.

    and raises Infeasible, which can explain itself, if there is no solution.
    """

    def __init__(self) -> None:
        self._variables: list[Variable] = []
        self._requirements: list[Requirement] = []
        self._lowered: dict[tuple[int, int, tuple[Node, ...]], Lowered] = {}

    def integer(self, name: str, low: int, high: int) -> Variable:
        """A variable between two bounds, both included."""
        return self._declare(name, range(low, high + 1))

    def choice(self, name: str, values: Iterable[int]) -> Variable:
        """A variable that takes one of some values; a range with a step stays one."""
        return self._declare(name, sets.of_values(values))

    def boolean(self, name: str) -> Variable:
        """A variable that is 0 or 1."""
        return self._declare(name, range(2))

    def require(self, constraint: Constraint, because: str) -> Requirement:
        """Add a constraint. `because` is `name: reason`, or a reason alone: then the formula is the name. Raises
        ModelError where there is no reason."""
        relation = as_relation(constraint)
        name, colon, reason = because.partition(": ")
        if not (reason if colon else because).strip():
            raise ModelError(f"{text.constraint(relation)} is required without a reason")
        requirement = Requirement(name if colon else text.constraint(relation), reason if colon else because, relation)
        self._requirements.append(requirement)
        return requirement

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, in the order made."""
        return tuple(self._variables)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """All requirements, in the order made."""
        return tuple(self._requirements)

    def solve(self, *, given: Given | None = None, order: Order = (), limits: Limits = DEFAULT_LIMITS) -> Solution:
        """Return the first solution in the order of search."""
        return next(self._solutions(self._problem(given, order, limits)))

    def solutions(
        self,
        limit: int | None = None,
        *,
        given: Given | None = None,
        order: Order = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Iterator[Solution]:
        """All solutions in the order of search, or the first `limit`; nothing if there is none."""
        problem = self._problem(given, order, limits)

        def found() -> Iterator[Solution]:
            try:
                yield from self._solutions(problem)
            except Infeasible:
                return

        return islice(found(), limit)

    def minimise(
        self,
        objective: Operand | Sequence[Operand],
        *,
        given: Given | None = None,
        where: Given | None = None,
        order: Order = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Solution:
        """A solution with the least objective; of several objectives, the first counts before the second, and so on.

        It is the first of equal solutions in the order of search. LimitReached.best holds the best found, not proven
        least.
        """
        problem = replace(self._problem(given, order, limits), where=where or {})
        parts = objective if isinstance(objective, Sequence) else (objective,)
        nodes = tuple(map(as_expression, parts))
        lowered = problem.lowered(nodes) if given or order else self._known(nodes).where(problem.where)
        meter = Meter(limits)
        best = minimum(lowered.program, range(len(problem.requirements)), lowered.decisions, lowered.objectives, meter)
        if best is None:
            raise Infeasible(problem, lowered)
        solution = Solution(problem.variables, best[0], best[1], meter.nodes)
        if (evaluated := tuple(map(solution.value, parts))) != solution.objectives:
            raise WrongAnswer(f"a mistake of the solver: its objectives are {evaluated}, not {solution.objectives}")
        return solution

    def maximise(
        self,
        objective: Operand,
        *,
        given: Given | None = None,
        order: Order = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Solution:
        """A solution with the greatest objective; `objective` of the answer is its value."""
        solution = self.minimise(-as_expression(objective), given=given, order=order, limits=limits)
        return Solution(solution.variables, solution.values_by_index, (-solution.objective,), solution.nodes)

    def nearest(
        self,
        variable: Variable,
        target: int,
        *,
        given: Given | None = None,
        order: Order = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Solution:
        """A solution whose value of `variable` is as near a target as any can be; of two as near, the greater."""
        distance = maximum(variable - target, target - variable)
        return self.minimise((distance, -variable), given=given, order=order, limits=limits)

    def _declare(self, name: str, domain: sets.Domain) -> Variable:
        if any(known.name == name for known in self._variables):
            raise ModelError(f"there is a variable {name} already")
        if not domain:
            raise ModelError(f"{name} has no values to take")
        if domain[0] < -LARGEST or domain[-1] > LARGEST:
            raise ModelError(f"{name} may be {domain[-1]}, beyond 2**62")
        variable = Variable(name, len(self._variables), domain)
        self._variables.append(variable)
        return variable

    def _problem(self, given: Given | None, order: Order, limits: Limits) -> Problem:
        fixed = tuple(
            Requirement(variable.name, "given", Comparison("==", variable, Constant(value)))
            for variable, value in (given or {}).items()
        )
        branches = tuple(entry if isinstance(entry, Branch) else orders.ascending(entry) for entry in order)
        return Problem(self.variables, (*self._requirements, *fixed), branches, limits)

    def _known(self, objectives: tuple[Node, ...]) -> Lowered:
        """What the objectives are lowered to, once for all questions."""
        key = (len(self._variables), len(self._requirements), objectives)
        if key not in self._lowered:
            self._lowered[key] = self._problem(None, (), DEFAULT_LIMITS).lowered(objectives)
        return self._lowered[key]

    def _solutions(self, problem: Problem) -> Iterator[Solution]:
        """All solutions; Infeasible if there is none."""
        lowered = problem.lowered()
        meter = Meter(problem.limits)
        run = Search(lowered.program, range(len(problem.requirements)), lowered.decisions, meter)
        values: tuple[int, ...] | None = None
        for values in run.solutions():
            yield Solution(problem.variables, values, (), meter.nodes)
        if values is None:
            raise Infeasible(problem, lowered)
