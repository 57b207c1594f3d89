"""What compilers made, kept from one run of the tests to the next: the same text gives the same code. It lies in
build/kept, which `make clean` removes. And what all workers of one run share."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rnncc.machine.cache import digest

FOLDER = Path(__file__).resolve().parents[1] / "build" / "kept"
_SECONDS = 30 * 24 * 3600.0


def kept(parts: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """What `make` gives, from an earlier run if there was one with the same parts: all that the result depends on, the
    compiler's version too. Of several processes that ask at once, one makes it. What raises an error is made again in
    the next run."""
    path = FOLDER / digest(*parts)[:32]
    if (found := _read(path)) is not None:
        return found
    FOLDER.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _read(path)) is not None:
            return found
        made = make()
        _forget()
        # Another process may read it meanwhile.
        beside = path.with_name(f"{path.name}-{os.getpid()}")
        beside.write_bytes(made)
        beside.rename(path)
    return made


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """A folder that all workers of a run share: the first that asks fills it, and the others wait for that."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    is_filled = folder.with_suffix(".filled")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_filled.exists():
            if folder.exists():  # whoever filled it failed
                shutil.rmtree(folder)
            folder.mkdir()
            fill(folder)
            is_filled.touch()
    return folder


def _read(path: Path) -> bytes | None:
    try:
        found = path.read_bytes()
        path.touch()
    except FileNotFoundError:
        return None
    return found


def _forget() -> None:
    """Removes what no run has used for a month."""
    for path in FOLDER.iterdir():
        try:
            if path.stat().st_mtime < time.time() - _SECONDS:
                path.unlink()
        except FileNotFoundError:
            continue  # another process removed or renamed it
