"""OS locks, each on a file that is there for the lock alone. A lock ends with its process. Its file stays empty.

Every function raises OSError where the file cannot be opened or locked, also where a link stands in its place.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_TELL_SECONDS = 1.0
# Open files of the locks that this process holds. A child that is forked meanwhile inherits them, and would keep the
# lock of a parent that died. So the child closes them.
_HELD: set[int] = set()


def _close_in_child() -> None:
    for descriptor in _HELD:
        with suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_close_in_child)


def take(path: Path, progress: Callable[[str], None] | None = None) -> int:
    """Wait for the lock and take it. Returns the open file, for `release`. After a second, reports who holds the
    lock."""
    started, told = time.monotonic(), False
    while True:
        descriptor = try_take(path)
        if descriptor is not None:
            return descriptor
        if progress is not None and not told and time.monotonic() - started > _TELL_SECONDS:
            told = True
            progress(f"waiting for {_holder(path)}, which builds the same package")
        time.sleep(0.02)


def try_take(path: Path) -> int | None:
    """The same without waiting: None where another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held the lock may have removed the file. A lock on a removed file protects nothing.
        if _is_at(descriptor, path):
            _HELD.add(descriptor)
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def release(descriptor: int, path: Path) -> None:
    """Give the lock back."""
    if descriptor not in _HELD:  # this is a child that was forked meanwhile: the lock belongs to its parent
        return
    # The file is removed before the lock ends, so that nobody can hold a lock on it. The next process makes a new file.
    with suppress(OSError):
        if _is_at(descriptor, path):  # else somebody emptied the cache: what stands there is another's lock
            path.unlink()
    _HELD.discard(descriptor)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one that stands at the path now."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _holder(path: Path) -> str:
    """Which process holds the lock. Linux lists locks as `7: FLOCK ADVISORY WRITE 4711 fd:00:131 0 EOF`."""
    with suppress(OSError):  # just removed, or no such list here
        inode = str(path.lstat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            kind, *_, process, file, _, _ = line.split()[1:]
            if kind == "FLOCK" and file.rpartition(":")[2] == inode and int(process) > 0:
                return f"process {process}"
    return "another process"
