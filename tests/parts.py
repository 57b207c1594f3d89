"""Parts of a run of the tests, for machines that are lent for some minutes: a plugin of pytest, which conftest.py
registers.

    pytest -m gpu --shard 2/5             the second of five parts
    pytest -m gpu --passed FILE           leaves out the tests that FILE names, and adds those that pass
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def add_options(parser: pytest.Parser) -> None:
    """Adds --shard and --passed."""
    parser.addoption("--shard", metavar="I/N", default="1/1", help="run a part of the tests: 2/5 is the second of five")
    parser.addoption("--passed", metavar="FILE", type=Path, help="leave out the tests that passed, which FILE names")


class Parts:
    """What is left out, and what has passed."""

    def __init__(self, config: pytest.Config) -> None:
        """Raises UsageError for a shard that means nothing."""
        shard = config.getoption("--shard")
        found = re.fullmatch(r"(\d+)/(\d+)", shard)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise pytest.UsageError(f"--shard is a part like 2/5, not {shard}")
        self.part = slice(int(found[1]) - 1, None, int(found[2]))
        self.passed: Path | None = config.getoption("--passed")
        # A worker of pytest-xdist hands its reports to the process that writes the file.
        self.writes = not hasattr(config, "workerinput")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = set[str]()
        if self.passed and self.passed.exists():
            passed |= set(self.passed.read_text(encoding="utf-8").splitlines())
        kept = [item for item in items[self.part] if item.nodeid not in passed]
        chosen = set(kept)
        if left_out := [item for item in items if item not in chosen]:
            config.hook.pytest_deselected(items=left_out)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.passed and self.writes and report.when == "call" and report.passed:
            with self.passed.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")
