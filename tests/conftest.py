"""For all tests: golden files, caches, warnings of compilers, and the marker for tests that need a GPU."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rnncc
from rnncc import driver
from rnncc.machine.cache import default_root
from rnncc.machine.cache.root import MARKER
from rnncc.machine.targets import planned
from rnncc.stages.build import commands, processes
from tests import long, parts, seeds
from tests.cuda.inspected import Record

# Workers of pytest-xdist share the cores: a thread that waits must not keep one busy. This is read when torch is
# imported, which the conftest.py of a folder does before pytest_configure where a run is of that folder alone.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# And two threads of each worker would wait for each other. Tests that are about threads say how many they want.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# What inductor compiles is so little that a pool of processes, which all import torch, takes longer.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Workers, and programs that tests start, read the bytecode that the first of them wrote.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Golden = Callable[[Path, str], None]
# How many tests for a GPU were deselected.
_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests get as what they expect")
    long.add_options(parser)
    parts.add_options(parser)
    seeds.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(parts.Parts(config))
    config.pluginmanager.register(seeds.Seeds(config))
    config.pluginmanager.register(long.Long(config))
    writes = config.getoption("--update-golden")
    config.pluginmanager.register(Record(compiles_all=config.getoption("--all"), writes=writes))
    # Tests on a GPU use many sizes: those that are about kernels compiled at first use ask for them.
    os.environ["RNNCC_COMPILE"] = "0"
    # Messages are lines on standard error. Else they would go to pytest's own handlers of `logging`.
    os.environ.setdefault("RNNCC_LOG", "info")
    config.addinivalue_line(
        "markers", "gpu: needs a CUDA device; where there is none, a line says how many did not run"
    )
    config.addinivalue_line("markers", "clients: needs other people's libraries, the extra `clients`")
    config.addinivalue_line("markers", "latex: needs pdflatex; where there is none, the test is skipped")
    config.addinivalue_line(
        "markers", "hopper: counts on what is planned for a GPU of compute capability 9.0; does not run elsewhere"
    )
    config.addinivalue_line("markers", "docs: builds the site; where the extra docs is missing, the test is skipped")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: str(item.path))  # stable: a file's own order stays
    marked = {item for item in items if item.get_closest_marker("gpu") is not None}
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        items[:] = [item for item in items if item not in marked]
        config.hook.pytest_deselected(items=list(marked))
        config.stash[_LEFT_OUT] = len(marked)
        return
    target = planned("auto")
    if target is None or not target.has_warpgroups:
        others = {item for item in marked if item.get_closest_marker("hopper") is not None}
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=list(others))


# Rewriting the asserts of the tests takes longer than the rest of collecting them, and every worker of pytest-xdist
# would do it. One goes from the last file to the first: each reads what the other wrote.
_FROM_THE_LAST = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if _FROM_THE_LAST and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


def pytest_collection_finish() -> None:
    # What is there now, torch and thousands of tests, stays. Else the garbage collector would go through it again and
    # again.
    gc.collect()
    gc.freeze()
    # Nor does it go through the records of every compilation: that took a twentieth of the run.
    gc.set_threshold(50_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker of pytest-xdist hands it to the process that reports; all workers collect the same tests.
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"no CUDA device: {left_out} tests that need one did not run (-m gpu)")


@pytest.fixture(scope="session", autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """What is generated compiles without a warning. No flag says so, so that packages are those of the product."""
    run = commands.run

    def strict(*arguments: Any) -> processes.Outcome:
        outcome = run(*arguments)
        return replace(outcome, succeeded=outcome.succeeded and "[-W" not in outcome.text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "run", strict)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_disk_is_waited_for() -> Iterator[None]:
    """What the tests build need not outlive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def float64_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded has kernels for float64, as it else has some for float32. Others are compiled when a call needs
    them: tests that compute in float64 alone need none."""
    monkeypatch.setattr(driver, "load_module", partial(driver.load_module, cpu_files=("f64",)))


@pytest.fixture
def cell_cache(tmp_path: Path) -> Path:
    """A cache of the test's own, without packages. It has the objects that all packages share: they take longest."""
    rnncc.load("lstm")  # makes them, if no test has
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        shutil.copy(default_root() / MARKER, cache)
        ignored = shutil.ignore_patterns("*.tmp")
        shutil.copytree(default_root() / "objects", cache / "objects", ignore=ignored, copy_function=_copied)
    return cache


def _copied(source: str, target: str) -> None:
    # Another process may delete what was used longest ago, where its cache is full.
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(path, text)`: the text is what the file holds; `--update-golden` writes the file instead."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} is missing: run pytest with --update-golden and read what it writes")
        said = f"{path} is not what is made now: run pytest with --update-golden and read the difference"
        assert text == path.read_text(encoding="utf-8"), said

    return compare
