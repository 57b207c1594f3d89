"""What a package knows about itself: its kernels, or why it has none. One copy of this module a package."""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import manifest
from .kernels import first_use, fused
from .kernels.kernels import Kernels
from .ops.ops import open_library
from .spec import CellSpec, Regularisation


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
    this warns, and the cells run through the eager fallback. The package's Python files are not checked, so that users
    may edit them. Raises ImportError where `_rnncc.json` is missing or damaged, and for a package in an archive;
    ValueError for a wrong setting."""
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
    oldest = about["torch_abi"]
    if _release(torch.__version__) < _release(oldest):
        _PACKAGE.missing = f"its kernels need torch {oldest} or later, this is {torch.__version__} [RNN711]"
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


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version of torch's."""
    return tuple(int(part) for part in version.split(".")[:2])


def specialise(cell: CellSpec, constants: Mapping[str, Any], regularisation: Regularisation) -> ModuleType:
    """The package of the same text with other values of these constants, which shape the program, and with that
    regularisation: built now, where rnncc is installed. Raises ValueError where it is not."""
    built = cell.program()["constants"]
    try:
        driver = importlib.import_module("rnncc.driver")
    except ImportError:
        held = {name: built[name] for name in constants}
        differs = regularisation != cell.regularisation
        raise ValueError(
            f"this package holds {cell.name} with {_said(held, cell.regularisation if differs else None)}; with "
            f"{_said(constants, regularisation if differs else None)} it is another program, for which rnncc must be "
            f"installed{'' if constants else _other_build(regularisation)}"
        ) from None
    options = {"constants": built | dict(constants), **asdict(regularisation), "newton": _PACKAGE.newton}
    module: ModuleType = driver.load_text(_PACKAGE.source, _PACKAGE.stem, options)
    return module


def masked(cell: CellSpec, densities: Mapping[str, float]) -> ModuleType:
    """The package of the same text in which the matrices of these groups of a cell have masks, planned for these
    densities: built now, where rnncc is installed. Raises ValueError where it is not, and where the text gives a group
    another type."""
    types = {group: f"mask(density={density:g})" for group, density in densities.items()}
    try:
        load = importlib.import_module("rnncc.driver").load_with_types
    except (ImportError, AttributeError):
        declared = ", ".join(f"{group}: {of_type}" for group, of_type in types.items())
        raise ValueError(
            f"{cell.name} with `weights {declared}` is another program, for which rnncc must be installed, in this "
            f"version; or write that into the cell's text, build a package of it, and load this layer's state_dict "
            "there"
        ) from None
    options = cell.program() | {"newton": _PACKAGE.newton}
    module: ModuleType = load(_PACKAGE.source, _PACKAGE.stem, options, cell.name, types)
    return module


def _said(constants: Mapping[str, Any], regularisation: Regularisation | None) -> str:
    """Constants that shape the program, and regularisation, in a user's words."""
    said = [f"{name}={value!r}" for name, value in constants.items()]
    if regularisation is not None:
        states = ", ".join(regularisation.zoneout)
        said.append(f"zoneout of {states}" if states else "no zoneout")
        said.append("recurrent dropout" if regularisation.recurrent_dropout else "no recurrent dropout")
    return " and ".join(said)


def _other_build(regularisation: Regularisation) -> str:
    """The command that builds a package of that program."""
    options = "".join(f" --zoneout {state}" for state in regularisation.zoneout)
    return f"; `rnncc build{options}{' --recurrent-dropout' * regularisation.recurrent_dropout}` makes a package of it"


def kernels() -> tuple[Kernels | None, str]:
    """The package's kernels, or None and why there are none."""
    return _PACKAGE.kernels, _PACKAGE.missing
