"""The state of a search: a domain for every variable, a trail to undo by, and a queue of propagators to run.

A `Program` is a compiled model: it never changes, so one can be run many times, over any subset of its constraints. A
`Store` is one run. A propagator removes values that cannot be part of a solution; the store wakes the propagators that
watch what changed until nothing changes any more, the one made first going first: what an operation needs is made
before it, so a change sweeps through an expression once. All of it is deterministic.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from rnncc.constrint import domain as sets
from rnncc.constrint.domain import Domain
from rnncc.constrint.errors import LimitReached
from rnncc.constrint.expr import Requirement

# What happened to a domain, as bits. A propagator that watches only bounds sleeps through a hole.
LOW, HIGH, HOLE, FIXED = 1, 2, 4, 8
BOUNDS = LOW | HIGH
ANY = LOW | HIGH | HOLE


class Contradiction(Exception):
    """No value is left for some variable: the current branch holds no solution. Never leaves the package."""


class Propagator(ABC):
    """Removes values that no solution of one relation has.

    It must be sound, and it must decide the relation once every variable of its scope has one value.
    """

    __slots__ = ()

    @abstractmethod
    def watches(self) -> tuple[tuple[int, int], ...]:
        """The variables of the relation, each with the events to be woken by."""

    @abstractmethod
    def propagate(self, store: Store) -> bool:
        """Narrow domains; raises Contradiction if the relation cannot hold.

        Returns whether a second run would find nothing more: a propagator is not woken by its own changes.
        """


class Condition(Propagator):
    """A propagator whose relation can be asked for, which makes it usable inside a disjunction."""

    __slots__ = ()

    @abstractmethod
    def status(self, store: Store) -> bool | None:
        """Whether the relation holds for all values left (True), for none (False), or it is open (None)."""


@dataclass(frozen=True)
class Program:
    """A compiled model: domains by variable, the user's variables first, and propagators.

    `owners` gives the requirement each propagator stands for; None if it only defines an auxiliary variable, which any
    values of the user's variables allow: that of `defined`. A definition stands before the users of its variable.
    Owners are positions in `requirements`.
    """

    domains: tuple[Domain, ...]
    user_variable_count: int
    propagators: tuple[Propagator, ...]
    owners: tuple[int | None, ...]
    defined: tuple[int | None, ...]
    requirements: tuple[Requirement, ...]

    def part(self, owners: Collection[int], variables: Iterable[int]) -> int:
        """The propagators of the requirements `owners`, and of the auxiliary variables among these and `variables`: a
        bit each."""
        wanted, found = set(variables), 0
        for index in reversed(range(len(self.propagators))):
            owner, variable = self.owners[index], self.defined[index]
            if owner in owners if variable is None else variable in wanted:
                found |= 1 << index
                wanted.update(watched for watched, _ in self.watches[index])
        return found

    @cached_property
    def watches(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By propagator, the variables of its relation, each with the events to be woken by."""
        return tuple(propagator.watches() for propagator in self.propagators)

    @cached_property
    def watchers(self) -> tuple[tuple[int, ...], ...]:
        """For each of the events LOW, HIGH, HOLE, FIXED, by variable: who is woken by it, a bit a propagator."""
        woken = {event: [0] * len(self.domains) for event in (LOW, HIGH, HOLE, FIXED)}
        for index, watched in enumerate(self.watches):
            for variable, mask in watched:
                for event, of_variable in woken.items():
                    if mask & event:
                        of_variable[variable] |= 1 << index
        return tuple(map(tuple, woken.values()))


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give up, with an error: nodes of the search tree, runs of propagators, seconds. None: no such limit."""

    nodes: int | None = 1_000_000
    steps: int | None = 50_000_000
    seconds: float | None = None


# How many runs of propagators between two looks at the limits.
LOOK = 512


class Meter:
    """Counts the work of one query, which may run several searches, against its limits."""

    __slots__ = ("begin", "limits", "nodes", "steps")

    def __init__(self, limits: Limits) -> None:
        self.limits, self.nodes, self.steps, self.begin = limits, 0, 0, time.perf_counter()

    def check(self) -> None:
        """Raise LimitReached if a limit is passed."""
        limits = self.limits
        if limits.nodes is not None and self.nodes > limits.nodes:
            raise LimitReached(f"no answer within {limits.nodes} nodes of search")
        if limits.steps is not None and self.steps > limits.steps:
            raise LimitReached(f"no answer within {limits.steps} runs of propagators ({self.nodes} nodes)")
        if limits.seconds is not None and time.perf_counter() - self.begin > limits.seconds:
            raise LimitReached(f"no answer within {limits.seconds} s ({self.nodes} nodes of search)")


class Store:
    """Domains under change. `trail` holds (variable, domain before, propagator at work), newest last; `queue` the
    propagators that are due, a bit each."""

    __slots__ = ("active", "cause", "domains", "meter", "program", "queue", "trail", "watchers")

    def __init__(self, program: Program, active: int, meter: Meter) -> None:
        """A run over some of the propagators, a bit each; all of them are due."""
        self.program, self.meter = program, meter
        self.domains = list(program.domains)
        self.trail: list[tuple[int, Domain, int]] = []
        # The propagator at work, -1 while the search decides.
        self.cause = -1
        self.queue = self.active = active
        self.watchers = program.watchers

    def assign(self, variable: int, domain: Domain) -> None:
        """Give a variable a subset of its domain."""
        old = self.domains[variable]
        count = len(domain)
        if count == len(old):
            return
        if not count:
            raise Contradiction
        self.trail.append((variable, old, self.cause))
        self.domains[variable] = domain
        low, high, hole, fixed = self.watchers
        woken = hole[variable]
        if count == 1:
            woken |= fixed[variable]
        if domain[0] != old[0]:
            woken |= low[variable]
        if domain[-1] != old[-1]:
            woken |= high[variable]
        self.queue |= woken & self.active

    def clip(self, variable: int, low: int, high: int) -> None:
        """Keep the values between two bounds, both included."""
        domain = self.domains[variable]
        if domain[0] < low or domain[-1] > high:
            self.assign(variable, sets.clip(domain, low, high))

    def restrict(self, variable: int, allowed: Domain) -> None:
        """Keep the values that are in another domain."""
        self.assign(variable, sets.intersection(self.domains[variable], allowed))

    def propagate(self) -> None:
        """Run what is due until nothing is; raises Contradiction, after which the queue is empty."""
        propagators, meter, trail = self.program.propagators, self.meter, self.trail
        try:
            while queue := self.queue:
                due = queue & -queue
                self.cause = index = due.bit_length() - 1
                changes = len(trail)
                if propagators[index].propagate(self) or len(trail) == changes:
                    # What it was woken by just now are its own changes.
                    self.queue &= ~due
                meter.steps += 1
                if meter.steps % LOOK == 0:
                    meter.check()
        except BaseException:
            self.queue = 0
            raise
        self.cause = -1

    def changes(self, mark: int) -> list[tuple[int, Domain]]:
        """The domains changed since the trail was `mark` long, as they are now."""
        changed = dict.fromkeys(variable for variable, _, _ in self.trail[mark:])
        return [(variable, self.domains[variable]) for variable in changed]

    def redo(self, changes: list[tuple[int, Domain]]) -> None:
        """Bring back a state that was propagated before, from the state that it was reached from."""
        for variable, domain in changes:
            self.trail.append((variable, self.domains[variable], -1))
            self.domains[variable] = domain

    def undo(self, mark: int) -> None:
        """Put back every domain changed since the trail was `mark` long."""
        trail, domains = self.trail, self.domains
        while len(trail) > mark:
            variable, domain, _ = trail.pop()
            domains[variable] = domain
        self.cause = -1
