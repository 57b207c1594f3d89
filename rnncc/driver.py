"""Requests become packages in the cache, and modules: what compiles, and what is said meanwhile."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnncc.extras import check_torch
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.ir.target import has_clusters
from rnncc.language.diagnostics import RnnccError
from rnncc.language.packages import package_name
from rnncc.language.read import from_text, read_request
from rnncc.language.source import file_name
from rnncc.language.types import with_types
from rnncc.machine.built import about, explanation, without_kernels
from rnncc.machine.forks import unforked
from rnncc.machine.garbage import uncollected
from rnncc.machine.targets import architectures, known_gpus, own_instructions
from rnncc.on_demand import as_compiled, keep
from rnncc.pipeline import compile_cells, run_stages
from rnncc.progress import Progress, check_settings, debug, say
from rnncc.runtime.arguments.arguments import held, read_flag
from rnncc.version import VERSION

if TYPE_CHECKING:
    from types import ModuleType

    from rnncc.machine.cache import Cache
    from rnncc.stages.build import Nvrtc, Product, Toolchain


def build_package(request: Request, out: Path, target: str = "auto", progress: Progress | None = None) -> Path:
    """Build the cells of a text into the folder `out/<name>`, and return that folder. `target`: what `--target` takes;
    the request's own architectures do not count.

    Raises:
        RnnccError: mistakes in the text; RNN601 without a compiler, RNN602 where it failed, RNN603 to RNN605 where
            the folder cannot be written, RNN606 for an unknown target, RNN608 for a GPU without NVRTC, RNN610 for a
            folder that is no cache of the user's.
    """
    from rnncc.stages.build import check_stem, find_nvrtc, find_toolchain, install, prepared

    nvrtc = find_nvrtc(architectures(target), required="auto" not in target.split(","))
    wanted = _for_gpus(request, nvrtc, target)
    path = request.source.name
    if progress is not None and request.problems and (others := _without_plans(wanted, target)):
        progress(f"fused kernels need NVRTC and a GPU whose sizes are known: none for {others}")
    if progress is not None and request.newton and (older := _without_clusters(wanted, target)):
        progress(f"--parallel-newton is for GPUs of compute capability 9.0 or more: of no use for {older}")
    check_stem(request.name, out)
    toolchain = find_toolchain()
    with prepared(out, request.name):
        package = _build(wanted, toolchain, nvrtc, progress)
    if progress is not None:
        for gpu in as_compiled(wanted, nvrtc).gpus:
            for problem in without_kernels(package, request.problems, gpu.architecture):
                progress(f"no fused kernel for this size: {explanation(path, gpu.name, problem)} says why")
        if request.newton and wanted.has_clusters and not about(package)["newton"]:
            progress(f"--parallel-newton changes nothing: {path} has no loop that it is for")
    return install(package, out)


@uncollected()
def load_module(request: Request, cpu_files: tuple[str, ...] = ("f32",)) -> ModuleType:
    """The module of a request's cells, for this machine's processor and GPUs. It is built now, or found in the cache.
    `cpu_files`: the files of CPU kernels that are built now. Others are built when a call first needs them.

    Raises:
        RnnccError: as for `rnncc.load`.
    """
    from rnncc.stages.build import find_nvrtc, find_toolchain

    check_torch(f"loading {request.name}")
    check_settings()
    toolchain: Toolchain | None = None
    try:
        toolchain = find_toolchain()
    except RnnccError as error:
        (found,) = error.diagnostics
        advice = f"; {found.help}" if found.help else ""
        slow = f"{request.name} runs its eager fallback, which is many times slower"
        say(f"{found.code}: {found.message}: {slow}{advice}")
    nvrtc = find_nvrtc(architectures("auto"), required=False) if toolchain is not None else None
    # Code for other processors would take three times as long to compile. Kernels of the CPU for lengths and resets or
    # for float64, and all of GPUs, are compiled when a call first needs them. So the package is built without NVRTC,
    # which only decides whether it may ask for kernels of a GPU.
    instructions = own_instructions() if toolchain is not None else ""
    own = replace(request, instructions=instructions, cpu_files=cpu_files)
    wanted = _for_gpus(own, nvrtc, "auto")
    package = _build(wanted, toolchain, None, say, meanwhile=_prepare_load)
    if wanted.newton and wanted.has_clusters and not about(package)["newton"]:
        say(f"parallel_newton changes nothing: {request.name} has no loop that it is for")
    with unforked():
        from rnncc.stages.load import load

    # A folder's name is nobody else's business, and what is generated does not depend on it.
    source = request.source.text, file_name(request.source)
    return load(package, origin=(unpickle, (*source, request.name, request.options())))


def load_file(name_or_path: str | os.PathLike[str], options: Mapping[str, Any]) -> ModuleType:
    """The module of a file's cells. `options`: those of a program (`Request.options`)."""
    request = read_request(name_or_path)
    return load_module(Request.of(request.source, request.name, _plain(options)))


def load_text(text: str, name: str, options: Mapping[str, Any]) -> ModuleType:
    """The same of a text."""
    return load_module(Request.of(from_text(f"<{name}>", text), package_name(name), _plain(options)))


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with Python's own numbers and flags: a caller may have them from NumPy. Raises TypeError."""
    constants = {name: held(name, value) for name, value in options.get("constants", {}).items()}
    return {**options, "constants": constants, "newton": read_flag("parallel_newton", options.get("newton", False))}


def load_with_types(
    text: str, name: str, options: Mapping[str, Any], cell: str, types: Mapping[str, str]
) -> ModuleType:
    """The same of a text in which groups of one cell have other types. A package in use calls it
    (rnncc/runtime/package.py). Raises ValueError where a group has a type that says more than `matrix`."""
    declared = compile_cells(Request(from_text(f"<{name}>", text), name), "parse").cells
    (own,) = (each.declaration for each in declared if each.name == cell)
    return load_text(with_types(own, types), name, options)


def unpickle(text: str, file: str, name: str, options: Mapping[str, Any], member: str) -> Any:
    """A class or functional op of a text's package by its name, or the package's module (""): how these are pickled,
    and how layers name their class. `file` names the text in messages. A file of unknown origin may have written all of
    this: `Request` checks it before anything is built, and only the cells of the text come out.

    Raises:
        RnnccError, TypeError, ValueError: for what no layer was pickled as.
    """
    from rnncc.stages.load import allow, member_of

    found = member_of(load_module(request_of(text, file, name, options)), member)
    allow(found)
    return found


def request_of(text: str, file: str, name: str, options: Mapping[str, Any]) -> Request:
    """The request for a text's package, as its module was pickled. Raises RnnccError, TypeError, ValueError."""
    return Request.of(from_text(file, text), name, options)


def _for_gpus(request: Request, nvrtc: Nvrtc | None, target: str) -> Request:
    """The request, for the GPUs of a target."""
    if nvrtc is None:
        return replace(request, architectures=(), gpus=())
    return replace(request, architectures=nvrtc.architectures, gpus=known_gpus(target))


def _without_plans(request: Request, target: str) -> str:
    """The part of a target whose GPUs' sizes are not known, as a message names it; empty where all are known."""
    if not request.gpus:
        return f"--target {target}"
    planned = {gpu.architecture for gpu in request.gpus}
    return ", ".join(name for name in request.architectures if name not in planned)


def _without_clusters(request: Request, target: str) -> str:
    """The part of a target that has no clusters, as a message names it; empty where each GPU has them."""
    if not request.has_clusters:
        return f"--target {target}"
    return ", ".join(name for name in request.architectures if not has_clusters(name))


def _prepare_load(folder: Path) -> None:
    """Import what loads packages, and with it torch, which takes a second or two; and compile the modules of the one
    that is being made in a folder."""
    with suppress(Exception), unforked():  # `load_module` meets it again
        importlib.import_module("rnncc.stages.load").prepare(folder)


def _build(
    request: Request, toolchain: Toolchain | None, nvrtc: Nvrtc | None, progress: Progress | None,
    meanwhile: Callable[[Path], None] | None = None,
) -> Path:  # fmt: skip
    """The folder of the package, found in the cache or made now. `meanwhile`: of Job."""
    from rnncc.machine.cache import Cache, default_root
    from rnncc.stages.build import Job, build, first_key

    key = first_key(request, nvrtc, toolchain)
    compilers = [" ".join(toolchain.command)] if toolchain is not None else []
    compilers += [f"NVRTC for {', '.join(nvrtc.architectures)}"] if nvrtc is not None else []
    debug(f"{request.name}: compilers are {', '.join(compilers) or 'missing'}")
    cache = Cache(default_root())
    job = Job(key, request.name, cache, toolchain, nvrtc, progress, meanwhile)
    folder = build(job, lambda: make_product(as_compiled(request, nvrtc), progress, cache))
    debug(f"{request.name}: the package is {folder}")
    return folder


def make_product(request: Request, progress: Progress | None = None, cache: Cache | None = None) -> Product:
    """A package before its kernels are compiled. Where it has none, it runs the eager fallback. `cache`: keeps its
    cells, for kernels that are compiled later."""
    from rnncc.stages.build import Product

    begin = time.perf_counter()
    for stage, made in run_stages(request):
        debug(f"{request.name}: {stage} took {1e3 * (time.perf_counter() - begin):.0f} ms")
        begin = time.perf_counter()
        if stage == "partition" and progress is not None and request.has_kernels:
            _warn_of_cost(made.cells, progress)
        if stage == "lower" and cache is not None:
            keep(made.cells, request, cache)
    plans = [cell.plan for cell in made.cells]
    about = {
        "rnncc": VERSION,
        "source": request.source.text,
        "options": request.options(),
        "architectures": list(request.architectures),
    }
    if request.is_for_gpus:
        from rnncc.stages.schedule.kernels import by_head_loops, newton_loops, scan_family_names, why_unfused

        about |= {"fused": why_unfused(plans), "scans": scan_family_names(plans), "by_head": by_head_loops(plans)}
        about |= {"newton": newton_loops(plans)} if request.newton and request.has_clusters else {}
    names = tuple(cell.name for cell in made.cells)
    if not request.has_kernels:
        return Product(made.files, None, names, "no C++ compiler was found when it was built", about)
    return Product(made.files, made.bundle, names, about=about)


def _warn_of_cost(cells: Sequence[CompiledCell], progress: Progress) -> None:
    """Says which cells take minutes to compile, before they do. `rnncc check` has the others."""
    for cell in cells:
        for warning in cell.warnings:
            if warning.code == "RNN264":
                progress(f"{warning.code}: {cell.name}: {warning.message}")
