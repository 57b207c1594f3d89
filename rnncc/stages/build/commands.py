"""Runs compile commands and a link by ninja, and checks their output files: a compiler that reports success may have
written nothing, or something else."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.progress import Pace
from rnncc.stages.build import elf, processes
from rnncc.stages.build.processes import Outcome, Programs, read_outcome

# How often finished files are counted.
POLL_SECONDS = 0.25
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FAILED = re.compile(r"^FAILED: (?:\[code=\d+\] )?(.*?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """The command `arguments` writes the file `output`. Paths are relative to the folder in which commands run."""

    output: str
    arguments: tuple[str, ...]


def find_ninja() -> str:
    """The ninja program: that of the wheel beside this Python, the one on PATH, or where else the wheel was
    installed."""
    # A program that embeds Python has no executable of Python's.
    beside = Path(sys.executable).with_name("ninja") if sys.executable else None
    if beside is not None and beside.is_file():
        return str(beside)
    return processes.find("ninja") or _ninja_of_wheel() or "ninja"


def _ninja_of_wheel() -> str | None:
    """`pip install --user`, `--target`, and an environment that sees the packages of another, have the program in a
    folder that need not be on PATH."""
    from importlib import metadata  # its import takes a while

    try:
        wheel = metadata.distribution("ninja")
        recorded = [Path(str(file.locate())) for file in wheel.files or () if file.parts[-2:] == ("bin", "ninja")]
        # `--target` moves programs, and not what is recorded of them.
        places = (Path(str(wheel.locate_file("bin/ninja"))), *recorded)
        return next((str(place) for place in places if place.is_file() and os.access(place, os.X_OK)), None)
    # Without the wheel, or where what pip wrote of it is damaged, there is no such place, and the caller says so.
    except (metadata.PackageNotFoundError, ValueError, TypeError, OSError):
        return None


def most_jobs() -> int | None:
    """$MAX_JOBS, the largest number of commands to run at once, or None. Raises RnnccError (RNN607) where it is no
    whole number above 0."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    # More than six digits mean as much as no limit, and neither ninja nor Python reads every number.
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        message = f"MAX_JOBS is '{text}', which is no number of jobs"
        raise RnnccError(Diagnostic("RNN607", message, help="set it to a whole number above 0, or not at all"))
    return int(text.lstrip("0")[:6])


def run(
    compiles: Sequence[Command],
    link: Command | None,
    folder: Path,
    progress: Callable[[str], None] | None = None,
    meanwhile: Callable[[Path], None] | None = None,
) -> Outcome:
    """Run the commands in `folder`, as many at once as there are processors (or MAX_JOBS), and then `link`. Once they
    run, `meanwhile` is called with the folder. After a failure no other command begins. A program that cannot be
    started counts as a failed command. ninja's own files, and the commands' output, go to a folder beside `folder`."""
    work = folder.parent / "ninja-files"
    work.mkdir(exist_ok=True)
    compiled = _run(compiles, folder, work, progress, meanwhile)
    if link is None or not compiled.succeeded:
        return compiled
    linked = _run((link,), folder, work)
    return Outcome(linked.succeeded, compiled.text + linked.text, linked.error, linked.full)


def ninja_text(commands: Sequence[Command], work: str) -> str:
    """The commands as a ninja file. Each command prints to a file in the folder `work`, since ninja would keep its
    output in memory."""
    lines = [f"builddir = {_escape(work)}", "", "rule run", "  command = $arguments", "  description = $out", ""]
    for index, command in enumerate(commands):
        words = " ".join(map(_shell, command.arguments))
        lines.append(f"build {_escape(command.output)}: run")
        lines.append(f"  arguments = {words} > {_shell(f'{work}/{index}.log')} 2>&1")
    return "\n".join([*lines, ""])


def _run(
    commands: Sequence[Command], folder: Path, work: Path, progress: Callable[[str], None] | None = None,
    meanwhile: Callable[[Path], None] | None = None,
) -> Outcome:  # fmt: skip
    beside = os.path.relpath(work, folder)
    # A compiler's path may be bytes that are no UTF-8.
    text = ninja_text(commands, beside).encode(errors="surrogateescape")
    (work / "build.ninja").write_bytes(text)
    jobs = most_jobs() or len(os.sched_getaffinity(0))
    arguments = (find_ninja(), "-f", f"{beside}/build.ninja", "-j", str(jobs))
    # A daemon thread, and no pool: at its end Python joins a pool's threads, and would wait for background work.
    running = Future[Outcome]()
    with Programs() as programs:
        Thread(target=_settle, args=(running, lambda: programs.run(arguments, folder)), daemon=True).start()
        pace, told = Pace(len(commands), jobs), False
        if meanwhile is not None:
            meanwhile(folder)
        while True:
            try:
                ninja = running.result(POLL_SECONDS)
                break
            except StillRunning:
                done = sum((folder / command.output).exists() for command in commands)
                if progress is not None and done < len(commands):
                    progress(pace.count(done))
                    told = True
        if progress is not None and told:
            progress(pace.count(len(commands)))
    failed = set(_FAILED.findall(ninja.text))
    outcomes = []
    for index, command in enumerate(commands):
        log = work / f"{index}.log"
        if log.exists():  # else the command never began
            outcomes.append(_checked(command, read_outcome(log, command.output not in failed), folder))
            log.unlink()
    faults = [outcome for outcome in outcomes if not outcome.succeeded]
    if not ninja.succeeded and not faults:  # ninja itself failed
        faults.append(ninja)
        outcomes.append(ninja)
    first = faults[0] if faults else Outcome(True, "")
    full = next((outcome.full for outcome in outcomes if outcome.full), "")
    return Outcome(not faults, "".join(outcome.text for outcome in outcomes), first.error, full)


def _settle(future: Future[Outcome], run: Callable[[], Outcome]) -> None:
    try:
        future.set_result(run())
    except BaseException as error:  # whoever waits raises it
        future.set_exception(error)


def _checked(command: Command, outcome: Outcome, folder: Path) -> Outcome:
    """Check the output file of a command that ran. The returned outcome's text begins with the command."""
    text = f"{' '.join(command.arguments)}\n{outcome.text}"
    if outcome.succeeded and (fault := elf.fault(folder / command.output)):
        error = f"error: '{command.arguments[0]}' reported success, but {Path(command.output).name} {fault}"
        return Outcome(False, f"{text}{error}\n", error)
    error = outcome.error or (outcome.text.strip().splitlines() or [""])[-1] if not outcome.succeeded else ""
    return Outcome(outcome.succeeded, text, error, outcome.full)


def _escape(path: str) -> str:
    return _in_one_line(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _shell(argument: str) -> str:
    return shlex.quote(_in_one_line(argument)).replace("$", "$$")


def _in_one_line(word: str) -> str:
    """A word of a ninja file, which no quotes keep from ending at the end of its line. Raises RnnccError (RNN602) for
    control characters."""
    if _CONTROL.search(word) is not None:
        message = f"{word!r} cannot stand in a command line of ninja: it has a control character"
        raise RnnccError(Diagnostic("RNN602", message, help="rename the file or folder that is called so"))
    return word
