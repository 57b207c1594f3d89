"""What is drawn is the same at every run, in any order of the tests, and other in a fresh run."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import torch

from tests import seeds

TESTS = """
import random

import pytest
import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import seeds

def write(line):
    with open("drawn.txt", "a") as file:
        file.write(f"{line}\\n")

@pytest.fixture(scope="module")
def given_once():
    return numpy.random.rand()

def test_of_a_fixture(given_once):
    write(f"fixture {given_once} {random.random()}")

def test_of_numpy(given_once):
    write(f"numpy {numpy.random.rand()}")

@settings(max_examples=seeds.count(2))
@given(st.integers(0, 2**40))
def test_of_hypothesis(number):
    write(f"hypothesis {number}")

@pytest.mark.parametrize("batch", seeds.batches(5, 2), ids=str)
def test_of_seeds(batch):
    for seed in batch:
        write(f"seed {seed}")
"""


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TESTS)
    pytester.makeconftest(
        "import pytest\n"
        "from tests import seeds\n"
        "def pytest_addoption(parser): seeds.add_options(parser)\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_configure(config): config.pluginmanager.register(seeds.Seeds(config))\n"
    )
    pytester.syspathinsert(Path(seeds.__file__).parents[1])
    return pytester


def drawn(session: pytest.Pytester, *options: str) -> tuple[list[str], str]:
    """What the tests of a run draw, in the order of the alphabet, and what the run prints."""
    path = session.path / "drawn.txt"
    path.unlink(missing_ok=True)
    result = session.runpytest_subprocess(*options)
    assert result.ret == 0
    return sorted(path.read_text().splitlines()), str(result.stdout)


def test_every_run_draws_the_same(session: pytest.Pytester) -> None:
    first, said = drawn(session)
    assert [line for line in first if line.startswith("seed")] == [f"seed {seed}" for seed in range(5)]
    assert sum(line.startswith("hypothesis") for line in first) == 2
    assert "fresh" not in said
    assert drawn(session)[0] == first


def test_what_is_drawn_does_not_depend_on_the_tests_before(session: pytest.Pytester) -> None:
    whole = drawn(session)[0]
    alone = drawn(session, "-k", "of_numpy")[0]
    assert alone == [line for line in whole if line.startswith("numpy")]


@pytest.mark.long
def test_a_fresh_run_draws_more_and_is_repeated_by_its_seed(session: pytest.Pytester) -> None:
    usual = drawn(session)[0]
    # Its workers draw from one seed: else they collect different tests.
    fresh, said = drawn(session, "--fresh", "new", "-n", "2")
    assert len(fresh) == 2 + 7 * seeds.MORE
    assert not any(line.startswith("seed") for line in {*fresh} & {*usual})
    # The simplest example is tried in every run.
    assert sum(line.startswith("hypothesis") for line in {*fresh} - {*usual}) > seeds.MORE
    seed = said.partition("--fresh ")[2].split()[0]
    assert drawn(session, "--fresh", seed)[0] == fresh


def test_torch_draws_the_same_too(request: pytest.FixtureRequest) -> None:
    first = torch.rand(3)
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
    assert torch.equal(first, torch.rand(3))


def test_a_seed_that_is_no_number(session: pytest.Pytester) -> None:
    result = session.runpytest_subprocess("--fresh", "old")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--fresh is 'new' or a number, not old"])
