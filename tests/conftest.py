"""Fixtures for all tests: golden files, packages that compile quickly, and the marker for tests that need a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests get as what they expect")


def pytest_configure(config: pytest.Config) -> None:
    # Tests on a GPU use many sizes: those that are about kernels compiled at first use ask for them.
    os.environ["RNNCC_COMPILE"] = "0"
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped, visibly, where there is none")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


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
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="module")
def code_for_this_processor() -> Iterator[None]:
    """What this processor will not run is compiled without optimisation, which takes half of the time."""
    from rnncc.stages.build import toolchain
    from tests.numeric.loops import processor_levels

    with pytest.MonkeyPatch.context() as patch:
        flags = {isa: own if isa == processor_levels()[-1] else ("-O0", *own[1:]) for isa, own in toolchain.ISA.items()}
        patch.setattr(toolchain, "ISA", flags)
        yield
