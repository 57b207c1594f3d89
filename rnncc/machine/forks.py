"""What a fork waits for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Reentrant, since what a package imports may load another.
_LOCK = threading.RLock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


@contextmanager
def unforked() -> Iterator[None]:
    """For imports: one thread at a time, and no other forks meanwhile. In the child nobody would ever finish what
    another thread of the parent was importing, and who imports the same would wait for ever."""
    with _LOCK:
        yield
