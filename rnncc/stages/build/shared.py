"""Some units are the same for every package. Their objects are kept in the cache. Those that it lacks are compiled in
threads while the earlier stages still work on the cell."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

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
        return digest(texts[unit.path], headers, flags, "\n".join(compiler.command), compiler.version)[:32]

    return {unit.path: key(unit) for unit in bundle.units if unit.shared}


def compile_arguments(compiler: Toolchain, flags: Sequence[str], bundle: Bundle, source: str, output: str) -> list[str]:
    """The command that compiles a unit. Paths are relative, so that the object does not depend on where it lies."""
    include = (f"-I{path}" for path in bundle.include)
    return [*compiler.command, *flags, *include, "-c", source, "-o", output]


class Ahead:
    """The objects that `compiled_ahead` makes, by their keys in the cache."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Future[Outcome], Path]] = {}

    def add(self, key: str, running: Future[Outcome], path: Path) -> None:
        """`running` writes the object to `path`."""
        self._made[key] = running, path

    def has_begun(self, key: str) -> bool:
        """Whether the object is being compiled, or was. One that has not begun is left to the caller."""
        return key in self._made and not self._made[key][0].cancel()

    def take(self, key: str, target: Path) -> bool:
        """Wait for an object that has begun, and move it to `target`. Returns whether it was compiled."""
        running, path = self._made[key]
        if running.exception() is not None or not running.result().succeeded or elf.fault(path):
            return False  # the caller compiles it again, and tells what happens then
        shutil.move(path, target)
        return True


@contextmanager
def compiled_ahead(bundle: Bundle, compiler: Toolchain, cache: Cache, folder: Path) -> Iterator[Ahead]:
    """Compile those shared units of a bundle that the cache lacks, in a folder of their own, on all processors but the
    one where Python works. At the end what still runs is stopped."""
    keys = object_keys(bundle, compiler)
    missing = [unit for unit in bundle.units if unit.shared and not cache.has_object(keys[unit.path])]
    if missing:
        write(bundle.files, folder)
    ahead = Ahead()
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1)) as pool, Programs() as programs:
        try:
            for unit in missing:
                output = f"{Path(unit.path).stem}.o"
                flags = toolchain.unit_flags(unit, compiler)
                words = shlex.join(compile_arguments(compiler, flags, bundle, unit.path, output))
                # Into a file: what a launcher leaves running would keep a pipe open.
                shell = ("sh", "-c", f"exec {words} > {shlex.quote(output)}.log 2>&1")
                ahead.add(keys[unit.path], pool.submit(programs.run, shell, folder), folder / output)
            yield ahead
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
