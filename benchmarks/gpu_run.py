"""What the benchmarks on a GPU have in common as programs: their options, whether they can run, and a file of rows that
a run goes on with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from measure import write

from rnncc.stages.build.nvrtc import INSTALL, find_library


class Results:
    """The rows of a file, and what it says of the machine. Written anew with every row."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Goes on with the file if there is one. Raises ValueError where that was measured on something else."""
        self.path, self.about = path, about
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            known = json.loads(path.read_text())
            differing = sorted(key for key in about if known["environment"].get(key) != about[key])
            if differing:
                changes = ", ".join(f"{key} {known['environment'].get(key)} -> {about[key]}" for key in differing)
                raise ValueError(
                    f"{path} was measured on something else ({changes}): choose another --out, or remove it"
                )
            self.rows = known["results"]

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)
        write(self.path, self.rows, self.about)


def obstacle() -> str:
    """Why nothing can be measured here, or nothing."""
    if not torch.cuda.is_available():
        return "there is no CUDA device; `--show FILE` prints what was measured on another machine"
    if find_library() is None:
        return f"there is no NVRTC, which compiles kernels: `{INSTALL}`"
    return ""


def parser_of(description: str | None, out: Path | None) -> argparse.ArgumentParser:
    """The options that all have; `out`: where rows go by default, None where the program says that itself."""
    default = f"; default {out}" if out else ""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats: some minutes")
    parser.add_argument("--only", default="", help="axes, parties and cells, separated by commas")
    parser.add_argument("--out", type=Path, default=out, help=f"where rows go{default}")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of a file, and measure nothing")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw it too (needs matplotlib)")
    parser.add_argument("--commit", default="", help="what to call this version where git does not know")
    return parser
