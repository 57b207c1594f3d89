"""Layers: at which height each box stands, and in which order from left to right (Sugiyama, Tagawa, Toda 1981).

A wire that passes layers has a bend in each of them. All wires from one port share their bends.
"""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rnncc.show.draw.graph import Graph, Kind
from rnncc.show.draw.sizes import Extent, extent

_SWEEPS = 16
# How many beginnings are tried, and of how many items on only two.
_STARTS, _MANY = 8, 200
# States of a layer that have a column of their own.
_MOST_BESIDE = 3
_BEND = Extent(4.0, 4.0, 0.0)


@dataclass(slots=True)
class Item:
    """A box, or a bend of the wires of a port (`box` is None). `key` is the box's number, or the port's."""

    layer: int
    extent: Extent
    box: int | None
    key: tuple[int, int]
    x: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """From a port of an item to an item in the layer above. `mark` is the wire's, at its end."""

    source: int
    port: int
    target: int
    mark: str = ""


@dataclass
class Layered:
    """Items by number, each layer's items from left to right, and the links between neighbouring layers."""

    graph: Graph
    items: list[Item] = field(default_factory=list)
    layers: list[list[int]] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    @cached_property
    def _ends(self) -> tuple[list[list[Link]], list[list[Link]], list[list[Link]]]:
        """The links that end at each item, those that begin at it, and those that begin in each layer."""
        below: list[list[Link]] = [[] for _ in self.items]
        above: list[list[Link]] = [[] for _ in self.items]
        levels: list[list[Link]] = [[] for _ in self.layers]
        for link in self.links:
            below[link.target].append(link)
            above[link.source].append(link)
            levels[self.items[link.source].layer].append(link)
        return below, above, levels

    def below(self, item: int) -> list[Link]:
        """The links that end at an item."""
        return self._ends[0][item]

    def above(self, item: int) -> list[Link]:
        """The links that begin at an item."""
        return self._ends[1][item]

    def between(self, level: int) -> list[Link]:
        """The links from a layer to the one above."""
        return self._ends[2][level]

    def side(self, item: int) -> int:
        """-1 for what stands at the left, states before the step; 1 for states after it; else 0. Where a layer has many
        of them, they stand among the others."""
        return self._sides[item]

    @cached_property
    def _sides(self) -> list[int]:
        found = []
        for item in self.items:
            kind = None if item.box is None else self.graph.boxes[item.box].kind
            found.append(-1 if kind is Kind.PAST else 1 if kind is Kind.NEXT else 0)
        crowds = Counter((item.layer, side) for item, side in zip(self.items, found, strict=True) if side)
        return [
            side if crowds[item.layer, side] <= _MOST_BESIDE else 0
            for item, side in zip(self.items, found, strict=True)
        ]


def heights(graph: Graph) -> list[int]:
    """The layer of each box: above all that it reads. Inputs stand at the bottom, a state just below its first
    reader."""
    reads: list[list[int]] = [[] for _ in graph.boxes]
    for wire in graph.wires:
        reads[wire.target].append(wire.source)
    found: list[int] = []
    for sources in reads:
        found.append(1 + max((found[source] for source in sources), default=-1))
    for number, box in enumerate(graph.boxes):
        if not reads[number] and box.kind is not Kind.INPUT:
            above = [found[wire.target] for wire in graph.wires if wire.source == number]
            found[number] = max(0, min(above, default=1) - 1)
    return found


def layered(graph: Graph) -> Layered:
    """The graph in layers, with few crossings."""
    made = Layered(graph)
    levels = heights(graph)
    made.layers = [[] for _ in range(max(levels, default=0) + 1)]
    for number, box in enumerate(graph.boxes):
        made.items.append(Item(levels[number], extent(box), number, (number, -1)))
        made.layers[levels[number]].append(number)
    bends: dict[tuple[int, int, int], int] = {}
    links: dict[Link, None] = {}
    for wire in graph.wires:
        source, port = wire.source, wire.port
        for level in range(levels[wire.source] + 1, levels[wire.target]):
            key = (wire.source, wire.port, level)
            if key not in bends:
                bends[key] = len(made.items)
                made.items.append(Item(level, _BEND, None, key[:2]))
                made.layers[level].append(bends[key])
            links[Link(source, port, bends[key])] = None
            source, port = bends[key], 0
        links[Link(source, port, wire.target, wire.mark)] = None
    made.links = list(links)
    _order(made)
    return made


def _order(made: Layered) -> None:
    """Orders the layers from several beginnings; the order with the fewest crossings stays."""
    starts = _STARTS if len(made.items) <= _MANY else 2
    best: tuple[list[list[int]], list[Extent]] | None = None
    least = 0
    for start in range(starts):
        # The first beginning is the order of the text, the second the reverse; others are drawn, always alike.
        drawn = random.Random(start)
        places = [drawn.random() if start > 1 else (1 - 2 * start) * number for number in range(len(made.items))]
        for layer in made.layers:
            layer.sort(key=lambda item: (made.side(item), places[item]))
        _sweep(made)
        _exchange(made)
        found = crossings(made)
        if best is None or found < least:
            best, least = ([list(layer) for layer in made.layers], [item.extent for item in made.items]), found
    assert best is not None
    made.layers = best[0]
    for item, own in zip(made.items, best[1], strict=True):
        item.extent = own


def _sweep(made: Layered) -> None:
    """Sweeps up and down, which order each layer by what its items are linked with; the best order stays."""
    best, least = [list(layer) for layer in made.layers], crossings(made)
    ports = [item.extent for item in made.items]
    for sweep in range(_SWEEPS):
        upwards = sweep % 2 == 0
        order = range(1, len(made.layers)) if upwards else range(len(made.layers) - 2, -1, -1)
        for level in order:
            _sort(made, level, upwards)
            if not upwards:
                _sort_ports(made, level)
        found = crossings(made)
        if found < least:
            best, least = [list(layer) for layer in made.layers], found
            ports = [item.extent for item in made.items]
    made.layers = best
    for item, own in zip(made.items, ports, strict=True):
        item.extent = own


def _sort(made: Layered, level: int, upwards: bool) -> None:
    place = _places(made, made.layers[level - 1 if upwards else level + 1])
    layer = made.layers[level]
    own = {item: index for index, item in enumerate(layer)}

    def wanted(item: int) -> float:
        links = made.below(item) if upwards else made.above(item)
        found = [place[link.source, link.port] if upwards else place[link.target, 0] for link in links]
        if not found:
            return float(own[item])
        # Going down, a port to the right wants its reader to the right.
        return sum(found) / len(found)

    keys = {item: wanted(item) for item in layer}
    layer.sort(key=lambda item: (made.side(item), keys[item], own[item]))


def _sort_ports(made: Layered, level: int) -> None:
    """Exchanges the tiles of the blocks of a layer, so that each stands below its readers."""
    place = _places(made, made.layers[level + 1])
    for number in made.layers[level]:
        item = made.items[number]
        if len(item.extent.ports) < 2:
            continue
        readers: list[list[float]] = [[] for _ in item.extent.ports]
        for link in made.above(number):
            readers[link.port].append(place[link.target, 0])
        wanted = [sum(each) / len(each) if each else 0.0 for each in readers]
        slots = sorted(item.extent.ports)
        order = sorted(range(len(slots)), key=lambda port: (wanted[port], item.extent.ports[port]))
        ports = dict(zip(order, slots, strict=True))
        item.extent = replace(item.extent, ports=tuple(ports[port] for port in range(len(slots))))


def _places(made: Layered, layer: Sequence[int]) -> dict[tuple[int, int], float]:
    """The places of the ports of a layer, from left to right."""
    found = {}
    for index, item in enumerate(layer):
        own = made.items[item].extent
        for port, x in enumerate(own.ports):
            found[item, port] = index + (x / (2 * own.drawn) if len(own.ports) > 1 else 0.0)
    return found


def crossings(made: Layered, levels: Sequence[int] | None = None) -> int:
    """How many pairs of links cross, between each layer and the one above."""
    total = 0
    for level in range(len(made.layers) - 1) if levels is None else levels:
        if not 0 <= level < len(made.layers) - 1:
            continue
        low, high = _places(made, made.layers[level]), _places(made, made.layers[level + 1])
        ends = sorted((low[link.source, link.port], high[link.target, 0]) for link in made.between(level))
        # Links from left to right: one crosses those before it that end further to the right.
        passed: list[float] = []
        for _, end in ends:
            total += len(passed) - bisect_right(passed, end)
            insort(passed, end)
    return total


def _exchange(made: Layered) -> None:
    """Exchanges neighbours as long as that leaves fewer crossings."""
    better = True
    while better:
        better = False
        for level, layer in enumerate(made.layers):
            for index in range(len(layer) - 1):
                left, right = layer[index], layer[index + 1]
                if made.side(left) != made.side(right):
                    continue
                before = crossings(made, (level - 1, level))
                layer[index], layer[index + 1] = right, left
                if crossings(made, (level - 1, level)) < before:
                    better = True
                else:
                    layer[index], layer[index + 1] = left, right
