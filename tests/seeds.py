"""What the tests draw: the same at every run or, in the long suite, anew. conftest.py registers this plugin of pytest.

pytest                   random cells, mutants and models are those of every run
pytest --fresh new       others, and more of them; the run says its seed
pytest --fresh 12345     the same as in the run whose seed was 12345
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How many times more is drawn in a fresh run.
MORE = 20
# The seed of a fresh run; None where everything is fixed.
_fresh: int | None = None


def add_options(parser: pytest.Parser) -> None:
    """Adds --fresh."""
    said = (
        "draw other random cells, mutants and models than usual, and more of them: 'new', or the seed of an earlier run"
    )
    parser.addoption("--fresh", metavar="SEED", help=said)


def count(usual: int) -> int:
    """How many examples a property tries."""
    return usual if _fresh is None else usual * MORE


def drawn(usual: int) -> range:
    """The seeds that a test draws from: 0, 1, 2 and so on; in a fresh run others, and more of them."""
    return range(usual) if _fresh is None else range(_fresh, _fresh + usual * MORE)


def batches(usual: int, size: int) -> list[range]:
    """The seeds of `drawn`, `size` at a time."""
    seeds: Sequence[int] = drawn(usual)
    return [range(start, min(start + size, seeds[-1] + 1)) for start in seeds[::size]]


class Seeds:
    """Gives each test, and each fixture, random numbers of its own, whatever ran before it in the same process."""

    def __init__(self, config: pytest.Config) -> None:
        """Raises UsageError for a seed that is no number."""
        global _fresh
        # A worker of pytest-xdist reads the command line again: what was drawn for it comes beside that.
        given = getattr(config, "workerinput", {}).get("fresh", config.getoption("--fresh"))
        if given == "new":
            given = str(random.SystemRandom().randrange(10**6, 10**9))
        if given is not None and not given.isdecimal():
            raise pytest.UsageError(f"--fresh is 'new' or a number, not {given}")
        _fresh = None if given is None else int(given)
        self._given = given
        # The plugin of hypothesis reads its option after this.
        config.option.hypothesis_seed = given
        # No example comes from an earlier run, and none is left out because the machine is busy.
        settings.register_profile(
            "rnncc",
            derandomize=_fresh is None,
            database=None,
            deadline=None,
            max_examples=count(50),
            suppress_health_check=[HealthCheck.too_slow],
        )
        settings.load_profile("rnncc")

    def pytest_report_header(self) -> str | None:
        return None if _fresh is None else f"fresh examples: repeat them with --fresh {_fresh}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a worker of pytest-xdist, before it starts, what to draw: all must collect the same tests."""
        node.workerinput["fresh"] = self._given

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        _seed(fixturedef.argname)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        _seed(item.nodeid)


def _seed(name: str) -> None:
    """Seed the libraries that are there: torch may not be imported yet."""
    number = zlib.crc32(name.encode())
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)
    if (torch := sys.modules.get("torch")) is not None:
        # torch.manual_seed notes for later, with its stack of calls, what to do when a GPU is first used.
        seed = torch.manual_seed if torch.cuda.is_initialized() else torch.default_generator.manual_seed
        seed(number)
