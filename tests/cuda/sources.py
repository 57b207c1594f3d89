"""Generated CUDA sources of shipped cells in a folder, for tests that compile them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rnncc.ir.artifact import File
from rnncc.ir.plan import KernelPlan
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir
from rnncc.stages.check import check
from rnncc.stages.differentiate import differentiate
from rnncc.stages.lower import lower
from rnncc.stages.mask import mask
from rnncc.stages.parse import parse
from tests.rendering import for_gpus


def plan_of(name: str) -> KernelPlan:
    """The kernel plan of a shipped cell."""
    path = cells_dir() / f"{name}.rnn"
    return lowered(Source(str(path), path.read_text(encoding="utf-8")))


def lowered(source: Source) -> KernelPlan:
    """The kernel plan of a text's first cell."""
    cell, _ = check(parse(source)[0])
    masked = mask(cell)
    return lower(cell, differentiate(cell), masked, differentiate(masked))


def write_files(files: Sequence[File], folder: Path) -> None:
    """Files of a bundle in a folder."""
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def write_sources(name: str, folder: Path) -> None:
    """Every native file of a package of the cell."""
    plan = plan_of(name)
    write_files(for_gpus([plan]).files, folder)
