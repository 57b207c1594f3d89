"""Copies a package to the user's folder, and refuses names and folders that cannot hold it."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.packages import check_package_name
from rnncc.machine.cache import KEEP_SECONDS, digest
from rnncc.machine.files import unwritable
from rnncc.runtime import manifest


def check_stem(stem: str, directory: Path | None = None) -> None:
    """Refuse a package name that cannot be imported, or that would hide another module. Raises RnnccError (RNN604).

    A package of that name in `directory` itself is no obstacle: it is what will be replaced.
    """
    rename = "choose another name with --name"
    check_package_name(stem)
    if stem in sys.stdlib_module_names or stem in sys.builtin_module_names:
        raise RnnccError(Diagnostic("RNN604", f"'{stem}' is the name of a module of Python", help=rename))
    try:
        found = importlib.util.find_spec(stem)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        return
    origin = Path(found.origin).resolve().parent
    if directory is not None and origin == Path(os.path.realpath(directory / stem)):
        return
    # A package that rnncc built elsewhere may be built again here.
    if (origin / manifest.NAME).is_file():
        return
    raise RnnccError(
        Diagnostic("RNN604", f"'{stem}' would hide the installed module of that name, {found.origin}", help=rename)
    )


@contextmanager
def prepared(directory: Path, stem: str) -> Iterator[None]:
    """Around the work that makes a package for `directory`: makes that folder before, and tries it. Where the work
    fails, folders that were made and hold nothing are removed again.

    Raises RnnccError as `install`."""
    target = directory / stem
    _check_replaced(target)
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tried = _beside(directory, stem)
        tried.mkdir()
        tried.rmdir()
    except OSError as error:
        _remove_empty(missing)
        raise unwritable(target, error) from None
    try:
        yield
    except BaseException:  # also an interrupt
        _remove_empty(missing)
        raise


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, the innermost first, up to one in which another process has put something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _own(stem: str) -> str:
    """How the names of unfinished copies begin."""
    return f".rnncc-{digest(stem)[:8]}"


def _beside(directory: Path, stem: str) -> Path:
    """An unfinished copy of this thread's."""
    return directory / f"{_own(stem)}-{os.getpid()}-{threading.get_ident()}"


def install(package: Path, directory: Path) -> Path:
    """Copy a finished package to `directory`/<its name>, and return that folder. The copy is made beside it and then
    renamed, in place of an older package. Many processes may do this at once; the last one's package stays.

    Raises RnnccError: RNN603 where something that rnncc did not make stands there, RNN605 where writing fails.
    """
    target = directory / package.name
    _check_replaced(target)
    beside = _beside(directory, package.name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_left(directory, _own(package.name))
        try:
            _copy(package, beside / "new")
            _exchange(beside / "new", target, beside / "old")
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise unwritable(target, error) from None
    return target


def _check_replaced(target: Path) -> None:
    """Refuse to replace what rnncc did not make, also single files of the user's in a package. Raises RnnccError
    (RNN603)."""
    while True:
        seen = _identity(target)
        # Another process may put its package there meanwhile. Then half of each was looked at.
        with suppress(FileNotFoundError):
            fault = _not_ours(target)
            if fault is None:
                return
            if _identity(target) == seen:
                raise RnnccError(fault)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _not_ours(target: Path) -> Diagnostic | None:
    help = "choose another folder with -o, or another name with --name"
    if not target.exists():
        return None
    if not (target / manifest.NAME).is_file():
        return Diagnostic("RNN603", f"'{target}' exists and was not made by rnncc", help=help)
    try:
        made = manifest.read(target).get("files")
    except manifest.DamagedError:
        made = None
    if not isinstance(made, dict):  # damaged, or of a version that listed no files
        return None
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target)
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder and "__pycache__" not in name.parts and name.as_posix() not in {*made, manifest.NAME}:
            message = f"'{target}' holds '{name}', which rnncc did not make and would delete"
            return Diagnostic("RNN603", message, help=f"move it elsewhere, or {help}")
    return None


def _copy(package: Path, target: Path) -> None:
    """Copy a package's files, and write them to the disk. Unlike in the cache, the umask decides who can read them."""
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        if path.is_file() and "__pycache__" not in name.parts:
            copied = target / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
            with copied.open("rb") as file:
                os.fsync(file.fileno())


def _exchange(new: Path, target: Path, old: Path) -> None:
    """Rename `target` to `old`, and then `new` to `target`. Where the second rename fails, undo the first one."""
    try:
        while True:
            with suppress(FileNotFoundError):
                target.rename(old)
            try:
                new.rename(target)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            shutil.rmtree(old, ignore_errors=True)  # another process was faster
    except BaseException:  # also an interrupt
        if not target.exists():
            with suppress(OSError):  # there was none
                old.rename(target)
        raise


def _remove_left(directory: Path, own: str) -> None:
    """Remove unfinished copies that killed processes left. They are older than KEEP_SECONDS, which is longer than a
    copy takes."""
    for path in directory.glob(f"{own}-*"):
        name = re.fullmatch(r"\d+-\d+", path.name.removeprefix(f"{own}-"))
        with suppress(FileNotFoundError):  # another process removed it
            if name and abs(time.time() - path.lstat().st_mtime) > KEEP_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
