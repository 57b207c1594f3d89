"""A picture of one step of a cell (`rnncc draw FILE`): inputs below, states before the step at the left and after it at
the right, and what is computed from them in layers between."""

from __future__ import annotations

from rnncc.ir.typed import Typed

THEMES = ("auto", "light", "dark")


def draw(cell: Typed, theme: str = "auto") -> str:
    """The picture as SVG. `theme`: `light`, `dark`, or `auto`, which is as the reader's browser is."""
    # The command line reads the themes at every start, and the rest where it draws.
    from rnncc.show.draw.blocks import graph
    from rnncc.show.draw.layers import layered
    from rnncc.show.draw.place import place
    from rnncc.show.draw.route import route
    from rnncc.show.draw.svg import svg

    drawn = graph(cell)
    made = layered(drawn)
    place(made)
    return svg(drawn, made, route(made), theme)
