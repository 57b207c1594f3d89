"""The state of a search: a domain for every variable, a trail to undo by, and a queue of propagators to run.

A `Program` is a compiled model: it never changes, so one can be run many times, over any subset of its constraints. A
`Store` is one run. A propagator removes values that cannot be part of a solution; the store wakes the propagators that
watch what changed until nothing changes any more, the one made first going first: what an operation needs is made
before it, so a change sweeps through an expression once. All of it is deterministic.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush

from rnncc.constrint import domain as sets
from rnncc.constrint.domain import Domain
from rnncc.constrint.errors import LimitReached

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


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled model: domains by variable, the user's variables first, and propagators.

    `owners` gives the requirement each propagator stands for; None if it only defines an auxiliary variable, which any
    values of the user's variables allow.
    """

    domains: tuple[Domain, ...]
    user_variable_count: int
    propagators: tuple[Propagator, ...]
    owners: tuple[int | None, ...]


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
    """Domains under change. `trail` holds (variable, domain before, propagator at work), newest last."""

    __slots__ = ("active", "cause", "domains", "meter", "program", "propagators", "queue", "queued", "trail", "wake")

    def __init__(self, program: Program, owners: Collection[int], meter: Meter) -> None:
        """A run over the requirements `owners`; all their propagators are due."""
        self.program, self.meter = program, meter
        self.propagators = program.propagators
        self.domains = list(program.domains)
        self.trail: list[tuple[int, Domain, int]] = []
        # The propagator at work, -1 while the search decides.
        self.cause = -1
        self.active = [i for i, owner in enumerate(program.owners) if owner is None or owner in owners]
        self.queue = list(self.active)
        self.queued = bytearray(len(program.propagators))
        # By variable and event mask, whom to wake.
        self.wake: list[list[list[int]]] = [[[] for _ in range(16)] for _ in program.domains]
        for index in self.active:
            self.queued[index] = 1
            for variable, mask in self.propagators[index].watches():
                for events, waiting in enumerate(self.wake[variable]):
                    if events & mask:
                        waiting.append(index)

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
        events = FIXED | HOLE if count == 1 else HOLE
        if domain[0] != old[0]:
            events |= LOW
        if domain[-1] != old[-1]:
            events |= HIGH
        queued = self.queued
        for index in self.wake[variable][events]:
            if not queued[index]:
                queued[index] = 1
                heappush(self.queue, index)

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
        queue, queued, propagators = self.queue, self.queued, self.propagators
        meter, trail = self.meter, self.trail
        try:
            while queue:
                self.cause = index = heappop(queue)
                changes = len(trail)
                done = propagators[index].propagate(self)
                queued[index] = 0
                if not done and len(trail) > changes:
                    queued[index] = 1
                    heappush(queue, index)
                meter.steps += 1
                if meter.steps % LOOK == 0:
                    meter.check()
        except BaseException:
            queued[self.cause] = 0
            for index in queue:
                queued[index] = 0
            queue.clear()
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
