"""What benchmarks have in common as programs: their options, parts of their cases, whether a GPU can be measured, and
a file of rows that a run goes on with."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from measure import environment, output, write

from rnncc.stages.build.nvrtc import INSTALL, find_library

Row = dict[str, Any]
T = TypeVar("T")
# What a run takes at most, but for the case that it is at: machines are often lent for ten minutes.
MINUTES = 8.5


class Results:
    """The rows of a file, and what it says of the machine. Written anew with every row."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Goes on with the file if there is one. Raises ValueError where that was measured on something else."""
        self.path, self.about = path, about
        self.rows: list[Row] = []
        if path.exists():
            known = json.loads(path.read_text())
            differing = sorted(key for key in about if known["environment"].get(key) != about[key])
            if differing:
                changes = ", ".join(f"{key} {known['environment'].get(key)} -> {about[key]}" for key in differing)
                raise ValueError(
                    f"{path} was measured on something else ({changes}): choose another --out, or remove it"
                )
            self.rows = known["results"]

    def add(self, *rows: Row) -> None:
        """Keep rows: all or, where the program is killed, none of them."""
        self.rows += rows
        write(self.path, self.rows, self.about)


def obstacle() -> str:
    """Why no GPU can be measured here, or nothing."""
    if not torch.cuda.is_available():
        return "there is no CUDA device; `--show FILE` prints what was measured on another machine"
    if find_library() is None:
        return f"there is no NVRTC, which compiles kernels: `{INSTALL}`"
    return ""


def gpu(commit: str) -> dict[str, Any]:
    """`environment`, where a GPU can be measured. Raises ValueError where none can."""
    if why := obstacle():
        raise ValueError(why)
    return environment(commit)


def parser_of(description: str | None, out: Path, *, draws: bool = False) -> argparse.ArgumentParser:
    """The options that all have; `out`: where rows go by default; `draws`: there is a plot too."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats: some minutes")
    parser.add_argument("--only", default="", help="words of cases, separated by commas")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="a part of the cases: 2/5 is the second of five")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"no case begins later (default: {MINUTES})")
    parser.add_argument("--out", type=output, default=out, help=f"where rows go (default: {out})")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="put the rows of files into --out")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of a file, and measure nothing")
    if draws:
        parser.add_argument("--plot", type=Path, metavar="PNG", help="draw it too (needs matplotlib)")
    parser.add_argument("--commit", default="", help="what to call this version where git does not know")
    return parser


def words_of(arguments: argparse.Namespace) -> list[str]:
    """The words of --only."""
    return [word for word in arguments.only.split(",") if word]


def part(cases: Sequence[T], shard: str) -> list[T]:
    """Takes every n-th case, from the i-th on, for `i/n`. Raises ValueError for a shard that means nothing."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"--shard is a part like 2/5, not {shard}")
    return list(cases[int(found[1]) - 1 :: int(found[2])])


def in_time(cases: Sequence[T], minutes: float) -> Iterator[T]:
    """The cases one after another, until so many minutes have passed. Says how many are left then."""
    until = time.monotonic() + 60 * minutes
    for place, case in enumerate(cases):
        if time.monotonic() > until:
            print(f"{len(cases) - place} cases are left: start the run again", flush=True)
            return
        yield case


def read_or_measure(
    arguments: argparse.Namespace,
    measure: Callable[[Results], None],
    about: Callable[[], dict[str, Any]] | None = None,
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of --show, of the files of --merge, or those of --out and what `measure` adds to them; and the machine
    that they are of. `about` tells what the file says of the machine here: by default a GPU's `environment`.

    Raises OSError where a file cannot be read, and ValueError where files are of several machines, or where there is no
    GPU to measure."""
    if arguments.merge:
        merge(arguments.merge, arguments.out)
    if path := arguments.show or (arguments.out if arguments.merge else None):
        known = json.loads(path.read_text(encoding="utf-8"))
        return known["results"], known["environment"]
    results = Results(arguments.out, about() if about else gpu(arguments.commit))
    measure(results)
    return results.rows, results.about


def merge(files: Sequence[Path], out: Path) -> None:
    """The rows of several files in one, each once. Raises ValueError where they are of several machines or versions."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    about = found[0]["environment"]
    if other := next((path for path, each in zip(files, found, strict=True) if each["environment"] != about), None):
        raise ValueError(f"{files[0]} and {other} were not measured on one machine with one version")
    rows = {json.dumps(row, sort_keys=True): row for each in found for row in each["results"]}
    write(out, list(rows.values()), about)
