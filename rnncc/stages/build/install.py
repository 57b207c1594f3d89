"""Where a package goes: which names and folders are refused, and the copy that appears whole."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path

from rnncc.cache import KEEP_SECONDS, Cache, digest
from rnncc.diagnostics import Diagnostic, RnnccError
from rnncc.paths import is_package_name

DESCRIPTION = "_rnncc.json"


def check_stem(stem: str, directory: Path | None = None) -> None:
    """Refuse a package name that cannot be imported, or that would hide another module. Raises RnnccError (RNN604).

    A package of that name in `directory` itself is no obstacle: it is what will be replaced.
    """
    rename = "choose another name with --name"
    if not is_package_name(stem):
        raise RnnccError(Diagnostic("RNN604", f"'{stem}' cannot be a package's name", help=rename))
    if stem in sys.stdlib_module_names or stem in sys.builtin_module_names:
        raise RnnccError(Diagnostic("RNN604", f"'{stem}' is the name of a module of Python", help=rename))
    try:
        found = importlib.util.find_spec(stem)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        return
    origin = Path(found.origin).resolve().parent
    if directory is not None and origin == (directory / stem).resolve():
        return
    # A package that rnncc built elsewhere may be built again here.
    if (origin / DESCRIPTION).is_file():
        return
    raise RnnccError(
        Diagnostic("RNN604", f"'{stem}' would hide the installed module of that name, {found.origin}", help=rename)
    )


def install(package: Path, directory: Path, cache: Cache) -> Path:
    """Copy a finished package to `directory`/<its name>: written beside it, then renamed over what was there.

    Raises RnnccError: RNN603 where something that rnncc did not make stands there, RNN605 where writing fails.
    """
    target = directory / package.name
    if target.exists() and not (target / DESCRIPTION).is_file():
        raise RnnccError(
            Diagnostic(
                "RNN603",
                f"'{target}' exists and was not made by rnncc",
                help="choose another folder with -o, or another name with --name",
            )
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with cache.lock(f"install-{digest(str(target.resolve()))[:16]}"):
            beside = directory / f".{package.name}-{os.getpid()}.new"
            old = directory / f".{package.name}-{os.getpid()}.old"
            for left in (*directory.glob(f".{package.name}-*.new"), *directory.glob(f".{package.name}-*.old")):
                # Of a process that was killed: an hour is longer than any copy takes, also through another cache.
                if time.time() - left.stat().st_mtime > KEEP_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
            try:
                shutil.copytree(package, beside, ignore=shutil.ignore_patterns("__pycache__"))
                if target.exists():
                    target.rename(old)
                try:
                    beside.rename(target)
                except OSError:
                    if old.exists():
                        old.rename(target)
                    raise
            finally:
                shutil.rmtree(beside, ignore_errors=True)
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RnnccError(Diagnostic("RNN605", f"'{target}' cannot be written: {reason}")) from None
    return target
