"""Runs a handful of compile commands and one link: by ninja where it is installed, else by threads."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rnncc.diagnostics import Diagnostic, RnnccError

TELL_SECONDS = 15.0
_STATUS = re.compile(r"\[(\d+)/\d+\] ")


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


def ninja_text(commands: Sequence[Command], log_folder: str) -> str:
    """The build as a ninja file; ninja's own log goes to `log_folder`."""
    lines = [f"builddir = {_escape(log_folder)}", "", "rule run", "  command = $arguments", "  description = $out", ""]
    for command in commands:
        lines.append(f"build {_escape(command.output)}: run {' '.join(_escape(path) for path in command.inputs)}")
        lines.append(f"  arguments = {' '.join(_shell(argument) for argument in command.arguments)}")
    outputs = " ".join(_escape(command.output) for command in commands)
    lines += [f"default {outputs}", ""]
    return "\n".join(lines)


def most_jobs() -> int | None:
    """$MAX_JOBS, the most commands to run at once, or None. Raises RnnccError (RNN607) where it is no such number."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        message = f"MAX_JOBS is '{text}', which is no number of jobs"
        raise RnnccError(Diagnostic("RNN607", message, help="set it to a whole number above 0, or not at all"))
    return int(text)


class _Told:
    """How many commands are done, said every TELL_SECONDS."""

    def __init__(self, total: int, progress: Callable[[str], None] | None) -> None:
        self.total, self.progress, self.last = total, progress, time.monotonic()

    def done(self, count: int) -> None:
        """So many are."""
        now = time.monotonic()
        if self.progress is not None and count < self.total and now - self.last >= TELL_SECONDS:
            self.last = now
            self.progress(f"{count} of {self.total} files compiled")

    def line(self, text: str) -> None:
        """What ninja printed."""
        if found := _STATUS.match(text):
            self.done(int(found[1]))


def run(
    compiles: Sequence[Command],
    link: Command | None,
    folder: Path,
    ninja_file: Path,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the commands in `folder`, `link` after the others. `ninja_file` is where the ninja file goes. A program that
    cannot be started is a failure like any other of its own."""
    ninja, most = find_ninja(), most_jobs()
    told = _Told(len(compiles), progress)
    if ninja is None:
        return _run_by_threads(compiles, link, folder, most or os.cpu_count() or 1, told)
    logs = os.path.relpath(ninja_file.parent, folder)
    commands = (*compiles, link) if link is not None else compiles
    ninja_file.write_text(ninja_text(commands, logs), encoding="utf-8")
    jobs = ["-j", str(most)] if most is not None else []
    return _run_one((ninja, "-f", os.path.relpath(ninja_file, folder), *jobs), folder, told.line)


def _run_one(arguments: Sequence[str], folder: Path, each: Callable[[str], None] | None = None) -> Outcome:
    try:
        process = subprocess.Popen(
            arguments, cwd=folder, text=True, errors="replace", env={**os.environ, "NINJA_STATUS": "[%f/%t] "},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        return Outcome(False, f"error: '{arguments[0]}' cannot be run: {(error.strerror or str(error)).lower()}\n")
    lines: list[str] = []
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if each is not None:
                    each(line)
        except BaseException:
            process.kill()
            raise
    return Outcome(process.returncode == 0, "".join(lines))


def _run_by_threads(compiles: Sequence[Command], link: Command | None, folder: Path, most: int, told: _Told) -> Outcome:
    def one(command: Command) -> Outcome:
        outcome = _run_one(command.arguments, folder)
        return Outcome(outcome.succeeded, f"{' '.join(command.arguments)}\n{outcome.text}")

    with ThreadPoolExecutor(most) as pool:
        outcomes = []
        for outcome in pool.map(one, compiles):
            outcomes.append(outcome)
            told.done(len(outcomes))
    if link is not None and all(outcome.succeeded for outcome in outcomes):
        outcomes.append(one(link))
    return Outcome(all(outcome.succeeded for outcome in outcomes), "".join(outcome.text for outcome in outcomes))


def _escape(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _shell(argument: str) -> str:
    return shlex.quote(argument).replace("$", "$$")
