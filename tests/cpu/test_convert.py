"""rnncc/cpu/convert.h against torch's own conversions, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.cpu.host import Array, call

CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
HALVES = [torch.float16, torch.bfloat16]


def _row(library: ctypes.CDLL, name: str, *arguments: Array | int, dtype: torch.dtype) -> None:
    values = [ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arguments]
    library[name](*values, ctypes.c_int32(CODES[dtype]))


def _bits(tensor: torch.Tensor) -> Array:
    return tensor.view(torch.int16).numpy()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_value_is_read_exactly(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    bits = np.arange(65536, dtype=np.uint16).view(np.int16)
    got = np.full(65536, 7, np.float32)
    _row(library, "load_row_float", got, bits, 0, 65536, dtype=dtype)
    want = torch.from_numpy(bits).view(dtype).float().numpy()
    assert np.array_equal(np.isnan(got), np.isnan(want))
    finite = ~np.isnan(want)
    np.testing.assert_array_equal(got[finite].view(np.int32), want[finite].view(np.int32))


@pytest.mark.parametrize("dtype", HALVES)
def test_writing_rounds_to_nearest_even(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    # All of the upper 16 bits (sign, exponent, leading mantissa) with lower halves at, below and above the ties.
    upper = np.arange(65536, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (upper[:, None] | lower[None, :]).ravel().view(np.float32)
    got = np.zeros(len(values), np.int16)
    _row(library, "store_row_float", got, 0, values, len(values), dtype=dtype)
    want = torch.from_numpy(values.copy()).to(dtype)
    nans = np.isnan(values)
    assert bool(torch.isnan(torch.from_numpy(got).view(dtype))[torch.from_numpy(nans)].all())
    np.testing.assert_array_equal(got[~nans], _bits(want)[~nans])


@pytest.mark.parametrize("dtype", HALVES)
def test_short_rows_at_an_offset_touch_nothing_else(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    source = torch.randn(64).to(dtype)
    for n in range(1, 40):
        row = np.full(48, 7, np.float32)
        _row(library, "load_row_float", row, _bits(source), 5, n, dtype=dtype)
        np.testing.assert_array_equal(row[:n], source[5 : 5 + n].float().numpy())
        np.testing.assert_array_equal(row[n:], 7)
        out = np.full(64, 11, np.int16)
        _row(library, "store_row_float", out, 5, row, n, dtype=dtype)
        np.testing.assert_array_equal(out[5 : 5 + n], _bits(source)[5 : 5 + n])
        assert np.all(out[:5] == 11)
        assert np.all(out[5 + n :] == 11)


@pytest.mark.parametrize("compute", ["float", "double"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_dtypes(library: ctypes.CDLL, compute: str, dtype: torch.dtype) -> None:
    numpy_compute = np.float32 if compute == "float" else np.float64
    source = torch.randn(33, dtype=torch.float64).to(dtype)
    row = np.full(40, 7, numpy_compute)
    _row(library, f"load_row_{compute}", row, source.numpy(), 2, 30, dtype=dtype)
    np.testing.assert_array_equal(row[:30], source[2:32].numpy().astype(numpy_compute))
    np.testing.assert_array_equal(row[30:], 7)
    out = np.full(33, 9, source.numpy().dtype)
    _row(library, f"store_row_{compute}", out, 1, row, 30, dtype=dtype)
    np.testing.assert_array_equal(out[1:31], row[:30].astype(out.dtype))
    assert out[0] == out[31] == 9
    assert call(library, "lanes_float", restype=ctypes.c_int64) >= 4
