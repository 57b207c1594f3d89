"""The names that the cache gives to its files and folders. It deletes nothing with another name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_KEY = "[0-9a-f]{32}"
# kind -> the names in its folder, and whether they are folders.
_KINDS = {
    "packages": (re.compile(_KEY), True),
    "objects": (re.compile(rf"{_KEY}-\d+-[0-9a-f]{{8}}\.o|{_KEY}-\d+-\d+\.tmp"), False),
    "tmp": (re.compile(rf"{_KEY}-\d+|{_KEY}-dropped-\d+-\d+"), True),
    "locks": (re.compile(rf"{_KEY}\.lock"), False),
    "logs": (re.compile(r"\w+-[0-9a-f]{12}\.log"), False),
}
KINDS = tuple(_KINDS)


def key_of(path: Path) -> str:
    """The key that a name begins with."""
    return path.name[:32]


def entries(root: Path, kind: str) -> Iterator[tuple[Path, os.stat_result]]:
    """The entries with names of the cache in one of its folders, each with its status; links are not followed. Yields
    nothing where the folder is missing. Other processes may make and remove entries meanwhile."""
    for path, found in _all(root / kind):
        if _is_own(kind, path, found):
            yield path, found


def _is_own(kind: str, path: Path, found: os.stat_result) -> bool:
    pattern, is_folder = _KINDS[kind]
    right = stat.S_ISDIR if is_folder else stat.S_ISREG
    return pattern.fullmatch(path.name) is not None and right(found.st_mode)


def _all(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every entry of a folder, with its status. Yields nothing where the folder is a link, a file, or missing."""
    if folder.is_symlink():
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # another process removed it
                yield path, path.lstat()
