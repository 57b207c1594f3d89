"""What expressions read, and what is known of them: bounds, widths, levels."""

from __future__ import annotations

from dataclasses import dataclass, field

NARROW = "1"


@dataclass(frozen=True, slots=True)
class Bounded:
    """The text of an expression, and bounds of its value."""

    text: str
    low: float
    high: float

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that expressions may read. `level` says what it depends on: P parameters only, X inputs, S states."""

    value: Bounded
    width: str
    level: str


@dataclass(slots=True)
class Scope:
    """What an equation may read.

    matrices      (text, width of the result, width of the operand, level of operands that it takes); a width is ""
    where
                  it is not fixed. Each group stands once in an equation.
    vectors       (name, width) of vector parameters; a width is "" where it is not fixed
    batched_only  whether functions may be drawn that a loop does not have
    """

    leaves: list[Leaf]
    level: str
    matrices: list[tuple[str, str, str, str]] = field(default_factory=list)
    vectors: list[tuple[str, str]] = field(default_factory=list)
    batched_only: bool = False
