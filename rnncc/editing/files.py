"""Puts another text in the place of a file's: all of it or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError


def read_regular(path: Path) -> bytes:
    """The bytes of a file that can be replaced. Raises RnnccError (RNN101) for what cannot be read, or is no file."""
    try:
        if path.exists() and not path.is_file():
            help = "" if path.is_dir() else "`rnncc format -` reads standard input"
            raise RnnccError(Diagnostic("RNN101", f"'{path}' is not a file", help=help))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RnnccError(Diagnostic("RNN101", f"'{path}' cannot be read: {reason.lower()}")) from error


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file anew. Whoever reads it finds the old bytes or the new ones, also where this process is killed. The
    file keeps its mode and owner; what is a symbolic link stays one.

    Raises:
        RnnccError: RNN605 where it cannot be written. Then it is as it was.
    """
    try:
        target = path.resolve(strict=True)
        if not os.access(target, os.W_OK):
            raise PermissionError(13, "Permission denied")
        _replace(target, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RnnccError(Diagnostic("RNN605", f"'{path}' cannot be written: {reason}")) from error


def _replace(target: Path, data: bytes) -> None:
    before = target.stat()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Who may not give a file away owns the new one, as after `sed -i`.
        with suppress(PermissionError):
            os.chown(beside, before.st_uid, before.st_gid)
        shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
