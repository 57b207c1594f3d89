"""Numbers, sizes and flags that callers have from NumPy or as tensors without dimensions."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rnncc

IN, H, T, B = 4, 6, 5, 2
TEXT = """
cell Leaky
const beta = 0.9, n = 2, depth = 2
dim P = 3
state h
local v: P
u[0] = h[t-1]
for l in 1..depth:
    u[l] = 0.5*tanh(u[l-1])
v = W@x
h[t] = beta*h[t-1] + W@x + n*b + R@u[depth] + sum(v)
"""


@cache
def package() -> Any:
    return rnncc.compile(TEXT, "leaky")


def lstm() -> Any:
    return rnncc.load("lstm")


def layer_of(**options: Any) -> Any:
    torch.manual_seed(0)
    return lstm().LSTM(**{"input_size": IN, "hidden_size": H, "num_layers": 2, **options})


def leaky(**options: Any) -> Any:
    torch.manual_seed(0)
    return package().Leaky(IN, H, **options)


def step_of(**options: Any) -> Any:
    torch.manual_seed(0)
    return lstm().LSTMCell(**{"input_size": IN, "hidden_size": H, **options})


# What takes a number, as (maker, keyword, the number).
INTEGERS: list[tuple[Callable[..., Any], str, int]] = [
    *((layer_of, name, 2) for name in ("input_size", "hidden_size", "num_layers", "num_heads")),
    (step_of, "hidden_size", 6), (step_of, "num_heads", 3), (leaky, "n", 3), (leaky, "P", 2), (leaky, "depth", 1),
]  # fmt: skip
NUMBERS: list[tuple[Callable[..., Any], str, float]] = [
    (layer_of, "dropout", 0.25), (layer_of, "weight_dropout", 0.25), (layer_of, "recurrent_gradient_clip", 0.5),
    (step_of, "recurrent_gradient_clip", 0.5), (leaky, "beta", 0.5),
]  # fmt: skip
FLAGS = [
    "bias", "batch_first", "bidirectional", "return_delays", "recompute", "reverse",
]  # fmt: skip


def same(made: Any, expected: Any) -> None:
    """The modules are alike, and hold Python's numbers alone."""
    assert repr(made) == repr(expected)
    assert [(name, tensor.shape) for name, tensor in made.state_dict().items()] == [
        (name, tensor.shape) for name, tensor in expected.state_dict().items()
    ]
    values = [*vars(made).values(), *made.constants.values(), *made.dims.values(), *made._sizes[0].values()]
    assert not [value for value in values if isinstance(value, np.generic | np.ndarray)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16, np.array, torch.tensor])
@pytest.mark.parametrize(("maker", "name", "value"), INTEGERS, ids=lambda part: str(getattr(part, "__name__", part)))
def test_integers(maker: Callable[..., Any], name: str, value: int, kind: Callable[[int], Any]) -> None:
    same(maker(**{name: kind(value)}), maker(**{name: value}))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.array, torch.tensor, Fraction])
@pytest.mark.parametrize(("maker", "name", "value"), NUMBERS, ids=lambda part: str(getattr(part, "__name__", part)))
def test_real_numbers(maker: Callable[..., Any], name: str, value: float, kind: Callable[[float], Any]) -> None:
    same(maker(**{name: kind(value)}), maker(**{name: value}))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [np.bool_, np.array, torch.tensor])
@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str, value: bool, kind: Callable[[bool], Any]) -> None:
    same(layer_of(**{name: kind(value)}), layer_of(**{name: value}))


def test_what_shapes_a_program_is_the_same_program() -> None:
    """The class of a constant's value is made once, however the value is given."""
    assert type(leaky(depth=np.int64(1))) is type(leaky(depth=1))
    assert type(leaky(depth=np.int64(2))) is package().Leaky
    two: Any = np.int64(2)
    assert rnncc.load("rhn", L=two).RHN.spec.program() == rnncc.load("rhn", L=2).RHN.spec.program()


def test_zoneout_and_recurrent_dropout() -> None:
    made = layer_of(zoneout={"h": np.float32(0.25)}, recurrent_dropout=np.float64(0.5))
    assert made.zoneout == {"h": 0.25} and type(made.zoneout["h"]) is float and type(made.recurrent_dropout) is float
    made.zoneout, made.recurrent_dropout = {"h": torch.tensor(0.5)}, np.float16(0.25)
    assert made.zoneout == {"h": 0.5} and made.recurrent_dropout == 0.25
    for kind in (np.float32, np.array, torch.tensor):
        assert layer_of(zoneout=kind(0.25)).zoneout == {"h": 0.25, "c": 0.25}


def test_the_functional_op() -> None:
    torch.manual_seed(0)
    stream, weight = torch.randn(T, B, 4 * H), torch.randn(4 * H, H // 2)
    options = {"hidden_size": np.int64(H), "num_heads": np.int32(2), "recurrent_gradient_clip": np.float32(1)}
    flags = {"reverse": np.bool_(True), "recompute": np.bool_(False), "return_delays": torch.tensor(False)}
    found, _ = lstm().lstm(stream, weight, **options, **flags)
    expected, _ = lstm().lstm(stream, weight, hidden_size=H, num_heads=2, recurrent_gradient_clip=1.0, reverse=True)
    assert torch.equal(found, expected)
    step = rnncc.load("lif")
    found, _ = step.lif(torch.randn(T, B, H), torch.randn(H, H), hidden_size=H, constants={"beta": np.float32(0.5)})
    assert found.shape == (T, B, H)


def test_what_a_call_is_given() -> None:
    layer, x = layer_of(), torch.randn(T, B, IN)
    expected, _ = layer(x, lengths=[3, 5])
    for lengths in (np.array([3, 5]), [np.int64(3), np.int32(5)]):
        assert torch.equal(layer(x, lengths=lengths)[0], expected)
    rows, offsets = x.flatten(0, 1), torch.tensor([0, 4, 10])
    assert torch.equal(
        layer(rows, offsets=offsets, max_length=np.int64(6))[0], layer(rows, offsets=offsets, max_length=6)[0]
    )
    with pytest.raises(TypeError, match="max_length should be of type int, got: float"):
        layer(rows, offsets=offsets, max_length=6.0)
    assert layer.explain(np.int64(2)) == layer.explain(2)
    assert layer.gate_parameters(np.int64(1)).keys() == layer.gate_parameters(1).keys()


def test_a_layer_of_such_numbers_saves_and_loads_without_them() -> None:
    file = io.BytesIO()
    torch.save(layer_of(dropout=np.float32(0.25), num_heads=np.int64(2), recompute=np.bool_(True)), file)
    file.seek(0)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        again = torch.load(file, weights_only=True)
    assert again.dropout == 0.25 and again.num_heads == 2 and again.recompute is True


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden_size": np.float32(6)}, TypeError, "hidden_size should be of type int, got: float32"),
        ({"hidden_size": np.bool_(True)}, TypeError, "hidden_size should be of type int, got: bool"),
        ({"hidden_size": True}, TypeError, "hidden_size should be of type int, got: bool"),
        ({"hidden_size": np.array([6])}, TypeError, "hidden_size should be of type int, got: ndarray"),
        ({"hidden_size": torch.tensor([6])}, TypeError, "hidden_size should be of type int, got: Tensor"),
        ({"hidden_size": np.int64(0)}, ValueError, "hidden_size must be greater than zero"),
        ({"bidirectional": 1}, TypeError, "bidirectional should be of type bool, got: int"),
        ({"bidirectional": np.int64(1)}, TypeError, "bidirectional should be of type bool, got: int64"),
        ({"bidirectional": torch.tensor(1)}, TypeError, "bidirectional should be of type bool, got: Tensor"),
        ({"dropout": np.bool_(True)}, ValueError, "dropout should be a number in range"),
        ({"dropout": np.float32(1.5)}, ValueError, "dropout should be a number in range"),
        ({"dropout": np.complex64(0.5)}, ValueError, "dropout should be a number in range"),
        ({"dropout": torch.tensor(0.5, device="meta")}, TypeError, "dropout is a tensor on the meta device"),
        ({"dropout": nn.Parameter(torch.tensor(0.5))}, TypeError, "dropout is a number that is not trained"),
        ({"recurrent_gradient_clip": np.str_("1")}, TypeError, "recurrent_gradient_clip should be a number or None"),
        ({"zoneout": {"h": np.bool_(True)}}, ValueError, r"zoneout\['h'\] should be a number in range"),
    ],
)
def test_what_is_no_such_number(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        layer_of(**options)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nn.Parameter(torch.tensor(0.5)), "beta is a number that is not trained"),
        (np.array([0.5]), "beta should be a number, got: ndarray"),
        (np.datetime64("2020"), "beta should be a number, got: datetime64"),
        (0.5j, "beta should be a number, got: complex"),
    ],
)
def test_what_is_no_constant(value: Any, message: str) -> None:
    """A parameter would silently not be trained."""
    with pytest.raises(TypeError, match=message):
        leaky(beta=value)


def test_the_default_device_does_not_matter() -> None:
    with torch.device("meta"), pytest.raises(TypeError, match="meta device, which holds no number"):
        leaky(beta=torch.tensor(0.5))


def test_parallel_newton_is_a_flag() -> None:
    with pytest.raises(TypeError, match="parallel_newton should be of type bool, got: str"):
        rnncc.compile(TEXT, "leaky", parallel_newton="no")  # type: ignore[arg-type]
