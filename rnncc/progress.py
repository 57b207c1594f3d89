"""What goes on during long work, as messages: lines on standard error, a bar on a terminal, or records in the log of a
program that keeps one.

`say` takes them all. Where the program has configured `logging`, they go to the logger `rnncc` and nowhere else, so
that rnncc is quiet within a library. Where it has not, or RNNCC_LOG is set, they are lines on standard error. Commands
show them on standard error in any case: on a terminal a bar tells how far a build is, where rich is installed.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rnncc.extras import is_installed
from rnncc.language.diagnostics import Diagnostic, RnnccError, printable
from rnncc.runtime.settings import LEVELS, compiles_at_first_use, log_level

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Progress = Callable[[str], None]
_LOGGER = "rnncc"
# How long lines wait until they say how far the work is, for the first time and then again. The last one goes on.
TELL_SECONDS = (1.0, 2.0, 5.0)


class Count(str):
    """`3 of 12 files compiled, about 20 s left`: a message for whoever reads lines, and its numbers for whoever draws a
    bar. `left`: seconds, None where nobody can tell yet."""

    done: int
    total: int
    left: float | None

    def __new__(cls, done: int, total: int, left: float | None = None) -> Count:
        about = "" if left is None else f", {_about(left)}"
        made = super().__new__(cls, f"{done} of {total} files compiled{about}")
        made.done, made.total, made.left = done, total, left
        return made


class Pace:
    """How fast files are done, of which `jobs` are worked on at once."""

    def __init__(self, total: int, jobs: int) -> None:
        self._total, self._jobs = total, jobs
        self._begin = self._changed = time.monotonic()
        self._done = 0

    def count(self, done: int) -> Count:
        """The count now. The time left follows from the moment when the last file was done. Nobody can tell it before
        as many are done as are worked on at once, since these were the quickest, nor where a file takes longer than
        was expected."""
        now = time.monotonic()
        if done > self._done:
            self._done, self._changed = done, now
        left = None
        if done >= min(self._jobs, self._total):
            left = (self._changed - self._begin) / done * self._total - (now - self._begin)
        return Count(done, self._total, left if left is not None and left >= 1 else None)


def _about(seconds: float) -> str:
    """`about 20 s left`, `about 3 min left`."""
    return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"


def say(message: str, level: str = "info") -> None:
    """Tell what goes on. `level`: one of LEVELS. Raises RnnccError (RNN607) where RNNCC_LOG has no meaning."""
    if not isinstance(message, Count):
        message = printable(message)  # a file's name in it may be anything
    if _shown_by_a_command is None and not os.environ.get("RNNCC_LOG", "").strip() and _has_a_log():
        logging.getLogger(_LOGGER).log(logging.getLevelNamesMapping()[level.upper()], "%s", message)
        return
    with _one_error():
        least = log_level()
    if LEVELS.index(level) >= LEVELS.index(least):
        (_shown_by_a_command or _LINES)(message)


@contextmanager
def said_if_slow(message: str) -> Iterator[None]:
    """Around work that can take seconds: after one of them, the message."""
    timer = threading.Timer(TELL_SECONDS[0], say, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_settings() -> None:
    """Before long work: raises RnnccError (RNN607) where a package would raise ValueError when it is imported."""
    with _one_error():
        log_level()
        compiles_at_first_use()


@contextmanager
def _one_error() -> Iterator[None]:
    """Makes a diagnostic of the ValueError for a setting that cannot be read."""
    try:
        yield
    except ValueError as error:
        found, _, advice = str(error).partition(": ")
        raise RnnccError(Diagnostic("RNN607", found, help=advice)) from None


def debug(message: str) -> None:
    """Tell what helps to find a mistake."""
    say(message, "debug")


def _has_a_log() -> bool:
    """Whether the program has configured `logging`: the logger or one above it has a handler."""
    return logging.getLogger(_LOGGER).hasHandlers()


class Lines:
    """Shows messages as lines on standard error, and from time to time how far the work is."""

    def __init__(self) -> None:
        self._told = 0.0
        self._counts = 0
        self._last = ""

    def __call__(self, message: str) -> None:
        now = time.monotonic()
        if isinstance(message, Count):
            is_last = message.done == message.total
            # The last count follows the others at once, and does not stand alone.
            is_news = message != self._last
            wait = TELL_SECONDS[min(self._counts, len(TELL_SECONDS) - 1) if is_news else -1]
            if self._counts == 0 if is_last else now - self._told < wait:
                return
            self._counts = 0 if is_last else self._counts + 1
        self._told, self._last = now, message
        _print(message)


def _print(message: str) -> None:
    if sys.stderr is not None:  # else it was closed
        print(f"rnncc: {message}", file=sys.stderr, flush=True)


class Bar:
    """Shows on a terminal how far the work is, as a bar that goes away at its end, and other messages as lines. Needs
    rich."""

    def __init__(self) -> None:
        self._drawn: RichProgress | None = None
        self._task: TaskID | None = None

    def __call__(self, message: str) -> None:
        if isinstance(message, Count):
            self._update(message)
        elif self._drawn is not None:
            self._drawn.console.print(f"rnncc: {message}", markup=False, highlight=False, soft_wrap=True)
        else:
            _print(message)

    def close(self) -> None:
        """Take the bar away."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None

    def _update(self, count: Count) -> None:
        if count.done == count.total:
            self.close()
            return
        if self._drawn is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            words = TextColumn("{task.completed:.0f} of {task.total:.0f} files{task.fields[left]}")
            columns = (TextColumn("rnncc: compiling"), BarColumn(), words, TimeElapsedColumn())
            self._drawn = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._drawn.add_task("", total=count.total, left="")
            self._drawn.start()
        assert self._task is not None
        left = "" if count.left is None else f", {_about(count.left)}"
        self._drawn.update(self._task, completed=count.done, total=count.total, left=left)


_LINES = Lines()
_shown_by_a_command: Progress | None = None


@contextmanager
def shown() -> Iterator[None]:
    """For a command: messages are shown on standard error whatever the program does with `logging`, and with a bar on a
    terminal."""
    global _shown_by_a_command
    before = _shown_by_a_command
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    bar = Bar() if is_terminal and is_installed("rich") else None
    _shown_by_a_command = bar or Lines()
    try:
        yield
    finally:
        _shown_by_a_command = before
        if bar is not None:
            bar.close()
