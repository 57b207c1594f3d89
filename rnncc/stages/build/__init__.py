"""`build` makes a package in the cache from a Bundle and the package's own files; `install` copies it to the user's
folder. `build_kernels` compiles kernels alone, for a package that is loaded already.

Input: a Product of the stages before, the compilers. Output: the folder of a finished package.
Fails with RnnccError: RNN601 (no compiler; from `find_toolchain`), RNN602 (compilation failed), RNN605 (cache cannot be
written, disk full), RNN607 (a setting that cannot be read), RNN608 (no NVRTC; from `find_nvrtc`), RNN610 (the
folder is no cache of the user's), and from `install` RNN603, RNN604, RNN605.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from pathlib import Path

from rnncc.ir.artifact import Bundle, File, Unit
from rnncc.ir.request import Request
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.packages import check_package_name
from rnncc.machine.cache import Cache, digest
from rnncc.machine.forks import unforked
from rnncc.machine.paths import license_file, templates_dir
from rnncc.progress import Progress
from rnncc.runtime import manifest
from rnncc.stages.build import commands, shared, toolchain
from rnncc.stages.build.install import check_stem, install, prepared
from rnncc.stages.build.nvrtc import INSTALL, Nvrtc, find_nvrtc
from rnncc.stages.build.nvrtc_worker import UNUSABLE
from rnncc.stages.build.processes import Outcome
from rnncc.stages.build.toolchain import Toolchain, find_toolchain, library_name

# With fewer free bytes than this, a disk counts as full. Linkers do not always say that it is.
_FULL_BYTES = 1 << 16
# The same where nothing says why a program failed. It removed what it had begun, and its messages, which go to the same
# disk, did not fit there either.
_FULL_BYTES_IN_SILENCE = 1 << 25
_SILENCE = re.compile(r"$|.*(returned \d+ exit status|exit code \d+)")
# Where an error is, as g++, clang and NVRTC write it; and the comment with the line that a statement was made of.
_PLACE = re.compile(r"(?P<path>[^:(]+)[:(](?P<line>\d+)")
_MADE_OF = re.compile(r"// (\S+\.rnn:\d+)$")
_PACKAGE = Path(__file__).resolve().parents[2]

__all__ = [
    "Job",
    "Nvrtc",
    "Product",
    "Toolchain",
    "build",
    "build_kernels",
    "check_stem",
    "find_nvrtc",
    "find_toolchain",
    "first_key",
    "install",
    "library_name",
    "own_code",
    "prepared",
]


@dataclass(frozen=True, slots=True)
class Product:
    """A package before it is compiled.

    files    the package's own files, which `render` makes
    bundle   the kernels, or None for a package that runs the eager fallback alone
    cells    names of the cells, in order
    missing  why there is no bundle, or empty
    about    further entries of `_rnncc.json`: `rnncc` (the version), `source` (the text), `options` (those of its
             request, which say which program of the text it is), `fused` (for each loop, why it has no fused form, or
             empty), `scans` (for each loop without products, which kernels run it), `newton` (the loops that also have
             kernels which iterate), `architectures` (of the GPUs for which kernels are compiled at first use)
    """

    files: tuple[File, ...]
    bundle: Bundle | None
    cells: tuple[str, ...]
    missing: str = ""
    about: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A folder of the cache that is to be made, and with what.

    key        what its content depends on, hashed
    stem       its name
    compiler   compiles CPU kernels, or None for a package that runs the eager fallback alone
    nvrtc      compiles GPU kernels, or None for a package without
    progress   hears what goes on
    meanwhile  is called with the folder while the compilers run

    Raises RnnccError (RNN604) for a name that no package can have.
    """

    key: str
    stem: str
    cache: Cache
    compiler: Toolchain | None = None
    nvrtc: Nvrtc | None = None
    progress: Progress | None = None
    meanwhile: Callable[[Path], None] | None = None

    def __post_init__(self) -> None:
        # It becomes a path, a macro and a namespace.
        check_package_name(self.stem)


def first_key(request: Request, nvrtc: Nvrtc | None, compiler: Toolchain | None, part: str = "") -> str:
    """What a package depends on, hashed, before anything of it is made: equal keys mean equal packages. `part` names
    kernels of it that are compiled alone.

    rnncc stands in the key by the bytes of its own code and templates, which the version alone would not tell apart
    during development. Costs some milliseconds and imports nothing.
    """
    compiled_by = "\n".join((*compiler.command, compiler.version)) if compiler is not None else "no compiler"
    # Python writes no integer of more than some thousand digits; `check` refuses it later.
    constants = {
        name: hex(value) if isinstance(value, int) and abs(value) >> 64 else value
        for name, value in request.constants.items()
    }
    wanted = {
        "constants": constants,
        "zoneout": request.zoneout,
        "recurrent_dropout": request.recurrent_dropout,
        "problems": [astuple(problem) for problem in request.problems],
        # GPUs of one architecture get other fused kernels, and the same of all others.
        "gpus": [astuple(gpu) for gpu in request.gpus] if request.problems else [],
        "cell": request.cell,
        "programs": request.programs,
        "newton": request.newton and request.has_clusters,
        "architectures": request.architectures,
        "instructions": request.instructions,
        "cpu_files": request.cpu_files,
    }
    knobs = json.dumps(wanted, sort_keys=True, default=str)
    target = nvrtc.key() if nvrtc is not None else "cpu"
    source = request.source.text.encode()
    flags = toolchain.flags_text()
    return digest(source, request.name, part, target, knobs, flags, compiled_by, own_code())[:32]


def oldest_torch() -> str:
    """The oldest torch that has the C interface which the binding calls: `2.10`. The header that declares the functions
    has its version as torch's functions take it, a byte for each number."""
    text = (templates_dir() / "include" / "rnncc" / "torch" / "shim.h").read_text(encoding="utf-8")
    found = re.search(r"rnncc_torch_abi = 0x(\w\w)(\w\w)", text)
    assert found is not None
    return ".".join(str(int(number, 16)) for number in found.groups())


@cache
def own_code() -> str:
    """A hash of rnncc's own code and templates, as they are when a process first asks."""
    return digest(*(part for path, data in _own_files() for part in (path, data)))


def _own_files() -> list[tuple[str, bytes]]:
    carried = _PACKAGE / "_data" / "templates"
    templates = carried if carried.is_dir() else _PACKAGE.parent / "templates"
    found = []
    for root in (_PACKAGE, templates):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".lark", ".json", ".j2", ".h", ".cuh", ".cpp") and path.is_file():
                found.append((path.relative_to(root).as_posix(), path.read_bytes()))
    return found


def build(job: Job, produce: Callable[[], Product]) -> Path:
    """Return the folder of a package in the cache. Where the cache has none, `produce` runs, once, and its product is
    compiled. Without a compiler the package runs the eager fallback alone."""

    def make(folder: Path) -> None:
        commands.most_jobs()  # a wrong setting is an error before the work
        with unforked():  # it imports the stages
            product = produce()
        bundle, namespace = product.bundle, _namespace(product, job.stem)
        if job.progress is not None and bundle is not None:
            targets = " for " + ", ".join(job.nvrtc.architectures) if job.nvrtc is not None else ""
            job.progress(f"compiling {job.stem} ({', '.join(product.cells)}){targets}")
        _write(product.files + (bundle.files if bundle is not None else ()), folder)
        _write_runtime(folder)
        compiler = job.compiler if bundle is not None else None
        if bundle is not None and compiler is not None:
            _compile(job, bundle, compiler, folder, namespace)
        # This comes last: a package without a manifest is not finished.
        _describe(job, product, compiler, namespace, folder)

    return job.cache.build(job.key, job.stem, make, job.progress)


def build_kernels(job: Job, what: str, produce: Callable[[], Bundle]) -> Path:
    """Return a folder in the cache that holds kernels and nothing else: those of GPUs, each in a file, or with a
    compiler those of the CPU, as a library. Where the cache has none, `produce` runs and its bundle is compiled. `what`
    names the kernels in the lines of progress."""
    say = job.progress or (lambda message: None)

    def make(folder: Path) -> None:
        commands.most_jobs()  # a wrong setting is an error before the work
        with unforked():
            bundle = produce()
        _write(bundle.files, folder)
        on_gpus = [command for _, command in _device_commands(job, bundle, folder)] if job.compiler is None else []
        if on_gpus or (bundle.units and job.compiler is not None):
            say(f"compiling {what}")
            begin = time.monotonic()
            if job.compiler is not None:
                _compile(job, bundle, job.compiler, folder)
            else:
                _run(job, on_gpus, None, folder)
            say(f"compiled {what} in {time.monotonic() - begin:.1f} s")
        manifest.seal(folder, {"stem": job.stem, "fingerprint": job.key})

    return job.cache.build(job.key, job.stem, make, job.progress)


def _run(job: Job, compiles: Sequence[commands.Command], link: commands.Command | None, folder: Path) -> None:
    if job.nvrtc is not None and job.progress is not None:
        for warning in job.nvrtc.warnings():
            job.progress(warning)
    outcome = commands.run(compiles, link, folder, job.progress, job.meanwhile)
    if not outcome.succeeded:
        raise _failed(job, outcome, folder)


def _write(files: Sequence[File], folder: Path) -> None:
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def _write_runtime(folder: Path) -> None:
    source, runtime = _PACKAGE / "runtime", folder / "_runtime"
    for path in sorted(source.rglob("*.py")):
        copy = runtime / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    shutil.copyfile(license_file(), runtime / "LICENSE")


def _namespace(product: Product, stem: str) -> str:
    """The namespace of the package's ops. Each content has its own."""
    made = product.bundle.files if product.bundle is not None else ()
    # Units take no part, since they differ by instruction set: a program that was exported with a package for one
    # processor runs with the package for all processors.
    units = {unit.path for unit in product.bundle.units} if product.bundle is not None else set()
    files = (*product.files, *(file for file in made if file.path not in units))
    return f"rnncc_{stem}_{digest(*(part for file in files for part in (file.path, file.text)))[:8]}"


def _describe(job: Job, product: Product, compiler: Toolchain | None, namespace: str, folder: Path) -> None:
    about = {
        "stem": job.stem,
        "cells": list(product.cells),
        "fingerprint": job.key,
        "namespace": namespace,
        "library": library_name(job.stem) if compiler is not None else None,
        "missing": product.missing if compiler is None else "",
        "compiler": compiler.version if compiler is not None else None,
        "torch_abi": oldest_torch(),
        "code": own_code(),
        "fused": {},
        "scans": {},
        "by_head": [],
        "newton": [],
        "source": "",
        "architectures": [],
        **product.about,
    }
    if job.nvrtc is not None:  # kernels are compiled now, maybe to PTX in place of an architecture that was asked for
        about["architectures"] = list(job.nvrtc.made())
    manifest.seal(folder, about)


def _compile(job: Job, bundle: Bundle, compiler: Toolchain, folder: Path, namespace: str = "") -> None:
    """Compile and link. With a `namespace` the library registers its ops there. Object files go to a folder beside the
    package. All paths in commands are relative to the package, so that the output does not depend on where it lies."""
    work = folder.parent / "object-files"
    work.mkdir()
    include = [f"-I{path}" for path in bundle.include]
    wanted: list[tuple[str, commands.Command]] = []  # with the keys of those whose output may be kept
    objects: list[str] = []
    binding = Unit("src/binding.cpp", "binding", False)
    for unit in (*bundle.units, binding) if namespace else bundle.units:
        output = f"../object-files/{Path(unit.path).stem}.o"
        objects.append(output)
        if unit.shared and shared.take(unit, bundle, compiler, folder / output, job.progress):
            continue
        flags = toolchain.unit_flags(unit, compiler)
        if unit == binding:
            flags = (*flags, f"-DRNNCC_SPACE={namespace}")
        arguments = (*compiler.command, *flags, *include, "-c", unit.path, "-o", output)
        key = shared.kept_key(unit, bundle, compiler) if unit.shared else ""
        wanted.append((key, commands.Command(output, arguments)))
    wanted += _device_commands(job, bundle, folder)
    stub, empty = "../object-files/libtorch.so", "../object-files/empty.cpp"
    (folder / empty).write_text("int rnncc_no_symbol_of_torch;\n", encoding="utf-8")
    stub_command = (*compiler.command, "-shared", "-fPIC", empty, "-Wl,-soname,libtorch.so", "-o", stub)
    wanted.append((digest(*stub_command, compiler.version)[:32], commands.Command(stub, stub_command)))
    missing = [
        (key, command)
        for key, command in wanted
        if not (key and job.cache.take_object(key, folder / command.output, job.progress))
    ]
    compiles = [command for _, command in missing]
    compiles.sort(key=_when)
    library = library_name(job.stem)
    link = commands.Command(
        library,
        (*compiler.command, *toolchain.LINK, *objects, "-Wl,--no-as-needed", stub, "-o", library),
    )
    _run(job, compiles, link, folder)
    for key, command in missing:
        if key:
            job.cache.publish_object(key, folder / command.output)


def _when(command: commands.Command) -> int:
    """When a command is to begin: the slow ones come first, so that none runs alone at the end."""
    if "_loops_cuda" in command.output:
        return 0
    return 1 if "_core" in command.output or command.output.startswith("cuda/") else 2


def _device_commands(job: Job, bundle: Bundle, folder: Path) -> Iterator[tuple[str, commands.Command]]:
    """What compiles the units of GPU kernels, for each architecture, but for what the wheel brings. Before each command
    stands the key of a shared unit's object."""
    if job.nvrtc is None or not bundle.device_units:
        return
    (folder / "cuda").mkdir(exist_ok=True)
    for unit in bundle.device_units:
        for architecture in job.nvrtc.made():
            if unit.architectures and architecture not in unit.architectures:
                continue
            command, key = job.nvrtc.command(unit, architecture, bundle.include), ""
            if unit.shared:
                target = folder / command.output
                if shared.take_code(unit, architecture, bundle, job.nvrtc, target, job.progress):
                    continue
                key = shared.key_of(unit, bundle, (replace(job.nvrtc, architectures=(architecture,)).key(),))
            yield key, command


def _failed(job: Job, outcome: Outcome, folder: Path) -> RnnccError:
    """The error for a failed compiler. A full disk comes first: it causes the compiler's other messages."""
    cache = job.cache
    free = shutil.disk_usage(cache.root).free
    least = _FULL_BYTES_IN_SILENCE if _SILENCE.match(outcome.error) else _FULL_BYTES
    full = outcome.full or (f"{free >> 10} KiB are free" if free < least else "")
    if full:
        temporary = tempfile.gettempdir()
        help = f"free some space, or set RNNCC_CACHE_DIR (now '{cache.root}') or TMPDIR ('{temporary}') to another disk"
        return RnnccError(
            Diagnostic("RNN605", f"no space is left on the disk to compile {job.stem}: {full}", help=help)
        )
    log = cache.keep_log(f"{job.stem[:100]}-{job.key[:12]}", outcome.text)
    message = (
        f"the compiler failed on {job.stem}: {outcome.error or 'it printed nothing'}{_origin(outcome.error, folder)}"
    )
    install = f"`{INSTALL}`; " * (UNUSABLE in outcome.error)
    return RnnccError(Diagnostic("RNN602", message, help=f"{install}everything it said is in {log}"))


def _origin(error: str, folder: Path) -> str:
    """The line of the cell that a compiler's error is about, in brackets: generated code names it in a comment."""
    place = _PLACE.match(error)
    try:
        lines = (folder / place["path"]).read_text(encoding="utf-8").splitlines() if place else []
    except (OSError, UnicodeDecodeError):
        return ""
    number = int(place["line"]) if place else 0
    made_of = _MADE_OF.search(lines[number - 1]) if 0 < number <= len(lines) else None
    return f" ({made_of[1]})" if made_of else ""
