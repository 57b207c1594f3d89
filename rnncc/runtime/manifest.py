"""What a package says of itself, `_rnncc.json`, and whether its files are still those that were written.

The sums are CRC-32 with the size. They are there to find damage, and every processor computes them at some gigabytes a
second. A cryptographic hash would tell no more: who can change a file can also change its sum. Imports no torch.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "_rnncc.json"
_BLOCK = 1 << 18  # stays in a processor's cache


class DamagedError(ValueError):
    """A file is missing, or is not what was written."""


def checksum(path: Path, size: int | None = None) -> str:
    """The sum of a file, `size-crc`. With `size`, a file of another size is not read.

    Raises DamagedError for what is no file or not of that size, OSError where it cannot be read.
    """
    crc = length = 0
    block = memoryview(bytearray(_BLOCK))
    # Without O_NONBLOCK, a pipe in place of the file would be waited for.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or size not in (None, found.st_size):
            raise DamagedError(f"'{path.name}' is not what was written")
        while count := file.readinto(block):
            crc, length = zlib.crc32(block[:count], crc), length + count
    return f"{length}-{crc:08x}"


def compare(path: Path, wanted: str) -> None:
    """Raise DamagedError where the sum of a file is not `wanted`, or the file cannot be read."""
    try:
        found = checksum(path, int(wanted.partition("-")[0]))
    except OSError as error:
        raise DamagedError(f"'{path.name}' cannot be read: {(error.strerror or str(error)).lower()}") from None
    if found != wanted:
        raise DamagedError(f"'{path.name}' is not what was written")


def seal(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what a package says of itself. It holds `about`, the sum of every file in the folder, and a sum of all
    that. It is written last: a package without it is not finished."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    whole = {**about, "files": {name: checksum(folder / name) for name in names}}
    text = json.dumps({**whole, "sum": _own_sum(whole)}, indent=2, sort_keys=True)
    (folder / NAME).write_text(f"{text}\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """What the package in a folder says of itself. Raises DamagedError where that cannot be read."""
    try:
        about = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"'{NAME}' cannot be read: {error}") from None
    if not isinstance(about, dict):
        raise DamagedError(f"'{NAME}' is not what was written")
    return about


def read_sealed(folder: Path) -> dict[str, Any]:
    """The same, compared with its own sum. Its `files` are the sums of the package's files by their paths."""
    about = read(folder)
    own = about.pop("sum", None)
    if own != _own_sum(about):
        raise DamagedError(f"'{NAME}' is not what was written")
    return about


def _own_sum(about: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"
