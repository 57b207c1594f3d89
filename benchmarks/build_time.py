"""How long rnncc compiles: from a fresh process to a loaded cell, a built package, a first call on a GPU, all cells.

    python -m pip install --no-deps --target SITE .
    python benchmarks/build_time.py [WORD... | --all] --installed SITE [--cores 2,16] [--beside CHECKOUT] [--out FILE]

Every case runs in a process of its own, on that many cores. *cold*: with an empty cache, or one that holds what the
case's name says; *cached*: the same again. *seconds*: from the start of the process, torch's import included; *cpu*: of
the process and its compilers; *call*: of the load or the call alone, after torch's import. Where a case loads all
cells, *call* is their median, and the slowest is named (JSON has each cell's seconds); these cases run with --all or by
their words, cold and of ours alone.

`--installed`: a folder with an installation of this checkout, which brings what all cells share compiled. Without, the
checkout itself is timed, whose first load compiles that. `--beside` times another checkout of rnncc in turn, such as an
older one. A CUDA toolkit is hidden from ours unless --keep-toolkit; the other one may need it, and sees it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import environment, installation, output, write

ROOT = Path(__file__).resolve().parents[1]
# A program prints JSON with the seconds of what is timed alone, if there is that.
LOAD = """
import json, time, torch, rnncc
begin = time.perf_counter()
rnncc.load({cell!r})
print(json.dumps({{"call": time.perf_counter() - begin}}))
"""
EDITED = """
import json, time, torch, rnncc
from rnncc.machine.paths import shipped_cell
text = shipped_cell("lstm").read_text().replace("tanh(c", "sin(c")
x = torch.randn(64, 16, 64)
begin = time.perf_counter()
rnncc.compile(text).LSTM(64, 64)(x)[0].sum().backward()
print(json.dumps({"call": time.perf_counter() - begin}))
"""
CALL = """
import json, time, torch, rnncc
layer = rnncc.load({cell!r}).{name}({hidden}, {hidden}, num_heads={heads}, device="cuda", dtype=torch.bfloat16)
x = torch.randn(64, 16, {hidden}, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
begin = time.perf_counter()
output = layer(x)[0]
if {training}:
    output.sum().backward()
torch.cuda.synchronize()
print(json.dumps({{"call": time.perf_counter() - begin}}))
"""
ALL = """
import json, os, statistics, tempfile, time, torch, rnncc
from rnncc.machine.paths import shipped_cells
rnncc.load("lstm")
seconds = dict()
with tempfile.TemporaryDirectory() as folder:
    for path in shipped_cells():
        if {fresh}:
            os.environ["RNNCC_CACHE_DIR"] = os.path.join(folder, path.stem)
        begin = time.perf_counter()
        rnncc.load(path.stem)
        seconds[path.stem] = time.perf_counter() - begin
worst = max(seconds, key=seconds.get)
found = {{"call": statistics.median(seconds.values()), "worst": seconds[worst], "worst_cell": worst}}
print(json.dumps(found | {{"cells": {{cell: round(own, 2) for cell, own in seconds.items()}}}}))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """What is timed: `program` is Python, `command` arguments of `rnncc`; one of them. `after`: a case that runs before
    it with the same cache, and is not timed."""

    name: str
    program: str = ""
    command: tuple[str, ...] = ()
    gpu: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    slow: bool = False
    after: Case | None = None


def call(cell: str, name: str, hidden: int, heads: int, *, training: bool) -> str:
    """A program that calls a layer on a GPU."""
    given: dict[str, Any] = {"cell": cell, "name": name, "hidden": hidden, "heads": heads, "training": training}
    return CALL.format(**given)


LOAD_LSTM = Case("load lstm", LOAD.format(cell="lstm"))
BUILD_LSTM = Case("build lstm --target h200", command=("build", "lstm", "--target", "h200"))
CASES = (
    Case("import", "import rnncc"),
    LOAD_LSTM,
    Case("load gru, after lstm", LOAD.format(cell="gru"), after=LOAD_LSTM),
    *(Case(f"load {cell}", LOAD.format(cell=cell)) for cell in ("gru", "mingru", "slstm")),
    Case("an edited lstm, to its first gradient", EDITED, after=LOAD_LSTM),
    BUILD_LSTM,
    Case("build gru --target h200, after lstm", command=("build", "gru", "--target", "h200"), after=BUILD_LSTM),
    Case(
        "build lstm, fused 768",
        command=("build", "lstm", "--target", "h200", "--hidden", "768", "--dtype", "bf16"),
    ),
    Case(
        "first call, every size", call("lstm", "LSTM", 768, 12, training=False), gpu=True,
        settings=(("RNNCC_COMPILE", "0"),),
    ),
    Case("first call, fused 12x64", call("lstm", "LSTM", 768, 12, training=False), gpu=True),
    Case("first training step, fused 12x64", call("lstm", "LSTM", 768, 12, training=True), gpu=True),
    Case("first training step, fused 1x768", call("lstm", "LSTM", 768, 1, training=True), gpu=True),
    Case("first training step, minGRU", call("mingru", "minGRU", 768, 1, training=True), gpu=True),
    Case("load all cells", ALL.format(fresh=False), slow=True),
    Case("load all cells, each with an empty cache", ALL.format(fresh=True), slow=True),
)  # fmt: skip


def select(words: Sequence[str], *, every: bool = False) -> list[Case]:
    """The cases whose names have all of the words; without any, all but the slow ones, or with `every` these too.
    Raises ValueError for a word that no case has."""
    for word in words:
        if not any(word in case.name for case in CASES):
            raise ValueError(f"no case has '{word}' in its name: {', '.join(case.name for case in CASES)}")
    return [case for case in CASES if all(word in case.name for word in words) and (words or every or not case.slow)]


def variables(case: Case, cache: Path, checkout: Path, keep_toolkit: bool) -> dict[str, str]:
    """The environment of a case's process."""
    path = os.environ["PATH"].split(os.pathsep)
    found = {**os.environ, "RNNCC_CACHE_DIR": str(cache), "RNNCC_LOG": "warning", **dict(case.settings)}
    found["PYTHONPATH"] = os.pathsep.join((str(checkout), os.environ.get("PYTHONPATH", "")))
    if not keep_toolkit:
        found["PATH"] = os.pathsep.join(folder for folder in path if not (Path(folder) / "nvcc").exists())
        found |= {"CUDA_HOME": "", "CUDA_PATH": ""}
    return found


def timed(case: Case, cores: int, given: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Seconds of one process. Raises RuntimeError with what it said where it fails."""
    arguments = [sys.executable, "-c", case.program]
    if case.command:
        arguments = [sys.executable, "-m", "rnncc", *case.command, "--out", str(folder)]
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(
        arguments, env=dict(given), cwd=folder, capture_output=True, text=True, check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )  # fmt: skip
    seconds, after = time.perf_counter() - begin, os.times()
    if done.returncode != 0:
        raise RuntimeError(f"{case.name}: {done.stderr.strip()[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    found = {"seconds": seconds, "cpu": cpu}
    if case.program and done.stdout:
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def measured(
    case: Case, cores: int, checkouts: Mapping[str, Path], keep: bool, repeats: int
) -> Iterator[dict[str, Any]]:
    """The rows of a case: of each checkout cold and cached, their processes in turn. Slow cases are timed cold alone,
    and of ours alone."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for name, checkout in checkouts.items():
            if case.slow and name != "ours":
                continue
            with tempfile.TemporaryDirectory() as folder:
                cache, keeps = Path(folder) / "cache", keep or name != "ours"
                if case.after:
                    (work := Path(folder) / "before").mkdir()
                    timed(case.after, cores, variables(case.after, cache, checkout, keeps), work)
                for state in ("cold",) if case.slow else ("cold", "cached"):
                    (work := Path(folder) / state).mkdir()
                    figures = timed(case, cores, variables(case, cache, checkout, keeps), work)
                    found.setdefault((name, state), []).append(figures)
    for (name, state), times in found.items():
        numbers = [what for what, figure in times[0].items() if isinstance(figure, float)]
        medians = {what: round(median(each[what] for each in times), 3) for what in numbers}
        yield {
            "case": case.name, "who": name, "cores": cores, "cache": state, "repeats": repeats, **times[0], **medians,
        }  # fmt: skip


def text(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    call_s = f"{row['call']:8.2f}" if "call" in row else " " * 8
    figures = f"{row['seconds']:8.2f}{row['cpu']:8.2f}{call_s}"
    if "worst" in row:
        figures += f"  worst: {row['worst']:.2f} ({row['worst_cell']})"
    return f"{row['case']:38}{row['who']:8}{row['cores']:>6}  {row['cache']:8}{figures}"


def main() -> int:
    """Times the cases, prints a table, and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", metavar="WORD", nargs="*", help="cases whose names have all of these words")
    parser.add_argument("--all", action="store_true", help="without words, the slow cases too")
    parser.add_argument("--cores", default="2", help="numbers of cores, separated by commas (default: 2)")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each figure (default: 3)")
    parser.add_argument("--beside", type=installation, help="another checkout, timed in turn")
    parser.add_argument("--installed", type=installation, help="an installation, timed in place of the checkout")
    parser.add_argument("--keep-toolkit", action="store_true", help="do not hide nvcc and the CUDA toolkit")
    parser.add_argument("--commit", default="", help="what to say where this is no checkout of git")
    parser.add_argument("--out", type=output, help="write rows and machine as JSON")
    parser.add_argument("--show", type=Path, help="print what was measured elsewhere")
    given = parser.parse_args()
    head = f"{'case':38}{'who':8}{'cores':>6}  {'cache':8}{'seconds':>8}{'cpu':>8}{'call':>8}"
    if given.show:
        print(head, *map(text, json.loads(given.show.read_text())["results"]), sep="\n")
        return 0
    try:
        cases = select(given.words, every=given.all)
    except ValueError as error:
        parser.error(str(error))
    checkouts = {"ours": given.installed or ROOT} | ({"beside": given.beside} if given.beside else {})
    rows: list[dict[str, Any]] = []
    about = environment(given.commit)
    print(head)
    for case in cases:
        if case.gpu and not torch.cuda.is_available():
            print(f"{case.name:38}needs a GPU")
            continue
        for cores in map(int, given.cores.split(",")):
            for row in measured(case, cores, checkouts, given.keep_toolkit, given.repeats):
                print(text(row), flush=True)
                rows.append(row)
                if given.out:
                    write(given.out, rows, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
