"""Widths that name `num_heads`: some numbers for each head, against loops written in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rnncc import verify
from rnncc.ir.dim import HEADS, scale
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from tests.compiling import front
from tests.packages import float64_package

INPUT, HIDDEN, STEPS, BATCH = 3, 8, 5, 2

TEXT = """
cell Chosen
state h
local e1: 1, e2: 1, p: 2*num_heads, a: 1, c: 1
e1 = sum(h[t-1]*x0)
e2 = sum(h[t-1])
p = softmax(concat(e1, e2))
a, c = split(p)
x0 = W@x
h[t] = a*h[t-1] + c*x0

cell Kept
input g: num_heads
state h, s: 2*num_heads
output y
local y: num_heads, old: num_heads, fresh: num_heads
old, fresh = split(s[t-1])
s[t] = concat(fresh + mean(h[t-1]), old*g) + W@x
h[t] = tanh(W@x + R@h[t-1] + fresh)
y = sum(h[t])*old
"""


def by_head(value: Tensor, heads: int) -> Tensor:
    """[B, H] as [B, N, D]."""
    return value.reshape(*value.shape[:-1], heads, -1)


def chosen(p: dict[str, Tensor], s: dict[str, Tensor], x: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    old, new = by_head(s["h"], heads), by_head(x["x"] @ p["W_x0"].T, heads)
    first, second = torch.stack([(old * new).sum(-1), old.sum(-1)]).softmax(0)
    h = (first[..., None] * old + second[..., None] * new).flatten(-2)
    return {"h": h, "out": h}


def kept(p: dict[str, Tensor], s: dict[str, Tensor], x: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    old, new = s["s"].chunk(2, -1)
    blocks = p["R_h"].reshape(heads, HIDDEN // heads, -1)
    product = torch.einsum("noi,bni->bno", blocks, by_head(s["h"], heads))
    h = torch.tanh(by_head(x["x"] @ p["W_h"].T, heads) + product + new[..., None])
    state = torch.cat([new + by_head(s["h"], heads).mean(-1), old * x["g"]], -1) + x["x"] @ p["W_s"].T
    return {"h": h.flatten(-2), "s": state, "out": h.sum(-1) * old}


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("name", "step"), [("Chosen", chosen), ("Kept", kept)])
def test_numbers_of_each_head(name: str, step: Callable[..., dict[str, Tensor]], heads: int) -> None:
    torch.manual_seed(heads)
    layer = getattr(float64_package(TEXT, "num_heads"), name)(INPUT, HIDDEN, num_heads=heads, dtype=torch.float64)
    widths = {"h": HIDDEN} | ({"s": 2 * heads} if name == "Kept" else {})
    inputs = {"x": torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)}
    inputs |= {"g": torch.randn(STEPS, BATCH, heads, dtype=torch.float64)} if name == "Kept" else {}
    states = {state: torch.randn(BATCH, width, dtype=torch.float64) for state, width in widths.items()}
    leaves = [value.requires_grad_() for value in (*inputs.values(), *states.values())]

    hx = tuple(value[None] for value in states.values())
    output, finals = layer(inputs["x"], hx if len(hx) > 1 else hx[0], **{k: v for k, v in inputs.items() if k != "x"})
    ours = [output, *(finals if isinstance(finals, tuple) else (finals,))]

    parameters, now, outputs = layer.gate_parameters(), dict(states), []
    for t in range(STEPS):
        made = step(parameters, now, {key: value[t] for key, value in inputs.items()}, heads)
        outputs.append(made.pop("out"))
        now = made
    theirs = [torch.stack(outputs), *(now[state][None] for state in widths)]
    assert [value.shape for value in ours] == [value.shape for value in theirs]

    wanted = [*leaves, *layer.parameters()]
    cotangents = [torch.randn_like(value) for value in theirs]
    expected = torch.autograd.grad(theirs, wanted, cotangents)
    for found, value in zip((*ours, *torch.autograd.grad(ours, wanted, cotangents)), (*theirs, *expected), strict=True):
        torch.testing.assert_close(found, value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["Chosen", "Kept"])
def test_they_are_declared_and_verified(name: str) -> None:
    (cell,) = (cell for cell, _ in front(Source("num_heads.rnn", TEXT)) if cell.name == name)
    assert cell.single_head_because == ""
    assert scale(HEADS, 2) in {value.width for value in cell.values}
    assert verify.verify(getattr(float64_package(TEXT, "num_heads"), name), cell, dtypes=(torch.float64,)).passed


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("local v: H//num_heads\nv = W@x", "RNN220"),
        ("local v: 2*num_heads\nv = h[t-1]", "RNN214"),
        ("for l in 1..num_heads:\n    v[l] = W@x", "RNN220"),
        ("const k = num_heads\nv = k*(W@x)", "RNN226"),
        ("local v: 2*num_heads, a: 1, c: 1, d: 1\nv = W@x\na, c, d = split(v)", "RNN214"),
        ("dim num_heads = 4\nv = W@x", "RNN217"),
    ],
)
def test_what_they_cannot_be(lines: str, code: str) -> None:
    text = f"cell Wrong\nstate h\n{lines}\nh[t] = tanh(W@x + R@h[t-1])\n"
    with pytest.raises(RnnccError) as raised:
        front(Source("wrong.rnn", text))
    assert {diagnostic.code for diagnostic in raised.value.diagnostics} == {code}
