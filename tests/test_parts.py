"""Runs of the tests in parts: disjoint, complete, and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import parts

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(7))
def test_number(number):
    assert number != 3
"""


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TESTS)
    pytester.makeconftest(
        "from tests import parts\n"
        "def pytest_addoption(parser): parts.add_options(parser)\n"
        "def pytest_configure(config): config.pluginmanager.register(parts.Parts(config))\n"
    )
    pytester.syspathinsert(Path(parts.__file__).parents[1])
    return pytester


def test_parts_are_disjoint_and_complete(session: pytest.Pytester) -> None:
    shards = [session.runpytest_inprocess("--shard", f"{place}/3", "-k", "not 5") for place in (1, 2, 3)]
    assert [shard.parseoutcomes() for shard in shards] == [
        {"passed": 1, "failed": 1, "deselected": 5},
        {"passed": 2, "deselected": 5},
        {"passed": 2, "deselected": 5},
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_run_goes_on(session: pytest.Pytester, workers: tuple[str, ...]) -> None:
    options = ("--passed", "passed.txt", *workers)
    session.runpytest_subprocess("-k", "1 or 2 or 3", *options).assert_outcomes(passed=2, failed=1)
    second = session.runpytest_subprocess(*options).parseoutcomes()
    assert (second["passed"], second["failed"]) == (4, 1)
    assert len(session.path.joinpath("passed.txt").read_text().splitlines()) == 6


@pytest.mark.parametrize("shard", ["0/2", "3/2", "half"])
def test_a_part_that_means_nothing(session: pytest.Pytester, shard: str) -> None:
    result = session.runpytest_inprocess("--shard", shard)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--shard is a part like 2/5, not {shard}"])
