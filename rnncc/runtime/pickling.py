"""How classes of layers, and functional ops, are pickled: those of a built package by their name there, as Python does
it; those of `rnncc.load` and `rnncc.compile` by their text, since another process has no module of that name.

The packages of one process that rnncc loaded share this module (rnncc/stages/load.py). It imports no torch."""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

# (function, arguments): the call that gives the thing again.
Origin = tuple[Callable[..., Any], tuple[Any, ...]]


class LayerType(ABCMeta):
    """The type of classes of layers and single steps. Pickle goes by the type of a class alone, and needs one that is
    ours. It is an ABCMeta, so that a class can derive from a layer and from an abstract class."""


def origin_of(made: Any) -> Origin | None:
    """The origin of a class or functional op itself, or None. A class of the user's that derives from one has none."""
    origin: Origin | None = vars(made).get("_origin")
    return origin


def reduced(made: Any) -> Origin | str:
    """What pickle asks of a class or functional op: its origin, or else its name in its module."""
    return origin_of(made) or made.__qualname__


copyreg.pickle(LayerType, reduced)
