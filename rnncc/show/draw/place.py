"""Where items stand from left to right: near what they are linked with, in their order, without touching."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rnncc.show.draw.layers import Item, Layered

# Between two boxes, and between a bend and anything.
GAP, NEAR = 14.0, 8.0
_ROUNDS = 60
_STRAIGHTENED = 3
# How far a column moves that would lie on another one. It is less than NEAR, so that it touches nothing.
_STEP = 4.0


def place(made: Layered) -> None:
    """Sets x of each item. States before the step stand in a column at the left, those after it at the right."""
    for layer in made.layers:
        x = 0.0
        for item in layer:
            x += made.items[item].extent.left
            made.items[item].x = x
            x += made.items[item].extent.right + GAP
    for turn in range(_ROUNDS):
        order = range(len(made.layers)) if turn % 2 == 0 else range(len(made.layers) - 1, -1, -1)
        for level in order:
            _settle(made, made.layers[level])
    for _ in range(_STRAIGHTENED):
        _straighten(made)
    _columns(made)
    for _ in range(_STRAIGHTENED):
        _part(made)


def _settle(made: Layered, layer: Sequence[int]) -> None:
    """Moves the items of a layer to where they want to be. Columns at the sides come later."""
    free = [item for item in layer if not made.side(item)]
    wanted, weights = [], []
    for item in free:
        pulls = []
        for link in made.below(item):
            source = made.items[link.source]
            if made.side(link.source) == 0:
                pulls.append((source.x + source.extent.ports[link.port], _weight(source, made.items[item])))
        for link in made.above(item):
            target, own = made.items[link.target], made.items[item]
            if made.side(link.target) == 0:
                pulls.append((target.x - own.extent.ports[link.port], _weight(own, target)))
        total = sum(weight for _, weight in pulls)
        wanted.append(sum(x * weight for x, weight in pulls) / total if pulls else made.items[item].x)
        weights.append(total or 0.1)
    gaps = [_distance(made.items[a], made.items[b]) for a, b in pairwise(free)]
    for item, x in zip(free, _apart(wanted, weights, gaps), strict=True):
        made.items[item].x = x


def _weight(one: Item, other: Item) -> float:
    """Wires that pass layers are straight before all others are."""
    return {0: 1.0, 1: 2.0, 2: 8.0}[(one.box is None) + (other.box is None)]


def _distance(left: Item, right: Item) -> float:
    gap = GAP if left.box is not None and right.box is not None else NEAR
    return left.extent.right + gap + right.extent.left


def _apart(wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places with the least sum of weighted squares of distances to the wanted ones, at least the gaps apart: pools
    of neighbours that touch have their mean."""
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    pools: list[tuple[float, float, int]] = []  # the mean, the weight, how many
    for x, weight, offset in zip(wanted, weights, offsets[: len(wanted)], strict=True):
        mean, total, count = x - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, many = pools.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total, count = heavy + total, many + count
        pools.append((mean, total, count))
    places = [mean for mean, _, count in pools for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets[: len(wanted)], strict=True)]


def _straighten(made: Layered) -> None:
    """Bends above each other become one column, where their neighbours leave room for that."""
    columns: dict[tuple[int, int], list[int]] = {}
    for number, item in enumerate(made.items):
        if item.box is None:
            columns.setdefault(item.key, []).append(number)
    for bends in columns.values():
        run: list[int] = []
        low, high = -math.inf, math.inf
        for bend in bends:
            left, right = _room(made, bend)
            if run and max(low, left) > min(high, right):
                _column(made, run, low, high)
                run, low, high = [], -math.inf, math.inf
            run.append(bend)
            low, high = max(low, left), min(high, right)
        _column(made, run, low, high)


def _part(made: Layered) -> None:
    """A column of bends that would end just above the port of another value moves to the side."""
    columns: dict[tuple[tuple[int, int], float], list[int]] = {}
    for number, item in enumerate(made.items):
        if item.box is None:
            columns.setdefault((item.key, item.x), []).append(number)
    for (key, x), bends in columns.items():
        ports = [port for bend in bends for port in _ports_below(made, made.items[bend].layer, key)]
        rooms = [_room(made, bend) for bend in bends]
        low, high = max(left for left, _ in rooms) - _STEP, min(right for _, right in rooms) + _STEP
        for moved in (x, *(x + sign * step for step in (_STEP, 2 * _STEP) for sign in (1, -1))):
            if low <= moved <= high and all(abs(moved - port) >= _STEP - 0.5 for port in ports):
                for bend in bends:
                    made.items[bend].x = moved
                break


def _ports_below(made: Layered, layer: int, key: tuple[int, int]) -> list[float]:
    """Where wires of other values leave the layer below one."""
    found = []
    for number in made.layers[layer - 1]:
        item = made.items[number]
        for port, x in enumerate(item.extent.ports):
            own = (number, port) if item.box is not None else item.key
            if own != key:
                found.append(item.x + x)
    return found


def _room(made: Layered, number: int) -> tuple[float, float]:
    """How far an item may go to the left and to the right."""
    layer = [each for each in made.layers[made.items[number].layer] if not made.side(each)]
    index, own = layer.index(number), made.items[number]
    left = -math.inf if index == 0 else made.items[layer[index - 1]].x + _distance(made.items[layer[index - 1]], own)
    last = index == len(layer) - 1
    right = math.inf if last else made.items[layer[index + 1]].x - _distance(own, made.items[layer[index + 1]])
    return min(left, own.x), max(right, own.x)


def _column(made: Layered, bends: Sequence[int], low: float, high: float) -> None:
    """One x for bends, within bounds: that of the port below or above, where these allow it, else their mean."""
    wanted = [made.items[link.source] for link in made.below(bends[0])]
    ends = [
        item.x + item.extent.ports[link.port]
        for item, link in zip(wanted, made.below(bends[0]), strict=True)
        if not made.side(link.source)
    ]
    mean = sum(made.items[bend].x for bend in bends) / len(bends)
    x = next((end for end in ends if low <= end <= high), min(max(mean, low), high))
    for bend in bends:
        made.items[bend].x = x


def _columns(made: Layered) -> None:
    """States before the step to the left of everything else, states after it to the right."""
    free = [made.items[item] for layer in made.layers for item in layer if not made.side(item)]
    left = min((item.x - item.extent.left for item in free), default=0.0)
    right = max((item.x + item.extent.right for item in free), default=0.0)
    for layer in made.layers:
        x = left - GAP
        for item in reversed([each for each in layer if made.side(each) < 0]):
            own = made.items[item]
            own.x = x - own.extent.right
            x = own.x - own.extent.left - GAP
        x = right + GAP
        for item in (each for each in layer if made.side(each) > 0):
            own = made.items[item]
            own.x = x + own.extent.left
            x = own.x + own.extent.right + GAP
