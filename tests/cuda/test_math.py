"""rnncc/cuda/math.cuh, compiled for the host: every function of the operator table against torch. Needs no GPU.

The bounds are wide, because a GPU has an exp and a tanh of its own; a wrong formula exceeds them.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rnncc.machine.paths import templates_dir
from tests.cpu.host import FUNCTIONS, apply, build, call, write_functions
from tests.definitions import definition

HOST = Path(__file__).resolve().parent / "host"
HEADER = "templates/include/rnncc/cuda/math.cuh"
STRANGE = (torch.nan, -torch.inf, torch.inf, -0.0, 0.0, 1.0, -1.0, 2.5, 100.0, -100.0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("math")
    write_functions(folder)
    # Beside another scalar.cuh than its own.
    shutil.copy(templates_dir() / "include/rnncc/cuda/math.cuh", folder)
    shutil.copy(HOST / "scalar.cuh", folder)
    return build("../cuda/math.cpp", "generic", folder, header=HEADER)


def arguments(arity: int) -> list[torch.Tensor]:
    """Every combination of strange numbers, and ordinary ones."""
    generator = torch.Generator().manual_seed(0)
    strange = torch.meshgrid([torch.tensor(STRANGE)] * arity, indexing="ij")
    return [torch.cat([grid.ravel(), 3 * torch.randn(1000, generator=generator)]) for grid in strange]


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"epsilon"}))
def test_functions_equal_torchs(library: ctypes.CDLL, name: str) -> None:
    row = FUNCTIONS[name]
    given = arguments(row.arity)
    expected = definition(row.name)(*(each.double() for each in given)).float()
    got = torch.from_numpy(apply(library, name, *(each.numpy() for each in given)))
    said = f"rnncc::{name} of {HEADER} is not torch's.\n"
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True, msg=said.__add__)


def test_epsilon(library: ctypes.CDLL) -> None:
    assert apply(library, "epsilon", np.zeros(1, np.float32))[0] == np.finfo(np.float32).eps


def test_whole_powers(library: ctypes.CDLL) -> None:
    x = np.array(STRANGE, np.float32)
    cube, inverse_square = np.empty_like(x), np.empty_like(x)
    call(library, "powers_float", cube, inverse_square, x, len(x))
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(cube, x * (x * x))
        np.testing.assert_array_equal(inverse_square, 1 / (x * x))


def test_numbers_that_are_not_finite(library: ctypes.CDLL) -> None:
    assert call(library, "infinity_float", restype=ctypes.c_float) == np.inf
    assert np.isnan(call(library, "not_a_number_float", restype=ctypes.c_float))
