"""Generated CUDA sources of shipped cells in a folder, for tests that compile them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rnncc.ir.artifact import File
from tests.compiling import plan_of
from tests.rendering import for_gpus


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
