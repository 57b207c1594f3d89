"""What a package knows about itself: its kernels, or why it has none. One copy of this module a package."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .ops import Kernels, open_library
from .spec import CellSpec

LOWEST_TORCH = (2, 10)


@dataclass(slots=True)
class _Package:
    kernels: Kernels | None = None
    missing: str = "this package was made without kernels"


_PACKAGE = _Package()


def attach(directory: Path, cells: Sequence[CellSpec]) -> None:
    """Open the library of the package in `directory`. A library that cannot be opened is a warning: the cells then run
    through the reference. Raises FileNotFoundError where `_rnncc.json` is missing."""
    about = json.loads((directory / "_rnncc.json").read_text(encoding="utf-8"))
    if not about["library"]:
        _PACKAGE.missing = about["missing"]
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < LOWEST_TORCH:
        _PACKAGE.missing = (
            f"its kernels need torch {LOWEST_TORCH[0]}.{LOWEST_TORCH[1]} or later, this is {torch.__version__}"
        )
    else:
        try:
            _PACKAGE.kernels = open_library(directory / about["library"], about["namespace"], cells)
            return
        except (OSError, RuntimeError) as error:
            _PACKAGE.missing = f"its kernels could not be loaded: {error}"
    warnings.warn(f"{directory.name}: {_PACKAGE.missing}; the slow reference runs instead", stacklevel=3)


def kernels() -> tuple[Kernels | None, str]:
    """The package's kernels, or None and why there are none."""
    return _PACKAGE.kernels, _PACKAGE.missing
