"""rnncc/cpu/math.h: every function of the operator table against torch, within the error that its row promises.

Most are compared with extended precision too, in which torch's own error does not count.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

from rnncc.language import bound as bounds
from tests.cpu.host import FUNCTIONS, Array, Floating, apply, call
from tests.definitions import definition
from tests.long import runs_all

Long = np.longdouble
# Of a function that is no operator.
HELPERS = {"expm1": (2.0, 4.0)}
# What torch's functions in float64 may be off by, where these are the reference.
TORCH = 4.0
DTYPES: list[Floating] = [np.float32, np.float64]
# One in so many of the arguments that are tried with --all.
EVERY = 1 if runs_all() else 4


def _bound(name: str, dtype: Any) -> float:
    """The error in ulp that the function's row allows."""
    ulps = FUNCTIONS[name].ulps if name in FUNCTIONS else HELPERS[name]
    return ulps[0 if np.dtype(dtype) == np.float32 else 1]


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
        patterns = np.arange(0, 0x7F800000, 3989 * EVERY, dtype=np.uint32).view(np.float32)
        edges = [88.72283, 88.72284, -87.33655, -87.33656, -103.97207, -103.97208, -104.0, 16.635532, 9.010913]
    else:
        patterns = random.integers(0, 0x7FF0000000000000, 400_000 // EVERY, dtype=np.int64).view(np.float64)
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
        np.linspace(-wide, wide, 400_000 // EVERY + 1),
        np.linspace(-3, 3, 400_000 // EVERY + 1),
        np.linspace(-20, 20, 200_000 // EVERY + 1),
        random.standard_normal(200_000 // EVERY),
        np.array([*edges, 100.0, -100.0, 1.0, -1.0, 20.0, np.nextafter(20.0, 21.0)]),
    ]
    return np.concatenate([part.astype(dtype) for part in parts])


def _unit(exact: Array, dtype: np.dtype[Any]) -> Array:
    """The unit of the last place of exact in a dtype."""
    info = np.finfo(dtype)
    # frexp has its fraction between 1/2 and 1.
    exponent = np.where(np.isfinite(exact) & (exact != 0), np.frexp(exact)[1] - 1, info.minexp)
    return np.asarray(np.ldexp(Long(1), np.clip(exponent, info.minexp, info.maxexp) - info.nmant))


def _ulps(got: Array, exact: Array, unit: Array) -> Array:
    """|got - exact| in such units; 0 where both are NaN or the same infinity after rounding."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        distance = np.abs(got.astype(Long) - exact) / unit
        finite = np.isfinite(distance)
    return np.where(finite, distance, np.where(same, 0, np.inf)).astype(np.float64)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_error_in_ulps(libraries: Mapping[str, ctypes.CDLL], name: str, dtype: Floating) -> None:
    reference, (least, most) = REFERENCES[name]
    x = _arguments(dtype)
    x = x[(np.abs(x) >= least) & (np.abs(x) <= most)]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(Long))
        unit = _unit(exact, x.dtype)
    bound = _bound(name, dtype)
    for level, library in libraries.items():
        got = apply(library, name, x)
        ulps = _ulps(got, exact, unit)
        worst = int(np.argmax(ulps))
        assert ulps[worst] <= bound, f"{level}: {name}({x[worst]!r}) = {got[worst]!r}: {ulps[worst]} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_where_sigmoid_is_denormal(library: ctypes.CDLL, dtype: Floating) -> None:
    x = np.linspace(-760, -87, 20_001).astype(dtype)
    unit = float(np.finfo(dtype).smallest_subnormal)
    exact = x.astype(Long) * _sigmoid(x.astype(Long))
    error = np.abs(apply(library, "silu", x).astype(Long) - exact)
    # The rounding of sigmoid's denormal result, times |x|.
    assert np.all(
        error <= _bound("sigmoid", dtype) * (unit * np.abs(x.astype(Long)) + np.finfo(dtype).eps * np.abs(exact))
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_erf_and_gelu(libraries: Mapping[str, ctypes.CDLL], dtype: Floating) -> None:
    edges = np.array([0.99999, 1.0, 1.00001, 3.9, 4.0, 5.9, 6.0, 30.0, 1e-30, 1e-3])
    x: Array = np.concatenate([np.linspace(-7, 7, 3001), edges, -edges]).astype(dtype)
    with mpmath.workdps(40):
        exact = np.array([Long(mpmath.nstr(mpmath.erf(mpmath.mpf(float(v))), 25)) for v in x])
        gelu = [mpmath.mpf(float(v)) * (1 + mpmath.erf(mpmath.mpf(float(v)) / mpmath.sqrt(2))) / 2 for v in x]
        exact_gelu = np.array([Long(mpmath.nstr(v, 25)) for v in gelu])
    # 1 + erf cancels below zero: there the bound is that many ulp of x/2.
    unit = np.spacing(np.where(x < 0, np.abs(x) / 2, np.abs(exact_gelu).astype(dtype)))
    for library in libraries.values():
        assert _ulps(apply(library, "erf", x), exact, _unit(exact, x.dtype)).max() <= _bound("erf", dtype)
        error = np.abs(apply(library, "gelu", x).astype(Long) - exact_gelu)
        assert np.all(error <= _bound("gelu", dtype) * unit)


inf, nan = np.inf, np.nan
SPECIAL = [nan, -inf, inf, -0.0, 0.0]
ONE_ARGUMENT = sorted({name for name, row in FUNCTIONS.items() if row.arity == 1 and name != "epsilon"} | set(HELPERS))
# Sums in these cancel. Tests of their own say of what their error is a part.
CANCELLING = {"gelu", "hardsigmoid", "logaddexp"}
COMPARED = sorted(set(FUNCTIONS) - set(REFERENCES) - CANCELLING - {"epsilon"})


def _torch(name: str) -> Callable[..., torch.Tensor]:
    """torch's function for one of math.h, whose name is not always the operator's."""
    return definition(FUNCTIONS[name].name if name in FUNCTIONS else name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_limits(library: ctypes.CDLL, name: str, dtype: Floating) -> None:
    got = apply(library, name, np.array(SPECIAL, dtype))
    # In float64, because torch's own vectors of floats have a NaN for gelu(inf).
    want = _torch(name)(torch.tensor(SPECIAL, dtype=torch.float64)).numpy().astype(dtype)
    said = f"rnncc::{name} of {SPECIAL} is {got}, torch's is {want}"
    np.testing.assert_array_max_ulp(np.nan_to_num(got, nan=7.5), np.nan_to_num(want, nan=7.5), 1)
    assert np.array_equal(np.isnan(got), np.isnan(want)), said
    zero = want == 0
    if name != "hardtanh":  # maximum of two zeros may be either, as in torch
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero])), said


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(set(ONE_ARGUMENT) - set(HELPERS)))
def test_values_stay_within_the_bounds_of_the_row(library: ctypes.CDLL, name: str, dtype: Floating) -> None:
    """The row's `bound`, and exactly so: tanh is never above 1."""
    bound = FUNCTIONS[name].bound
    y = apply(library, name, _arguments(dtype))
    y = y[~np.isnan(y)]
    certain = bound(bounds.FREE)
    least = 0 if certain.not_negative else -1 if bound is bounds.signed else -10 if certain.below else -inf
    most = 0 if certain.not_positive else 1 if bound in (bounds.unit, bounds.signed) else 10 if certain.above else inf
    assert least <= y.min() and y.max() <= most, f"{name} takes values from {y.min()} to {y.max()}: see its row's bound"


def _several(arity: int, dtype: Floating) -> tuple[Array, ...]:
    """Arguments of a function of several: pairs or triples of ordinary and of strange numbers."""
    values = np.array([nan, -inf, inf, -0.0, 0.0, 1, -1, 2.5, -2.5, 3, 1e-3, -1e30, 88, -200, 1e10], dtype)
    random = np.random.default_rng(1)
    grids = np.meshgrid(*[values] * arity)
    return tuple(np.concatenate([grid.ravel(), (30 * random.standard_normal(5000)).astype(dtype)]) for grid in grids)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPARED)
def test_functions_equal_torchs(libraries: Mapping[str, ctypes.CDLL], name: str, dtype: Floating) -> None:
    row, bound, function = FUNCTIONS[name], _bound(name, dtype), _torch(name)
    arguments = (_arguments(dtype),) if row.arity == 1 else _several(row.arity, dtype)
    if bound and row.arity == 1 and dtype is np.float64:
        # Beyond, an exponential in torch's own function may overflow.
        arguments = (arguments[0][np.abs(arguments[0]) <= 700],)
    tensors = [torch.from_numpy(each).to(torch.float64 if bound else None) for each in arguments]
    if row.arity == 1:
        exact = function(*tensors).numpy()
    else:
        # One argument at a time: torch's vector and scalar code differ in how they compute a remainder.
        exact = np.array([float(function(*each)) for each in zip(*tensors, strict=True)])
    unit = _unit(exact.astype(Long), np.dtype(dtype))
    if bound:
        # torch is off too; and so is a factor that is denormal, by an amount that x multiplies.
        bound += TORCH if dtype is np.float64 else 0
        unit = np.maximum(unit, np.finfo(dtype).smallest_subnormal * np.abs(arguments[0].astype(Long)))
    for level, library in libraries.items():
        got = apply(library, name, *arguments)
        ulps = _ulps(got, exact.astype(Long), unit)
        worst = int(np.argmax(ulps))
        called = f"rnncc::{name}({', '.join(str(each[worst]) for each in arguments)})"
        assert ulps[worst] <= bound, (
            f"{level}: {called} is {got[worst]!r}, but torch's is {exact[worst]!r}: {ulps[worst]:.3g} ulp. Its row in "
            f"rnncc/language/operators.py promises {row.ulps}: correct templates/include/rnncc/cpu/math_….h, or the row"
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_hardsigmoid(library: ctypes.CDLL, dtype: Floating) -> None:
    x = np.linspace(-5, 5, 10_001).astype(dtype)
    exact = np.clip(x.astype(Long) + 3, 0, 6) / 6
    # x + 3 cancels near -3.
    assert np.abs(apply(library, "hardsigmoid", x) - exact).max() <= np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_logaddexp(library: ctypes.CDLL, dtype: Floating) -> None:
    a, b = _several(2, dtype)
    got = apply(library, "logaddexp", a, b)
    with np.errstate(all="ignore"):
        exact = np.logaddexp(a.astype(Long), b.astype(Long))
        larger = np.maximum(np.where(np.isfinite(a), np.abs(a), 0), np.where(np.isfinite(b), np.abs(b), 0))
        unit = np.spacing(larger.astype(dtype))
        error = np.abs(got.astype(Long) - exact)
    finite = np.isfinite(exact)
    assert np.all(error[finite] <= _bound("logaddexp", dtype) * np.maximum(unit, np.finfo(dtype).eps)[finite])
    np.testing.assert_array_equal(got[~finite], exact[~finite].astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pow(library: ctypes.CDLL, dtype: Floating) -> None:
    a, b = _several(2, dtype)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(Long), b.astype(Long))
    assert _ulps(apply(library, "pow", a, b), exact, _unit(exact, a.dtype)).max() <= 1


def test_mixed_scalar_arguments(library: ctypes.CDLL) -> None:
    x = np.array([-3, -1, -0.5, 0, 0.5, 1, 3, nan, inf, -inf, 2, 7, -7, 0.25, 0.75, -2, 9], np.float32)
    y = np.empty_like(x)
    call(library, "clamp_numbers_float", y, x, len(x), -1.0, 1.0)
    np.testing.assert_array_equal(y, torch.clamp(torch.from_numpy(x), -1, 1).numpy())
    call(library, "where_number_float", y, (x > 0).astype(np.float32), x, len(x))
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
def test_horizontal_sums_of_four_vectors(library: ctypes.CDLL, dtype: Floating) -> None:
    name = np.dtype(dtype).name.removesuffix("32").replace("float64", "double")
    lanes = call(library, f"lanes_{name}", restype=ctypes.c_int64)
    y = np.empty(4, dtype)
    # Powers of two: exact in any order, and each lane in the sum of its vector alone.
    bits = np.arange(4 * lanes).reshape(4, lanes) % (2 * lanes)
    call(library, f"sums_{name}", y, (2.0**bits).astype(dtype))
    np.testing.assert_array_equal(y, (2.0**bits).sum(1))
    # The same to the last bit, whatever the other three are.
    x = np.random.default_rng(0).standard_normal((4, lanes)).astype(dtype)
    call(library, f"sums_{name}", y, x)
    for row, total in zip(x, y.copy(), strict=True):
        call(library, f"sums_{name}", y, np.tile(row, (4, 1)))
        assert (y == total).all()
        assert abs(total - row.astype(np.float64).sum()) <= lanes * np.finfo(dtype).eps * np.abs(row).sum()


@pytest.mark.parametrize("dtype", DTYPES)
def test_epsilon(library: ctypes.CDLL, dtype: Floating) -> None:
    assert apply(library, "epsilon", np.zeros(1, dtype))[0] == np.finfo(dtype).eps


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid"])
def test_a_short_last_vector_writes_nothing_beyond(library: ctypes.CDLL, name: str) -> None:
    for n in range(1, 40):
        x = np.linspace(-1, 1, n).astype(np.float32)
        y = np.full(n + 16, 7, np.float32)
        call(library, f"{name}_float", y, x, n)
        np.testing.assert_array_equal(y[n:], 7)
        np.testing.assert_array_equal(y[:n], apply(library, name, np.concatenate([x, x[::-1]]))[:n])
