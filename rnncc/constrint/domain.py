"""Finite sets of integers, and the arithmetic that propagation does on them.

A domain is an immutable sorted sequence: a `range` (an arithmetic progression, so strides survive: the multiples of 16
up to 4096 are one object of constant size) or a sorted tuple. Both give `d[0]`, `d[-1]`, `len(d)` and slices, so most
code never asks which it holds. Backtracking puts an old domain back; nothing is copied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable
from functools import lru_cache
from itertools import pairwise
from math import gcd, isqrt

Domain = range | tuple[int, ...]

EMPTY: Domain = ()

# `len` of a range is a machine word; so is every value and every intermediate bound.
LARGEST = 2**62 - 1

# A hole inside a longer range is not recorded: a tuple of it would cost more than the pruning saves. Every propagator
# also checks fixed values, so a missing hole costs time, never truth.
LONGEST_TUPLE = 1024


def of_values(values: Iterable[int]) -> Domain:
    """The domain of some values, as a range if they are evenly spaced."""
    if isinstance(values, range):
        return values if values.step > 0 else values[::-1]
    found = sorted(set(values))
    if len(found) < 2:
        return tuple(found)
    step = found[1] - found[0]
    if all(after - before == step for before, after in pairwise(found)):
        return range(found[0], found[-1] + 1, step)
    return tuple(found)


def clip(domain: Domain, low: int, high: int) -> Domain:
    """The values between two bounds, both included."""
    first, last = domain[0], domain[-1]
    if low <= first and last <= high:
        return domain
    if isinstance(domain, range):
        step = domain.step
        if step == 1:
            return range(low if low > first else first, (high if high < last else last) + 1)
        begin = (low - first + step - 1) // step if low > first else 0
        end = (high - first) // step + 1
        return domain[begin:end] if end > begin else EMPTY
    return domain[bisect_left(domain, low) : bisect_right(domain, high)]


def without(domain: Domain, value: int) -> Domain:
    """The domain less a value; a hole inside a long range is not recorded."""
    if value == domain[0]:
        return domain[1:]
    if value == domain[-1]:
        return domain[:-1]
    if value not in domain or (isinstance(domain, range) and len(domain) > LONGEST_TUPLE):
        return domain
    return tuple(other for other in domain if other != value)


def intersection(one: Domain, other: Domain) -> Domain:
    """The common values; two ranges meet in a range (Chinese remainders)."""
    if isinstance(one, range):
        if isinstance(other, range):
            return _progression(one, other)
        return keep(other, one)
    return keep(one, other if isinstance(other, range) or len(other) < 8 else frozenset(other))


def keep(domain: Domain, allowed: Container[int]) -> Domain:
    """The values of an explicit domain that are in a container."""
    return tuple(value for value in domain if value in allowed)


def _progression(one: range, other: range) -> Domain:
    if not one or not other:
        return EMPTY
    start, end = max(one[0], other[0]), min(one[-1], other[-1])
    step = one.step
    if step != 1 or other.step != 1:
        common = gcd(step, other.step)
        if (other[0] - one[0]) % common:
            return EMPTY
        modulus = other.step // common
        steps = (other[0] - one[0]) // common * pow(step // common, -1, modulus) % modulus if modulus > 1 else 0
        anchor, step = one[0] + steps * step, step * modulus
        start += (anchor - start) % step
    return range(start, end + 1, step) if start <= end else EMPTY


def scaled(domain: Domain, factor: int) -> Domain:
    """Every value times a positive factor."""
    if isinstance(domain, range):
        return range(domain[0] * factor, domain[-1] * factor + 1, domain.step * factor)
    return tuple(value * factor for value in domain)


def divided(domain: Domain, factor: int) -> Domain:
    """Every value, all multiples of a positive factor, divided by it."""
    if isinstance(domain, range):
        if len(domain) == 1:
            return range(domain[0] // factor, domain[0] // factor + 1)
        return range(domain[0] // factor, domain[-1] // factor + 1, domain.step // factor)
    return tuple(value // factor for value in domain)


def congruent(domain: Domain, residue: int, modulus: int) -> Domain:
    """The values equal to `residue` modulo `modulus`."""
    if not domain:
        return EMPTY
    first = domain[0] + (residue - domain[0]) % modulus
    return intersection(domain, range(first, domain[-1] + 1, modulus)) if first <= domain[-1] else EMPTY


def stride(domain: Domain) -> int:
    """The greatest common divisor of the differences; 0 for a single value."""
    if len(domain) == 1:
        return 0
    if isinstance(domain, range):
        return domain.step
    return gcd(*(value - domain[0] for value in domain))


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """The positive divisors of a positive number, ascending.

    Built from its prime factors, found by trial division: at most the square root of the number in steps.
    """
    found = [1]
    rest, prime = number, 2
    while prime <= isqrt(rest):
        power, grown = 1, list(found)
        while rest % prime == 0:
            rest //= prime
            power *= prime
            grown += [power * divisor for divisor in found]
        found = grown
        prime += 1 if prime == 2 else 2
    if rest > 1:
        found += [rest * divisor for divisor in found]
    return tuple(sorted(found))


def describe(domain: Domain) -> str:
    """`1..8`, `16..4096 by 16` or `{1, 2, 4}`."""
    if len(domain) == 1:
        return str(domain[0])
    if isinstance(domain, range) and len(domain) > 4:
        return f"{domain[0]}..{domain[-1]}" + (f" by {domain.step}" if domain.step > 1 else "")
    if len(domain) <= 16:
        return "{" + ", ".join(map(str, domain)) + "}"
    return f"{domain[0]}..{domain[-1]}, {len(domain)} values"
