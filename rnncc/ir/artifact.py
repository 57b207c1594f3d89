"""Generated text and what a toolchain makes of it."""

from __future__ import annotations

from dataclasses import dataclass

# The files of GPU kernels that every package for GPUs has: they are the same for every cell.
OF_EVERY_PACKAGE = ("_core", "_heads_bf16", "_heads_f16", "_small_f32", "_small_bf16", "_small_f16")


@dataclass(frozen=True, slots=True)
class File:
    """A generated file; `path` is relative to the package's directory and has forward slashes."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A translation unit to compile: `path` is one of the bundle's files; `isa` its instruction set (`generic`, `v3`,
    `v4`: x86-64's levels). `shared`: the same bytes for every cell, so that what it is compiled to may be kept between
    builds. `compute_type`: that of the kernels in it; empty where it has none."""

    path: str
    isa: str
    shared: bool = False
    compute_type: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUnit:
    """A file of GPU kernels: `path` is one of the bundle's files; each architecture's code goes to the file that
    `code_file` of rnncc/ir/target.py names. `architectures`: those that it is for; none: all of its package. `shared`:
    the same as for a Unit."""

    path: str
    name: str
    architectures: tuple[str, ...] = ()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files of a package's native part. `include` are the directories for quoted includes; `device_units` are
    empty in a package without GPU kernels."""

    files: tuple[File, ...]
    units: tuple[Unit, ...]
    include: tuple[str, ...]
    device_units: tuple[DeviceUnit, ...] = ()
