"""A picture of one step of a cell (`rnncc draw FILE`): inputs below, states before the step at the left and after it at
the right, and what is computed from them in layers between."""

from __future__ import annotations

from rnncc.ir.typed import Typed
from rnncc.show.draw.blocks import graph
from rnncc.show.draw.layers import layered
from rnncc.show.draw.place import place
from rnncc.show.draw.route import route
from rnncc.show.draw.svg import THEMES, svg

__all__ = ["THEMES", "draw"]


def draw(cell: Typed, theme: str = "auto") -> str:
    """The picture as SVG. `theme`: `light`, `dark`, or `auto`, which is as the reader's browser is."""
    drawn = graph(cell)
    made = layered(drawn)
    place(made)
    return svg(drawn, made, route(made), theme)
