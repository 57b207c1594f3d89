"""Wires between layers: up to a track, along it, and up to a port. Between two layers there are only wires, and a layer
is passed only where its order left a place for that: no wire crosses a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rnncc.show.draw.layers import Layered, Link
from rnncc.show.draw.sizes import extent

TRACK = 9.0
_BELOW, _ABOVE = 9.0, 15.0
_LEAST = 24.0
# Columns nearer than this are one for the eye.
_SAME = 6.0
_STRAIGHT = 14.0


@dataclass(slots=True)
class Net:
    """The links from one port in a channel: where it begins, where it ends, and its track, counted from below (None:
    straight up)."""

    source: tuple[int, int]
    x: float
    ends: list[tuple[Link, float]] = field(default_factory=list)
    track: int | None = None

    @property
    def span(self) -> tuple[float, float]:
        """From its leftmost column to its rightmost one."""
        xs = [self.x, *(x for _, x in self.ends)]
        return min(xs), max(xs)


@dataclass(frozen=True, slots=True)
class Path:
    """A wire of the picture between two layers: points from below to above (y grows downwards). `origin`: the box and
    port whose value it is. `target`: the box at its end, where it does not go on. `mark`: what stands at its end."""

    origin: tuple[int, int]
    points: tuple[tuple[float, float], ...]
    target: int | None = None
    mark: str = ""


@dataclass(slots=True)
class Routed:
    """The picture: y of the middle of each layer, wires, dots where wires divide, and its height."""

    rows: list[float] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    dots: list[tuple[tuple[int, int], float, float]] = field(default_factory=list)
    height: float = 0.0


def route(made: Layered) -> Routed:
    """The wires, and the heights of layers, from below: y is negative here and grows downwards."""
    links: list[list[Link]] = [[] for _ in made.layers]
    for link in made.links:
        links[made.items[link.source].layer].append(link)
    channels = [_channel(made, level, links[level]) for level in range(len(made.layers) - 1)]
    routed = Routed()
    y = 0.0
    for level, layer in enumerate(made.layers):
        tall = max(made.items[item].extent.height for item in layer)
        routed.rows.append(y - tall / 2)
        y -= tall
        if level < len(channels):
            tracks = 1 + max((net.track for net in channels[level] if net.track is not None), default=-1)
            _paths(made, routed, level, channels[level], y)
            y -= max(_LEAST, _BELOW + _ABOVE + TRACK * max(0, tracks - 1))
    routed.height = -y
    _finish(made, routed)
    return routed


def _channel(made: Layered, level: int, links: Sequence[Link]) -> list[Net]:
    """The nets between a layer and the one above, with their tracks. `links` begin in the layer."""
    nets: dict[tuple[int, int], Net] = {}
    for link in links:
        item, key = made.items[link.source], (link.source, link.port)
        nets.setdefault(key, Net(key, item.x + item.extent.ports[link.port]))
    for target in made.layers[level + 1]:
        ends = sorted(made.below(target), key=lambda link: nets[link.source, link.port].x)
        xs, marks = [nets[link.source, link.port].x for link in ends], [link.mark for link in ends]
        for link, x in zip(ends, _slots(made, target, xs, marks), strict=True):
            nets[link.source, link.port].ends.append((link, x))
    found = list(nets.values())
    _move_apart(made, found)
    _assign([net for net in found if any(x != net.x for _, x in net.ends)])
    return found


def _slots(made: Layered, target: int, sources: Sequence[float], marks: Sequence[str]) -> list[float]:
    """Where wires arrive at an item, from left to right. A single wire that comes from nearly below comes straight."""
    item = made.items[target]
    if item.box is None:
        return [item.x] * len(sources)
    if (own := made.graph.boxes[item.box]).marks:
        return [item.x + item.extent.slots[own.marks.index(mark)] for mark in marks]
    room = max(item.extent.drawn - 5.0, 0.0)
    count = len(sources)
    step = min(16.0, 2 * room / (count - 1)) if count > 1 else 0.0
    slots = [item.x + step * (index - (count - 1) / 2) for index in range(count)]
    for index, source in enumerate(sources):
        others = [slot for place, slot in enumerate(slots) if place != index]
        near = abs(slots[index] - source) <= _STRAIGHT and abs(source - item.x) <= room
        if near and all(abs(other - source) >= _SAME for other in others):
            slots[index] = source
    return slots


def _move_apart(made: Layered, nets: Sequence[Net]) -> None:
    """An end above the beginning of another net would lie on it: it moves to the side, where its box is wide enough."""
    for net in nets:
        for index, (link, x) in enumerate(net.ends):
            item = made.items[link.target]
            if item.box is None or x == net.x:
                continue
            near = [other.x for other in nets if other is not net]
            ends = [
                end for other in nets for each, end in other.ends if each.target == link.target and each is not link
            ]
            room = max(item.extent.drawn - 3.0, 0.0)
            for moved in (x, *(x + sign * step for step in (3.0, 6.0, 9.0) for sign in (1, -1))):
                is_free = all(abs(moved - other) >= _SAME / 2 for other in (*near, *ends))
                if is_free and abs(moved - item.x) <= room:
                    net.ends[index] = (link, moved)
                    break


def _assign(nets: list[Net]) -> None:
    """A track for each net: one after the other, first what crosses least by being below the rest."""
    cost = {(a.source, b.source): _crossed(a, b) - _crossed(b, a) for a in nets for b in nets if a is not b}
    rest, placed = list(nets), list[Net]()
    while rest:

        def loss(net: Net) -> float:
            return sum(max(0.0, cost[net.source, other.source]) for other in rest if other is not net)

        net = min(rest, key=lambda each: (loss(each), each.span[1] - each.span[0], each.x))
        rest.remove(net)
        # It must be above what it would otherwise cross or cover.
        least = 0
        for other in placed:
            assert other.track is not None
            overlap = net.span[0] < other.span[1] + _SAME and other.span[0] < net.span[1] + _SAME
            if overlap:
                least = max(least, other.track + 1)
        net.track = least
        placed.append(net)


def _crossed(low: Net, high: Net) -> float:
    """How many crossings there are where one net is on a lower track than the other. Columns that would lie on each
    other count as many."""
    found = sum(high.span[0] < x < high.span[1] for _, x in low.ends)
    found += low.span[0] < high.x < low.span[1]
    covered = sum(abs(low_end - high.x) < _SAME for _, low_end in low.ends)
    return found + 1000.0 * covered


def _paths(made: Layered, routed: Routed, level: int, nets: Sequence[Net], y: float) -> None:
    """The wires of a channel whose lower edge is at y."""
    tracks = 1 + max((net.track for net in nets if net.track is not None), default=-1)
    spare = max(0.0, _LEAST - _BELOW - _ABOVE - TRACK * max(0, tracks - 1))
    for net in nets:
        origin = made.items[net.source[0]]
        key = (net.source[0], net.source[1]) if origin.box is not None else origin.key
        along = y - _BELOW - spare / 2 - TRACK * (net.track or 0)
        for link, x in net.ends:
            points = [(net.x, float(level))]
            if x != net.x:
                points += [(net.x, along), (x, along)]
            points.append((x, float(level + 1)))
            routed.paths.append(Path(key, tuple(points), made.items[link.target].box, link.mark))
        columns = sorted({x for _, x in net.ends})
        for x in sorted({net.x, *columns}):
            arms = (
                (x == net.x)
                + (x in columns)
                + any(c < x for c in (net.x, *columns))
                + any(c > x for c in (net.x, *columns))
            )
            if arms > 2 and net.track is not None:
                routed.dots.append((key, x, along))


def _finish(made: Layered, routed: Routed) -> None:
    """Ends of wires, which were layers so far, become the edges of boxes."""
    bends = {(item.layer, round(item.x, 3)): number for number, item in enumerate(made.items) if item.box is None}
    finished = []
    for path in routed.paths:
        (x0, level0), *between, (x1, level1) = path.points
        start = routed.rows[int(level0)] - (
            0.0 if (int(level0), round(x0, 3)) in bends else _half(made, int(level0), x0, 0.0)
        )
        if path.target is None:
            end = routed.rows[int(level1)]
        else:
            item = made.items[path.target]
            end = routed.rows[int(level1)] + _edge(made, path.target, x1 - item.x)
        finished.append(Path(path.origin, ((x0, start), *between, (x1, end)), path.target, path.mark))
    routed.paths = finished


def _half(made: Layered, level: int, x: float, default: float) -> float:
    """Half the height of the box of a layer that a wire leaves at x."""
    for number in made.layers[level]:
        item = made.items[number]
        if item.box is not None and any(abs(item.x + port - x) < 0.01 for port in item.extent.ports):
            return item.extent.height / 2
    return default


def _edge(made: Layered, number: int, x: float) -> float:
    """How far below the middle of a box its lower edge is, at a distance x from its middle: circles are round."""
    item = made.items[number]
    own = extent(made.graph.boxes[number])
    half = item.extent.height / 2
    if own.drawn * 2 == own.height and len(own.ports) == 1:
        return float((max(0.0, half * half - x * x)) ** 0.5)
    return half
