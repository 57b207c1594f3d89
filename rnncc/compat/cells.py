"""Shipped cells for the other modules here: loaded once a process, and constants to torch.compile."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import rnncc
from rnncc.paths import locate
from rnncc.read import read_source


@dataclass(frozen=True, slots=True)
class Op:
    """A cell's functional op, and the names of its states."""

    run: Callable[..., Any]
    states: tuple[str, ...]


_LOADED: dict[tuple[str, str, bool], Op] = {}


def op(cell: str, act: str = "", zoneout: bool = False) -> Op:
    """The op of a shipped cell, with the function `act` where it has that constant. With `zoneout` the cell has one
    input more, `keep` [T, B, H], its last stream: h goes that part of the way to its new value."""
    _load(cell, act, zoneout)
    return _LOADED[cell, act, zoneout]


# Loading reads files: torch.compile runs it while it traces, and finds in the dictionary what became of it.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _load(cell: str, act: str, zoneout: bool) -> None:
    if (cell, act, zoneout) in _LOADED:
        return
    shaping: dict[str, Any] = {"act": act} if act else {}
    name = cell.lower()
    cells = rnncc.compile(_zoned(name), f"zoneout_{name}", **shaping) if zoneout else rnncc.load(name, **shaping)
    states = getattr(cells, cell).spec.visible_states()
    _LOADED[cell, act, zoneout] = Op(getattr(cells, name), tuple(state.name for state in states))


def _zoned(name: str) -> str:
    text = read_source(locate(name)).text
    text, states = re.subn(r"^state ", "input x, keep: H\nstate ", text, flags=re.MULTILINE)
    text, updates = re.subn(
        r"^h\[t\] = (.*)$", r"proposed = \1\nh[t] = h[t-1] + keep*(proposed - h[t-1])", text, flags=re.MULTILINE
    )
    if states != 1 or updates != 1:
        raise rnncc.InternalError(f"zoneout does not know how {name} is written")
    return text
