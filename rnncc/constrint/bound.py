"""Branch and bound: the least of all solutions, by never looking where propagation proves that nothing better can be.

Children are visited by the bound that propagation gives for their objective, the most promising first. That finds a
good solution at once, and what is good early cuts much later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rnncc.constrint.errors import LimitReached
from rnncc.constrint.order import Decisions, Split
from rnncc.constrint.search import Search
from rnncc.constrint.store import LOW, Meter, Program, Propagator, Store

# Who requires that a solution be better than the best: no requirement of the user's.
_BETTER = -1


class Improve(Propagator):
    """Wants objectives lexicographically less than the best found so far. Holds while there is none."""

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


class Minimisation(Search):
    """A search whose every solution is better than the one before."""

    def __init__(
        self,
        program: Program,
        owners: Collection[int],
        decisions: Decisions,
        objectives: tuple[int, ...],
        meter: Meter,
    ) -> None:
        self.improve = Improve(objectives)
        bounded = replace(
            program,
            propagators=(*program.propagators, self.improve),
            owners=(*program.owners, _BETTER),
            defined=(*program.defined, None),
        )
        super().__init__(bounded, (*owners, _BETTER), decisions, meter)

    def leaves(self) -> Iterator[tuple[int, ...]]:
        """The values of the user's variables, each solution better than the one before, not verified."""
        for values in super().leaves():
            self.improve.best = self.bounds()
            yield values

    def bounds(self) -> tuple[int, ...]:
        """The least that the objectives can be in the present state."""
        return tuple(self.store.domains[objective][0] for objective in self.improve.objectives)

    def improvable(self) -> bool:
        """Whether the bounds allow something better than the best so far; if so, that is asked of what follows."""
        if self.improve.best is not None:
            if self.bounds() >= self.improve.best:
                return False
            self.improve.propagate(self.store)
        return True

    def children(self, variable: int, split: Split) -> Iterator[None]:
        """Try all children, then enter them by their bounds, the least first."""
        store = self.store
        mark = len(store.trail)
        tried = []
        for part in split(store.domains[variable]):
            store.undo(mark)
            if not self.improvable():
                break
            if self.enter(variable, part):
                tried.append((self.bounds(), store.changes(mark)))
        tried.sort(key=lambda child: child[0])
        for _, changes in tried:
            store.undo(mark)
            store.redo(changes)
            if not self.improvable():
                break
            if self.consistent():
                yield
        store.undo(mark)


def minimum(
    program: Program, owners: Collection[int], decisions: Decisions, objectives: tuple[int, ...], meter: Meter
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """A solution with the least objectives, and these; None if there is no solution.

    Raises LimitReached, with the best solution so far, if the limits end the search before that is proven.
    """
    run = Minimisation(program, owners, decisions, objectives, meter)
    best: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    reached: LimitReached | None = None
    try:
        for values in run.leaves():
            best = values, run.bounds()
    except LimitReached as limit:
        reached = LimitReached(str(limit), best and best[0])
    # Only the last needs to be verified: those before it have excluded nothing as good as the last.
    if best is not None:
        run.verify(best[0])
    if reached is not None:
        raise reached
    return best
