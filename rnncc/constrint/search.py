"""Depth-first search over a Program: each node picks a variable and splits its domain, each child one part of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from rnncc.constrint import evaluate
from rnncc.constrint.domain import Domain
from rnncc.constrint.errors import WrongAnswer
from rnncc.constrint.expr import Node
from rnncc.constrint.order import Decisions, Split, ascending_values
from rnncc.constrint.store import Contradiction, Meter, Program, Store


class Search:
    """All solutions of the requirements `owners` of a program, one after the other."""

    def __init__(self, program: Program, owners: Collection[int], decisions: Decisions, meter: Meter) -> None:
        named = {variable for variable, _ in decisions}
        self.store = Store(program, program.part(owners, named), meter)
        self.requirements = [each for owner, each in enumerate(program.requirements) if owner in owners]
        self.meter = meter
        self.decisions = decisions
        self.undecided = [variable for variable in range(program.user_variable_count) if variable not in named]
        # Called at every contradiction, with the store as it was found.
        self.on_contradiction: Callable[[], None] | None = None

    def solutions(self) -> Iterator[tuple[int, ...]]:
        """The values of the user's variables, solution by solution. Raises WrongAnswer if one is none."""
        for values in self.leaves():
            self.verify(values)
            yield values

    def leaves(self) -> Iterator[tuple[int, ...]]:
        """The same as propagation leaves them, not verified."""
        domains, count = self.store.domains, self.store.program.user_variable_count
        if not self.consistent():
            return
        # The open nodes from the root down. Advancing one puts the store into the state of its next child.
        path: list[Iterator[None]] = []
        while True:
            choice = self.choose()
            if choice is None:
                yield tuple(domain[0] for domain in domains[:count])
            else:
                path.append(self.children(*choice))
            while path and next(path[-1], self) is self:
                path.pop()
            if not path:
                return

    def verify(self, values: tuple[int, ...]) -> None:
        """Raise WrongAnswer unless the requirements hold by their definition, which propagators have no part in."""
        known: dict[Node, int] = {}
        for requirement in self.requirements:
            if not evaluate.holds(requirement.constraint, values, known):
                named = {each.name: values[each.index] for each in evaluate.variables(requirement.constraint)}
                raise WrongAnswer(f"a mistake of the solver: its solution violates {requirement}, with {named}")

    def choose(self) -> tuple[int, Split] | None:
        """The variable to decide next: the first open one of the order, then the one with the fewest values."""
        domains = self.store.domains
        for variable, split in self.decisions:
            if len(domains[variable]) > 1:
                return variable, split
        best, fewest = -1, 0
        for variable in self.undecided:
            count = len(domains[variable])
            if count > 1 and (best < 0 or count < fewest):
                best, fewest = variable, count
        return None if best < 0 else (best, ascending_values)

    def children(self, variable: int, split: Split) -> Iterator[None]:
        """Enter one consistent child after the other."""
        store = self.store
        mark = len(store.trail)
        for part in split(store.domains[variable]):
            store.undo(mark)
            if self.enter(variable, part):
                yield
        store.undo(mark)

    def enter(self, variable: int, part: Domain) -> bool:
        """Decide that a variable is in a part of its domain; whether that can be."""
        self.meter.nodes += 1
        self.meter.check()
        self.store.assign(variable, part)
        return self.consistent()

    def consistent(self) -> bool:
        """Propagate; whether no contradiction was found."""
        try:
            self.store.propagate()
        except Contradiction:
            if self.on_contradiction is not None:
                self.on_contradiction()
            return False
        return True
