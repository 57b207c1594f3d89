"""Fixtures of the tests on a GPU: packages, each built once a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.cuda.harness import Packages


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packages]:
    made = Packages(tmp_path_factory.mktemp("packages"))
    yield made
    sys.path.remove(str(made.folder))
