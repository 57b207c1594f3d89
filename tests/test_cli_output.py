"""Standard output that takes nothing: a full disk is one line with a code, a closed pipe is silent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from tests.long import runs_all

CELL = b"cell A\nstate h\nh[t] = W@x+h[t-1]\n"
TEXT = ["show lstm --stage parse", "latex lstm", "draw lstm", "explain lstm", "explain RNN203", "check lstm --json",
        "check lstm", "cells", "format -", "completion bash", "--help", "--version", "show --help"]  # fmt: skip
BENCH = "bench elman --hidden 8 --steps 4 --seconds 0.01 --pass forward --without eager,compiled,nn --json /dev/stdout"
FULL = Path("/dev/full")
NO_SPACE = "error[RNN605]: standard output cannot be written: no space left on device\n"


def run(words: str, out: int | IO[bytes], **options: Any) -> subprocess.CompletedProcess[bytes]:
    options = {"stderr": subprocess.PIPE, "input": CELL, **options}
    return subprocess.run([sys.executable, "-m", "rnncc", *words.split()], stdout=out, check=False, **options)


@pytest.mark.one_in(5)
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", TEXT)
def test_a_full_disk_is_one_line(words: str) -> None:
    with FULL.open("wb") as full:
        done = run(words, full)
    assert (done.returncode, done.stderr.decode()) == (1, NO_SPACE)


@pytest.mark.one_in(3)
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", ["env", "env --json", BENCH])
def test_a_full_disk_is_one_line_with_torch(words: str) -> None:
    with FULL.open("wb") as full:
        done = run(words, full)
    told = [line for line in done.stderr.decode().splitlines(keepends=True) if not line.startswith("rnncc: ")]
    assert (done.returncode, told) == (1, [NO_SPACE])


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_both_may_be_full() -> None:
    with FULL.open("wb") as full:
        assert run("explain lstm", full, stderr=full).returncode == 1
        assert run("explain nothing", subprocess.DEVNULL, stderr=full).returncode == 1


@pytest.mark.one_in(5)
@pytest.mark.parametrize("words", TEXT)
def test_a_closed_pipe_is_silent(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:  # noqa: PTH123 (a descriptor has no path)
        done = run(words, pipe)
    assert (done.returncode, done.stderr) == (1, b"")


def closed(words: str, descriptor: int) -> subprocess.CompletedProcess[str]:
    """The command as after `<&-` or `>&-`."""
    command = [sys.executable, "-m", "rnncc", *words.split()]
    code = f"import os; os.close({descriptor}); os.execv({sys.executable!r}, {command!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, input="", check=False)


def test_descriptors_that_are_closed() -> None:
    for words in ("check lstm", "explain lstm", *(("cells",) if runs_all() else ())):
        done = closed(words, 1)
        assert (done.returncode, done.stderr) == (0, "")
    done = closed("format -", 0)
    assert (done.returncode, done.stderr) == (1, "error[RNN101]: standard input cannot be read: it is closed\n")
