"""`partition`: values that are one number, or one per head, beside wider ones."""

from __future__ import annotations

import pytest
import torch

from rnncc.ir.cell import Pointwise, RowOp, value_table
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, ONE, constant
from rnncc.ir.expr import Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.verify.reference import Interpreter
from tests.stages.checking import node, partitioned


def test_a_number_a_head_may_be_named() -> None:
    cell = partitioned("state h", "local m: 1", "m = mean(h[t-1])", "h[t] = h[t-1] - m + W@x")
    assert node(cell, "m") == RowOp("m", RowOperator.MEAN, ("h__1",))
    assert {value.name: value.width for value in cell.values}["m"] == HEADS


def test_reductions_of_inputs_are_one_number() -> None:
    cell = partitioned("state h", "h[t] = tanh(W@x + h[t-1] + b)*mean(x)")
    assert {value.name: value.width for value in cell.values}["h__0"] == ONE
    assert "which has no heads" in cell.single_head_because


@pytest.mark.parametrize(
    ("function", "expected"),
    [("layernorm", [0.0, 0.0, 0.0]), ("rmsnorm", [1.0, -1.0, 0.0]), ("softmax", [1.0, 1.0, 1.0])],
)
def test_a_norm_of_one_number(function: str, expected: list[float]) -> None:
    cell = partitioned("input x, gap: 1", "state h", f"v = {function}(gap)", "h[t] = tanh(W@x + R@h[t-1])*v")
    gap = torch.tensor([[3.0], [-0.5], [0.0]], dtype=torch.float64)
    made = Interpreter(value_table(cell), {"I": 2, "H": 4}, 2, gap).node(node(cell, "v"), {"gap": gap})
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64)[:, None])


@pytest.mark.parametrize("order", ["n: 4, S, w", "S, w, n: 4"])
def test_one_number_is_widened_once_for_each_width(order: str) -> None:
    cell = partitioned(
        "input gap: 1",
        f"state {order}",
        "local k: 4",
        "k, v, u = W@x",
        "n[t] = exp(-gap)*n[t-1] + k",
        "S[t] = exp(-gap)*S[t-1] + v",
        "w[t] = exp(-gap)*w[t-1] + u",
        "output S",
    )
    decays = {
        stream.name: value_table(cell)[stream.name].width
        for segment in cell.segments
        for stream in segment.streams
        if node(cell, stream.name) == Pointwise(stream.name, apply("exp", apply("neg", Ref("gap"))))
    }
    # S and w are equally wide: they share one.
    assert sorted(decays.values(), key=str) == sorted((constant(4), HIDDEN_SIZE), key=str)


def test_a_number_that_parameters_make_is_one_value_for_all_widths() -> None:
    cell = partitioned(
        "param a: scalar",
        "state n: 4, S",
        "local k: 4",
        "k, v = W@x",
        "n[t] = exp(-a)*n[t-1] + k",
        "S[t] = exp(-a)*S[t-1] + v",
        "output S",
    )
    assert [each.target for each in cell.prologue] == ["n__0"]
    assert value_table(cell)["n__0"].width == ONE


@pytest.mark.parametrize("declared", ["param a: scalar", "buffer a: scalar = 1", "weights a: scalar", "const a = 1"])
def test_what_scalars_alone_make_is_as_wide_as_a_state(declared: str) -> None:
    cell = partitioned(declared, "weights V: matrix", "state h", "r = exp(-a)", "h[t] = r*h[t-1] + V@r + W@x")
    assert value_table(cell)["r"].width == HIDDEN_SIZE
