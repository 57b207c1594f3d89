"""What expressions read, and what is known of them: bounds, widths, levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.generated.program import HEADS

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
    """A value that expressions may read. `level` says what it depends on: P parameters only, X inputs, S states.

    is_said   whether the text says that it is so wide. It does not of a parameter without a width, nor of what is as
              wide as x, where this is as wide as H
    """

    value: Bounded
    width: str
    level: str
    is_said: bool = True


@dataclass(slots=True)
class Scope:
    """What an equation may read.

    matrices      (text, width of the result, width of the operand, level of operands that it takes); a width is ""
    where
                  it is not fixed. Each group stands once in an equation.
    vectors       (name, width) of vector parameters; a width is "" where it is not fixed
    batched_only  whether functions may be drawn that a loop does not have
    is_headless   whether all is of an input, which has no heads, so that it cannot meet one number per head
    """

    leaves: list[Leaf]
    level: str
    matrices: list[tuple[str, str, str, str]] = field(default_factory=list)
    vectors: list[tuple[str, str]] = field(default_factory=list)
    batched_only: bool = False
    is_headless: bool = False


class Reader:
    """Chooses among what the equation at hand may read. `sizes` gives the number of elements of every width that may be
    drawn."""

    def __init__(self, random: Random, sizes: dict[str, int], heads: int) -> None:
        self.random, self.sizes, self.heads = random, sizes, heads
        self.scope = Scope([], "S")

    def off(self) -> float:
        """A small constant to move an argument off a jump. It is random, so that no other value equals it."""
        return round(self.random.choice((-1, 1)) * self.random.uniform(0.03, 0.4), 6)

    def number(self) -> Bounded:
        value = self.random.choice((0.5, 1, 2, -1, 0.3, -0.7, 1.5))
        return Bounded(f"({value})", value, value)

    def leaves(self, width: str) -> list[Leaf]:
        order = "PXS"
        # One number per head stands where one number may stand.
        widths = (NARROW, HEADS) if width == NARROW else (width,)
        top = order.index(self.scope.level)
        return [e for e in self.scope.leaves if e.width in widths and order.index(e.level) <= top]

    def leaf(self, width: str) -> Bounded | None:
        """A value of this width; those of the scope's own level first."""
        found = self.leaves(width)
        own = [each for each in found if each.level == self.scope.level]
        if not found:
            return None
        return self.random.choice(own if own and self.random.random() < 0.7 else found).value

    def can_pin(self, width: str) -> bool:
        """Whether `draw` may be asked for this width with `pinned`: whether a value has it."""
        return bool(self.leaves(width))

    def may_reduce(self, width: str) -> bool:
        """Inputs have no heads."""
        return self.heads == 1 or width not in ("I", "E")

    def of_inputs_alone(self, width: str, batched_only: bool) -> Scope:
        """What an expression of this width may read that depends on no state, has no parameters of its own, and meets
        nothing that it cannot meet."""
        known = self.scope.leaves
        if self.may_reduce(width):
            return Scope(known, "X", batched_only=batched_only, is_headless=self.scope.is_headless)
        found = [leaf for leaf in known if leaf.width == width]
        return Scope(found, "X", batched_only=batched_only, is_headless=True)

    def operand_widths(self, level: str) -> list[str]:
        order = "PXS"
        top = min(order.index(level), order.index(self.scope.level))
        found = {e.width for e in self.scope.leaves if order.index(e.level) <= top and e.width != NARROW}
        return sorted(found)
