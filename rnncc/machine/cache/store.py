"""Puts packages, objects and logs into the cache, and takes them out. It checks what it takes out by the checksums that
were stored with it."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine.cache import locks, sweep
from rnncc.machine.cache.limit import limit_bytes
from rnncc.machine.cache.names import entries, key_of
from rnncc.machine.cache.root import check_owner, is_cache, make_folder, unusable
from rnncc.progress import Progress
from rnncc.runtime import manifest

_MOST_LOGS = 50


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache folder. Keys are 32 hex digits. Every method raises RnnccError: RNN610 where the folder is no cache
    that this user may use, RNN605 where it cannot be read or written."""

    root: Path

    def check(self) -> None:
        """Raise RnnccError where the folder cannot be the cache."""
        is_cache(self.root)

    def package(self, key: str) -> Path | None:
        """The finished package of that key, or None where there is none or a damaged one. Marks it as used."""
        return self._find(key)[0]

    def take_object(self, key: str, target: Path, progress: Progress | None = None) -> bool:
        """Copy the shared object of that key to `target`. Returns whether there was one. A damaged one is removed and
        reported."""
        is_cache(self.root)
        for path, found in entries(self.root, "objects"):
            wanted = path.stem[33:]  # KEY-SUM.o
            if key_of(path) != key or path.suffix != ".o" or not wanted:
                continue
            check_owner(self.root, path, found)
            try:
                shutil.copyfile(path, target)
                manifest.compare(target, wanted, key)
                _touch(path)
                return True
            except FileNotFoundError:
                continue  # another process dropped it
            except manifest.DamagedError:
                if progress is not None:
                    progress(f"a shared object in the cache is damaged ({path}): compiling it again")
                with suppress(FileNotFoundError):
                    path.unlink()
        return False

    def publish_object(self, key: str, path: Path) -> None:
        """Keep a copy of a shared object. Its name holds a checksum of key and content, so one rename makes both
        visible, and under another key's name it is no object."""
        folder = make_folder(self.root, "objects")
        beside = folder / f"{key}-{os.getpid()}-{threading.get_ident()}.tmp"
        try:
            shutil.copyfile(path, beside)
            _close_to_others(beside)
            beside.rename(folder / f"{key}-{manifest.checksum(beside, key=key)}.o")
        except OSError as error:
            raise unusable(self.root, error) from None
        finally:
            with suppress(OSError):
                beside.unlink()

    def keep_log(self, name: str, text: str) -> Path:
        """Keep the output of a failed build as `name`.log; `name` ends in 12 hex digits. Deletes the oldest logs."""
        folder = make_folder(self.root, "logs")
        for path in sweep.oldest_first(self.root, "logs")[: 1 - _MOST_LOGS]:
            with suppress(OSError):
                path.unlink()
        log = folder / f"{name}.log"
        try:
            log.unlink(missing_ok=True)  # it may be a link
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # Names of files may be bytes that are no UTF-8.
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        except OSError as error:
            raise unusable(self.root, error) from None
        return log

    @contextmanager
    def lock(self, key: str, progress: Progress | None = None) -> Iterator[None]:
        """Hold the OS lock of that key. After a second of waiting, reports who holds it."""
        path = make_folder(self.root, "locks") / f"{key}.lock"
        try:
            held = locks.take(path, progress)
        except OSError as error:
            raise unusable(self.root, error) from None
        try:
            yield
        finally:
            locks.release(held, path)

    def build(self, key: str, stem: str, make: Callable[[Path], None], progress: Progress | None = None) -> Path:
        """Return the folder of the package of that key. Where it is missing or damaged, `make` fills and seals the
        folder that it is given; one process does that, however many ask. Raises also RNN607 for a wrong limit, and
        RNN712 where a damaged package cannot be made again."""
        limit = limit_bytes()  # a wrong setting is an error before the work, and also where there is no work
        found, damage = self._find(key)
        if found is not None:
            return found
        try:
            with self.lock(key, progress):
                found, damage = self._find(key)
                if found is not None:
                    return found
                if damage and progress is not None:
                    progress(f"the package {stem} in the cache is damaged ({damage}): building it again")
                made = self._make(key, stem, make)
        except RnnccError as error:
            if damage and error.diagnostics[0].code == "RNN605":
                message = f"the package {stem} in the cache '{self.root}' is damaged: {damage}"
                raise RnnccError(Diagnostic("RNN712", message), *error.diagnostics) from None
            raise
        sweep.trim(self.root, limit)
        return made

    def trim(self) -> None:
        """Delete what was used longest ago until the cache is within its limit, and what killed processes left."""
        limit = limit_bytes()
        if is_cache(self.root):
            sweep.trim(self.root, limit)

    def usage(self) -> tuple[int, int]:
        """The number of packages, and the size of the whole folder in bytes."""
        return sweep.usage(self.root) if is_cache(self.root) else (0, 0)

    def _find(self, key: str) -> tuple[Path | None, str]:
        """The package of that key and ""; or None and what is damaged, "" where there is no package."""
        if not is_cache(self.root):
            return None, ""
        folder = self.root / "packages" / key
        try:
            inside = sorted(folder.iterdir())
            for package in inside[:1]:
                self._verify(folder, package)
                _touch(folder)
                return package, ""
        except FileNotFoundError:
            return None, ""
        except NotADirectoryError:
            return None, f"'{key}' is no folder"
        except manifest.DamagedError as error:
            return None, str(error)
        except OSError as error:
            raise unusable(self.root, error, "read") from None
        return None, "it is empty"

    def _verify(self, folder: Path, package: Path) -> None:
        """Raise DamagedError where a file of the package is not what was written, or the package is that of another
        key; RnnccError where another user may have written it."""
        self._own(folder, stat.S_ISDIR)
        self._own(package, stat.S_ISDIR)
        self._own(package / manifest.NAME, stat.S_ISREG)
        about = manifest.read_sealed(package)
        if (about.get("fingerprint"), about.get("stem")) != (folder.name, package.name):
            raise manifest.DamagedError(f"'{package.name}' is the package of another key")
        for name, wanted in about["files"].items():
            path = f"{package}/{name}"  # some hundred: a Path of each would take longer than its file
            self._own(path, stat.S_ISREG)
            manifest.compare(path, wanted)

    def _own(self, path: str | Path, is_right: Callable[[int], bool]) -> None:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            raise manifest.DamagedError(f"'{Path(path).name}' is missing") from None
        if not is_right(found.st_mode):
            raise manifest.DamagedError(f"'{Path(path).name}' is not what was written")
        check_owner(self.root, path, found)

    def _make(self, key: str, stem: str, make: Callable[[Path], None]) -> Path:
        """Make the package, while its lock is held."""
        tmp, packages = make_folder(self.root, "tmp"), make_folder(self.root, "packages")
        for path, _ in entries(self.root, "tmp"):
            if key_of(path) == key:
                shutil.rmtree(path, ignore_errors=True)
        work = tmp / f"{key}-{os.getpid()}"
        target = work / stem
        try:
            work.mkdir(mode=0o700)
            target.mkdir(mode=0o700)
            make(target)
            alone = work / "finished-package"
            alone.mkdir(mode=0o700)
            target.rename(alone / stem)
            _close_to_others(alone)
            sweep.drop(self.root, packages / key)  # one that is damaged
            alone.rename(packages / key)
        except OSError as error:
            # The error may be about a file that `make` reads, such as one that the installation lacks.
            named = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str)]
            if named and not any(path.is_relative_to(self.root) for path in named):
                raise
            raise unusable(self.root, error) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return packages / key / stem


def _touch(path: Path) -> None:
    # A read-only cache still works, but cannot note what was used last.
    with suppress(OSError):
        os.utime(path)


def _close_to_others(path: Path) -> None:
    """Remove other users' right to write to a file, or to a folder and all in it, whatever the umask and the compiler
    did. Call it before the rename that makes the file or folder visible. Nothing waits for the disk: what a power
    failure cuts short no longer has its checksum, and is made again."""
    inside = sorted(path.rglob("*")) if path.is_dir() else []
    for entry in (*inside, path):
        entry.chmod(0o700 if entry.is_dir() else entry.stat().st_mode & 0o755)
