"""Objects of the units that are the same for every cell. A wheel of rnncc brings them compiled; else they are compiled
once and kept in the cache.

The wheel has them in `rnncc/_data/objects`, as `<key>-<sum>.o`, and code for GPUs as `<key>-<sum>.cubin`. A key stands
for a unit's text, the headers that it includes and the flags. An object's key names no compiler: what g++ and clang
make of units can be linked, since units call each other by C's rules. The key of code for GPUs also stands for CUDA's
major release, and the key of an object in the cache for the compiler. `<sum>` is a checksum of key and content, so that
a damaged object is never linked.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rnncc.ir.artifact import Bundle, DeviceUnit, Unit
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine.cache import digest
from rnncc.machine.paths import objects_dir
from rnncc.progress import Progress
from rnncc.runtime import manifest
from rnncc.stages.build import commands, toolchain
from rnncc.stages.build.manylinux import platform_tag
from rnncc.stages.build.nvrtc import FLAGS, Nvrtc
from rnncc.stages.build.toolchain import Toolchain

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# The compiler that made the wheel's objects, for people who look into one.
MADE_BY = "compiler.txt"


def key_of(unit: Unit | DeviceUnit, bundle: Bundle, made_by: Sequence[str]) -> str:
    """What the object of a shared unit depends on, hashed. `made_by`: the flags, and what else compiles it."""
    texts = {file.path: file.text for file in bundle.files}
    read = sorted(included(unit.path, texts, bundle.include))
    return digest(*(part for file in read for part in file), *made_by)[:32]


def kept_key(unit: Unit, bundle: Bundle, compiler: Toolchain) -> str:
    """The key of the object of a shared unit in the cache."""
    made_by = (" ".join(toolchain.unit_flags(unit, compiler)), *compiler.command, compiler.version)
    return key_of(unit, bundle, made_by)


def included(path: str, texts: Mapping[str, str], folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A file, and all that it includes in quotes, whatever macros are set: paths with their texts, each once. What it
    includes is looked for beside it and in the folders. Raises KeyError for what is not there."""
    found, left = set[str](), [path]
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        yield name, texts[name]
        for include in _INCLUDE.findall(texts[name]):
            places = [os.path.normpath(folder / include) for folder in (Path(name).parent, *map(Path, folders))]
            left.append(next((place for place in places if place in texts), include))


def take(unit: Unit, bundle: Bundle, compiler: Toolchain, target: Path, progress: Progress | None) -> bool:
    """Copy the wheel's object of a shared unit to `target`. Returns whether there is one. A compiler of
    several words, which has options or a launcher such as ccache, makes all objects itself."""
    return len(compiler.command) == 1 and _copy(_object_key(unit, bundle), target, progress)


def take_code(
    unit: DeviceUnit, architecture: str, bundle: Bundle, nvrtc: Nvrtc, target: Path, progress: Progress | None
) -> bool:  # fmt: skip
    """The same of a unit of GPU kernels, for an architecture. The wheel's is not taken where the user gives NVRTC
    options, or where NVRTC is of another major release: the driver may be too old for what the wheel's made."""
    return not nvrtc.extra_options() and _copy(_code_key(unit, architecture, bundle, nvrtc), target, progress)


def _copy(key: str, target: Path, progress: Progress | None) -> bool:
    for path in objects_dir().glob(f"{key}-*"):
        try:
            manifest.compare(path, path.stem[len(key) + 1 :], key)
        except ValueError:  # DamagedError, or a name without a number
            if progress is not None:
                progress(f"an object that came with rnncc is damaged ({path}): compiling it anew")
            continue
        shutil.copyfile(path, target)
        return True
    return False


def _object_key(unit: Unit, bundle: Bundle) -> str:
    return key_of(unit, bundle, (*toolchain.gnu_flags(unit), toolchain.MACHINE))


def _code_key(unit: DeviceUnit, architecture: str, bundle: Bundle, nvrtc: Nvrtc) -> str:
    return key_of(unit, bundle, (*FLAGS, architecture, nvrtc.release))


def make(bundles: Iterable[Bundle], folder: Path, compiler: Toolchain) -> str:
    """Compile the shared units of bundles into `folder`, as a wheel has them. Returns the wheel's platform tag. Raises
    RnnccError (RNN602) where the compiler failed."""
    made: dict[str, commands.Command] = {}
    with _placed(bundles, folder) as (work, placed):
        for place, bundle in placed.items():
            for unit in (unit for unit in bundle.units if unit.shared):
                key = _object_key(unit, bundle)
                if key not in made:
                    made[key] = commands.Command(f"{key}.o", tuple(_arguments(unit, bundle, place, compiler, key)))
        # Objects for several processors have functions of the same names. The library is linked for the versions of
        # others' symbols, which objects do not have.
        objects = [command.output for command in made.values()]
        options = ("-shared", "-Wl,--allow-multiple-definition", *objects, "-o", "libobjects.so")
        link = commands.Command("libobjects.so", (*compiler.command, *options))
        _compile(made, link, work, folder)
        (folder / MADE_BY).write_text(f"{compiler.version}\n", encoding="utf-8")
        return platform_tag(work / link.output)


def make_code(bundles: Iterable[Bundle], folder: Path, nvrtc: Nvrtc) -> None:
    """The same of the shared units for GPUs, for each of NVRTC's architectures."""
    made: dict[str, commands.Command] = {}
    with _placed(bundles, folder) as (work, placed):
        (work / "cuda").mkdir()
        for place, bundle in placed.items():
            include = tuple(f"{place}/{path}" for path in bundle.include)
            for unit in (unit for unit in bundle.device_units if unit.shared):
                own = replace(unit, path=f"{place}/{unit.path}")
                for architecture in nvrtc.architectures:
                    key = _code_key(unit, architecture, bundle, nvrtc)
                    made[key] = nvrtc.command(own, architecture, include)
        _compile(made, None, work, folder)


@contextmanager
def _placed(bundles: Iterable[Bundle], folder: Path) -> Iterator[tuple[Path, dict[str, Bundle]]]:
    """A temporary folder in `folder`, and the bundles by the names of folders in it that have their files."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name, "work")  # what runs the compilers has a folder beside it
        placed = {str(number): bundle for number, bundle in enumerate(bundles)}
        for place, bundle in placed.items():
            for file in bundle.files:
                path = work / place / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file.text, encoding="utf-8")
        yield work, placed


def _compile(made: Mapping[str, commands.Command], link: commands.Command | None, work: Path, folder: Path) -> None:
    outcome = commands.run(list(made.values()), link, work)
    if not outcome.succeeded:
        raise RnnccError(Diagnostic("RNN602", f"the compiler failed: {outcome.error or 'it printed nothing'}"))
    for key, command in made.items():
        path = work / command.output
        path.rename(folder / f"{key}-{manifest.checksum(path, key=key)}{path.suffix}")


def _arguments(unit: Unit, bundle: Bundle, place: str, compiler: Toolchain, key: str) -> Iterator[str]:
    yield from (*compiler.command, *toolchain.unit_flags(unit, compiler))
    yield from (f"-I{place}/{path}" for path in bundle.include)
    yield from ("-c", f"{place}/{unit.path}", "-o", f"{key}.o")
