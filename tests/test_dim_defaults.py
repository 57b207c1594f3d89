"""Dims whose defaults are formulas of the sizes that every layer has."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch

import rnncc
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.show.values import show_declared
from rnncc.verify.cases import problem_sizes
from tests.functional import streams_of, taken

TEXT = """
cell Default
dim K = 2*H, D = H//num_heads, Few = H//4
state h, s: K
local q: D*num_heads, e: Few
e = W@x
q = W@x
weights V: matrix
s[t] = tanh(W@x + R@s[t-1])
h[t] = tanh(V@e + mean(q) + R@h[t-1] + mean(s[t]))
"""


@cache
def built() -> Any:
    return rnncc.compile(TEXT, "default")


def test_a_layer_takes_them_where_none_is_given() -> None:
    layer = built().Default(3, 8, num_heads=2)
    assert {name: size for name, size in layer.dims.items() if size is not None} == {}
    shapes = {name: tuple(value.shape) for name, value in layer.gate_parameters().items()}
    assert shapes["R_s"] == (2, 8, 8) and shapes["V_h"] == (8, 2) and shapes["W_s"] == (16, 3)
    _, (h, s) = layer(torch.randn(4, 2, 3))
    assert (h.shape, s.shape) == ((1, 2, 8), (1, 2, 16))


def test_a_caller_gives_another() -> None:
    layer = built().Default(3, 8, K=4, num_heads=2)
    assert layer(torch.randn(4, 2, 3))[1][1].shape == (1, 2, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.dims["K"] == 4 and torch.equal(other.weight_ih_l0, layer.weight_ih_l0)
    with pytest.raises(ValueError, match="num_heads must divide the width of s"):
        built().Default(3, 8, K=3, num_heads=2)


def test_a_default_below_one_is_asked_for() -> None:
    with pytest.raises(ValueError, match="Default: give Few, whose default is 0 at these sizes"):
        built().Default(3, 2)
    assert built().Default(3, 2, Few=1)(torch.randn(1, 1, 3))[0].shape == (1, 1, 2)


def test_the_functional_op_takes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = rnncc.compile("cell Op\ndim K = H//2\nstate h: K\nh[t] = tanh(W@x + R@h[t-1] + b)\n", "op")
    layer, x = module.Op(3, 8), torch.randn(5, 2, 3)
    streams, (output, _) = streams_of(layer, monkeypatch, lambda: layer(x))
    listed = taken(layer)
    assert not isinstance(listed, str)
    names, weights = listed
    given = [streams[name] for name in names], [getattr(layer, f"{name}_l0") for name in weights]
    assert torch.equal(module.op(*given, hidden_size=8)[0], output)
    with pytest.raises(ValueError, match="give K, whose default is 0"):
        module.op(*given, hidden_size=1)


def test_what_is_shown_of_them() -> None:
    (made,) = compile_cells(Request(Source("default.rnn", TEXT), "default"), "check").cells
    lines = list(show_declared(made.typed))
    assert {"dim K = 2*H", "dim D = H//num_heads", "dim Few = H//4"} <= set(lines)


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ("2*P", "may be a formula of H, I and num_heads; the size 'P' is chosen apart"),
        ("0*H", "the size of 'K' must be at least 1, not 0"),
        ("H - 1", "must be made of I, H, num_heads, declared dims and whole numbers with + * //"),
        ("W@x", "must be made of numbers, constants and loop variables"),
        ("n", "must be a whole number, not 2.5"),
    ],
)
def test_defaults_that_are_refused(default: str, message: str) -> None:
    text = f"cell Bad\nconst n = 2.5\ndim P = 4, K = {default}\nstate h\nlocal v: K, u: P\nv = W@x\nu = W@x\n"
    text += "h[t] = tanh(W@x + sum(v) + sum(u))\n"
    with pytest.raises(RnnccError) as caught:
        compile_cells(Request(Source("bad.rnn", text), "bad"), "check")
    assert message in caught.value.diagnostics[0].message


def test_a_formula_of_constants_stays_a_number() -> None:
    text = "cell Bottleneck\nconst r = 4\ndim K = 2*r - 1\nstate h\nlocal v: K\nweights V: matrix\n"
    text += "v = tanh(W@x)\nh[t] = tanh(V@v + R@h[t-1])\n"
    layer = rnncc.compile(text, "bottleneck").Bottleneck(3, 5)
    assert layer.gate_parameters()["V_h"].shape == (5, 7)


def test_a_default_that_divides_by_nothing() -> None:
    text = "cell C\ndim K = H//(I//H)\nstate h, s: K\nweights V: matrix\ns[t] = tanh(W@x + R@s[t-1])\n"
    text += "h[t] = tanh(V@s[t] + R@h[t-1] + b)\n"
    module: Any = rnncc.compile(text, "c")
    with pytest.raises(ValueError, match="C: give K, whose default divides by 0 at these sizes"):
        module.C(3, 8)
    assert module.C(16, 8)(torch.randn(2, 1, 16))[1][1].shape == (1, 1, 4)
    (made,) = compile_cells(Request(Source("c.rnn", text), "c"), "partition").cells
    assert problem_sizes(made.cell)["K"] > 0


def test_the_functional_op_asks_for_the_input_size() -> None:
    module: Any = rnncc.compile("cell Op\ndim K = H + I\nstate h: K\nh[t] = tanh(W@x + R@h[t-1] + b)\n", "op")
    layer, x = module.Op(3, 8), torch.randn(5, 2, 11)
    with pytest.raises(ValueError, match="give input_size, of which the default of K is made"):
        module.op([x], [layer.weight_hh_l0], hidden_size=8)
    for given in ({"input_size": 3}, {"K": 11}):
        assert module.op([x], [layer.weight_hh_l0], hidden_size=8, **given)[0].shape == (5, 2, 11)
