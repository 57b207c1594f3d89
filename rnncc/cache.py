"""The cache of built packages: content-addressed, safe under many processes, bounded, and readable by eye.

    <root>/packages/<key>/<stem>/   a finished package, or GPU kernels alone that a package in use asked for; the folder
                                    appears whole, by a rename, or not at all
    <root>/objects/<key>.o          objects that every package shares
    <root>/tmp/<key>-<pid>/         a build under way, or what a killed one left: the next builder clears it
    <root>/locks/<key>.lock         an OS lock while a build runs: it ends with the process that holds it
    <root>/logs/<name>.log          the compiler's output of builds that failed, the latest of them

The root is $RNNCC_CACHE_DIR, else $XDG_CACHE_HOME/rnncc, else ~/.cache/rnncc.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rnncc.diagnostics import Diagnostic, RnnccError

# Bytes of finished packages and objects that are kept; RNNCC_CACHE_LIMIT overrides. The least recently used go first.
DEFAULT_LIMIT_BYTES = 1 << 30
# Nothing used within this time is dropped: another process may be importing it.
KEEP_SECONDS = 3600.0
_MOST_LOGS = 50
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

Progress = Callable[[str], None]


def default_root() -> Path:
    """Where the cache is."""
    named = os.environ.get("RNNCC_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rnncc"


def digest(*parts: bytes | str) -> str:
    """A hash of the parts: 64 hex digits. Each part's length counts, so that parts cannot run together."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


def limit_bytes() -> int:
    """The limit of the cache: `RNNCC_CACHE_LIMIT`, bytes as `500000000`, `500MB` (thousands) or `500MiB` (1024s).

    Raises RnnccError (RNN607) where that cannot be read.
    """
    text = os.environ.get("RNNCC_CACHE_LIMIT", "").strip()
    if not text:
        return DEFAULT_LIMIT_BYTES
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text, re.IGNORECASE | re.ASCII)
    if found is None or (found[3] and not found[2]):
        help = "write bytes, or a number with a unit: RNNCC_CACHE_LIMIT=2GB"
        raise RnnccError(Diagnostic("RNN607", f"RNNCC_CACHE_LIMIT is '{text}', which is no size", help=help))
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _UNITS[found[2].lower()])


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache folder. Every method raises RnnccError (RNN605) where the folder cannot be written."""

    root: Path

    def package(self, key: str) -> Path | None:
        """The finished package of that key, or None. Marks it as used."""
        folder = self.root / "packages" / key
        try:
            found = [entry for entry in folder.iterdir() if (entry / "_rnncc.json").is_file()]
        except OSError:
            return None
        if not found:
            return None
        _touch(folder)
        return found[0]

    def object(self, key: str) -> Path | None:
        """The shared object of that key, or None. Marks it as used."""
        path = self.root / "objects" / f"{key}.o"
        if not path.is_file():
            return None
        _touch(path)
        return path

    def log(self, name: str) -> Path:
        """Where a failing build keeps its output. The oldest logs go."""
        folder = self._folder("logs")
        for _, path in sorted(_by_age(folder))[: 1 - _MOST_LOGS]:
            with suppress(OSError):
                path.unlink()
        return folder / f"{name}.log"

    @contextmanager
    def lock(self, name: str, progress: Progress | None = None) -> Iterator[None]:
        """Hold the OS lock of that name. After five seconds of waiting, says for whom."""
        path = self._folder("locks") / f"{name}.lock"
        while True:
            try:
                handle = path.open("a+")
            except OSError as error:
                raise _unwritable(self.root, error) from None
            with handle:
                _wait(handle.fileno(), path, progress)
                # Who held it may have removed the file: a lock on that is nobody's.
                if not _is_at(handle.fileno(), path):
                    continue
                handle.seek(0)
                handle.truncate()
                handle.write(str(os.getpid()))
                handle.flush()
                try:
                    yield
                finally:
                    # Removed while held, so that nobody else can hold it; the next one makes it anew.
                    with suppress(OSError):
                        path.unlink()
                return

    def build(self, key: str, stem: str, make: Callable[[Path], None], progress: Progress | None = None) -> Path:
        """The package of that key, made once however many processes ask: `make` fills the folder it is given."""
        limit_bytes()  # what cannot be read is said before the work, also where there is none
        found = self.package(key)
        if found is not None:
            return found
        with self.lock(key, progress):
            found = self.package(key)
            if found is not None:
                return found
            for left in self._folder("tmp").glob(f"{key}-*"):
                shutil.rmtree(left, ignore_errors=True)
            work = self._folder("tmp") / f"{key}-{os.getpid()}"
            target = work / stem
            try:
                target.mkdir(parents=True)
                make(target)
                finished = self._folder("packages") / key
                # What a crash of an older version may have left without its description.
                shutil.rmtree(finished, ignore_errors=True)
                alone = work / "finished"
                alone.mkdir()
                target.rename(alone / stem)
                _sync(alone)
                alone.rename(finished)
            except OSError as error:
                # Of what `make` reads, as an installation that lacks files.
                if isinstance(error.filename, str) and not Path(error.filename).is_relative_to(self.root):
                    raise
                raise _unwritable(self.root, error) from None
            finally:
                shutil.rmtree(work, ignore_errors=True)
        self.trim()
        return finished / stem

    def publish_object(self, key: str, path: Path) -> None:
        """Keep a copy of a shared object."""
        target = self._folder("objects") / f"{key}.o"
        beside = target.with_name(f"{key}-{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            shutil.copyfile(path, beside)
            beside.rename(target)
        except OSError as error:
            raise _unwritable(self.root, error) from None

    def usage(self) -> tuple[int, int]:
        """How many packages are here, and the bytes of everything. Other processes may build and drop meanwhile."""
        return sum(_is_package(folder) for _, folder in _by_age(self.root / "packages")), _bytes(self.root)

    def trim(self) -> None:
        """Drop what was used longest ago until the cache is within its limit, and what killed processes left."""
        limit = limit_bytes()
        self._sweep()
        entries: list[tuple[float, int, Path]] = []
        for kind in ("packages", "objects"):
            for path in (self.root / kind).glob("*"):
                try:
                    entries.append((path.stat().st_mtime, _bytes(path), path))
                except OSError:
                    continue  # another process dropped it
        total = sum(size for _, size, _ in entries)
        for used, size, path in sorted(entries):
            if total <= limit or time.time() - used < KEEP_SECONDS:
                break
            if path.is_dir():
                # Away at once: who looks now finds the whole package or none, also where this process is killed.
                dropped = self._folder("tmp") / f"{path.name}-dropped-{os.getpid()}-{threading.get_ident()}"
                with suppress(OSError):
                    path.rename(dropped)
                    shutil.rmtree(dropped, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()
            total -= size

    def _sweep(self) -> None:
        """Remove what killed processes left: unfinished builds and copies, and locks."""
        for _, path in _by_age(self.root / "tmp"):
            # The builder of a key holds its lock; what was dropped from the cache, anybody may remove.
            with self._unlocked(path.name.partition("-")[0]) as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)
        now = time.time()
        for used, path in _by_age(self.root / "objects"):
            if path.suffix == ".tmp" and now - used > KEEP_SECONDS:
                with suppress(OSError):
                    path.unlink()
        for used, path in _by_age(self.root / "locks"):
            if now - used > KEEP_SECONDS:
                with self._unlocked(path.stem):
                    pass

    @contextmanager
    def _unlocked(self, name: str) -> Iterator[bool]:
        """Holds the lock of that name, if nobody does: whether it is held now."""
        path = self.root / "locks" / f"{name}.lock"
        try:
            handle = path.open("a+")
        except OSError:
            yield False
            return
        with handle:
            free = _try(handle.fileno()) and _is_at(handle.fileno(), path)
            try:
                yield free
            finally:
                if free:
                    with suppress(OSError):
                        path.unlink()

    def _folder(self, kind: str) -> Path:
        folder = self.root / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.root, error) from None
        return folder


def _unwritable(root: Path, error: OSError) -> RnnccError:
    reason = (error.strerror or str(error)).lower()
    return RnnccError(
        Diagnostic(
            "RNN605",
            f"the cache '{root}' cannot be written: {reason}",
            help="set RNNCC_CACHE_DIR to a folder that can",
        )
    )


def _wait(descriptor: int, path: Path, progress: Progress | None) -> None:
    started, told = time.monotonic(), False
    while True:
        if _try(descriptor):
            return
        if progress is not None and not told and time.monotonic() - started > 5:
            told = True
            holder = ""
            with suppress(OSError):  # just removed: the lock is free
                holder = path.read_text()
            progress(f"waiting for process {holder or '?'}, which builds the same package")
        time.sleep(0.02)


def _try(descriptor: int) -> bool:
    """Take the OS lock of an open file, if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one that stands at the path now."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _by_age(folder: Path) -> list[tuple[float, Path]]:
    """What lies in a folder, with the time of its last change. Nothing where there is no such folder."""
    found = []
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    for path in paths:
        with suppress(OSError):  # another process removed it
            found.append((path.stat().st_mtime, path))
    return found


def _is_package(folder: Path) -> bool:
    """Whether a folder of finished ones holds a package, and not GPU kernels alone: by its description."""
    try:
        return any("cells" in json.loads((entry / "_rnncc.json").read_bytes()) for entry in folder.iterdir())
    except (OSError, ValueError, TypeError):  # another process dropped it, or it is damaged
        return False


def _touch(path: Path) -> None:
    # A read-only cache still serves; it only forgets what was used last.
    with suppress(OSError):
        os.utime(path)


def _bytes(path: Path) -> int:
    """What a file, or a folder with all in it, takes; nothing where there is neither."""
    if path.is_file():
        return path.stat().st_size
    size = 0
    for folder, _, names in os.walk(path):  # unlike rglob, passes over a folder that goes meanwhile
        for name in names:
            with suppress(FileNotFoundError):  # another process removed it
                size += Path(folder, name).stat().st_size
    return size


def _sync(folder: Path) -> None:
    """Bring every file to the disk before the rename makes them visible."""
    for entry in sorted(folder.rglob("*")):
        if entry.is_file():
            descriptor = os.open(entry, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
