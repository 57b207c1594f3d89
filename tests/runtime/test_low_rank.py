"""Matrices of low rank, as a layer holds them."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import rnncc
from rnncc.cli import cli
from rnncc.pipeline import STAGES
from tests.packages import float64_package

TEXT = """
cell LowRank
state h
weights R: lowrank(8), W: lowrank(3)
z = sigmoid(W@x + R@h[t-1] + b)
h[t] = z*h[t-1] + (1 - z)*tanh(W@x + R@h[t-1] + b)
"""


@cache
def package() -> Any:
    return float64_package(TEXT, "low_rank")


@pytest.mark.parametrize("heads", [1, 4])
def test_a_product_of_factors_varies_as_a_matrix_does(heads: int) -> None:
    """Each element of U V has the variance of torch's U(-1/√H, 1/√H), and the mean 0."""
    torch.manual_seed(0)
    H = 512
    layer = package().LowRank(H, H, num_heads=heads, dtype=torch.float64)
    own = layer.gate_parameters()
    for u, v in ((own["R__u_h"], own["R__v_h"]), (own["W__u_z"], own["W__v_z"])):
        product = u @ v
        assert product.var().item() == pytest.approx(1 / (3 * H), rel=0.1)
        assert abs(product.mean().item()) < 0.02 / math.sqrt(H)


def test_names_and_shapes() -> None:
    """The factors of all gates of a group are one tensor each, as a group is; the rank is no keyword."""
    layer = package().LowRank(5, 8, num_layers=2, num_heads=2, bidirectional=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.named_parameters()}
    assert {name: shape for name, shape in shapes.items() if name.endswith("_l1_reverse")} == {
        "weight_ih_u_l1_reverse": (16, 3),
        "weight_ih_v_l1_reverse": (6, 16),
        "weight_hh_u_l1_reverse": (16, 8),
        "weight_hh_v_l1_reverse": (32, 4),
        "bias_ih_l1_reverse": (16,),
    }
    again = package().LowRank(5, 8, num_layers=2, num_heads=2, bidirectional=True)
    again.load_state_dict(layer.state_dict())
    x = torch.randn(4, 3, 5)
    assert torch.equal(layer(x)[0], again(x)[0])
    with pytest.raises(TypeError, match="unexpected keyword argument 'R__rank'"):
        package().LowRank(5, 8, R__rank=4)


def test_a_rank_is_called_as_a_reader_would() -> None:
    """The compiler's name of it is that of generated code alone."""

    def run(*words: str) -> str:
        return CliRunner().invoke(cli, words, catch_exceptions=False).stdout

    texts = [run("show", "lowrankrnn", "--stage", stage) for stage in STAGES if stage != "render"]
    texts += [run(command, "lowrankrnn") for command in ("explain", "latex", "draw")]
    assert all(texts) and not [text for text in texts if "__rank" in text]
    assert "parameter R__u as weight_hh_u: H x rank(R) in num_heads blocks" in "".join(texts)
    assert "v: DENSE: R@(…) mixes the units of a state (line 11)" in run("explain", "lowrankrnn")


def test_a_single_step_is_the_layers() -> None:
    """The cell of one step holds the same factors."""
    layer, step = package().LowRank(5, 8), package().LowRankCell(5, 8)
    step.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in layer.state_dict().items()})
    x, h = torch.randn(6, 3, 5), torch.zeros(3, 8)
    for row in x:
        h = step(row, h)
    torch.testing.assert_close(h, layer(x)[1][0])


def test_a_rank_that_comes_to_nothing() -> None:
    made = rnncc.compile("cell Few\nstate h\nweights R: lowrank(H//16)\nh[t] = tanh(W@x + R@h[t-1] + b)", "few_ranks")
    assert made.Few(5, 32).weight_hh_u_l0.shape == (32, 2)
    with pytest.raises(ValueError, match="Few: the rank of R must be at least 1; at these sizes it is 0"):
        made.Few(5, 8)
