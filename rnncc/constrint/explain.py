"""Why there is no solution: a minimal set of requirements that cannot hold together, with numbers.

A search that fails is a proof. Tracing every dead end back along the trail to the propagators that caused it gives the
requirements the proof used; each of these is then dropped in turn and kept only if the rest has a solution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from rnncc.constrint import evaluate, text
from rnncc.constrint.bound import minimum
from rnncc.constrint.domain import describe
from rnncc.constrint.errors import ConstrintError, LimitReached
from rnncc.constrint.expr import Comparison, Expression, Relation, Variable, as_expression, maximum
from rnncc.constrint.order import ascending
from rnncc.constrint.problem import Lowered, Problem, Requirement
from rnncc.constrint.search import Search
from rnncc.constrint.store import Limits, Meter

# What may be spent on finding the least violation of one requirement: numbers for a message, not truth.
NUMBERS = Limits(nodes=300, steps=20_000)


@dataclass(frozen=True, slots=True)
class Part:
    """One requirement of a conflict. `numbers` shows it violated as little as the other parts were found to allow,
    `values` where: the values of its variables. Both are empty where the limits ended the search for them."""

    requirement: Requirement
    numbers: str
    values: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        formula = text.constraint(self.requirement.constraint)
        lines = (
            [f"  - {self.requirement}", f"      {formula}"] if formula != self.requirement.name else [f"  - {formula}"]
        )
        if self.numbers:
            where = ", ".join(f"{name} = {value}" for name, value in self.values)
            lines.append(f"      the others leave {self.numbers}" + (f", with {where}" if where else ""))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Requirements that cannot hold together. If `minimal`, dropping any one of them leaves a solution."""

    parts: tuple[Part, ...]
    variables: tuple[Variable, ...]
    minimal: bool

    def __str__(self) -> str:
        count = len(self.parts)
        if not count:
            return "no solution"
        head = "this requirement cannot hold" if count == 1 else f"these {count} requirements cannot hold together"
        if self.minimal and count > 1:
            head += "; any one less could"
        domains = ", ".join(f"{variable.name} in {describe(variable.domain)}" for variable in self.variables)
        return "\n".join([f"{head}:", *map(str, self.parts), *([f"  over {domains}"] if domains else [])])


class Infeasible(ConstrintError):
    """No solution exists. The reason is worked out when first asked for, by `conflict` or by printing the error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    @cached_property
    def conflict(self) -> Conflict:
        """A minimal set of requirements that cannot hold together."""
        return explain(self.problem)

    def __str__(self) -> str:
        return str(self.conflict)


def explain(problem: Problem) -> Conflict:
    """The conflict of a problem that has no solution."""
    owners, minimal = minimal_core(problem)
    program_variables = dict.fromkeys(
        variable for owner in owners for variable in evaluate.variables(problem.requirements[owner].constraint)
    )
    parts = tuple(_part(problem, owner, [other for other in owners if other != owner]) for owner in owners)
    return Conflict(parts, tuple(program_variables), minimal)


def minimal_core(problem: Problem) -> tuple[tuple[int, ...], bool]:
    """Positions of requirements that cannot hold together; whether it was proven that each of them is needed."""
    lowered = problem.lowered()
    minimal = True
    try:
        used = core(lowered, range(len(problem.requirements)), problem.limits)
    except LimitReached:
        used, minimal = set(range(len(problem.requirements))), False
    if used is None:
        raise ValueError("the problem has a solution: there is nothing to explain")
    # The later requirement is dropped first: models start with what defines their sizes.
    for owner in sorted(used, reverse=True):
        if owner in used:
            try:
                smaller = core(lowered, used - {owner}, problem.limits)
            except LimitReached:
                minimal = False
            else:
                used = used if smaller is None else smaller
    return tuple(sorted(used)), minimal


def core(lowered: Lowered, owners: Collection[int], limits: Limits) -> set[int] | None:
    """Those of the requirements `owners` that the proof of their infeasibility used; None if they have a solution."""
    program = lowered.program
    run = Search(program, owners, lowered.decisions, Meter(limits))
    used: set[int] = set()

    def blame(variables: Iterable[int]) -> None:
        """Follow the trail back from the variables to every requirement that narrowed them."""
        relevant = set(variables)
        store = run.store
        culprits = [store.cause] if store.cause >= 0 else []
        for variable, _, cause in reversed(store.trail):
            if variable in relevant and cause >= 0:
                culprits.append(cause)
                relevant.update(scope[cause])
        used.update(owner for cause in culprits if (owner := program.owners[cause]) is not None)

    scope = [[variable for variable, _ in propagator.watches()] for propagator in program.propagators]
    run.on_dead_end = blame
    return used if next(run.solutions(), None) is None else None


def _part(problem: Problem, owner: int, others: list[int]) -> Part:
    """A requirement of a conflict, with numbers from the best values that satisfy the others."""
    requirement = problem.requirements[owner]
    values = _least_violation(replace(problem.only(others), limits=NUMBERS), requirement.constraint)
    if values is None:
        return Part(requirement, "", ())
    numbers = text.constraint(requirement.constraint, lambda node: str(evaluate.value(node, values)))
    variables = dict.fromkeys(evaluate.variables(requirement.constraint))
    return Part(requirement, numbers, tuple((variable.name, values[variable.index]) for variable in variables))


def _least_violation(problem: Problem, constraint: Relation) -> tuple[int, ...] | None:
    """Values that satisfy a problem and miss a constraint by little; None if the limits came first."""
    objectives = (
        [as_expression(_violation(constraint))]
        if isinstance(constraint, Comparison) and constraint.operator != "!="
        else []
    )
    # Deciding the violation first finds the least one by halving.
    order = tuple(ascending(objective) for objective in objectives)
    lowered = replace(problem, order=order).lowered(objectives)
    owners, meter = range(len(problem.requirements)), Meter(problem.limits)
    try:
        if not objectives:
            return next(Search(lowered.program, owners, lowered.decisions, meter).solutions(), None)
        found = minimum(lowered.program, owners, lowered.decisions, lowered.objectives, meter)
        return found[0] if found is not None else None
    except LimitReached as limit:
        return limit.best


def _violation(comparison: Comparison) -> Expression:
    """By how much a comparison is missed."""
    difference: Expression = comparison.left - comparison.right
    match comparison.operator:
        case "<=" | "<":
            return difference
        case ">=" | ">":
            return -difference
        case _:
            return maximum(difference, -difference)
