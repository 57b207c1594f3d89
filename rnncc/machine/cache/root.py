"""Which folder is the cache, and whether rnncc may use it: rnncc made it, and only the user and root can write there.

A cache has a marker file, `CACHEDIR.TAG` (bford.info/cachedir), which also makes backup programs skip it. A folder
without the marker becomes a cache where it is empty or missing. Every other folder is refused before anything in it is
written or deleted. Packages are code that runs: a folder that others can write, or that belongs to another user than
this process's or root, is refused as well.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
import threading
from contextlib import suppress
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine.cache.names import KINDS

MARKER = "CACHEDIR.TAG"
_LAYOUT = "1"
_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# rnncc keeps built packages in this folder and drops old ones. Nothing else belongs here.\n"
    f"# rnncc cache {_LAYOUT}\n"
)
# The root of a new file system holds this folder, and counts as empty.
_OF_FILE_SYSTEMS = "lost+found"


def default_root() -> Path:
    """Where the cache is: $RNNCC_CACHE_DIR, else $XDG_CACHE_HOME/rnncc, else ~/.cache/rnncc. Links are resolved.

    Raises RnnccError (RNN605) where there is no home folder.
    """
    named = os.environ.get("RNNCC_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A base that is not absolute is to be ignored (XDG Base Directory Specification).
    path = Path(named) if named else (base if base.is_absolute() else Path("~/.cache")) / "rnncc"
    try:
        return Path(os.path.realpath(path.expanduser()))
    except RuntimeError:
        message = f"there is no home folder for the cache '{path}'"
        help = "set RNNCC_CACHE_DIR to a folder that can be written"
        raise RnnccError(Diagnostic("RNN605", message, help=help)) from None


def is_cache(root: Path) -> bool:
    """Whether the folder is a cache already: it has the marker. False where it is missing or empty, and can become a
    cache.

    Raises RnnccError: RNN610 for every other folder, RNN605 where it cannot be read.
    """
    try:
        found = root.stat()
        if not stat.S_ISDIR(found.st_mode):  # the advice for a folder's rights may be dangerous, as for /dev/null
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        check_owner(root, root, found)
        if _is_marked(root):
            return _check_folders(root)
        names = sorted(entry.name for entry in root.iterdir() if not _is_passed_over(entry.name))
        if not names:
            return False
        # Another process may have made it a cache since the first look.
        if _is_marked(root):
            return _check_folders(root)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unusable(root, error, "read") from None
    shown = names[0] + (f"' and {len(names) - 1} more" if len(names) > 1 else "'")
    raise _refused(
        f"'{root}' is not a cache that rnncc made: it holds '{shown}",
        f"nothing in it was changed; set RNNCC_CACHE_DIR to a folder for the cache alone, as '{root / 'rnncc'}'",
    )


def make_folder(root: Path, kind: str) -> Path:
    """Return the cache's folder of that kind. Where it is missing, make it for the user alone, whatever the umask.

    Raises RnnccError: RNN610, RNN605 where it cannot be made.
    """
    folder = root / kind
    try:
        if not is_cache(root):
            for parent in reversed(root.parents):
                if not parent.exists():
                    parent.mkdir(mode=0o755, exist_ok=True)  # ~/.cache, which a umask could open to everybody
            with suppress(FileExistsError):
                root.mkdir(mode=0o700)
                root.chmod(0o700)
            _mark(root)
        try:
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)  # a umask may have taken the owner's rights
        except FileExistsError:
            _check_folder(root, folder)
    except OSError as error:
        raise unusable(root, error) from None
    return folder


def check_owner(root: Path, path: str | Path, found: os.stat_result) -> None:
    """Raise RnnccError (RNN610) where anybody but the user and root can have written a file or folder of the cache.
    `found` is its status. Access control lists are not checked."""
    own = os.geteuid()
    if found.st_uid not in (own, 0):
        raise _refused(
            f"'{path}' belongs to {_user(found.st_uid)}, and this process runs as {_user(own)}: what is in it would "
            "run with the rights of another user",
            f"set RNNCC_CACHE_DIR to a folder of {_user(own)}'s, or make it the owner: chown -R {own} '{root}'",
        )
    others = ""
    if found.st_mode & stat.S_IWOTH:
        others = "every user"
    elif found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, own):
        others = f"the group {_group(found.st_gid)}"
    if others:
        raise _refused(
            f"'{path}' can be written by {others}: what is in it could be another user's code",
            f"if nobody else wrote there, chmod -R go-w '{root}'; else set RNNCC_CACHE_DIR to another folder, which "
            f"may be a new one in this, as '{root / 'rnncc'}'",
        )


def unusable(root: Path, error: OSError, verb: str = "written") -> RnnccError:
    """The error (RNN605) for a cache that cannot be read or written."""
    reason = (error.strerror or str(error)).lower()
    help = f"set RNNCC_CACHE_DIR to a folder that can{' be read' if verb == 'read' else ''}"
    if error.errno == errno.ELOOP and isinstance(error.filename, str):
        reason = f"'{error.filename}' is a link"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        help = f"free some space there, or {help}"
    return RnnccError(Diagnostic("RNN605", f"the cache '{root}' cannot be {verb}: {reason}", help=help))


def _refused(message: str, help: str) -> RnnccError:
    return RnnccError(Diagnostic("RNN610", message, help=help))


def _is_marked(root: Path) -> bool:
    """Whether the folder has the marker. Raises RnnccError (RNN610) where the marker names another layout."""
    path = root / MARKER
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(4096)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a socket: not rnncc's
            return False
        raise
    layout = re.search(rb"^# rnncc cache (\d+)$", text, re.MULTILINE)
    if layout is not None and layout[1] != _LAYOUT.encode():
        raise _refused(
            f"'{root}' is a cache of another version of rnncc, of layout {layout[1].decode()}",
            "set RNNCC_CACHE_DIR to another folder, or remove this one",
        )
    return text == _TEXT.encode()


def _mark(root: Path) -> None:
    """Write the marker. A rename makes the whole file visible at once."""
    beside = root / f"{MARKER}-{os.getpid()}-{threading.get_ident()}"
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(_TEXT.encode())
            file.flush()
            os.fsync(file.fileno())
        beside.rename(root / MARKER)
    finally:
        beside.unlink(missing_ok=True)


def is_unfinished_marker(name: str) -> bool:
    """Whether a file of that name in the root is a marker that a process writes, or that a killed one left."""
    return re.fullmatch(rf"{MARKER}-\d+-\d+", name) is not None


def _is_passed_over(name: str) -> bool:
    return name == _OF_FILE_SYSTEMS or is_unfinished_marker(name)


def _check_folders(root: Path) -> bool:
    for kind in KINDS:
        with suppress(FileNotFoundError):
            _check_folder(root, root / kind)
    return True


def _check_folder(root: Path, folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise _refused(
            f"'{folder}' is {what}, where the cache has a folder of its own",
            f"remove it, or set RNNCC_CACHE_DIR to another folder; '{root}' itself may be a link",
        )
    check_owner(root, folder, found)


def _is_private(group: int, user: int) -> bool:
    """Whether a group is the user's own, without other members. Many systems have such a group for each user, and a
    umask of 002, by which the group can write."""
    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return owner.pw_gid == group and members.gr_name == owner.pw_name and set(members.gr_mem) <= {owner.pw_name}


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return f"{grp.getgrgid(number).gr_name} ({number})"
    except KeyError:
        return str(number)
