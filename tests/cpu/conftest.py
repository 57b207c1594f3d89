from __future__ import annotations

import ctypes
from collections.abc import Mapping

import pytest

from rnncc.ir.target import INSTRUCTION_SETS
from tests.cpu.host import build, runs_here, write_functions


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ctypes.CDLL]:
    """tests/cpu/host.cpp at every level that this machine runs."""
    folder = tmp_path_factory.mktemp("host")
    write_functions(folder)
    return {level: build("host.cpp", level, folder) for level in INSTRUCTION_SETS if runs_here(level)}


@pytest.fixture(scope="session", params=sorted(INSTRUCTION_SETS))
def library(request: pytest.FixtureRequest, libraries: Mapping[str, ctypes.CDLL]) -> ctypes.CDLL:
    """tests/cpu/host.cpp at one level."""
    if request.param not in libraries:
        pytest.skip(f"this machine does not run x86-64 level {request.param}")
    return libraries[request.param]
