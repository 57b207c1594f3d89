"""Deletes from the cache the packages and objects that were used longest ago, and what killed processes left.

It deletes only entries with names that the cache gives, and follows no link.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rnncc.machine.cache import locks
from rnncc.machine.cache.names import entries, key_of
from rnncc.machine.cache.root import is_unfinished_marker
from rnncc.runtime import manifest

# Nothing that was used within this time is deleted: another process may be importing it.
KEEP_SECONDS = 3600.0


def trim(root: Path, limit: int) -> None:
    """Delete what was used longest ago until packages and objects take `limit` bytes, and what killed processes
    left."""
    now = _now(root)
    _sweep(root, now)
    found = [
        (_used(entry, now), entry.st_mtime, path)
        for kind in ("packages", "objects")
        for path, entry in entries(root, kind)
    ]
    # To measure all of it takes longer than many a build.
    if all(_is_in_use(used, now) for used, *_ in found):
        return
    sized = [(*entry, _bytes(entry[-1])) for entry in sorted(found)]
    total = sum(size for *_, size in sized)
    for used, _, path, size in sized:
        if total <= limit or _is_in_use(used, now):
            break
        if path.parent.name == "packages":
            drop(root, path)
        else:
            with suppress(OSError):
                path.unlink()
        total -= size


def drop(root: Path, package: Path) -> None:
    """Delete a package. A rename hides all of it first, so that nobody sees a part, even if this process is killed."""
    dropped = root / "tmp" / f"{package.name}-dropped-{os.getpid()}-{threading.get_ident()}"
    with suppress(OSError):
        package.rename(dropped)
        if stat.S_ISDIR(dropped.lstat().st_mode):
            shutil.rmtree(dropped, ignore_errors=True)
        else:  # what stood in the place of a package
            dropped.unlink()


def usage(root: Path) -> tuple[int, int]:
    """The number of packages, and the size of the whole folder in bytes. Other processes may change it meanwhile."""
    return sum(_is_package(path) for path, _ in entries(root, "packages")), _bytes(root)


def oldest_first(root: Path, kind: str) -> list[Path]:
    """The cache's entries of a kind, sorted by the time of their last change."""
    now = _now(root)
    dated = ((_used(found, now), found.st_mtime, path) for path, found in entries(root, kind))
    return [path for *_, path in sorted(dated)]


def _sweep(root: Path, now: float) -> None:
    """Remove what killed processes left: unfinished builds and copies, and locks."""
    for path, found in entries(root, "tmp"):
        if _is_left(found, now):
            # The builder of a key holds its lock. Any process may remove what `drop` hid.
            with _unlocked(root / "locks" / f"{key_of(path)}.lock") as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)
    for path, found in entries(root, "objects"):
        if path.suffix == ".tmp" and _is_left(found, now):
            with suppress(OSError):
                path.unlink()
    for path in root.iterdir():
        with suppress(OSError):  # another process removed it
            if is_unfinished_marker(path.name) and _is_left(path.lstat(), now):
                path.unlink()
    for path, found in entries(root, "locks"):
        if _is_left(found, now):
            with _unlocked(path):
                pass


@contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
    """Hold the lock at the path where nobody else does. Yields whether this process holds it."""
    try:
        descriptor = locks.try_take(path)
    except OSError:
        descriptor = None
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            locks.release(descriptor, path)


def _is_left(found: os.stat_result, now: float) -> bool:
    return not _is_in_use(_used(found, now), now)


def _is_in_use(used: float, now: float) -> bool:
    """Whether a process may still use what was used then."""
    return now - used < KEEP_SECONDS


def _used(found: os.stat_result, now: float) -> float:
    """When an entry was used last. Where its date is far ahead, the clock was set back since. Nobody knows when that
    was, and it counts as long ago. A date that is ahead by less than KEEP_SECONDS counts: it may be of these minutes.
    """
    return found.st_mtime if found.st_mtime < now + KEEP_SECONDS else -math.inf


def _now(root: Path) -> float:
    """The time by the clock that dates the cache's entries. A file server has its own."""
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # the disk is full, or nobody may write there
        return time.time()


def _is_package(folder: Path) -> bool:
    """Whether a folder in `packages` holds a package, and not GPU kernels alone. Its manifest says so."""
    try:
        return any("cells" in manifest.read(entry) for entry in folder.iterdir())
    except (OSError, manifest.DamagedError):  # another process dropped it, or it is damaged
        return False


def _bytes(path: Path | str) -> int:
    """The size of a file, or of a folder with all in it, in bytes; links are not followed."""
    with suppress(OSError):  # another process removed it, or nobody may read it
        if not stat.S_ISDIR((found := os.lstat(path)).st_mode):
            return found.st_size
        with os.scandir(path) as inside:
            return sum(_bytes(entry.path) for entry in inside)
    return 0
