"""Garbage, which Python does not collect while something long makes many objects that live on."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pause:
    """What turned the collection off: `users` are at work, in any threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


_pause = _Pause()


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile. Imports and the stages make hardly any, but so many objects that Python would
    look through all of torch's, too: 0.1 s each time."""
    pause = _pause
    with pause.lock:
        is_ours = gc.isenabled() or pause.users > 0  # else somebody else has turned it off
        pause.users += is_ours
        gc.disable()
    try:
        yield
    finally:
        with pause.lock:
            pause.users -= is_ours
            if is_ours and pause.users == 0:
                gc.enable()


def _resume_in_child() -> None:
    """What other threads were doing is never finished in a child that is forked."""
    global _pause
    if _pause.users > 0:
        gc.enable()
    _pause = _Pause()


os.register_at_fork(after_in_child=_resume_in_child)
