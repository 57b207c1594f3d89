"""What NVRTC makes of kernels, as far as tests look at it; and a record of it, for texts that do not change.

tests/golden/nvrtc.jsonl has a row for each file of kernels that the tests compile. Where its text, all that it
includes, the options and NVRTC are those of the row, the row stands for what NVRTC would make. Another text is
compiled, and `--update-golden` writes its row. `--all` compiles everything, and holds the rows against it. Another
build of NVRTC compiles everything too, and its code may differ.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit
from rnncc.machine.cache import digest
from rnncc.stages.build.nvrtc import FLAGS, identity
from rnncc.stages.build.shared import included
from tests.cuda import nvrtc
from tests.cuda.sources import write_files

ROWS = Path(__file__).resolve().parents[1] / "golden" / "nvrtc.jsonl"
# The instructions that tests ask for, by the names they have in rows.
MMA = "mma.sync"
SENDS = "st.async"
_INSTRUCTIONS = {
    MMA: "mma.sync",
    SENDS: "st.async",
    "mma.bf16": "m16n8k16.row.col.f32.bf16.bf16.f32",
    "mma.f16": "m16n8k16.row.col.f32.f16.f16.f32",
    "wgmma.bf16": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
    "wgmma.f16": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.f16\.f16",
}
_ENTRY = re.compile(r"\.entry (\w+)")
_KERNEL = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes: bytes per thread on the stack, stored where registers are spilled, and loaded again;
    registers per thread; bytes of shared memory that are not asked for at launch."""

    stack: int
    stored: int
    loaded: int
    registers: int
    shared: int

    @property
    def spilled(self) -> int:
        """Bytes per thread that are not in registers."""
        return max(self.stack, self.stored, self.loaded)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a file became. `kernels`: what each takes, None where it became PTX alone. `instructions`: those of
    `_INSTRUCTIONS` that are in it."""

    kernels: Mapping[str, Usage | None]
    instructions: frozenset[str]


@dataclass(frozen=True)
class Text:
    """A file of kernels, and how it is compiled. `name`: that of its row. `is_code`: into code, which takes some ten
    times as long as PTX alone and says what registers there are."""

    name: str
    unit: DeviceUnit
    bundle: Bundle
    architecture: str
    is_code: bool

    @property
    def target(self) -> str:
        """What NVRTC compiles for."""
        return self.architecture if self.is_code else self.architecture.replace("sm", "compute")

    @property
    def options(self) -> tuple[str, ...]:
        """Beside those of a build."""
        return ("--ptxas-options=-v",) if self.is_code else ("-Ofc=max",)

    @cached_property
    def digest(self) -> str:
        """Of everything that the result depends on, but for NVRTC itself."""
        texts = {file.path: file.text for file in self.bundle.files}
        parts = (part for pair in included(self.unit.path, texts, self.bundle.include) for part in pair)
        return digest(*FLAGS, *self.options, self.target, *_INSTRUCTIONS.values(), *parts)[:32]

    def compile(self, folder: Path) -> Inspected:
        """Compiles it in a folder. Raises NvrtcError."""
        write_files(self.bundle.files, folder)
        include = tuple(folder / path for path in self.bundle.include)
        made = nvrtc.compiled(folder / self.unit.path, self.target, include, *self.options)
        return inspected(made.log, made.ptx)


# Says what a text becomes, given an empty folder.
Look = Callable[[Text, Path], Inspected]


def inspected(log: str, ptx: str) -> Inspected:
    """What NVRTC said and made, as far as tests look at it."""
    usages = {name: Usage(*(int(number or 0) for number in numbers)) for name, *numbers in _KERNEL.findall(log)}
    kernels = {name: usages.get(name) for name in sorted(_ENTRY.findall(ptx))}
    return Inspected(kernels, frozenset(name for name, text in _INSTRUCTIONS.items() if re.search(text, ptx)))


@dataclass
class Record:
    """The rows, and how many texts they stood for. `compiles_all`: they stand for none; `writes`: what is compiled
    becomes a row. A plugin of pytest, which says at the end how many there were."""

    path: Path = ROWS
    compiles_all: bool = False
    writes: bool = False
    answered: int = 0
    compiled: int = 0
    _rows: dict[str, Any] | None = field(default=None, init=False)

    @pytest.fixture
    def look(self) -> Look:
        """Says what a text becomes."""
        return self.inspect

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["inspected"] = self.answered, self.compiled

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        answered, compiled = getattr(node, "workeroutput", {}).get("inspected", (0, 0))
        self.answered += answered
        self.compiled += compiled

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.answered or self.compiled:
            terminalreporter.write_line(
                f"GPU kernels: {self.answered} files are those that NVRTC compiled before ({ROWS.name}), "
                f"{self.compiled} were compiled"
            )

    def inspect(self, text: Text, folder: Path) -> Inspected:
        """What a text becomes: by its row, or compiled in the folder. Raises NvrtcError; fails where a text has no row
        of its own, and where a row is not what NVRTC makes."""
        compiler, rows = self._read()
        is_known = compiler == _compiler() and rows.get(text.name, [""])[0] == text.digest
        if is_known and not self.compiles_all:
            self.answered += 1
            return _from_row(rows[text.name])
        found = text.compile(folder)
        self.compiled += 1
        if self.writes:
            self._write(text, found)
        elif is_known:
            assert _from_row(rows[text.name]) == found, f"{self.path} is wrong about {text.name}"
        elif compiler == _compiler():
            pytest.fail(f"{text.name} is not what was compiled before: run pytest --update-golden and read {self.path}")
        return found

    def _read(self) -> tuple[str, dict[str, Any]]:
        if self._rows is None:
            self._rows = {}
            with suppress(FileNotFoundError), self.path.open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                self._rows = _parsed(file.read())
        return self._rows.get("", ""), self._rows

    def _write(self, text: Text, found: Inspected) -> None:
        """Other workers of pytest-xdist write too. Rows of another compiler go."""
        self.path.touch()
        with self.path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            rows = _parsed(file.read())
            if rows.get("") != _compiler():
                rows = {"": _compiler()}
            usages = {name: usage and astuple(usage) for name, usage in found.kernels.items()}
            rows[text.name] = [text.digest, usages, sorted(found.instructions)]
            file.seek(0)
            file.write("".join(f"{json.dumps([name, row])}\n" for name, row in sorted(rows.items())))
            file.truncate()
        self._rows = rows


def _parsed(text: str) -> dict[str, Any]:
    """Rows by name; that of the compiler has none."""
    return dict(map(json.loads, text.splitlines()))


def _from_row(row: Any) -> Inspected:
    _, usages, instructions = row
    return Inspected({name: usage and Usage(*usage) for name, usage in usages.items()}, frozenset(instructions))


def _compiler() -> str:
    return identity(nvrtc.library_file())
