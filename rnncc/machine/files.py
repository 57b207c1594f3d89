"""Files of the user's that commands write: all of a file or nothing of it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """The path of an empty file beside `path`, which takes its place at the end. Whoever reads `path` finds the old
    bytes or the new ones, also where this process is killed, or where two write at once. A file that was there gives
    its mode and owner to the new one; what is a symbolic link stays one.

    Raises:
        RnnccError: RNN605 where it cannot be written. After this and every other error, `path` is as it was, and
            nothing is left beside it.
    """
    try:
        target, beside, before = _begun(path)
        try:
            yield beside
            _to_disk(beside)
            if before is not None:
                # Who may not give a file away owns the new one, as after `sed -i`.
                with suppress(PermissionError):
                    os.chown(beside, before.st_uid, before.st_gid)
                shutil.copymode(target, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def check_writable(path: Path) -> None:
    """Before long work: raises RnnccError (RNN605) where `replaced` could not begin now. Nothing is left."""
    try:
        _begun(path)[1].unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def _begun(path: Path) -> tuple[Path, Path, os.stat_result | None]:
    """The file that is meant, an empty one beside it, and what is known of the one that is there."""
    target = followed(path)
    before = target.stat() if target.exists() else None
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    beside = target.with_name(f".rnncc-{secrets.token_hex(8)}")
    # Nobody else reads what may be private until it has the old mode. A new file has that of the umask.
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if before is None else 0o600))
    return target, beside, before


def followed(path: Path) -> Path:
    """Where a path leads through symbolic links. Raises OSError where they lead in a circle, of which `Path.resolve`
    makes a RuntimeError before Python 3.13."""
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def unwritable(path: Path, error: OSError) -> RnnccError:
    """The error (RNN605) for a file or folder of the user's that cannot be written."""
    reason = (error.strerror or str(error)).lower()
    return RnnccError(Diagnostic("RNN605", f"'{path}' cannot be written: {reason}"))


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
