"""Which compiler builds, and with which flags."""

from __future__ import annotations

import os
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path

from rnncc.ir.artifact import Unit
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.stages.build import processes

# Candidates after $CXX, in order.
COMPILERS = ("g++", "clang++", "c++")
MACHINE = "x86_64"

COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-fno-math-errno", "-fno-trapping-math")  # fmt: skip
KERNEL = (*COMMON, "-fno-exceptions", "-fno-rtti")
# Between -Og and -O1: calls of one step take 1 % longer than with -O1, and it compiles in two thirds of the time.
BINDING = (*COMMON, "-Og", "-fif-conversion", "-finline-functions-called-once", "-fmove-loop-invariants", "-ftree-sra")
BINDING_OF_CLANG = (*COMMON, "-O1")
ISA: dict[str, tuple[str, ...]] = {
    "generic": (),
    "v3": ("-march=x86-64-v3",),
    "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
# GCC 13 fuses no product into a sum that a loop carries, except in vectors of 512 bits, unless it is told to; so does
# any GCC that tunes for Zen 3. Products then take 1.3 times as long, and the same sums by narrow and by wide vectors
# differ in their last bits. clang has no such rule, and refuses the option.
FUSES = ("--param=avoid-fma-max-bits=0",)
# Kernels are vectorised by hand. These parts of GCC's -O2 make them as fast as -O2 does, to 3 %, in 60 to 80 % of the
# compile time, which a first load waits for. Without -fexpensive-optimizations GCC fuses no product into its sum, and
# products take 1.3 times as long. clang knows no such options.
FLOATS = ("-O1", "-fexpensive-optimizations", "-fipa-cp", "-fschedule-insns2", "-fstrict-aliasing", *FUSES)
FLOATS_OF_CLANG = ("-O2",)
# Doubles are for checks, where less time to compile counts more than a tenth of speed. Without these passes GCC cannot
# tell that what it warns of never happens; the same code for floats is compiled with all of them. GCC refuses to leave
# out a pass that it does not have: these are in every GCC that has C++17.
DOUBLES = ("-O1", "-fexpensive-optimizations", "-fno-tree-ccp", "-fno-tree-pta", "-fno-dse", "-Wno-maybe-uninitialized",
           *FUSES)  # fmt: skip
# torch's symbols are found in torch itself, which is in the process before the package; the empty libtorch.so that the
# linker sees only makes the loader look there. -Bsymbolic: two packages must not see each other's functions.
LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,--build-id=none", "-Wl,-s")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C++ compiler: how to call it (a launcher such as ccache may stand first), and the first line of its
    `--version`."""

    command: tuple[str, ...]
    version: str


def find_toolchain() -> Toolchain:
    """The compiler to use: $CXX if set, else the first of COMPILERS. Raises RnnccError (RNN601) where there is none."""
    # Not macOS: the library is linked with the GNU linker's options, and the cache locks as Linux does.
    here = f"{platform.system() or 'unknown'} on {platform.machine() or 'unknown'}"
    if platform.machine() != MACHINE or platform.system() != "Linux":
        message = f"the CPU kernels are made for Linux on x86-64, and this machine is {here}"
        raise RnnccError(Diagnostic("RNN601", message))
    named = os.environ.get("CXX")
    try:
        candidates = [shlex.split(named)] if named else [[name] for name in COMPILERS]
    except ValueError as error:
        message = f"no C++ compiler found: $CXX is '{named}', which is no command: {str(error).lower()}"
        raise RnnccError(Diagnostic("RNN601", message, help="set CXX to a compiler, or not at all")) from None
    for candidate in candidates:
        path = processes.find(candidate[0]) if candidate else None
        if path is None:
            continue
        command = (path, *candidate[1:])
        version = _version(command)
        if version is None:
            continue
        return Toolchain(command, version)
    searched = f"$CXX is '{named}', which does not run" if named else f"looked for {', '.join(COMPILERS)} on PATH"
    raise RnnccError(
        Diagnostic(
            "RNN601",
            f"no C++ compiler found: {searched}",
            help="install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to its path",
        )
    )


# By command, and the files of its programs: each load asks, and a process is started for an answer. What runs another
# program may answer otherwise the next time: a script, or one of these.
_VERSIONS: dict[tuple[object, ...], str] = {}
_RUN_OTHERS = ("ccache", "sccache", "distcc", "icecc")


def _version(command: tuple[str, ...]) -> str | None:
    """The first line of a compiler's `--version`; None where it does not run."""
    stamps = [_stamp(word) for word in command if not word.startswith("-")]
    key = (command, *stamps)
    if key in _VERSIONS:
        return _VERSIONS[key]
    shown = processes.run([*command, "--version"], seconds=60)
    if not shown.succeeded:
        return None
    version = (shown.text.splitlines() or [""])[0].strip()
    if None not in stamps:
        _VERSIONS[key] = version
    return version


def _stamp(program: str) -> tuple[int, ...] | None:
    """What changes where a program is replaced, such as by an update while the process runs; None for what may run
    another program."""
    path = Path(processes.find(program) or program).resolve()
    try:
        found = path.stat()
        with path.open("rb") as file:
            is_script = file.read(4) != b"\x7fELF"
    except OSError:
        return None
    if is_script or path.name in _RUN_OTHERS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def library_name(stem: str) -> str:
    """The library of a package, or of kernels of it. Not `_STEM.so`: of a package called `reference` Python would take
    that for the module `_reference`, before `_reference.py`."""
    return f"lib{stem}.so"


def unit_flags(unit: Unit, compiler: Toolchain) -> tuple[str, ...]:
    """The flags for a unit of a package."""
    if "clang" not in compiler.version:
        return gnu_flags(unit)
    return BINDING_OF_CLANG if unit.isa == "binding" else (*KERNEL, *FLOATS_OF_CLANG, *ISA[unit.isa])


def gnu_flags(unit: Unit) -> tuple[str, ...]:
    """The flags of g++ for a unit."""
    if unit.isa == "binding":
        return BINDING
    return (*KERNEL, *(DOUBLES if unit.compute_type == "f64" else FLOATS), *ISA[unit.isa])


def flags_text() -> str:
    """Every flag, as one text for the cache key."""
    return " ".join((*KERNEL, *FLOATS, *FLOATS_OF_CLANG, *DOUBLES, *BINDING, *BINDING_OF_CLANG, *LINK,
                     *(flag for name in sorted(ISA) for flag in (name, *ISA[name])), platform.machine()))  # fmt: skip
