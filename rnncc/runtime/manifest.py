"""The manifest of a package, `_rnncc.json`: what the package holds, and the checksums of its files.

A checksum is a file's size and CRC-32. It finds damage, at some gigabytes per second. A cryptographic hash would find
no more: whoever can change a file can also change its checksum. This module imports no torch."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "_rnncc.json"
_BLOCK = 1 << 18  # bytes read at once, which fit in a processor's cache


class DamagedError(ValueError):
    """A file is missing, or is not what was written."""


def checksum(path: str | Path, size: int | None = None, key: str = "") -> str:
    """The checksum of a file, `size-crc`: the size in bytes, and 8 hex digits. With `size`, a file of another size is
    not read. With `key`, the same content under another key has another checksum.

    Raises DamagedError where the path is no regular file or has another size, OSError where it cannot be read.
    """
    crc, length = zlib.crc32(key.encode()), 0
    # Without O_NONBLOCK, a pipe in place of the file would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or size not in (None, found.st_size):
            raise DamagedError(f"'{Path(path).name}' is not what was written")
        while block := os.read(descriptor, min(found.st_size + 1, _BLOCK)):
            crc, length = zlib.crc32(block, crc), length + len(block)
    finally:
        os.close(descriptor)
    return f"{length}-{crc:08x}"


def compare(path: str | Path, wanted: str, key: str = "") -> None:
    """Raise DamagedError where the checksum of a file (with that key) is not `wanted`, or the file cannot be read."""
    try:
        found = checksum(path, int(wanted.partition("-")[0]), key)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DamagedError(f"'{Path(path).name}' cannot be read: {reason}") from None
    if found != wanted:
        raise DamagedError(f"'{Path(path).name}' is not what was written")


def seal(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest: `about`, the checksum of every file in the folder, and a checksum of both. Write it last: a
    package without a manifest is not finished."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    whole = {**about, "files": {name: checksum(folder / name) for name in names}}
    text = json.dumps({**whole, "sum": _own_sum(whole)}, indent=2, sort_keys=True)
    (folder / NAME).write_text(f"{text}\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """Read the manifest of the package in a folder. Raises DamagedError where it cannot be read."""
    try:
        about = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"'{NAME}' cannot be read: {error}") from None
    if not isinstance(about, dict):
        raise DamagedError(f"'{NAME}' is not what was written")
    return about


def read_sealed(folder: Path) -> dict[str, Any]:
    """As `read`, and compare the manifest with its own checksum. `files` maps the package's paths to their checksums.
    Raises DamagedError also where they differ."""
    about = read(folder)
    own = about.pop("sum", None)
    if own != _own_sum(about):
        raise DamagedError(f"'{NAME}' is not what was written")
    return about


def _own_sum(about: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"
