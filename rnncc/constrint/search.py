"""Depth-first search over a Program, and branch and bound on top of it.

Each node picks a variable and splits its domain; the order of both is the user's where given, and never depends on
anything but the model. A long domain is halved until it is short, a short one is tried value by value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rnncc.constrint.domain import Domain
from rnncc.constrint.errors import LimitReached
from rnncc.constrint.expr import Node, Operand, as_expression
from rnncc.constrint.store import LOW, Contradiction, Meter, Program, Propagator, Store

# A longer domain is halved rather than tried value by value, unless the user gave an order of values.
LONGEST_TRIED = 32

Split = Callable[[Domain], Iterable[Domain]]

# Variables to decide first, in this order, each with its way to split.
Decisions = Sequence[tuple[int, Split]]


@dataclass(frozen=True, slots=True)
class Branch:
    """What to decide on, and how: `split` covers a domain of it by smaller ones, the first tried first.

    Deciding on an expression, an objective say, halves what it may be before any variable has a value.
    """

    expression: Node
    split: Split


def ascending(expression: Operand) -> Branch:
    """Small values first."""
    return Branch(as_expression(expression), _ascending)


def descending(expression: Operand) -> Branch:
    """Large values first."""
    return Branch(as_expression(expression), _descending)


def preferring(expression: Operand, values: Sequence[int]) -> Branch:
    """These values first, in this order; then the rest, ascending."""

    def split(domain: Domain) -> Iterator[Domain]:
        yield from ((value,) for value in values if value in domain)
        yield from ((value,) for value in domain if value not in values)

    return Branch(as_expression(expression), split)


def towards(expression: Operand, target: int) -> Branch:
    """Values near a target first; of two as near, the greater."""

    def split(domain: Domain) -> Iterator[Domain]:
        above = bisect_left(domain, target)
        below = above - 1
        while below >= 0 or above < len(domain):
            if below < 0 or (above < len(domain) and domain[above] - target <= target - domain[below]):
                yield (domain[above],)
                above += 1
            else:
                yield (domain[below],)
                below -= 1

    return Branch(as_expression(expression), split)


def _ascending(domain: Domain) -> Iterable[Domain]:
    if len(domain) > LONGEST_TRIED:
        middle = len(domain) // 2
        return (domain[:middle], domain[middle:])
    return ((value,) for value in domain)


def _descending(domain: Domain) -> Iterable[Domain]:
    if len(domain) > LONGEST_TRIED:
        middle = len(domain) // 2
        return (domain[middle:], domain[:middle])
    return ((value,) for value in reversed(domain))


class Search:
    """All solutions of the requirements `owners` of a program, one after the other."""

    __slots__ = ("at_every_node", "decisions", "meter", "on_dead_end", "store", "undecided")

    def __init__(
        self,
        program: Program,
        owners: Collection[int],
        decisions: Decisions,
        meter: Meter,
        at_every_node: int | None = None,
    ) -> None:
        """`at_every_node` is a propagator that changes while the search runs, so that it is always due."""
        self.store = Store(program, owners, meter)
        self.meter = meter
        self.at_every_node = at_every_node
        self.decisions = decisions
        named = {variable for variable, _ in decisions}
        # Smallest domain first, after those that the user ordered.
        self.undecided = [variable for variable in range(program.user_variable_count) if variable not in named]
        # Called where a branch ends without a solution, with the variables that are to blame.
        self.on_dead_end: Callable[[Iterable[int]], None] | None = None

    def choose(self) -> tuple[int, Split] | None:
        """The variable to decide next, None when all have one value."""
        domains = self.store.domains
        for variable, split in self.decisions:
            if len(domains[variable]) > 1:
                return variable, split
        best, least = -1, 0
        for variable in self.undecided:
            size = len(domains[variable])
            if size > 1 and (best < 0 or size < least):
                best, least = variable, size
                if size == 2:
                    break
        return None if best < 0 else (best, _ascending)

    def solutions(self) -> Iterator[tuple[int, ...]]:
        """The values of the user's variables, solution by solution."""
        store, count = self.store, self.store.program.user_variable_count
        # Open decisions: length of the trail before, variable, what is left to try.
        stack: list[tuple[int, int, Iterator[Domain]]] = []
        alive = self._propagates()
        while True:
            if alive:
                choice = self.choose()
                if choice is None:
                    yield tuple(domain[0] for domain in store.domains[:count])
                else:
                    variable, split = choice
                    stack.append((len(store.trail), variable, iter(split(store.domains[variable]))))
            while stack:
                mark, variable, branches = stack[-1]
                store.undo(mark)
                branch = next(branches, None)
                if branch is not None:
                    break
                stack.pop()
                if self.on_dead_end is not None:
                    # What shortened the list of branches is to blame as well.
                    self.on_dead_end((variable,))
            else:
                return
            self.meter.nodes += 1
            self.meter.check()
            store.assign(variable, branch)
            if self.at_every_node is not None:
                store.schedule(self.at_every_node)
            alive = self._propagates()

    def _propagates(self) -> bool:
        try:
            self.store.propagate()
        except Contradiction:
            if self.on_dead_end is not None:
                culprit = self.store.propagators[self.store.cause]
                self.on_dead_end(variable for variable, _ in culprit.watches())
            return False
        return True


class Improve(Propagator):
    """Wants objectives lexicographically less than the best found so far. Holds while there is no best."""

    __slots__ = ("best", "objectives")

    def __init__(self, objectives: tuple[int, ...]) -> None:
        self.objectives = objectives
        self.best: tuple[int, ...] | None = None

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, LOW) for variable in self.objectives)

    def propagate(self, store: Store) -> bool:
        if self.best is None:
            return True
        last = len(self.objectives) - 1
        for position, (variable, best) in enumerate(zip(self.objectives, self.best, strict=True)):
            least = store.domains[variable][0]
            store.clip(variable, least, best - 1 if position == last else best)
            if least < best:
                break
        return True


def minimum(
    program: Program,
    owners: Collection[int],
    decisions: Decisions,
    objectives: tuple[int, ...],
    meter: Meter,
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The solution with the least objectives, the first in the order of search, and these objectives; None if there is
    no solution.

    Raises LimitReached, with the best solution so far, if the limits end the search before that is proven.
    """
    improve = Improve(objectives)
    bounded = Program(
        program.domains,
        program.user_variable_count,
        (*program.propagators, improve),
        (*program.owners, None),
    )
    search = Search(bounded, owners, decisions, meter, at_every_node=len(program.propagators))
    store, best = search.store, None
    try:
        for values in search.solutions():
            improve.best = tuple(store.domains[objective][0] for objective in objectives)
            best = values
    except LimitReached as limit:
        raise LimitReached(str(limit), best) from None
    return None if best is None or improve.best is None else (best, improve.best)
