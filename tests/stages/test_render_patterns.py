"""Batched layernorm, softmax and slices become one torch function each, with the same values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc.ir.cell import value_table
from rnncc.runtime.eager import rows
from rnncc.stages.render.python.code import Emitter
from rnncc.stages.render.python.patterns import operation_text, recognise
from tests.compiling import cell_of

HEADER = "cell Fused\nstate h\nlocal v: 3*H, a: H, g: H, k: H\nparam s: vector = 1, e: vector = 0\n"
TAIL = "a, g, k = split(v)\nh[t] = tanh(a + R@h[t-1])*g + k\n"


def lines(text: str) -> list[str]:
    """The batched part of a cell's first loop."""
    cell = cell_of(HEADER + text + TAIL)
    segment = cell.segments[0]
    kept = [member for stream in segment.streams for member in stream.members]
    table = value_table(cell)
    emitter = Emitter(cell, lambda operand, matrix: f"linear({operand}, {matrix})", "x", over_steps=True)
    return [operation_text(each, emitter) for each in recognise(segment.batched, kept, table)]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("v = layernorm(W@x)\n", "v = tools.layer_norm(v__W, {n}, 3, 1e-05, None, None)"),
        ("v = s*layernorm(W@x) + b\n", "v = tools.layer_norm(v__W, {n}, 3, 1e-05, s, b_v)"),
        ("v = b + layernorm(W@x)*s + e\n", "v = tools.layer_norm(v__W, {n}, 3, 1e-05, s, b_v + e)"),
        ("v = softmax(W@x)\n", "v = rows.softmax(v__W, {n}, 3)"),
    ],
)
def test_a_pattern_is_one_call(text: str, call: str) -> None:
    made = lines(text)
    assert call.format(n='sizes["num_heads"]') in made
    assert made[-1].startswith("a, g, k = v.split(")
    assert len(made) == 3


def test_a_norm_that_is_written_out_is_the_same_call() -> None:
    made = lines("local u: 3*H, d: 3*H\nu = W@x\nd = u - mean(u)\nv = d/sqrt(mean(d*d) + 0.001)\n")
    assert any("tools.layer_norm(u, " in line and "0.001" in line for line in made)
    assert not any("row_mean" in line for line in made)


def test_a_number_that_is_spread_before_its_sum_is_no_softmax() -> None:
    made = lines("local p: 3*H\nu = mean(W@x)\np = exp(u - detach(max(u)))\nv = p/sum(p)\n")
    assert not any("rows.softmax(" in line for line in made)
    assert any("row_sum(p" in line for line in made)


def test_a_number_that_is_spread_as_it_is_normed_is_no_norm() -> None:
    made = lines("u = mean(W@x)\nd = u - mean(u)\nv = d/sqrt(mean(d*d) + 0.001)\n")
    assert not any("tools.layer_norm(" in line for line in made)


def test_what_is_read_elsewhere_stays() -> None:
    made = lines("local u: 3*H, w: 3*H\nu = W@x\nw = layernorm(u)\nv = s*w + w*w\n")
    assert any(line.startswith("w = tools.layer_norm(u, ") and line.endswith("None, None)") for line in made)
    assert any(line.startswith("v = ") and "w * w" in line for line in made)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("v = tanh(W@x)*s + U@z\n", "v = tools.linear_onto(torch.tanh(v__W) * s, z, U_v)"),
        ("v = W@x - U@z\n", "v = tools.linear_onto(linear(x, W_v), z, U_v, -1)"),
        ("v = s + W@x - U@z\n", "v = tools.linear_onto(tools.linear_onto(s, x, W_v), z, U_v, -1)"),
        # Terms stay in their order and in their brackets.
        ("v = s + (W@x - U@z)\n", "v = s + (v__W - v__U)"),
        ("v = W@x - U@z + s\n", "v = (v__W - v__U) + s"),
        # A number, a product that is read twice, and one that a function reads.
        ("v = 2 - W@x\n", "v = 2 - v__W"),
        ("local u: 3*H\nu = U@z\nv = u*u + tanh(u) + W@x\n", "v = tools.linear_onto((u * u) + torch.tanh(u), x, W_v)"),
        # One statement reads it several times: the product is made once.
        ("local u: 3*H\nu = U@z\nv = u*u + u\n", "v = (u * u) + u"),
        ("local u: 3*H\nu = U@z\nv = u + u\n", "v = u + u"),
    ],
)
def test_products_are_added_as_they_are_written(text: str, call: str) -> None:
    assert call in lines(f"input x, z: H\nweights U: matrix\n{text}")


def test_a_norm_of_one_number_per_head_takes_no_wider_scale() -> None:
    norm, scaled, _ = lines("input x, gap: num_heads\nv = s*layernorm(gap) + b\n")
    assert "tools.layer_norm(gap, " in norm and norm.endswith("None, None)")
    assert scaled.startswith("v = ") and "b_v" in scaled


@pytest.mark.parametrize("heads", [1, 2])
def test_norms_against_their_parts(heads: int) -> None:
    torch.manual_seed(0)
    value, weight, bias = (torch.randn(*s, 12, dtype=torch.float64, requires_grad=True) for s in ((3, 2), (), ()))

    def parts(v: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centred = v - rows.per_head(rows.row_mean(v, heads, 3), heads, 3, 12)
        variance = rows.per_head(rows.row_mean(centred * centred, heads, 3), heads, 3, 12)
        return centred / torch.sqrt(variance + 1e-5) * w + b

    def same(own: Any, other: Any, *given: Tensor) -> None:
        a, b = own(*given), other(*given)
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
        seed = torch.randn_like(a)
        for x, y in zip(torch.autograd.grad(a, given, seed), torch.autograd.grad(b, given, seed), strict=True):
            torch.testing.assert_close(x, y, atol=1e-12, rtol=1e-12)
        assert torch.autograd.gradgradcheck(own, given, fast_mode=True)

    same(lambda v, w, b: rows.layer_norm(v, heads, 3, 1e-5, w, b), parts, value, weight, bias)

    def softmax(v: Tensor) -> Tensor:
        powers = torch.exp(v)
        return powers / rows.per_head(rows.row_sum(powers, heads, 3), heads, 3, 12)

    same(lambda v: rows.softmax(v, heads, 3), softmax, value)

    def rms_norm(v: Tensor) -> Tensor:
        squares = rows.per_head(rows.row_mean(v * v, heads, 3), heads, 3, 12)
        return v / torch.sqrt(squares + torch.finfo(v.dtype).eps)

    same(lambda v: rows.rms_norm(v, heads, 3), rms_norm, value)

    def squares(v: Tensor) -> Tensor:
        return rows.row_sum((v - rows.per_head(rows.row_mean(v, heads, 3), heads, 3, 12)) ** 2, heads, 3)

    same(lambda v: rows.row_squares(v, heads, 3), squares, value)
    same(lambda v: rows.row_variance(v, heads, 3), lambda v: squares(v) * heads / 12, value)


@pytest.mark.parametrize(
    ("shape", "onto", "dtype"),
    [((5, 3), (5, 3, 4), torch.float64), ((7,), (7, 4), torch.float64), ((5, 3), (4,), torch.float64),
     ((5, 3), (1, 3, 4), torch.float64), ((5, 3), (5, 3, 4), torch.float32), ((5, 3), (4,), torch.float32),
     ((0, 3), (0, 3, 4), torch.float64)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("sign", [1, -1])
def test_a_product_onto_a_tensor(shape: tuple[int, ...], onto: tuple[int, ...], dtype: torch.dtype, sign: int) -> None:
    operand = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    matrix, start = torch.randn(4, 6, dtype=torch.float64), torch.randn(onto, dtype=dtype, requires_grad=True)
    found, expected = rows.linear_onto(start, operand, matrix, sign), start + sign * (operand @ matrix.t())
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), (operand, start)),
        torch.autograd.grad(expected.square().sum(), (operand, start)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_autocast_rounds_nothing_that_a_product_is_added_to() -> None:
    start, operand, matrix = 1000 * torch.randn(5, 3, 4), torch.randn(5, 3, 6), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = rows.linear_onto(start, operand, matrix)
        expected = start + torch.nn.functional.linear(operand, matrix)
    assert found.dtype == expected.dtype == torch.float32
    assert torch.equal(found, expected)
