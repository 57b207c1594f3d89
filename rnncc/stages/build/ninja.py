"""Runs a handful of compile commands and one link: by ninja where it is installed, else by threads."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """Makes `output` from `inputs` by `arguments`. Paths are relative to the folder the commands run in."""

    output: str
    inputs: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether all commands succeeded, and everything they printed."""

    succeeded: bool
    text: str


def find_ninja() -> str | None:
    """The ninja program, or None: the one that came as a wheel beside this Python goes before PATH."""
    beside = Path(sys.executable).with_name("ninja")
    return str(beside) if beside.is_file() else shutil.which("ninja")


def ninja_text(compiles: Sequence[Command], link: Command, log_folder: str) -> str:
    """The build as a ninja file; ninja's own log goes to `log_folder`."""
    lines = [f"builddir = {_escape(log_folder)}", "", "rule run", "  command = $arguments", "  description = $out", ""]
    for command in (*compiles, link):
        lines.append(f"build {_escape(command.output)}: run {' '.join(_escape(path) for path in command.inputs)}")
        lines.append(f"  arguments = {' '.join(_shell(argument) for argument in command.arguments)}")
    outputs = " ".join(_escape(command.output) for command in (*compiles, link))
    lines += [f"default {outputs}", ""]
    return "\n".join(lines)


def run(compiles: Sequence[Command], link: Command, folder: Path, ninja_file: Path) -> Outcome:
    """Run the commands in `folder`. `ninja_file` is where the ninja file goes."""
    ninja = find_ninja()
    if ninja is None:
        return _run_by_threads(compiles, link, folder)
    logs = os.path.relpath(ninja_file.parent, folder)
    ninja_file.write_text(ninja_text(compiles, link, logs), encoding="utf-8")
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS", "").isdigit() else []
    relative = os.path.relpath(ninja_file, folder)
    done = subprocess.run(
        [ninja, "-f", relative, *jobs],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return Outcome(done.returncode == 0, done.stdout)


def _run_by_threads(compiles: Sequence[Command], link: Command, folder: Path) -> Outcome:
    def one(command: Command) -> Outcome:
        done = subprocess.run(
            command.arguments, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return Outcome(done.returncode == 0, f"{' '.join(command.arguments)}\n{done.stdout}")

    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
        outcomes = list(pool.map(one, compiles))
    if all(outcome.succeeded for outcome in outcomes):
        outcomes.append(one(link))
    return Outcome(all(outcome.succeeded for outcome in outcomes), "".join(outcome.text for outcome in outcomes))


def _escape(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _shell(argument: str) -> str:
    return shlex.quote(argument).replace("$", "$$")
