"""What `render` hands to `build`: files and which of them to compile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class File:
    """A text file of the package; `path` is relative to the package's folder, with `/`."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit, by the path of its file. `isa` is `generic`, `v3` or `v4`. A `shared` unit's text is the
    same for every cell, so that its object is kept across builds."""

    path: str
    isa: str
    shared: bool


@dataclass(frozen=True, slots=True)
class Bundle:
    """The kernels of a package: sources under `src/`, what to compile, and the folders for -I."""

    files: tuple[File, ...]
    units: tuple[Unit, ...]
    include: tuple[str, ...] = ("src/include",)
