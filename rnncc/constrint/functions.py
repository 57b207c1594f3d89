"""Propagators of functions: `result == left * right` and the like, exact on small domains, by bounds on large ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

from rnncc.constrint import domain as sets
from rnncc.constrint.domain import Domain
from rnncc.constrint.store import ANY, BOUNDS, Propagator, Store

# Up to this many pairs of arguments a function is tried on all of them: what is left is exactly what has a partner.
MOST_PAIRS = 16

# A product's factors are drawn from the divisors of its values if it has at most this many values …
MOST_MULTIPLES = 8
# … and factoring them takes at most this many trial divisions, a few milliseconds (once: divisors are remembered).
MOST_TRIALS = 2**16


def is_open(store: Store, left: int, right: int) -> bool:
    """Whether a function's value is not yet decided. What it says by bounds is then not worth a second look before
    another propagator brings something new."""
    return len(store.domains[left]) > 1 or len(store.domains[right]) > 1


def by_support(store: Store, function: Callable[[int, int], int], left: int, right: int, result: int) -> None:
    """Keep what has a partner: pairs of arguments whose value the result can take."""
    one, two, target = store.domains[left], store.domains[right], store.domains[result]
    allowed = target if isinstance(target, range) or len(target) < 8 else frozenset(target)
    lefts: dict[int, None] = {}
    rights: set[int] = set()
    results: set[int] = set()
    for a in one:
        for b in two:
            value = function(a, b)
            if value in allowed:
                lefts[a] = None
                rights.add(b)
                results.add(value)
    store.assign(left, tuple(lefts))
    store.assign(right, tuple(b for b in two if b in rights))
    store.assign(result, tuple(sorted(results)))


@dataclass(frozen=True, slots=True)
class Product(Propagator):
    """`result == left * right`, two different variables."""

    left: int
    right: int
    result: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return ((self.left, ANY), (self.right, ANY), (self.result, ANY))

    def propagate(self, store: Store) -> bool:
        left, right = store.domains[self.left], store.domains[self.right]
        if len(right) == 1:
            return self._scaled(store, self.left, right[0])
        if len(left) == 1:
            return self._scaled(store, self.right, left[0])
        if len(left) * len(right) <= MOST_PAIRS:
            by_support(store, int.__mul__, self.left, self.right, self.result)
            return True
        a, b, c, d = left[0], left[-1], right[0], right[-1]
        if a >= 0 and c >= 0:
            low, high = a * c, b * d
        else:
            ends = (a * c, a * d, b * c, b * d)
            low, high = min(ends), max(ends)
        result = store.domains[self.result]
        if result[0] < low or result[-1] > high:
            store.assign(self.result, sets.clip(result, low, high))
            result = store.domains[self.result]
        if c > 0:
            self._divide(store, self.left, result, c, d)
        if a > 0:
            # The left factor has fewer values by now.
            left = store.domains[self.left]
            self._divide(store, self.right, result, left[0], left[-1])
        if result[0] > 0 and len(result) <= MOST_MULTIPLES and len(result) * isqrt(result[-1]) <= MOST_TRIALS:
            common = sets.of_values(divisor for value in result for divisor in sets.divisors(value))
            for factor in (self.left, self.right):
                domain = store.domains[factor]
                if domain[0] > 0 and len(domain) > 1:
                    store.restrict(factor, common)
        return is_open(store, self.left, self.right)

    def _scaled(self, store: Store, variable: int, factor: int) -> bool:
        """`result == factor * variable`, value by value; by bounds if the factor is negative."""
        domain = store.domains[variable]
        if factor == 0 or len(domain) == 1:
            value = factor * domain[0]
            store.clip(self.result, value, value)
            return True
        if factor < 0:
            store.clip(self.result, factor * domain[-1], factor * domain[0])
            target = store.domains[self.result]
            store.clip(variable, -(target[-1] // -factor), -target[0] // -factor)
            return False
        scaled = sets.scaled(domain, factor)
        if scaled != store.domains[self.result]:
            store.restrict(self.result, scaled)
            store.restrict(variable, sets.divided(store.domains[self.result], factor))
        return True

    def _divide(self, store: Store, factor: int, result: Domain, least: int, most: int) -> None:
        """Narrow one factor by the result and the ends of the other factor, which is positive: their extreme quotients,
        rounded inwards."""
        low, high = result[0], result[-1]
        low = -(-low // (most if low > 0 else least))
        high = high // (least if high >= 0 else most)
        domain = store.domains[factor]
        if domain[0] < low or domain[-1] > high:
            store.assign(factor, sets.clip(domain, low, high))


@dataclass(frozen=True, slots=True)
class Quotient(Propagator):
    """`result == left / right` rounded down (shift 0) or up (shift 1); `right` is positive.

    Rounding up is rounding down on shifted numbers: ceil(a / b) == floor((a - 1) / b) + 1.
    """

    left: int
    right: int
    result: int
    shift: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return ((self.left, ANY), (self.right, ANY), (self.result, ANY))

    def propagate(self, store: Store) -> bool:
        left, right = store.domains[self.left], store.domains[self.right]
        shift = self.shift
        if len(left) * len(right) <= MOST_PAIRS:
            if len(left) == len(right) == 1:
                value = (left[0] - shift) // right[0] + shift
                store.clip(self.result, value, value)
            else:
                by_support(store, lambda a, b: (a - shift) // b + shift, self.left, self.right, self.result)
            return True
        low, high = left[0] - shift, left[-1] - shift
        least, most = right[0], right[-1]
        store.clip(
            self.result,
            low // (most if low >= 0 else least) + shift,
            high // (least if high >= 0 else most) + shift,
        )
        result = store.domains[self.result]
        # result * right <= left < (result + 1) * right, on the shifted numbers.
        bottom, top = result[0] - shift, result[-1] - shift + 1
        store.clip(
            self.left,
            bottom * (least if bottom >= 0 else most) + shift,
            top * (most if top >= 0 else least) - 1 + shift,
        )
        low, high = store.domains[self.left][0] - shift, store.domains[self.left][-1] - shift
        if bottom > 0:
            most = min(most, high // bottom)
        if top > 0 and low >= 0:
            least = max(least, low // top + 1)
        store.clip(self.right, least, most)
        return is_open(store, self.left, self.right)


@dataclass(frozen=True, slots=True)
class Power(Propagator):
    """`result == base ** exponent`, the exponent a constant of at least 2."""

    base: int
    exponent: int
    result: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return ((self.base, ANY), (self.result, ANY))

    def propagate(self, store: Store) -> bool:
        base, result, exponent = store.domains[self.base], store.domains[self.result], self.exponent
        if len(base) <= MOST_PAIRS:
            kept = tuple(value for value in base if value**exponent in result)
            store.assign(self.base, kept)
            store.assign(self.result, tuple(sorted({value**exponent for value in kept})))
            return True
        ends = (base[0] ** exponent, base[-1] ** exponent)
        crosses = exponent % 2 == 0 and base[0] < 0 < base[-1]
        store.clip(self.result, 0 if crosses else min(ends), max(ends))
        result = store.domains[self.result]
        if exponent % 2 == 0 and base[0] < 0:
            root = integer_root(result[-1], exponent)
            store.clip(self.base, -root, root)
        else:
            low, high = result[0], result[-1]
            least = -integer_root(-low, exponent) if low < 0 else integer_root(low - 1, exponent) + 1 if low else 0
            store.clip(self.base, least, integer_root(high, exponent) if high >= 0 else -_root_up(-high, exponent))
        return False


def integer_root(number: int, degree: int) -> int:
    """The greatest integer whose power is at most a number that is not negative."""
    if number < 2:
        return number
    # Newton's steps from above: each is at least the root until the next would not fall.
    root = 1 << -(-number.bit_length() // degree)
    while True:
        following = ((degree - 1) * root + number // root ** (degree - 1)) // degree
        if following >= root:
            return root
        root = following


def _root_up(number: int, degree: int) -> int:
    """The least integer whose power is at least a positive number."""
    return integer_root(number - 1, degree) + 1


@dataclass(frozen=True, slots=True)
class Maximum(Propagator):
    """`result == max(arguments)`, by bounds; exact once the arguments have one value each."""

    arguments: tuple[int, ...]
    result: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, BOUNDS) for variable in (*self.arguments, self.result))

    def propagate(self, store: Store) -> bool:
        domains = store.domains
        store.clip(
            self.result,
            max(domains[argument][0] for argument in self.arguments),
            max(domains[argument][-1] for argument in self.arguments),
        )
        low, high = domains[self.result][0], domains[self.result][-1]
        for argument in self.arguments:
            store.clip(argument, domains[argument][0], high)
        reaching = [argument for argument in self.arguments if domains[argument][-1] >= low]
        if len(reaching) == 1:
            store.clip(reaching[0], low, high)
        return False


@dataclass(frozen=True, slots=True)
class Minimum(Propagator):
    """`result == min(arguments)`, as Maximum."""

    arguments: tuple[int, ...]
    result: int

    def watches(self) -> tuple[tuple[int, int], ...]:
        return tuple((variable, BOUNDS) for variable in (*self.arguments, self.result))

    def propagate(self, store: Store) -> bool:
        domains = store.domains
        store.clip(
            self.result,
            min(domains[argument][0] for argument in self.arguments),
            min(domains[argument][-1] for argument in self.arguments),
        )
        low, high = domains[self.result][0], domains[self.result][-1]
        for argument in self.arguments:
            store.clip(argument, low, domains[argument][-1])
        reaching = [argument for argument in self.arguments if domains[argument][0] <= high]
        if len(reaching) == 1:
            store.clip(reaching[0], low, high)
        return False
