"""How large boxes are, in units of the picture (pixels, where it is shown at its own size)."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.show.draw.graph import Box, Kind
from rnncc.show.draw.labels import width

FONT, NAME_FONT = 14.0, 12.0
STRIP, TILE, CIRCLE, PLAIN = 26.0, 38.0, 13.0, 28.0
_PADDING = 7.0
_LEAST_TILE = 40.0
# Wires that end at a box, and how many may end at a circle.
_SPACING, _MOST = 10.0, 4


@dataclass(frozen=True, slots=True)
class Extent:
    """A box around its place: how far it goes to the left and right, its height, and where its ports are. `drawn` is
    half of the width of the shape itself; a name may stand to its right. `slots`: where the wires of a box with marks
    end."""

    left: float
    right: float
    height: float
    ports: tuple[float, ...] = (0.0,)
    drawn: float = 0.0
    slots: tuple[float, ...] = ()


def extent(box: Box) -> Extent:
    """The size of a box."""
    if box.tiles:
        tile = max(_LEAST_TILE, *(_text(each.function, each.name) for each in box.tiles))
        strip = width(box.label, FONT) + 2 * _PADDING
        tile = max(tile, strip / len(box.tiles))
        half = tile * len(box.tiles) / 2
        ports = tuple(tile * (index + 0.5) - half for index in range(len(box.tiles)))
        return Extent(half, half, STRIP + TILE, ports, half)
    named = width(box.name, NAME_FONT) + 5 if box.name else 0.0
    if is_circle(box):
        return Extent(CIRCLE, CIRCLE + named, 2 * CIRCLE, drawn=CIRCLE)
    half = max(PLAIN / 2, width(box.label, FONT) / 2 + _PADDING)
    if box.marks:
        # What each of its values is stands above its wire, inside.
        step = max(width(mark, NAME_FONT) for mark in box.marks) + 8
        half = max(half, step * len(box.marks) / 2)
        slots = tuple(step * (index + 0.5) - step * len(box.marks) / 2 for index in range(len(box.marks)))
        return Extent(half, half + named, TILE, drawn=half, slots=slots)
    half = max(half, _SPACING * box.reads / 2)
    if box.kind in (Kind.PAST, Kind.NEXT, Kind.INPUT, Kind.OUTPUT):
        half = max(half, 20.0)
    return Extent(half, half + named, STRIP if box.kind is Kind.BLOCK else PLAIN, drawn=half)


def is_circle(box: Box) -> bool:
    """Whether a box is a circle with a sign in it."""
    short = width(box.label, FONT) <= 2 * CIRCLE - 8
    return box.kind is Kind.POINT and short and box.reads <= _MOST and not box.marks


def _text(function: str, name: str) -> float:
    return max(width(function, FONT), width(name, NAME_FONT)) + 2 * _PADDING
