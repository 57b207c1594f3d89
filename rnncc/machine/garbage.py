"""Garbage, which Python does not collect while something long makes many objects that live on."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_is_paused = False


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile. Imports and the stages make hardly any, but so many objects that Python would
    look through all of torch's, too: 0.1 s each time.

    In another thread than the main one nothing changes: a program goes on beside it, and may make much garbage while
    compilers run."""
    global _is_paused
    if threading.current_thread() is not threading.main_thread() or not gc.isenabled():
        yield
        return
    _is_paused = True
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _is_paused = False


def _resume_in_child() -> None:
    """What the parent was doing is never finished in a child that another thread forked."""
    global _is_paused
    if _is_paused:
        gc.enable()
    _is_paused = False


os.register_at_fork(after_in_child=_resume_in_child)
