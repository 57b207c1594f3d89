"""Shipped cells for the other modules here: loaded once a process, and constants to torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rnncc.driver import load_file


@dataclass(frozen=True, slots=True)
class Op:
    """A cell's functional op, and the names of its states."""

    run: Callable[..., Any]
    states: tuple[str, ...]


_LOADED: dict[tuple[str, str, bool], Op] = {}


def op(cell: str, act: str = "", zoneout: bool = False) -> Op:
    """The op of a shipped cell, with the function `act` where it has that constant. With `zoneout` its last stream,
    [T, B, H], says which part of its old value h keeps."""
    _load(cell, act, zoneout)
    return _LOADED[cell, act, zoneout]


# Loading reads files: torch.compile runs it while it traces, and finds in the dictionary what became of it.
def _load(cell: str, act: str, zoneout: bool) -> None:
    if (cell, act, zoneout) in _LOADED:
        return
    name = cell.lower()
    constants = {"act": act} if act else {}
    cells = load_file(name, {"constants": constants, "zoneout": ("h",) if zoneout else ()})
    states = getattr(cells, cell).spec.visible_states()
    _LOADED[cell, act, zoneout] = Op(getattr(cells, name), tuple(state.name for state in states))


# This is torch.compiler.assume_constant_result, which would import all of torch._dynamo: two seconds.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]
