"""What the command line says of a file, for a notebook: of a file, a shipped cell, or a layer that is there."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from rnncc.driver import request_of
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.language.read import read_request
from rnncc.notebook.values import Equations, Explanation, Picture
from rnncc.pipeline import compile_cells
from rnncc.runtime.pickling import origin_of

_FOREIGN = "{} is not of rnncc.load or rnncc.compile; give a file, or the name of a shipped cell"


def draw(what: Any, cell: str | None = None, *, theme: str = "auto") -> Picture:
    """A picture of one step, as `rnncc draw` makes it.

    Args:
        what: a shipped cell's name (`lstm`), the path of a `.rnn` file, or a layer or single step that `rnncc.load`,
            `rnncc.compile` or `%%rnn` made, or its class, or their module.
        cell: which cell of a file that has several; the first, if it is not said.
        theme: `light`, `dark`, or `auto`, which is as the reader's browser is.

    Raises:
        RnnccError: mistakes in the text. ValueError: the file has no such cell. TypeError: not a cell of rnncc's.
    """
    from rnncc.show.draw import THEMES
    from rnncc.show.draw import draw as picture

    if theme not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}, not {theme!r}")
    chosen = _chosen(*_request(what, cell), "check")[0]
    return Picture(chosen.name, picture(chosen.typed, theme))


def equations(what: Any, cell: str | None = None, *, standalone: bool = False) -> Equations:
    """The equations in LaTeX, as `rnncc latex` prints them. `what` and `cell` as for `draw`; all cells of a file where
    none is named. Raises what `draw` raises."""
    from rnncc.show.latex import latex

    return Equations(latex(_chosen(*_request(what, cell), "check"), standalone=standalone))


def explain(what: Any, cell: str | None = None) -> Explanation:
    """What the compiler decided, as `rnncc explain` prints it. `what` and `cell` as for `draw`; all cells of a file
    where none is named. Raises what `draw` raises."""
    from rnncc.show.explain import explain as facts
    from rnncc.show.explain import explain_words

    chosen = _chosen(*_request(what, cell), "differentiate")
    return Explanation("\n\n".join(map(explain_words, chosen)), tuple(map(facts, chosen)))


def layers_of(module: ModuleType) -> list[Any]:
    """The layers of a module that `rnncc.load`, `rnncc.compile` or `%%rnn` made; none of another one."""
    return [each for each in vars(module).values() if hasattr(each, "spec") and origin_of(each) is not None]


def _request(what: Any, cell: str | None) -> tuple[Request, str | None]:
    """The text that is meant, and which of its cells."""
    if isinstance(what, str | os.PathLike):
        return read_request(what), cell
    if isinstance(what, ModuleType):
        layers = layers_of(what)
        if not layers:
            raise TypeError(_FOREIGN.format(what.__name__))
        return _request(layers[0], None)[0], cell
    layer: Any = what if isinstance(what, type) else type(what)
    # A class that derives from a layer's shows that layer.
    origin = next((found for each in layer.__mro__ if "spec" in vars(each) and (found := origin_of(each))), None)
    if origin is None:
        raise TypeError(_FOREIGN.format(getattr(what, "__name__", layer.__name__)))
    _, (*text, _) = origin
    return request_of(*text), cell or layer.spec.name


def _chosen(request: Request, cell: str | None, stage: str) -> list[CompiledCell]:
    """The cell that is meant, or all of the text, after a stage."""
    made = compile_cells(request, stage).cells
    chosen = [each for each in made if cell in (None, each.name)]
    if not chosen:
        raise ValueError(f"{request.source.name} has no cell '{cell}', only {', '.join(each.name for each in made)}")
    return chosen
