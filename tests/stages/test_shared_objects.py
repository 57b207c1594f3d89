"""Objects that every package shares are kept in the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.machine.cache import Cache
from rnncc.stages.build import Job, build, commands, find_toolchain, processes
from tests.stages.test_build import KEY, answer, product


def test_a_shared_object_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    build(Job(KEY, "toy", cache, find_toolchain()), product)
    compiled: list[str] = []
    real = commands.run

    def spy(compiles: list[commands.Command], *rest: object) -> processes.Outcome:
        compiled.extend(command.output for command in compiles)
        return real(compiles, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(commands, "run", spy)
    package = build(Job("f" * 32, "toy", cache, find_toolchain()), lambda: product(7))
    assert answer(package) == 7
    assert not [name for name in compiled if "core" in name]
    # Another command may make another object.
    compiler = find_toolchain()
    build(Job("e" * 32, "toy", cache, replace(compiler, command=(*compiler.command, "-O0"))), product)
    assert [name for name in compiled if "core" in name]
