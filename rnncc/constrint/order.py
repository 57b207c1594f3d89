"""What a search decides first, and by which values: given by the user, never by anything but the model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rnncc.constrint.domain import Domain
from rnncc.constrint.expr import Node, Operand, as_expression

# A longer domain is halved rather than tried value by value, unless the user gave an order of values.
LONGEST_TRIED = 8

Split = Callable[[Domain], Iterable[Domain]]

# Variables to decide first, in this order, each with its way to split.
Decisions = Sequence[tuple[int, Split]]


@dataclass(frozen=True, slots=True)
class Branch:
    """What to decide on, and how: `split` covers a domain of it by smaller ones, the first tried first.

    Deciding on an expression, an objective say, halves what it may be before any variable has a value.
    """

    expression: Node
    split: Split


def ascending(expression: Operand) -> Branch:
    """Small values first."""
    return Branch(as_expression(expression), ascending_values)


def descending(expression: Operand) -> Branch:
    """Large values first."""
    return Branch(as_expression(expression), descending_values)


def preferring(expression: Operand, values: Sequence[int]) -> Branch:
    """These values first, in this order; then the rest, ascending."""

    def split(domain: Domain) -> Iterator[Domain]:
        yield from ((value,) for value in dict.fromkeys(values) if value in domain)
        yield from ((value,) for value in domain if value not in values)

    return Branch(as_expression(expression), split)


def towards(expression: Operand, target: int) -> Branch:
    """Values near a target first; of two as near, the greater."""

    def split(domain: Domain) -> Iterator[Domain]:
        above = bisect_left(domain, target)
        below = above - 1
        while below >= 0 or above < len(domain):
            if below < 0 or (above < len(domain) and domain[above] - target <= target - domain[below]):
                yield (domain[above],)
                above += 1
            else:
                yield (domain[below],)
                below -= 1

    return Branch(as_expression(expression), split)


def ascending_values(domain: Domain) -> Iterable[Domain]:
    """The values of a short domain, the halves of a long one, small ones first."""
    if len(domain) > LONGEST_TRIED:
        middle = len(domain) // 2
        return (domain[:middle], domain[middle:])
    return ((value,) for value in domain)


def descending_values(domain: Domain) -> Iterable[Domain]:
    """The values of a short domain, the halves of a long one, large ones first."""
    if len(domain) > LONGEST_TRIED:
        middle = len(domain) // 2
        return (domain[middle:], domain[:middle])
    return ((value,) for value in reversed(domain))
