"""Units that are the same for every package: their objects are kept in the cache, and compiled while the stages before
still work on the cell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from rnncc.ir.artifact import Bundle, File, Unit
from rnncc.machine.cache import Cache, digest
from rnncc.stages.build import elf, toolchain
from rnncc.stages.build.processes import Outcome, Programs
from rnncc.stages.build.toolchain import Toolchain


def write(files: Sequence[File], folder: Path) -> None:
    """Write files to a folder."""
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def object_keys(bundle: Bundle, compiler: Toolchain) -> dict[str, str]:
    """The key of each shared unit's object in the cache, by the unit's path."""
    # Shared units may read the headers of the include folders. A cell's own header lies beside its units.
    fixed = [file for file in bundle.files if file.path.startswith(tuple(f"{path}/" for path in bundle.include))]
    headers = digest(*(part for file in fixed for part in (file.path, file.text)))
    texts = {file.path: file.text for file in bundle.files}

    def key(unit: Unit) -> str:
        flags = " ".join(toolchain.unit_flags(unit, compiler))
        return digest(texts[unit.path], headers, flags, compiler.version)[:32]

    return {unit.path: key(unit) for unit in bundle.units if unit.shared}


def compile_arguments(compiler: Toolchain, flags: Sequence[str], bundle: Bundle, source: str, output: str) -> list[str]:
    """The command that compiles a unit. Paths are relative, so that the object does not depend on where it lies."""
    include = (f"-I{path}" for path in bundle.include)
    return [*compiler.command, *flags, *include, "-c", source, "-o", output]


class Ahead:
    """Compiles those shared units of a bundle that the cache lacks, in threads, in a folder of its own. It is a context
    manager: at its exit it stops what still runs. What fails here is left to whoever needs the object."""

    def __init__(self, bundle: Bundle, compiler: Toolchain, cache: Cache, folder: Path) -> None:
        self._folder, self._made = folder, {}
        self._programs, self._pool = Programs(), ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        keys = object_keys(bundle, compiler)
        missing = [unit for unit in bundle.units if unit.shared and not cache.has_object(keys[unit.path])]
        if missing:
            write(bundle.files, folder)
        for unit in sorted(missing, key=lambda unit: unit.isa == "generic"):  # what chooses among others is short
            output = f"{Path(unit.path).stem}.o"
            flags = toolchain.unit_flags(unit, compiler)
            arguments = compile_arguments(compiler, flags, bundle, unit.path, output)
            self._made[keys[unit.path]] = (self._pool.submit(self._programs.run, arguments, folder), folder / output)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._programs.__exit__(kind, error, traceback)
        self._pool.shutdown()

    def makes(self, key: str) -> bool:
        """Whether the object of that key is being compiled here, or was."""
        return key in self._made

    def take(self, key: str, target: Path) -> bool:
        """Wait for an object and move it to `target`. Returns whether it was compiled."""
        running, path = self._made[key]
        if not running.result().succeeded or elf.fault(path):
            return False
        shutil.move(path, target)
        return True

    _made: dict[str, tuple[Future[Outcome], Path]]
