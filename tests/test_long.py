"""What takes long is left out, and said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import long

TESTS = """
import pytest

@pytest.mark.long
def test_slow(): pass

def test_quick(): pass

@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(7))
def test_number(number): pass

@pytest.mark.one_in(2, "family")
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("family", "ab")
def test_family(family, number): pass

@pytest.mark.always(family="b", number=(0, 2))
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("family", "ab")
def test_chosen(family, number): pass

@pytest.mark.gpu
@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", range(2))
def test_on_a_gpu(number): pass
"""
LEFT_OUT = {
    *("slow", "number[1]", "number[2]", "number[4]", "number[5]", "family[a-1]", "family[b-1]"),
    *("chosen[a-0]", "chosen[a-1]", "chosen[a-2]", "chosen[b-1]"),
}


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TESTS)
    pytester.makeconftest(
        "from tests import long\n"
        "def pytest_addoption(parser): long.add_options(parser)\n"
        "def pytest_configure(config): config.pluginmanager.register(long.Long(config))\n"
    )
    pytester.syspathinsert(Path(long.__file__).parents[1])
    return pytester


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_some_cases_stand_for_all(session: pytest.Pytester, workers: tuple[str, ...]) -> None:
    result = session.runpytest_subprocess("-v", *workers)
    result.stdout.fnmatch_lines(["11 tests that take long did not run (--all)"])
    said = result.stdout.str()
    assert result.parseoutcomes()["passed"] == 12
    assert not [name for name in LEFT_OUT if f"::test_{name} " in said]


def test_all_of_them_run_where_that_is_asked_for(session: pytest.Pytester) -> None:
    result = session.runpytest_subprocess("--all")
    result.assert_outcomes(passed=23)
    result.stdout.no_fnmatch_line("*take long*")
