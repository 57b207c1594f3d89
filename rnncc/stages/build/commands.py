"""Runs a handful of compile commands and one link. What a compiler wrote is looked at: one that says it succeeded may
have written nothing, or something else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rnncc.diagnostics import Diagnostic, RnnccError
from rnncc.stages.build import elf
from rnncc.stages.build.processes import Outcome, Programs

TELL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Command:
    """Makes `output` by `arguments`. Paths are relative to the folder the commands run in."""

    output: str
    arguments: tuple[str, ...]


def most_jobs() -> int | None:
    """$MAX_JOBS, the most commands to run at once, or None. Raises RnnccError (RNN607) where it is no such number."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        message = f"MAX_JOBS is '{text}', which is no number of jobs"
        raise RnnccError(Diagnostic("RNN607", message, help="set it to a whole number above 0, or not at all"))
    return int(text)


def run(
    compiles: Sequence[Command],
    link: Command | None,
    folder: Path,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the commands in `folder`, as many at once as there are processors, `link` after the others; after one that
    fails, no other begins. A program that cannot be started is a failure like any other of its own."""
    failed = threading.Event()

    def one(command: Command) -> Outcome:
        if failed.is_set():
            return Outcome(False, "")
        outcome = _checked(command, programs.run(command.arguments, folder), folder)
        if not outcome.succeeded:
            failed.set()
        return outcome

    # The programs are stopped first where the work is broken off, so that the threads can end.
    with ThreadPoolExecutor(most_jobs() or len(os.sched_getaffinity(0))) as pool, Programs() as programs:
        futures = [pool.submit(one, command) for command in compiles]
        last = time.monotonic()
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            now = time.monotonic()
            if progress is not None and count < len(futures) and now - last >= TELL_SECONDS:
                last = now
                progress(f"{count} of {len(futures)} files compiled")
        outcomes = [future.result() for future in futures]
        if link is not None and not failed.is_set():
            outcomes.append(one(link))
    return Outcome(
        not failed.is_set(),
        "".join(outcome.text for outcome in outcomes),
        next((outcome.error for outcome in outcomes if outcome.error), ""),
        next((outcome.full for outcome in outcomes if outcome.full), ""),
    )


def _checked(command: Command, outcome: Outcome, folder: Path) -> Outcome:
    """The outcome of a command that ran, with the command itself in the text."""
    text = f"{' '.join(command.arguments)}\n{outcome.text}"
    if outcome.succeeded and (fault := elf.fault(folder / command.output)):
        error = f"error: '{command.arguments[0]}' reported success, but {Path(command.output).name} {fault}"
        return Outcome(False, f"{text}{error}\n", error)
    error = outcome.error or (outcome.text.strip().splitlines() or [""])[-1] if not outcome.succeeded else ""
    return Outcome(outcome.succeeded, text, error, outcome.full)
