"""Fixtures of the tests on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from tests.cuda.harness import Packages


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packages]:
    """Each is built once a session."""
    made = Packages(tmp_path_factory.mktemp("packages"))
    yield made
    sys.path.remove(str(made.folder))


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """For tests that ask torch to raise where the host waits: not any longer than they do."""
    yield
    torch.cuda.set_sync_debug_mode("default")
