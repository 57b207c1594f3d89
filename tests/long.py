"""Tests that take long: what the README's command leaves out, and `make test-all` runs. A plugin of pytest, which
conftest.py registers.

    @pytest.mark.long                     a test that takes long
    @pytest.mark.one_in(3)                every third of its cases runs always, and the others take long
    @pytest.mark.one_in(3, "family")      the same for each value of the parameter `family`: its first case runs always
    @pytest.mark.always(stem=SOME)        its cases where the parameter `stem` is in `SOME` run always; others take long

Neither `one_in` nor `always` leaves out cases that need a GPU.

    pytest           leaves out what takes long, and says how many tests that are
    pytest --all     runs everything
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

# Whether this run leaves nothing out.
_runs_all = False


def runs_all() -> bool:
    """Whether this run leaves nothing out: --all."""
    return _runs_all


def add_options(parser: pytest.Parser) -> None:
    """Adds --all."""
    said = "also run the tests that take long, and compile every GPU kernel that is looked at"
    parser.addoption("--all", action="store_true", help=said)


def long_ones(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Those that take long."""
    seen = Counter[tuple[object, ...]]()
    for item in items:
        if item.get_closest_marker("long") is not None:
            yield item
            continue
        if not isinstance(item, pytest.Function) or item.get_closest_marker("gpu") is not None:
            continue
        if (mark := item.get_closest_marker("always")) is not None:
            if any(item.callspec.params[name] not in usual for name, usual in mark.kwargs.items()):
                yield item
        elif (mark := item.get_closest_marker("one_in")) is not None:
            cases, *names = mark.args
            group = (item.path, item.originalname, *(str(item.callspec.params[name]) for name in names))
            if seen[group] % cases:
                yield item
            seen[group] += 1


class Long:
    """Leaves them out."""

    def __init__(self, config: pytest.Config) -> None:
        global _runs_all
        _runs_all = self.runs_all = config.getoption("--all")
        self.left_out = 0
        config.addinivalue_line("markers", "long: takes long; runs with --all")
        config.addinivalue_line("markers", "one_in(n, *names): all but every n-th case of each value takes long")
        config.addinivalue_line("markers", "always(**values): cases with other values of these parameters take long")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [] if self.runs_all else list(long_ones(items))
        if left_out:
            self.left_out = len(left_out)
            found = set(left_out)
            items[:] = [item for item in items if item not in found]
            config.hook.pytest_deselected(items=left_out)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A worker of pytest-xdist hands it to the process that reports; all workers collect the same tests.
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["long"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out = getattr(node, "workeroutput", {}).get("long", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out:
            terminalreporter.write_line(f"{self.left_out} tests that take long did not run (--all)")
