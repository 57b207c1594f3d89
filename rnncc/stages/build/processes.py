"""Runs a build's programs. Their output is bounded in memory, and none of them outlives the build."""

from __future__ import annotations

import atexit
import math
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

# The number of bytes that are kept of a program's output, at its beginning and again at its end.
KEPT = 1 << 16
_LONGEST_LINE = 1 << 12
_GRACE_SECONDS = 2.0
_ERROR = re.compile(rb"error")
_FULL = re.compile(rb"No space left on device|Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a program, or of several together.

    succeeded  whether all succeeded
    text       the beginning and the end of the output
    error      the first line of the whole output with an error, or ""
    full       the first line of the whole output that says that a disk is full, or ""
    """

    succeeded: bool
    text: str
    error: str = ""
    full: str = ""


@dataclass(slots=True)
class _Printed:
    """Collects a program's output as it comes, in bounded memory."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    left_out: int = 0
    line: bytes = b""
    error: bytes = b""
    full: bytes = b""

    def add(self, data: bytes) -> None:
        """Take the next bytes of the output."""
        room = KEPT - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if (more := len(self.tail) - KEPT) > 0:
            self.left_out += more
            del self.tail[:more]
        lines, _, rest = (self.line + data).rpartition(b"\n")
        self.line = rest[-_LONGEST_LINE:]
        self._look(lines)

    def _look(self, lines: bytes) -> None:
        self.error = self.error or _first_line(_ERROR, lines)
        self.full = self.full or _first_line(_FULL, lines)

    def outcome(self, succeeded: bool) -> Outcome:
        """The outcome after the last bytes."""
        self._look(self.line)
        left_out = f"\n… {self.left_out} bytes more …\n".encode() if self.left_out else b""
        text, error, full = (
            part.decode(errors="replace") for part in (self.head + left_out + self.tail, self.error, self.full)
        )
        return Outcome(succeeded, text, error.strip(), full.strip())


def read_outcome(path: Path, succeeded: bool) -> Outcome:
    """The outcome of a program whose output is in a file."""
    printed = _Printed()
    with path.open("rb") as file:
        while data := file.read(KEPT):
            printed.add(data)
    return printed.outcome(succeeded)


def _first_line(pattern: re.Pattern[bytes], lines: bytes) -> bytes:
    """The first line that contains the pattern, or b""."""
    found = pattern.search(lines)
    if found is None:
        return b""
    begin, end = lines.rfind(b"\n", 0, found.start()) + 1, lines.find(b"\n", found.end())
    return lines[begin : end if end >= 0 else None][:_LONGEST_LINE]


# All that run programs now. A child that is forked meanwhile does not stop its parent's.
_ALL: set[Programs] = set()
os.register_at_fork(after_in_child=_ALL.clear)
_is_at_end = False


@atexit.register
def stop_all() -> None:
    """Stop the programs of all threads, at the end of the process, and let none begin. A thread that waits for one, or
    would start one, ends by SystemExit."""
    global _is_at_end
    _is_at_end = True
    for programs in list(_ALL):
        programs.stop(SystemExit(1))


class Programs:
    """Runs programs, from several threads at once. It is a context manager: at its exit, also by an exception, it stops
    the programs that still run, and all processes that they started."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._because: BaseException | None = None

    def __enter__(self) -> Programs:
        _ALL.add(self)
        if _is_at_end:  # stop_all may have come before
            self.stop(SystemExit(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _ALL.discard(self)
        self.stop()

    def run(
        self, arguments: Sequence[str], folder: Path | None = None, *, errors: bool = True, seconds: float | None = None
    ) -> Outcome:
        """Run a program to its end in a folder. `errors`: whether stderr belongs to the output. `seconds`: how long the
        program may take. A program that cannot be started, or takes longer, has failed."""
        try:
            # A process group of its own can be stopped as a whole.
            with self._lock:
                if self._because is not None:
                    raise self._because
                if self._stopped:
                    return Outcome(False, "")
                process = subprocess.Popen(
                    arguments, cwd=folder, env=_environment(), process_group=0, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
                )  # fmt: skip
                self._running.add(process)
        except OSError as error:
            message = f"error: '{arguments[0]}' cannot be run: {(error.strerror or str(error)).lower()}"
            return Outcome(False, f"{message}\n", message)
        assert process.stdout is not None
        printed, end = _Printed(), time.monotonic() + (math.inf if seconds is None else seconds)
        with process.stdout as output:
            poll = select.poll()
            poll.register(output, select.POLLIN)
            while poll.poll(None if seconds is None else max(0.0, end - time.monotonic()) * 1e3):
                data = os.read(output.fileno(), KEPT)
                if not data:
                    break
                printed.add(data)
            else:
                _signal(process, signal.SIGKILL)
                printed.add(f"error: '{arguments[0]}' did not end in {seconds:g} s\n".encode())
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        if self._because is not None:
            raise self._because
        return printed.outcome(code == 0)

    def stop(self, because: BaseException | None = None) -> None:
        """Stop the programs, and let none begin. `because`: what those who wait for one raise."""
        with self._lock:
            self._stopped, self._because = True, because
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)  # on this a compiler removes its temporary files
        end = time.monotonic() + _GRACE_SECONDS
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            time.sleep(0.01)
        for process in running:
            _signal(process, signal.SIGKILL)  # the group may live on after the program itself


def find(name: str, path: str | None = None) -> str | None:
    """The program of that name on PATH, or in the folders of `path`; None where there is none. A relative path counts
    from the folder where rnncc runs: programs are run in others."""
    found = shutil.which(name, path=path)
    return None if found is None else str(Path(found).absolute())


def run(arguments: Sequence[str], *, seconds: float) -> Outcome:
    """Run one program for its output, without stderr, for at most that many seconds."""
    with Programs() as programs:
        return programs.run(arguments, errors=False, seconds=seconds)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _environment() -> Mapping[str, str]:
    # Messages are in English and without colours, since `_Printed` and commands.py read them.
    return {**os.environ, "LC_ALL": "C", "CLICOLOR_FORCE": "0"}
