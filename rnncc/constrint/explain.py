"""Why there is no solution: a minimal set of requirements that cannot hold together, with numbers.

Each requirement is dropped in turn and kept only if the rest has a solution. Where it has none the failed search is a
proof: tracing every dead end back along the trail to the propagators that caused it gives the requirements that the
proof used, and all others go as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from rnncc.constrint import evaluate, text
from rnncc.constrint.bound import minimum
from rnncc.constrint.domain import describe
from rnncc.constrint.errors import ConstrintError, LimitReached
from rnncc.constrint.expr import Comparison, Expression, Requirement, Variable, as_expression, maximum
from rnncc.constrint.order import ascending
from rnncc.constrint.problem import Lowered, Problem
from rnncc.constrint.search import Search
from rnncc.constrint.store import Limits, Meter

# What may be spent on finding the least violation of one requirement: numbers for a message, not truth.
NUMBERS = Limits(nodes=200, steps=2400)


class Part:
    """One requirement of a conflict. The numbers cost a search, so they are found when first asked for."""

    def __init__(self, requirement: Requirement, others: Problem, witness: tuple[int, ...] | None) -> None:
        """`others` are the other parts; `witness` satisfies them, None if no such values were found."""
        self.requirement = requirement
        self._others = others
        self._witness = witness

    @cached_property
    def assignment(self) -> tuple[int, ...] | None:
        """Values of all variables that satisfy the other parts, and miss this one by as little as a short search
        finds; None if the limits ended the search for any."""
        constraint = self.requirement.constraint
        if not isinstance(constraint, Comparison) or constraint.operator == "!=":
            return self._witness
        violation = as_expression(_violation(constraint))
        # Deciding the violation first finds the least one by halving.
        lowered = replace(self._others, order=(ascending(violation),)).lowered([violation])
        owners = range(len(self._others.requirements))
        try:
            found = minimum(lowered.program, owners, lowered.decisions, lowered.objectives, Meter(NUMBERS))
        except LimitReached as limit:
            return limit.best or self._witness
        return found[0] if found is not None else self._witness

    @property
    def numbers(self) -> str:
        """The constraint with the values of its sides, `256 <= 255`; empty if none were found."""
        values = self.assignment
        if values is None:
            return ""
        return text.constraint(self.requirement.constraint, lambda node: str(evaluate.value(node, values)))

    @property
    def values(self) -> dict[str, int]:
        """The values of the constraint's variables that give these numbers, by name."""
        values = self.assignment
        if values is None:
            return {}
        return {variable.name: values[variable.index] for variable in evaluate.variables(self.requirement.constraint)}

    def __str__(self) -> str:
        formula = text.constraint(self.requirement.constraint)
        lines = [f"  - {self.requirement}"] + [f"      {formula}"] * (formula != self.requirement.name)
        if self.numbers:
            where = ", ".join(f"{name} = {value}" for name, value in self.values.items())
            lines.append(f"      the others leave {self.numbers}" + f", with {where}" * bool(where))
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

    def __init__(self, problem: Problem, lowered: Lowered) -> None:
        super().__init__(problem)
        self.problem, self._lowered = problem, lowered

    @cached_property
    def conflict(self) -> Conflict:
        """A minimal set of requirements that cannot hold together."""
        return explain(self.problem, self._lowered)

    def conflict_within(self, limits: Limits) -> Conflict:
        """A set of requirements that cannot hold together. Each that may be needless gets a search with these limits.
        It stays in the set if that search does not end."""
        return explain(replace(self.problem, limits=limits), self._lowered)

    def __str__(self) -> str:
        return str(self.conflict)


def explain(problem: Problem, lowered: Lowered) -> Conflict:
    """The conflict of a problem that has no solution."""
    witnesses, minimal = minimal_core(problem, lowered)
    parts = tuple(
        Part(problem.requirements[owner], problem.only([other for other in witnesses if other != owner]), witness)
        for owner, witness in witnesses.items()
    )
    variables = dict.fromkeys(
        variable for part in parts for variable in evaluate.variables(part.requirement.constraint)
    )
    return Conflict(parts, tuple(variables), minimal)


def minimal_core(problem: Problem, lowered: Lowered) -> tuple[dict[int, tuple[int, ...] | None], bool]:
    """Positions of requirements that cannot hold together, each with values that satisfy all the others; and whether
    such values were found for each, which proves that each is needed."""
    used = set(range(len(problem.requirements)))
    witnesses: dict[int, tuple[int, ...] | None] = {}
    # The later requirement is dropped first: models start with what defines their sizes.
    for owner in sorted(used, reverse=True):
        if owner in used:
            try:
                found = refuted(lowered, used - {owner}, problem.limits)
            except LimitReached:
                witnesses[owner] = None
            else:
                if isinstance(found, tuple):
                    witnesses[owner] = found
                else:
                    used = found
    kept = {owner: witnesses[owner] for owner in sorted(used)}
    return kept, all(witness is not None for witness in kept.values())


def refuted(lowered: Lowered, owners: Collection[int], limits: Limits) -> set[int] | tuple[int, ...]:
    """Search under the requirements `owners`. Returns a solution, or the set of requirements that the proof of
    infeasibility used."""
    program = lowered.program
    run = Search(program, owners, lowered.decisions, Meter(limits))
    scopes = program.watches
    used: set[int] = set()

    def blame() -> None:
        """Follow the trail back from a contradiction to every requirement that led to it.

        The values that a decision did not try need no blame of their own: if the refutation of a tried one rests on
        the decision, the trail leads to whatever took the others away; if not, it refutes the decision's node alone.
        """
        store = run.store
        culprits = [store.cause]
        relevant = {watched for watched, _ in scopes[store.cause]}
        for variable, _, cause in reversed(store.trail):
            if variable in relevant and cause >= 0:
                culprits.append(cause)
                relevant.update(watched for watched, _ in scopes[cause])
        used.update(owner for cause in culprits if (owner := program.owners[cause]) is not None)

    run.on_contradiction = blame
    solution = next(run.solutions(), None)
    return used if solution is None else solution


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
