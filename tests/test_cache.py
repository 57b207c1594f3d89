"""The cache among many processes: one build however many ask, what killed ones leave, bounds."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rnncc.ir.artifact import File
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import KEEP_SECONDS, Cache, limit_bytes, locks
from rnncc.machine.cache.root import make_folder
from rnncc.stages.build import Job, Product, build, find_toolchain
from tests.stages.test_build import KEY, answer, product

ROOT = Path(__file__).resolve().parents[1]


# One process of a crowd: builds and reports how often it had to produce.
WORKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.stages.test_build import KEY, product
from rnncc.machine.cache import Cache
from rnncc.stages.build import Job, build, find_toolchain
def produce():
    with open({log!r}, "a") as log:
        log.write("produced\\n")
    {delay}
    return product()
print(build(Job(KEY, "toy", Cache(Path({cache!r})), find_toolchain()), produce))
"""


def worker(tmp_path: Path, delay: str = "pass") -> subprocess.Popen[str]:
    """Start a process that builds into the cache of the test."""
    text = WORKER.format(root=str(ROOT), log=str(tmp_path / "log"), cache=str(tmp_path / "cache"), delay=delay)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ten_processes_make_one_build(tmp_path: Path) -> None:
    crowd = [worker(tmp_path) for _ in range(10)]
    results = [process.communicate(timeout=120) for process in crowd]
    package = tmp_path / "cache" / "packages" / KEY / "toy"
    assert [out.strip() for out, _ in results] == [str(package)] * 10, results
    assert answer(package) == 42
    assert (tmp_path / "log").read_text().splitlines() == ["produced"]


def test_a_killed_builder_leaves_the_cache_usable(tmp_path: Path) -> None:
    process = worker(tmp_path, delay="time.sleep(60)")
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    left = tmp_path / "cache" / "tmp"
    assert list(left.iterdir()), "the build had not begun"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert list(left.iterdir()), "SIGKILL cannot have tidied up"
    package = build(Job(KEY, "toy", Cache(tmp_path / "cache"), find_toolchain()), product)
    assert answer(package) == 42
    assert not list(left.iterdir())


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    old = build(Job(KEY, "toy", cache), lambda: Product((File("__init__.py", "# " + "x" * 5000),), None, ("Toy",)))
    long_ago = time.time() - 10 * 86400
    os.utime(old.parent, (long_ago, long_ago))
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "4000")
    new = build(Job("e" * 32, "toy", cache), lambda: Product((File("__init__.py", ""),), None, ("Toy",)))
    assert new.is_dir() and not old.exists()
    # What was just used stays, however small the limit.
    assert cache.package("e" * 32) == new


def dated(path: Path, seconds: float) -> Path:
    """The path, with a date that is so much ahead of now."""
    date = time.time() + seconds
    os.utime(path, (date, date))
    return path


def test_what_is_dated_far_ahead_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its date is of a clock that was set back since: nobody knows how old it is."""
    cache = Cache(tmp_path)
    packages = [build(Job(key * 32, "toy", cache), lambda: Product((File("__init__.py", ""),), None, ("Toy",)))
                for key in "abcd"]  # fmt: skip
    old, fresh, ahead, far = (package.parent for package in packages)
    dated(old, -10 * KEEP_SECONDS)
    dated(ahead, KEEP_SECONDS / 2)  # by the clock of a process that uses it now, maybe
    dated(far, 70 * 365 * 86400)
    left = make_folder(tmp_path, "tmp") / f"{'e' * 32}-1"
    left.mkdir()
    dated(left, 70 * 365 * 86400)
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", str(sum(path.stat().st_size for path in old.rglob("*")) * 3))
    cache.trim()
    assert not far.exists() and not left.exists() and old.exists()
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "0")
    cache.trim()
    assert not old.exists() and fresh.exists() and ahead.exists()


def test_logs_dated_far_ahead_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number in range(50):
        dated(cache.keep_log(f"old-{number:012x}", ""), 70 * 365 * 86400)
    kept = [cache.keep_log(f"new-{number:012x}", "") for number in range(10)]
    assert all(log.exists() for log in kept) and len(list((tmp_path / "logs").iterdir())) == 50


def test_dates_are_compared_with_the_clock_that_gives_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server has a clock of its own; what was just used stays, however wrong this machine's clock is."""
    cache = Cache(tmp_path)
    package = build(Job(KEY, "toy", cache), lambda: Product((File("__init__.py", ""),), None, ("Toy",)))
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "0")
    for clock in (0.0, time.time() + 10 * KEEP_SECONDS):
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time", lambda clock=clock: clock)
            cache.trim()
        assert package.is_dir()


def command(folder: Path, number: int) -> subprocess.Popen[str]:
    """`rnncc build lem` as a process of its own, into the cache in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "rnncc", "build", "lem", "-o", str(folder / str(number))],
        cwd=ROOT, env={**os.environ, "RNNCC_CACHE_DIR": str(folder / "cache")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_ten_builders_of_a_real_cell_after_one_that_was_killed(tmp_path: Path, cell_cache: Path) -> None:
    """Killed among the compiler's runs; the ten then wait for one of them, which compiles alone."""
    killed = command(tmp_path, 0)
    tmp = cell_cache / "tmp"
    deadline = time.monotonic() + 60
    while not list(tmp.glob("*/object-files/lem_*.o")) and time.monotonic() < deadline:
        time.sleep(0.005)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and list(tmp.iterdir())
    crowd = [command(tmp_path, number) for number in range(1, 11)]
    results = [process.communicate(timeout=240) for process in crowd]
    assert [process.returncode for process in crowd] == [0] * 10, results
    assert sum("compiling lem (LEM)" in err for _, err in results) == 1
    assert len(list((cell_cache / "packages").iterdir())) == 1
    libraries = {(tmp_path / str(number) / "lem" / "liblem.so").read_bytes() for number in range(1, 11)}
    assert len(libraries) == 1
    assert not list(tmp.iterdir()) and not list((cell_cache / "locks").iterdir())
    code = "import torch, lem; print(tuple(lem.LEM(3, 4)(torch.zeros(2, 1, 3))[0].shape), lem.LEM(3, 4).explain())"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "1", capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert "(2, 1, 4)" in shown and "CPU kernels" in shown


def test_what_killed_processes_leave_goes_with_the_next_build(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    tmp, locks, objects = (make_folder(tmp_path, name) for name in ("tmp", "locks", "objects"))
    old, new, held = "a" * 32, "c" * 32, tmp / ("b" * 32 + "-2")
    for folder in (tmp / f"{old}-1", held, tmp / f"{old}-dropped-1-2", tmp / f"{new}-3"):
        folder.mkdir()
        (folder / "file").write_text("")
        if not folder.name.startswith(new):
            os.utime(folder, (0, 0))
    for key in (old, new):
        for path in (locks / f"{key}.lock", objects / f"{key}-1-2.tmp"):
            path.write_text("")
            if key == old:
                os.utime(path, (0, 0))
    with cache.lock("b" * 32):
        os.utime(locks / ("b" * 32 + ".lock"), (0, 0))
        build(Job(KEY, "toy", cache), lambda: Product((File("__init__.py", ""),), None, ("Toy",)))
        # What is being built stays, and so does its lock; another computer's lock may not be seen from here.
        assert sorted(tmp.iterdir()) == [held, tmp / f"{new}-3"] and (held / "file").is_file()
        assert sorted(path.name for path in locks.iterdir()) == ["b" * 32 + ".lock", f"{new}.lock"]
        assert [path.name for path in objects.iterdir()] == [f"{new}-1-2.tmp"]
    assert [path.name for path in locks.iterdir()] == [f"{new}.lock"]
    cache.trim()
    assert sorted(tmp.iterdir()) == [tmp / f"{new}-3"]


def test_a_lock_is_held_by_one_though_its_file_is_removed_each_time(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    inside: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        for _ in range(20):
            with cache.lock(KEY):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(enter, range(6)))
    assert len(most) == 120 and set(most) == {1}
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_lock_in_a_cache_that_was_emptied_leaves_the_next_one_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with cache.lock(KEY):
        (tmp_path / "locks" / f"{KEY}.lock").unlink()
        held = locks.try_take(tmp_path / "locks" / f"{KEY}.lock")
        assert held is not None
    assert locks.try_take(tmp_path / "locks" / f"{KEY}.lock") is None
    locks.release(held, tmp_path / "locks" / f"{KEY}.lock")
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_lock_ends_with_its_process_though_a_child_lives_on(tmp_path: Path) -> None:
    """A child that was forked while the lock was held has its file open, too."""
    code = (
        f"import os, sys, time\nsys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
        f"from rnncc.machine.cache import Cache\nwith Cache(Path({str(tmp_path)!r})).lock({KEY!r}):\n"
        "    child = os.fork()\n    if child == 0:\n        time.sleep(600)\n"
        "    print(child, flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        time.sleep(0.2)  # the child closes it as its first work
        parent.kill()
        parent.wait()
        begin = time.monotonic()
        with Cache(tmp_path).lock(KEY):
            assert time.monotonic() - begin < 10
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_who_waits_says_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_TELL_SECONDS", 0.0)
    said: list[str] = []

    def enter() -> None:
        with Cache(tmp_path).lock(KEY, said.append):
            pass

    with ThreadPoolExecutor(1) as pool:
        with Cache(tmp_path).lock(KEY):
            waiting = pool.submit(enter)
            deadline = time.monotonic() + 30
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
        waiting.result()
    assert said == [f"waiting for process {os.getpid()}, which builds the same package"]


def test_the_latest_logs_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number in range(60):
        log = cache.keep_log(f"toy-{number:012x}", "text")
        assert log.read_text() == "text"
        os.utime(log, (number, number))
    kept = {path.name for path in (tmp_path / "logs").iterdir()}
    assert kept == {f"toy-{number:012x}.log" for number in range(10, 60)}


def test_usage_counts_while_others_build_and_drop(tmp_path: Path) -> None:
    kept = make_folder(tmp_path, "packages") / KEY / "cell"
    kept.mkdir(parents=True)
    (kept / "_rnncc.json").write_bytes(b'{"cells": ["Toy"]}')
    tmp = make_folder(tmp_path, "tmp")
    marker = (tmp_path / "CACHEDIR.TAG").stat().st_size
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            work = tmp / f"{KEY}-1" / "deep"
            work.mkdir(parents=True)
            (work / "file").write_bytes(b"1")
            shutil.rmtree(work.parent)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(churn)
        try:
            counts = [Cache(tmp_path).usage() for _ in range(3000)]
        finally:
            ended.set()
        other.result()
    assert {packages for packages, _ in counts} == {1}
    assert {size - marker for _, size in counts} <= {18, 19}


def test_kernels_alone_and_what_is_damaged_are_no_packages(tmp_path: Path) -> None:
    kernels = '{"kernels": ["forward"], "stem": "lstm"}'
    for number, text in enumerate(('{"cells": ["Toy"], "stem": "toy"}', kernels, kernels, "12345", '{"cells')):
        folder = make_folder(tmp_path, "packages") / f"{number:032x}" / "toy"
        folder.mkdir(parents=True)
        (folder / "_rnncc.json").write_text(text)
    (tmp_path / "packages" / ("e" * 32)).mkdir()
    assert Cache(tmp_path).usage()[0] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 1 << 30),
        ("0", 0),
        ("1234", 1234),
        ("1GB", 10**9),
        ("1.5 MiB", 3 << 19),
        ("2g", 2 * 10**9),
        ("7kb", 7000),
        ("9" * 400, sys.maxsize),
        ("9" * 300 + "TB", sys.maxsize),
    ],
    ids=lambda value: str(value)[:8],
)
def test_the_limit_may_have_a_unit(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", text)
    assert limit_bytes() == expected


def test_a_limit_that_cannot_be_read_is_said_also_where_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(Job(KEY, "toy", Cache(tmp_path)), lambda: Product((File("__init__.py", ""),), None, ("Toy",)))
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "a lot")
    with pytest.raises(RnnccError) as caught:
        Cache(tmp_path).build(KEY, "toy", lambda _: pytest.fail("began"))
    assert caught.value.diagnostics[0].code == "RNN607"


def test_a_lock_that_cannot_be_opened_is_a_diagnostic(tmp_path: Path) -> None:
    (make_folder(tmp_path, "locks") / f"{KEY}.lock").mkdir()
    with pytest.raises(RnnccError) as caught, Cache(tmp_path).lock(KEY):
        pass
    assert caught.value.diagnostics[0].code == "RNN605"


def test_a_file_that_is_missing_elsewhere_is_no_fault_of_the_cache(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        shutil.copy(tmp_path / "installation" / "header", folder)

    with pytest.raises(FileNotFoundError, match="installation"):
        Cache(tmp_path / "cache").build(KEY, "stem", make)


@pytest.mark.parametrize("path", ["", "tmp/file"])
@pytest.mark.parametrize("source", [None, "/installation/header"])
def test_a_file_that_is_denied_within_is_a_fault_of_the_cache(path: str, source: str | None, tmp_path: Path) -> None:
    """Also where it is copied from elsewhere, and the disk is full."""
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), source or str(tmp_path / path))
    if source is not None:
        denied.filename2 = str(tmp_path / path)

    def make(folder: Path) -> None:
        raise denied

    with pytest.raises(RnnccError) as caught:
        Cache(tmp_path).build(KEY, "stem", make)
    assert caught.value.diagnostics[0].code == "RNN605"
