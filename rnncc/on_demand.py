"""The kernels that a package in use asks for when a call first needs them. rnncc/runtime/kernels/first_use.py calls
this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnncc.ir.artifact import OF_EVERY_PACKAGE
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS, compute_type_of
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.source import Source
from rnncc.machine.built import explanation
from rnncc.machine.cells import keep_cells, kept_cells
from rnncc.machine.garbage import uncollected
from rnncc.machine.paths import shipped_cell
from rnncc.machine.targets import gpu_at, own_instructions
from rnncc.pipeline import compile_cells, kernels_of, shared_kernels
from rnncc.progress import say
from rnncc.version import VERSION

if TYPE_CHECKING:
    from rnncc.ir.artifact import Bundle
    from rnncc.machine.cache import Cache
    from rnncc.stages.build import Nvrtc


# A package in use: its text, its name, and the code of the rnncc that built it, as its `_rnncc.json` has them.
Package = tuple[str, str, str]
# A GPU of this machine: the two numbers of its compute capability, and torch's number for it.
Numbers = tuple[int, int, int]


@uncollected()
def compile_file(package: Package, options: Mapping[str, Any], wanted: tuple[str, str], gpu: Numbers) -> Path:
    """A file of kernels that take every size, for a GPU: the folder that has it. Found in the cache, or compiled now.
    `options`: those of a program (`Request.options`). `wanted`: the cell and the file; a file that belongs to no cell
    names none, and is made of all. Raises RnnccError, as `compile_fused`."""
    from rnncc.machine.cache import Cache, default_root
    from rnncc.stages.build import Job, build_kernels, find_nvrtc, first_key

    cell, file = wanted
    request = _request(package, options)
    architecture = gpu_at(gpu[:2], gpu[2]).architecture
    nvrtc = find_nvrtc((architecture,), required=True)
    is_shared = file in OF_EVERY_PACKAGE
    if is_shared:  # it is compiled once for all packages
        name, cell = file.strip("_"), ""
        request = Request(Source(f"<{name}>", ""), name)
    # Device code has the tables of the CPU's kernels.
    request = replace(request, architectures=(architecture,), instructions=own_instructions(), cell=cell)

    def produce() -> Bundle:
        bundle = shared_kernels(request) if is_shared else _bundle(request, cache)
        return replace(bundle, device_units=tuple(unit for unit in bundle.device_units if unit.name == file))

    key, cache = first_key(request, nvrtc, None, file), Cache(default_root())
    job = Job(key, request.name, cache, nvrtc=nvrtc, progress=say)
    return build_kernels(job, f"{file} for {architecture}", produce) / "cuda"


@uncollected()
def compile_for_cpu(package: Package, options: Mapping[str, Any], wanted: tuple[str, str]) -> Path:
    """A file of CPU kernels: the library that has it. Found in the cache, or compiled now. `options`: as `_rnncc.json`
    has them. `wanted`: the instruction set, and which of CPU_FILES.

    Raises:
        RnnccError: RNN601 without a compiler, RNN602 where it failed, RNN605 for a cache that cannot be written,
            RNN607, RNN609 for a package of another rnncc, RNN610 for a folder that is no cache of the user's.
    """
    from rnncc.machine.cache import Cache, default_root
    from rnncc.stages.build import Job, build_kernels, find_toolchain, first_key, library_name

    instructions, file = wanted
    program = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    request = replace(_request(package, program), instructions=instructions, cpu_files=(file,))
    name, compiler = request.name, find_toolchain()

    def produce() -> Bundle:
        bundle = compile_cells(request).bundle
        return replace(bundle, units=tuple(unit for unit in bundle.units if unit.compute_type))

    key = first_key(request, None, compiler, "kernels")
    job = Job(key, name, Cache(default_root()), compiler, progress=say)
    return build_kernels(job, f"{name}{_about(file)}", produce) / library_name(name)


def _about(cpu_file: str) -> str:
    """What progress says of one of CPU_FILES."""
    compute_type = compute_type_of(cpu_file)
    masked = " for lengths and resets" * (cpu_file != compute_type)
    return f" in {compute_type.replace('f', 'float')}{masked}"


@uncollected()
def compile_fused(
    package: Package, options: Mapping[str, Any], wanted: tuple[str, str], gpu: Numbers, meanwhile: Callable[[], None]
) -> tuple[Path | None, str]:
    """Fused kernels of one cell, for a GPU: the folder with `fused.txt` and their code, or None and why there is none.
    Found in the cache, or compiled now. `options`: those of a program; `problems`, each (head_dim, heads, dtype), which
    differ in heads alone; and `directions`, the most that a launch runs. `wanted`: the cell, and which program of each
    of its loops, by what follows the loop's name (`masked_forward`). `meanwhile` is called while the compilers run.

    Raises:
        RnnccError: RNN602 where NVRTC failed, RNN605 for a cache that cannot be written, RNN607, RNN608 without NVRTC,
            RNN609 for a package of another rnncc, RNN606 for RNNCC_TARGET with another value, RNN610 for a folder that
            is no cache of the user's.
    """
    from rnncc.machine.cache import Cache, default_root
    from rnncc.stages.build import Job, build_kernels, find_nvrtc, first_key

    cell, program = wanted
    own = {option: value for option, value in options.items() if option not in ("problems", "directions")}
    request, target = _request(package, own), gpu_at(gpu[:2], gpu[2])
    nvrtc = find_nvrtc((target.architecture,), required=True)
    problems = tuple(replace(Problem(*size), directions=options["directions"]) for size in options["problems"])
    request = replace(request, instructions="", gpus=(target,), problems=problems, cell=cell, programs=(program,))
    problem, most = problems[0], problems[-1].heads
    numbers = " and ".join(str(problem.heads) for problem in problems)
    heads = f"{numbers} head{'s' if most > 1 else ''} with head_dim {problem.head_dim}"
    key, cache = first_key(request, nvrtc, None), Cache(default_root())
    job = Job(key, cell.lower(), cache, nvrtc=nvrtc, progress=say, meanwhile=lambda folder: meanwhile())
    kind = program.removeprefix("masked_").replace("inference", "without gradients")
    masked = " with lengths or resets" * program.startswith("masked_")
    what = f"{cell} {kind}{masked} for {heads}, {problem.dtype}, {target.architecture}"
    folder = build_kernels(job, what, lambda: _bundle(as_compiled(request, nvrtc), cache))
    if (folder / "cuda").is_dir():
        return folder / "cuda", ""
    known = request.name if shipped_cell(request.name) else "FILE"  # the package does not say where its file lies
    gpu_name = target.name if target.name in GPUS else "auto"
    return None, f"no fused kernel for {heads} fits ({explanation(known, gpu_name, problem)})"


def _request(package: Package, program: Mapping[str, Any]) -> Request:
    """What a package was built from, with the options of its program. Raises RnnccError (RNN609) where another rnncc
    built it: its library may take other kernels."""
    from rnncc.stages.build import own_code

    text, name, code = package
    if code != own_code():
        raise built_by_another()
    return Request.of(Source(f"<{name}>", text), name, program)


def _bundle(request: Request, cache: Cache) -> Bundle:
    """The kernels of the request's one cell, or of all where it names none. The stages up to `lower` ran when the
    package was made, and what they left of each cell may be in the cache."""
    cells = kept_cells(cache, _key_of_cell(request), request.source)
    if not cells:
        cells = compile_cells(request, "lower").cells
        keep(cells, request, cache)
    return kernels_of(request, cells)


def keep(cells: Sequence[CompiledCell], request: Request, cache: Cache) -> None:
    """Keep each cell for the requests of a package that is in use, which name its own constants and states."""
    for each in cells:
        cell = each.cell
        own = replace(
            request, cell=each.name, zoneout=cell.zoneout, recurrent_dropout=cell.recurrent_dropout,
            constants={one.name: one.value for one in cell.constants if one.shaping and not one.size},
        )  # fmt: skip
        keep_cells(cache, _key_of_cell(own), (each,))


def _key_of_cell(request: Request) -> str:
    """What the request's one cell depends on, as `lower` leaves it and this Python pickles it, hashed."""
    from rnncc.stages.build import first_key

    program = Request.of(request.source, request.name, request.options())
    return first_key(replace(program, cell=request.cell), None, None, f"a cell for Python {sys.version_info[:2]}")


def built_by_another() -> RnnccError:
    """The error (RNN609) for a package of another rnncc, whose library takes other kernels."""
    message = f"another rnncc than this one ({VERSION}) built the package"
    return RnnccError(Diagnostic("RNN609", message, help="build the package again"))


def as_compiled(request: Request, nvrtc: Nvrtc | None) -> Request:
    """The same request. Kernels for GPUs that NVRTC does not know are planned as the PTX that they are compiled to."""
    if nvrtc is None:
        return request
    gpus = (replace(gpu, architecture=nvrtc.made_for(gpu.architecture)) for gpu in request.gpus)
    return replace(request, gpus=tuple(gpus) if request.problems else ())
