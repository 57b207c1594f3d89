"""What a picture shows: boxes, and the wires between their ports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a box stands for; the value is its name in the style sheet."""

    INPUT = "input"
    PAST = "state"  # a state, or another value, at an earlier step
    NEXT = "next"  # a state after the step
    OUTPUT = "output"
    BLOCK = "product"  # products with parameters, and the gates that are made of them
    FUNCTION = "function"  # a function of one value, element by element
    POINT = "point"  # sums, products and the like, element by element
    ROWS = "rows"  # a function across the units


# What the legend says of a kind.
LEGEND = {
    Kind.INPUT: "input",
    Kind.PAST: "from earlier steps",
    Kind.NEXT: "state after the step",
    Kind.OUTPUT: "output",
    Kind.BLOCK: "matrix product",
    Kind.FUNCTION: "function",
    Kind.POINT: "element by element",
    Kind.ROWS: "across units",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """A gate on a block of products: its function, or nothing, and its name, or nothing."""

    function: str
    name: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """One box. A block has a tile for each of its ports; every other box has one port. `name`: what equations call its
    value, which is written beside it. `marks`: what it reads, each in a place of its own (`if`, `then`, `else`).
    `reads`: how many wires end at it. `is_matrix`: its value is one."""

    kind: Kind
    label: str
    title: str = ""
    name: str = ""
    tiles: tuple[Tile, ...] = ()
    is_output: bool = False
    marks: tuple[str, ...] = ()
    reads: int = 1
    is_matrix: bool = False

    @property
    def ports(self) -> int:
        """How many values leave it."""
        return max(1, len(self.tiles))


@dataclass(frozen=True, slots=True)
class Wire:
    """From port `port` of box `source` to box `target`. `mark` says what the value is there, such as `−` where it is
    subtracted, `÷` where it divides, and `if`."""

    source: int
    port: int
    target: int
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes in an order in which each stands after what it reads."""

    name: str
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
