"""Domains: what the operations keep is exactly what sets would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnncc.constrint import domain as sets
from tests.constrint.random_models import DOMAIN


@given(DOMAIN, st.integers(-10, 45), st.integers(-10, 45))
def test_clip_keeps_what_is_between(domain: sets.Domain, low: int, high: int) -> None:
    assert list(sets.clip(domain, low, high)) == [value for value in domain if low <= value <= high]


@given(DOMAIN, DOMAIN)
def test_intersection(one: sets.Domain, other: sets.Domain) -> None:
    assert list(sets.intersection(one, other)) == sorted(set(one) & set(other))


def test_the_intersection_of_long_strides_stays_a_range() -> None:
    assert sets.intersection(range(0, 10**15, 48), range(7, 10**15, 55)) == range(2592, 10**15 - 14, 2640)


@given(DOMAIN, st.integers(-10, 45))
def test_without(domain: sets.Domain, value: int) -> None:
    assert list(sets.without(domain, value)) == [other for other in domain if other != value]


def test_a_hole_in_a_long_range_is_not_recorded_but_its_ends_are() -> None:
    domain = range(1, 10_001)
    assert sets.without(domain, 5000) is domain
    assert sets.without(domain, 1) == range(2, 10_001)
    assert sets.without(domain, 10_000) == range(1, 10_000)


@given(DOMAIN, st.integers(1, 9))
def test_scaled_and_divided(domain: sets.Domain, factor: int) -> None:
    scaled = sets.scaled(domain, factor)
    assert list(scaled) == [factor * value for value in domain]
    assert list(sets.divided(scaled, factor)) == list(domain)


@given(DOMAIN, st.integers(-20, 20), st.integers(1, 12))
def test_congruent(domain: sets.Domain, residue: int, modulus: int) -> None:
    kept = list(sets.congruent(domain, residue, modulus))
    assert kept == [value for value in domain if (value - residue) % modulus == 0]


@given(st.lists(st.integers(-50, 50)))
def test_of_values_is_sorted_and_each_once(values: list[int]) -> None:
    assert list(sets.of_values(values)) == sorted(set(values))


def test_even_spacing_makes_a_range() -> None:
    assert sets.of_values((48, 16, 32)) == range(16, 49, 16)
    assert sets.of_values((1, 2, 4)) == (1, 2, 4)
    assert sets.of_values(range(9, 0, -2)) == range(1, 10, 2)


@given(st.integers(1, 3000))
def test_divisors(number: int) -> None:
    assert sets.divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@pytest.mark.parametrize(
    ("domain", "text"),
    [((5,), "5"), (range(1, 9), "1..8"), (range(16, 4097, 16), "16..4096 by 16"), ((1, 2, 4), "{1, 2, 4}")],
)
def test_describe(domain: sets.Domain, text: str) -> None:
    assert sets.describe(domain) == text
