"""Units that every package shares are compiled while the stages before work on the cell."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc import driver
from rnncc.ir.artifact import Bundle, File, Unit
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import read_request
from rnncc.machine.cache import Cache
from rnncc.stages.build import Job, Product, Toolchain, build, find_toolchain
from rnncc.stages.build.shared import Ahead, compiled_ahead, object_keys
from tests.stages.test_build import KEY, answer, contents, product


def shared() -> Bundle:
    """The shared part of `product`."""
    bundle = product().bundle
    assert bundle is not None
    return bundle


def job(cache: Path, compiler: Toolchain | None = None) -> Job:
    return Job(KEY, "toy", Cache(cache), compiler or find_toolchain(), shared=shared)


def compiler_that(body: str, folder: Path) -> Toolchain:
    """A program that runs `body` in a shell, and finds its arguments in $@."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return replace(find_toolchain(), command=(str(path),))


def logged(folder: Path) -> tuple[Toolchain, Path]:
    """g++, and a file where it writes the arguments of each call."""
    log = folder / "log"
    return compiler_that(f'echo "$@" >> {log}\nexec g++ "$@"', folder), log


def test_what_is_compiled_ahead_is_what_the_package_needs(tmp_path: Path) -> None:
    """The same objects, for processors and for GPUs; but for those that few cells have."""
    compiler = find_toolchain()
    for cell, architectures in (("lstm", ()), ("mingru", ()), ("lstm", ("sm_90a",))):
        request = replace(read_request(cell), architectures=architectures, instructions="v3")
        made = driver.make_product(request)
        assert made.bundle is not None
        wanted, ahead = object_keys(made.bundle, compiler), object_keys(driver._shared(request), compiler)
        assert ahead == wanted and any("_core_v3_f32" in path for path in ahead)


def test_the_package_is_the_same(tmp_path: Path) -> None:
    plain = build(replace(job(tmp_path / "plain"), shared=None), product)
    ahead = build(job(tmp_path / "ahead"), product)
    assert contents(plain) == contents(ahead) and answer(ahead) == 42


def test_it_begins_before_the_product_is_there(tmp_path: Path) -> None:
    compiler, log = logged(tmp_path)

    def slow() -> Product:
        end = time.monotonic() + 60
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return product()

    assert answer(build(job(tmp_path / "cache", compiler), slow)) == 42
    calls = log.read_text().splitlines()
    assert sum("core.cpp" in call for call in calls) == 1 and "core.cpp" in calls[0]
    # Another package takes the object, and compiles nothing ahead.
    log.unlink()
    build(replace(job(tmp_path / "cache", compiler), key=KEY[::-1]), product)
    assert "core.cpp" not in log.read_text()


def test_most_jobs_are_not_exceeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MAX_JOBS is set, everything is compiled by the one command that keeps to it."""
    monkeypatch.setenv("MAX_JOBS", "1")
    asked: list[int] = []
    build(replace(job(tmp_path), shared=lambda: asked.append(1) or shared()), product)  # type: ignore[func-returns-value]
    assert not asked


def test_what_fails_ahead_is_compiled_again(tmp_path: Path) -> None:
    """And the error of the second time is the one that is told."""
    for status, works in ((1, True), (0, True), (1, False)):
        folder = tmp_path / f"{status}{works}"
        folder.mkdir()
        body = f'case "$PWD" in *shared-objects) exit {status};; esac\n'
        compiler = compiler_that(body + ('exec g++ "$@"' if works else "echo 'error: no'; exit 1"), folder)
        if works:
            assert answer(build(job(folder / "cache", compiler), product)) == 42
            continue
        with pytest.raises(RnnccError) as failed:
            build(job(folder / "cache", compiler), product)
        assert failed.value.diagnostics[0].code == "RNN602"


def test_nothing_runs_on_after_an_error(tmp_path: Path) -> None:
    """Compilers are stopped where the stages before fail."""
    pid = tmp_path / "pid"
    compiler = compiler_that(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600", tmp_path)

    def fail() -> Product:
        end = time.monotonic() + 60
        while not pid.exists() and time.monotonic() < end:
            time.sleep(0.01)
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build(job(tmp_path / "cache", compiler), fail)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert time.monotonic() - begin < 120


def test_an_interrupt_while_it_begins_stops_what_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    compiler = compiler_that(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600", tmp_path)
    two = replace(shared(), units=(*shared().units, Unit("src/other.cpp", "generic", True)),
                  files=(*shared().files, File("src/other.cpp", "int other;\n")))  # fmt: skip
    real = Ahead.add

    def interrupted(self: Ahead, *given: object) -> None:
        real(self, *given)  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while not pid.exists() and time.monotonic() < end:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ahead, "add", interrupted)
    with pytest.raises(KeyboardInterrupt), compiled_ahead(two, compiler, Cache(tmp_path / "cache"), tmp_path / "work"):
        raise AssertionError("it began")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_what_a_launcher_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    compiler = compiler_that('setsid sleep 100 & exec g++ "$@"', tmp_path)
    begin = time.monotonic()
    assert answer(build(job(tmp_path / "cache", compiler), product)) == 42
    assert time.monotonic() - begin < 90


def test_other_commands_and_flags_make_other_objects() -> None:
    compiler = find_toolchain()
    keys = {
        tuple(object_keys(shared(), replace(compiler, command=(*compiler.command, *more))).values())
        for more in ((), ("-ffast-math",), ("-m32",))
    }
    assert len(keys) == 3


def test_objects_are_taken_once_they_are_whole(tmp_path: Path) -> None:
    with compiled_ahead(shared(), find_toolchain(), Cache(tmp_path / "cache"), tmp_path / "work") as ahead:
        (key,) = object_keys(shared(), find_toolchain()).values()
        while not ahead.has_begun(key):
            pytest.fail("it is the only one, and must begin at once")
        assert not ahead.has_begun(KEY)
        assert ahead.take(key, tmp_path / "core.o")
    assert (tmp_path / "core.o").read_bytes().startswith(b"\x7fELF")
