"""What is certain of a value: bounds and a sign. The operator table says what an operator makes of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """Whether there is a bound from above and from below, whatever the inputs, and which sign is certain."""

    above: bool = False
    below: bool = False
    not_negative: bool = False
    not_positive: bool = False

    @property
    def both(self) -> bool:
        return self.above and self.below

    @property
    def negated(self) -> Bound:
        """The bound of the value with the other sign."""
        return Bound(self.below, self.above, self.not_positive, self.not_negative)

    def plus(self, other: Bound) -> Bound:
        """The bound of a sum. It holds too for a value that is at most (or at least) one of the two."""
        return Bound(
            self.above and other.above,
            self.below and other.below,
            self.not_negative and other.not_negative,
            self.not_positive and other.not_positive,
        )

    def times(self, other: Bound) -> Bound:
        """The bound of a product."""
        same = (self.not_negative and other.not_negative) or (self.not_positive and other.not_positive)
        opposite = (self.not_negative and other.not_positive) or (self.not_positive and other.not_negative)
        above, below = opposite, same
        for factor, rest in ((self, other), (other, self)):
            # A bounded factor of one sign keeps the other's bounds, or swaps them.
            kept = rest if factor.not_negative else rest.negated
            if factor.both and (factor.not_negative or factor.not_positive):
                above, below = above or kept.above, below or kept.below
        both = self.both and other.both
        return Bound(above or both, below or both, same, opposite)


FREE = Bound()
UNIT = Bound(True, True, True)  # [0, 1]
SIGNED = Bound(True, True)  # [-1, 1], or a parameter
RAY = Bound(False, True, True)  # [0, inf)


def nothing(*arguments: Bound) -> Bound:
    """Nothing is certain of the value."""
    return FREE


def same(a: Bound) -> Bound:
    """As certain as its argument: the value has the argument's sign, and is at most 1 away from it."""
    return a


def unit(*arguments: Bound) -> Bound:
    """The value lies in [0, 1]."""
    return UNIT


def signed(*arguments: Bound) -> Bound:
    """The value lies in [-1, 1]."""
    return SIGNED


def ray(a: Bound) -> Bound:
    """The value is not negative, and bounded where its argument is."""
    return Bound(a.both, True, True)


def from_below(a: Bound) -> Bound:
    """The value is at least some number."""
    return Bound(below=True)


def logarithm(a: Bound) -> Bound:
    """The value is bounded from above where its argument is."""
    return Bound(above=a.above)


def largest(a: Bound, b: Bound) -> Bound:
    """The value is the larger of two."""
    joined = a.plus(b)
    return Bound(joined.above, a.below or b.below, a.not_negative or b.not_negative, joined.not_positive)


def smallest(a: Bound, b: Bound) -> Bound:
    """The value is the smaller of two."""
    joined = a.plus(b)
    return Bound(a.above or b.above, joined.below, joined.not_negative, a.not_positive or b.not_positive)


def between(a: Bound, low: Bound, high: Bound) -> Bound:
    """The value is the first, cut at the two others."""
    return Bound(high.above, low.below, low.not_negative, high.not_positive)
