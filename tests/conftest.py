"""For all tests: golden files, what compilers are told, and the marker for tests that need a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rnncc.stages.build import find_toolchain

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests get as what they expect")


def pytest_configure(config: pytest.Config) -> None:
    # Tests on a GPU use many sizes: those that are about kernels compiled at first use ask for them.
    os.environ["RNNCC_COMPILE"] = "0"
    # Workers of pytest-xdist share the cores: a thread that waits must not keep one busy. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    # What is generated compiles without warnings.
    if "CXX" not in os.environ:
        os.environ["CXX"] = " ".join((*find_toolchain().command, "-Werror"))
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
