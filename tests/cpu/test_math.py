"""rnncc/cpu/math.h against extended precision: bounds in ulp everywhere, and the limits at infinities and NaN."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

from tests.cpu.host import Array, Floating, binary, call, unary

Long = np.longdouble
BOUNDS = {np.dtype(np.float32): 2.0, np.dtype(np.float64): 4.0}
FLOAT_SILU_BOUND = (
    3.0  # a product of two rounded factors: sigmoid's error is relative to its own last place, not to silu's
)
DTYPES: list[Floating] = [np.float32, np.float64]


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, Long(1)) / (1 + e))


def _softplus(x: Array) -> Array:
    return np.asarray(np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))))


def _logsigmoid(x: Array) -> Array:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


# name: reference in extended precision, and the arguments (magnitudes) it is compared on.
EVERYWHERE = (0.0, np.inf)
REFERENCES: dict[str, tuple[Callable[[Array], Array], tuple[float, float]]] = {
    "exp": (np.exp, EVERYWHERE),
    "expm1": (np.expm1, EVERYWHERE),
    "log": (np.log, EVERYWHERE),
    "log1p": (np.log1p, EVERYWHERE),
    "tanh": (np.tanh, EVERYWHERE),
    "sigmoid": (_sigmoid, EVERYWHERE),
    "softplus": (_softplus, EVERYWHERE),
    "logsigmoid": (_logsigmoid, EVERYWHERE),
    # Beyond 87 sigmoid is denormal in float, beyond 708 in double: the bound there is its rounding times |x|.
    "silu": (lambda x: x * _sigmoid(x), (0.0, 87.0)),
    # Extended precision itself loses the argument's reduction above.
    "sin": (np.sin, (0.0, 1e9)),
    "cos": (np.cos, (0.0, 1e9)),
    "sqrt": (np.sqrt, EVERYWHERE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), EVERYWHERE),
    "elu": (_elu, EVERYWHERE),
}


def _arguments(dtype: Floating) -> Array:
    """Every exponent, both signs, denormals, dense where functions turn, overflow and underflow edges."""
    random = np.random.default_rng(0)
    if dtype is np.float32:
        patterns = np.arange(0, 0x7F800000, 3989, dtype=np.uint32).view(np.float32)
        edges = [88.72283, 88.72284, -87.33655, -87.33656, -103.97207, -103.97208, -104.0, 16.635532, 9.010913]
    else:
        patterns = random.integers(0, 0x7FF0000000000000, 400_000, dtype=np.int64).view(np.float64)
        edges = [
            709.782712893384,
            709.7827128933841,
            -708.3964185322641,
            -745.1332191019411,
            -745.1332191019412,
            -746.0,
        ]
    wide = 110 if dtype is np.float32 else 760
    parts: list[Array] = [
        patterns,
        -patterns,
        np.linspace(-wide, wide, 400_001),
        np.linspace(-3, 3, 400_001),
        np.linspace(-20, 20, 200_001),
        random.standard_normal(200_000),
        np.array([*edges, 100.0, -100.0, 1.0, -1.0, 20.0, np.nextafter(20.0, 21.0)]),
    ]
    return np.concatenate([part.astype(dtype) for part in parts])


def _unit(exact: Array, dtype: np.dtype[Any]) -> Array:
    """The unit of the last place of exact in a dtype."""
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(exact)))
        exponent = np.clip(np.where(np.isfinite(exponent), exponent, info.minexp), info.minexp, info.maxexp)
        return np.ldexp(Long(1), (exponent - info.nmant).astype(np.int64).astype(np.int32))


def _ulps(got: Array, exact: Array, unit: Array) -> Array:
    """|got - exact| in such units; 0 where both are NaN or the same infinity after rounding."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        distance = np.abs(got.astype(Long) - exact) / unit
        finite = np.isfinite(distance)
    return np.where(finite, distance, np.where(same, 0, np.inf)).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_error_in_ulps(libraries: Mapping[str, ctypes.CDLL], name: str, dtype: Floating) -> None:
    reference, (least, most) = REFERENCES[name]
    x = _arguments(dtype)
    x = x[(np.abs(x) >= least) & (np.abs(x) <= most)]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(Long))
        unit = _unit(exact, x.dtype)
    bound = FLOAT_SILU_BOUND if name == "silu" and dtype is np.float32 else BOUNDS[x.dtype]
    for level, library in libraries.items():
        got = unary(library, name, x)
        ulps = _ulps(got, exact, unit)
        worst = int(np.argmax(ulps))
        assert ulps[worst] <= bound, f"{level}: {name}({x[worst]!r}) = {got[worst]!r}: {ulps[worst]} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_where_sigmoid_is_denormal(library: ctypes.CDLL, dtype: Floating) -> None:
    x = np.linspace(-760, -87, 20_001).astype(dtype)
    unit = float(np.finfo(dtype).smallest_subnormal)
    exact = x.astype(Long) * _sigmoid(x.astype(Long))
    error = np.abs(unary(library, "silu", x).astype(Long) - exact)
    assert np.all(error <= BOUNDS[x.dtype] * (unit * np.abs(x.astype(Long)) + np.finfo(dtype).eps * np.abs(exact)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_erf_and_gelu(libraries: Mapping[str, ctypes.CDLL], dtype: Floating) -> None:
    edges = np.array([0.99999, 1.0, 1.00001, 3.9, 4.0, 5.9, 6.0, 30.0, 1e-30, 1e-3])
    x: Array = np.concatenate([np.linspace(-7, 7, 3001), edges, -edges]).astype(dtype)
    with mpmath.workdps(40):
        exact = np.array([Long(mpmath.nstr(mpmath.erf(mpmath.mpf(float(v))), 25)) for v in x])
        gelu = [mpmath.mpf(float(v)) * (1 + mpmath.erf(mpmath.mpf(float(v)) / mpmath.sqrt(2))) / 2 for v in x]
        exact_gelu = np.array([Long(mpmath.nstr(v, 25)) for v in gelu])
    bound = BOUNDS[x.dtype]
    # 1 + erf cancels below zero: there the bound is that many ulp of x/2.
    unit = np.spacing(np.where(x < 0, np.abs(x) / 2, np.abs(exact_gelu).astype(dtype)))
    for library in libraries.values():
        assert _ulps(unary(library, "erf", x), exact, _unit(exact, x.dtype)).max() <= bound
        assert np.all(np.abs(unary(library, "gelu", x).astype(Long) - exact_gelu) <= bound * unit)


inf, nan = np.inf, np.nan
SPECIAL = [nan, -inf, inf, -0.0, 0.0]
LIMITS = {
    "exp": [nan, 0, inf, 1, 1],
    "expm1": [nan, -1, inf, -0.0, 0],
    "log": [nan, nan, inf, -inf, -inf],
    "log1p": [nan, nan, inf, -0.0, 0],
    "tanh": [nan, -1, 1, -0.0, 0],
    "sigmoid": [nan, 0, 1, 0.5, 0.5],
    "softplus": [nan, 0, inf, np.log(2), np.log(2)],
    "logsigmoid": [nan, -inf, 0, -np.log(2), -np.log(2)],
    "silu": [nan, nan, inf, -0.0, 0],
    "gelu": [nan, nan, inf, -0.0, 0],
    "erf": [nan, -1, 1, -0.0, 0],
    "sin": [nan, nan, nan, -0.0, 0],
    "cos": [nan, nan, nan, 1, 1],
    "sqrt": [nan, nan, inf, -0.0, 0],
    "rsqrt": [nan, nan, 0, -inf, inf],
    "abs": [nan, inf, inf, 0, 0],
    "sign": [0, -1, 1, 0, 0],
    "relu": [nan, 0, inf, -0.0, 0],
    "hardsigmoid": [nan, 0, 1, 0.5, 0.5],
    "hardtanh": [nan, -1, 1, -0.0, 0],
    "heaviside": [0, 0, 1, 0, 0],
    "elu": [nan, -1, inf, -0.0, 0],
    "leakyrelu": [nan, -inf, inf, -0.0, 0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(LIMITS))
def test_limits(library: ctypes.CDLL, name: str, dtype: Floating) -> None:
    got = unary(library, name, np.array(SPECIAL, dtype))
    want = np.array(LIMITS[name], dtype)
    np.testing.assert_array_max_ulp(np.nan_to_num(got, nan=7.5), np.nan_to_num(want, nan=7.5), 1)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    zero = want == 0
    if name != "hardtanh":  # maximum of two zeros may be either, as in torch
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounded_functions_stay_within_their_bounds(library: ctypes.CDLL, dtype: Floating) -> None:
    x = _arguments(dtype)
    assert np.abs(unary(library, "tanh", x)).max() <= 1
    assert np.abs(unary(library, "erf", x)).max() <= 1
    sigmoid = unary(library, "sigmoid", x)
    assert sigmoid.min() >= 0
    assert sigmoid.max() <= 1


TORCH_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "relu": torch.relu,
    "sign": torch.sign,
    "hardtanh": torch.nn.functional.hardtanh,
    "leakyrelu": torch.nn.functional.leaky_relu,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(TORCH_UNARY))
def test_piecewise_functions_equal_torch(library: ctypes.CDLL, name: str, dtype: Floating) -> None:
    x = _arguments(dtype)
    np.testing.assert_array_equal(unary(library, name, x), TORCH_UNARY[name](torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_hardsigmoid(library: ctypes.CDLL, dtype: Floating) -> None:
    x = np.linspace(-5, 5, 10_001).astype(dtype)
    exact = np.clip(x.astype(Long) + 3, 0, 6) / 6
    # x + 3 cancels near -3.
    assert np.abs(unary(library, "hardsigmoid", x) - exact).max() <= np.finfo(dtype).eps


def _pairs(dtype: Floating) -> tuple[Array, Array]:
    values = np.array([nan, -inf, inf, -0.0, 0.0, 1, -1, 2.5, -2.5, 3, 1e-3, -1e30, 88, -200, 1e10], dtype)
    random = np.random.default_rng(1)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    return (
        np.concatenate([a, (30 * random.standard_normal(5000)).astype(dtype)]),
        np.concatenate([b, (30 * random.standard_normal(5000)).astype(dtype)]),
    )


TORCH_BINARY = {
    "max": torch.maximum,
    "min": torch.minimum,
    "remainder": torch.remainder,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(TORCH_BINARY))
def test_binary_functions_equal_torch(libraries: Mapping[str, ctypes.CDLL], name: str, dtype: Floating) -> None:
    a, b = _pairs(dtype)
    # One argument at a time: torch's vector and scalar code differ in how they compute a remainder.
    want = np.array([TORCH_BINARY[name](torch.tensor(p), torch.tensor(q)).item() for p, q in zip(a, b, strict=True)])
    for library in libraries.values():
        np.testing.assert_array_equal(binary(library, name, a, b), want.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logaddexp(library: ctypes.CDLL, dtype: Floating) -> None:
    a, b = _pairs(dtype)
    got = binary(library, "logaddexp", a, b)
    with np.errstate(all="ignore"):
        exact = np.logaddexp(a.astype(Long), b.astype(Long))
        larger = np.maximum(np.where(np.isfinite(a), np.abs(a), 0), np.where(np.isfinite(b), np.abs(b), 0))
        unit = np.spacing(larger.astype(dtype))
        error = np.abs(got.astype(Long) - exact)
    finite = np.isfinite(exact)
    assert np.all(error[finite] <= BOUNDS[a.dtype] * np.maximum(unit, np.finfo(dtype).eps)[finite])
    np.testing.assert_array_equal(got[~finite], exact[~finite].astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pow(library: ctypes.CDLL, dtype: Floating) -> None:
    a, b = _pairs(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(Long), b.astype(Long))
    assert _ulps(binary(library, "pow", a, b), exact, _unit(exact, a.dtype)).max() <= 1


def test_mixed_scalar_arguments(library: ctypes.CDLL) -> None:
    x = np.array([-3, -1, -0.5, 0, 0.5, 1, 3, nan, inf, -inf, 2, 7, -7, 0.25, 0.75, -2, 9], np.float32)
    y = np.empty_like(x)
    call(library, "clamp_float", y, x, len(x), -1.0, 1.0)
    np.testing.assert_array_equal(y, torch.clamp(torch.from_numpy(x), -1, 1).numpy())
    call(library, "where_float", y, (x > 0).astype(np.float32), x, len(x))
    np.testing.assert_array_equal(y, np.where(x > 0, x, np.float32(-1)))
    call(library, "cube_float", y, x, len(x))
    np.testing.assert_array_equal(y, x * (x * x))


def test_horizontal_sum_of_a_partial_vector(library: ctypes.CDLL) -> None:
    lanes = call(library, "lanes_float", restype=ctypes.c_int64)
    for n in range(lanes + 1):
        # Powers of two: exact in any order, and nothing beyond n may enter.
        x = np.concatenate([2.0 ** np.arange(n), np.full(lanes - n, nan)]).astype(np.float32)
        assert call(library, "sum_float", x, n, restype=ctypes.c_float) == 2.0**n - 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_epsilon(library: ctypes.CDLL, dtype: Floating) -> None:
    assert unary(library, "epsilon", np.zeros(1, dtype))[0] == np.finfo(dtype).eps


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid"])
def test_a_short_last_vector_writes_nothing_beyond(library: ctypes.CDLL, name: str) -> None:
    for n in range(1, 40):
        x = np.linspace(-1, 1, n).astype(np.float32)
        y = np.full(n + 16, 7, np.float32)
        call(library, f"{name}_float", y, x, n)
        np.testing.assert_array_equal(y[n:], 7)
        np.testing.assert_array_equal(y[:n], unary(library, name, np.concatenate([x, x[::-1]]))[:n])
