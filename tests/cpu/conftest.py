from __future__ import annotations

import ctypes

import pytest

from tests.cpu.host import LEVELS, build


@pytest.fixture(scope="session", params=sorted(LEVELS))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """tests/cpu/host.cpp at one level."""
    return build("host.cpp", request.param, tmp_path_factory.mktemp("host"))
