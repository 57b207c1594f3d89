"""What a built package holds, for who built it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.runtime import manifest
from rnncc.runtime.kernels import index


def about(package: Path) -> dict[str, Any]:
    """What it says of itself."""
    return manifest.read(package)


def without_kernels(package: Path, problems: Iterable[Problem], architecture: str) -> Iterator[Problem]:
    """The problems for which it has no fused kernel for that architecture."""
    path = package / "cuda" / "fused.txt"
    tables = index.read_index(path) if path.is_file() else []
    made = {(table.dtype, table.head_dim, table.heads, table.architecture) for table in tables}
    return (p for p in problems if (INDEX_DTYPES[p.dtype], p.head_dim, p.heads, architecture) not in made)


def explanation(cell: object, target: str, problem: Problem) -> str:
    """The command that says why, for a file or a cell's name, and for a GPU or an architecture."""
    size = f"--hidden {problem.hidden} --heads {problem.heads} --dtype {problem.dtype}"
    return f"`rnncc explain {shlex.quote(str(cell))} --target {target} {size}`"
