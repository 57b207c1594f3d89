"""What a package knows about itself: its kernels, or why it has none. One copy of this module a package."""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import first_use, fused, manifest
from .ops import Kernels, open_library
from .spec import CellSpec

LOWEST_TORCH = (2, 10)


@dataclass(slots=True)
class _Package:
    kernels: Kernels | None = None
    missing: str = "this package was made without kernels"
    source: str = ""
    stem: str = ""
    newton: bool = False


_PACKAGE = _Package()


def attach(directory: Path, cells: Sequence[CellSpec]) -> None:
    """Open the library of the package in `directory`. Where the library or its kernels are damaged or cannot be opened,
    this warns, and the cells run through the reference. The package's Python files are not checked, so that users may
    edit them. Raises ImportError where `_rnncc.json` is missing or damaged, and for a package in an archive; ValueError
    for a wrong setting."""
    if not directory.is_dir():
        raise ImportError(
            f"the package '{directory}' lies in an archive, from which no library can be loaded: unpack it"
        )
    try:
        about = manifest.read_sealed(directory)
    except manifest.DamagedError as error:
        raise ImportError(f"the package '{directory}' is damaged: {error}; build it again [RNN712]") from None
    _PACKAGE.source, _PACKAGE.stem = about["source"], about["stem"]
    _PACKAGE.newton = bool(about["newton"])
    if not about["library"]:
        _PACKAGE.missing = about["missing"]
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < LOWEST_TORCH:
        _PACKAGE.missing = (
            f"its kernels need torch {LOWEST_TORCH[0]}.{LOWEST_TORCH[1]} or later, this is {torch.__version__} [RNN711]"
        )
    else:
        try:
            path = directory / about["library"]
            for name, wanted in about["files"].items():
                # What the processor or a GPU runs: it would end the process.
                if name == about["library"] or name.startswith("cuda/"):
                    manifest.compare(directory / name, wanted)
            _PACKAGE.kernels = open_library(path, about["namespace"], cells, tuple(about["architectures"]))
            library = ctypes.CDLL(str(path))
            fused.attach(directory, library, about)
            first_use.attach(library, cells)
            return
        except manifest.DamagedError as error:
            _PACKAGE.missing = f"its kernels could not be loaded: {error}; build the package again [RNN712]"
        except (OSError, RuntimeError) as error:
            _PACKAGE.missing = f"its kernels could not be loaded: {error} [RNN713]"
    warnings.warn(f"{directory.name}: {_PACKAGE.missing}; the slow reference runs instead", stacklevel=3)


def specialise(cell: CellSpec, shaping: Mapping[str, Any]) -> ModuleType:
    """The package of the same text with other values of constants that shape the program: built now, where rnncc is
    installed. Raises ValueError where it is not."""
    built = {c.name: c.value for c in cell.constants if c.shaping}
    try:
        compiler = importlib.import_module("rnncc")
    except ImportError:
        held = {name: built.get(name, type(value)()) for name, value in shaping.items()}
        raise ValueError(
            f"this package holds {cell.name} with {_said(held)}; with {_said(shaping)} it is another program, for "
            f"which rnncc must be installed{_other_build(shaping)}"
        ) from None
    constants = built | dict(shaping)
    module: ModuleType = compiler.compile(_PACKAGE.source, _PACKAGE.stem, parallel_newton=_PACKAGE.newton, **constants)
    return module


def _said(shaping: Mapping[str, Any]) -> str:
    """Constants that shape the program, and regularisation, in a user's words."""
    said = [f"{name}={value!r}" for name, value in shaping.items() if not name.endswith("__")]
    if "zoneout__" in shaping:
        states = ", ".join(shaping["zoneout__"].split())
        said.append(f"zoneout of {states}" if states else "no zoneout")
        said.append("recurrent dropout" if shaping["recurrent_dropout__"] else "no recurrent dropout")
    return " and ".join(said)


def _other_build(shaping: Mapping[str, Any]) -> str:
    """The command for a package of that program, where there is one."""
    if any(not name.endswith("__") for name in shaping):
        return ""
    options = "".join(f" --zoneout {state}" for state in shaping["zoneout__"].split())
    return f"; `rnncc build{options}{' --recurrent-dropout' * shaping['recurrent_dropout__']}` makes a package of it"


def kernels() -> tuple[Kernels | None, str]:
    """The package's kernels, or None and why there are none."""
    return _PACKAGE.kernels, _PACKAGE.missing
