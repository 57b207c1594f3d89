"""What can go wrong: a model that makes no sense, a search that was cut short, a mistake of the solver.

Infeasibility is in `explain`.
"""

from __future__ import annotations


class ConstrintError(Exception):
    """Any error of this package."""


class ModelError(ConstrintError):
    """The model itself is wrong: an empty domain, a divisor that may be zero, a value beyond 2**62."""


class WrongAnswer(ConstrintError):
    """The search took for a solution what is none: a mistake in this package, never in the model."""


class LimitReached(ConstrintError):
    """The limits ended the search before it had an answer. `best` holds the values of the best solution so far."""

    def __init__(self, message: str, best: tuple[int, ...] | None = None) -> None:
        super().__init__(message)
        self.best = best
