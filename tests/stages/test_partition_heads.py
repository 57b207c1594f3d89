"""Blocks of matrices and layouts by heads, by their meaning: N heads of D units are N cells of D units on one input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.ir.dim import HEADS as NUM_HEADS
from rnncc.ir.dim import ONE, constant, evaluate
from rnncc.ir.structure import diagonal_blocks
from rnncc.verify.reference import Arguments, run
from tests.stages.checking import partitioned

INPUTS, HIDDEN, HEADS = 3, 6, 2


@pytest.mark.parametrize(
    "lines",
    [
        ("state h", "z = sigmoid(W@x + R@h[t-1] + b)", "h[t] = z*h[t-1] + (1 - z)*tanh(W@x + b + z*(R@h[t-1] + bR))"),
        (
            "state h",
            "local v: 2*H",
            "param g: vector",
            "v = g*layernorm(W@x) + layernorm(R@h[t-1]) + b",
            "i, f = split(v)",
            "h[t] = sigmoid(f)*h[t-1] + i - mean(h[t-1])",
        ),
        ("state h", "param M: matrix", "h[t] = h[t-1] + tanh(W@x + (M - T(M) - eye(H))@h[t-1] + b)"),
        ("state h", "h[t] = cumsum(softmax(W@x + R@h[t-1] + b))"),
        ("state h", "param A: matrix, s: vector", "h[t] = tanh(W@x + (expm(A - T(A))@diag(s))@h[t-1] + b)"),
        ("state h", "param A: matrix", "n = norm(A)", "h[t] = tanh(W@x + (softmax(A, axis=rows)/n)@h[t-1] + n*b)"),
        (
            "state h",
            "local v: 2*H",
            "param A: matrix(2*H, H), s: vector",
            "v = (diag(s)@normalize(A, axis=columns) + tril(A))@h[t-1]",
            "i, f = split(v)",
            "h[t] = tanh(i)*f + W@x",
        ),
        ("state h", "local v: 2*H", "v = concat(h[t-1], tanh(W@x))", "h[t] = R@v + b"),
    ],
)
def test_heads_are_cells_side_by_side(lines: tuple[str, ...]) -> None:
    cell = partitioned(*lines)
    assert cell.single_head_because == ""
    generator = torch.Generator().manual_seed(1)
    head_dim = HIDDEN // HEADS
    sizes = {"I": INPUTS, "H": HIDDEN, "num_heads": HEADS}
    parameters: dict[str, Tensor] = {}
    for parameter in cell.parameters:
        for row in parameter.members:
            shape = [evaluate(row.width, sizes)]
            if parameter.columns is not None:
                shape.append(
                    evaluate(parameter.columns, sizes) // evaluate(diagonal_blocks(parameter.structure), sizes)
                )
            parameters[row.name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = torch.randn(4, 2, INPUTS, generator=generator, dtype=torch.float64)
    together, _ = run(cell, Arguments(parameters, {"x": x}, sizes={"I": INPUTS, "H": HIDDEN}, num_heads=HEADS))

    def share(tensor: Tensor, head: int) -> Tensor:
        """A head's rows of a parameter laid out [k, N, D, …]."""
        rows = tensor.reshape(-1, HEADS, head_dim, *tensor.shape[1:])[:, head]
        return rows.reshape(-1, *tensor.shape[1:])

    outputs = []
    for head in range(HEADS):
        own = {name: share(tensor, head) for name, tensor in parameters.items()}
        alone, _ = run(cell, Arguments(own, {"x": x}, sizes={"I": INPUTS, "H": head_dim}))
        outputs.append(alone["h"])
    torch.testing.assert_close(together["h"], torch.cat(outputs, -1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("lines", "because"),
    [
        (
            ("state h", "local u: 1", "weights E: matrix", "u = E@h[t-1]", "h[t] = u*tanh(W@x)"),
            "'u' is one number, which heads cannot divide (line 5)",
        ),
        (
            ("state h, s: 1", "s[t] = 0.5*s[t-1] + 1", "h[t] = s[t]*tanh(W@x + R@h[t-1])"),
            "'s' is one number, which heads cannot divide (line 2)",
        ),
        (
            ("state h", "param g: vector", "s = sum(g)", "h[t] = tanh((s*W)@x + R@h[t-1])"),
            "one number a head meets a matrix that has no heads (line 5)",
        ),
        # A norm is taken again where it meets a matrix.
        (("state h", "weights V: matrix", "s = norm(W_h)", "h[t] = tanh((W/s)@x + (V/norm(V))@h[t-1])"), ""),
        (
            (
                "state h",
                "local u: 1",
                "weights E: matrix",
                "param B: matrix",
                "u = W@x",
                "h[t] = tanh(R@h[t-1] + B@(u*sum(h[t-1])))",
            ),
            "",
        ),
    ],
)
def test_what_is_one_number_has_one_head(lines: tuple[str, ...], because: str) -> None:
    cell = partitioned(*lines)
    assert cell.single_head_because == because
    assert not [constraint for constraint in cell.constraints if constraint.left == ONE]


@pytest.mark.parametrize(
    "lines",
    [
        ("A = v@T(x)", "y = A@x + S[t]@k"),
        ("y = v@T(x)@x + S[t]@k",),
        ("y = S[t]@x + S[t]@k",),
        ("A = S[t]@M", "y = A@x", "param M: matrix(K, I)"),
        ("A = unflatten(W@x, H, I)", "y = A@x + S[t]@k"),
        ("u = T(S[t]@M@diag(x))@v", "y = C@u", "weights C: matrix", "param M: matrix(K, I)"),
        ("y = (sum(S[t])*M)@x", "param M: matrix(H, I)"),
        ("y = S[t]@k + max(v@T(g), axis=rows)", "dim E = 4", "input g: E"),
        ("y = S[t]@k + roll(v@T(g), 1, axis=rows)@g", "dim E = 4", "input g: E per sequence"),
    ],
)
def test_what_inputs_alone_have_does_not_meet_blocks(lines: tuple[str, ...]) -> None:
    """Matrices that change are blocks; an input's units have no heads."""
    state = ("dim K = H", "state S: matrix(H, K)", "output y", "local k: K", "k = W@x", "v = W@x")
    cell = partitioned(*state, "S[t] = 0.5*S[t-1] + v@T(k)", *lines)
    assert "an input, which has no" in cell.single_head_because


def test_a_width_of_an_input_that_a_state_has_too_is_laid_out_by_heads() -> None:
    cell = partitioned("state S: matrix(H, I)", "output y", "v = W@x", "S[t] = 0.5*S[t-1] + v@T(x)", "y = S[t]@x")
    assert cell.single_head_because == ""


def test_a_cell_of_one_head_refuses_more() -> None:
    """With the line that keeps it so, and not by an accident of sizes."""
    LMU = rnncc.load("lmu").LMU
    LMU(3, 4)
    with pytest.raises(
        ValueError, match=r"LMU takes num_heads=1 only: 'u' is one number, which heads cannot divide \(line 10\); got 2"
    ):
        LMU(3, 4, num_heads=2)


@pytest.mark.parametrize("function", ["q/sum(q*q)", "layernorm(q)", "softmax(q)", "cumsum(q)", "q - mean(q)"])
def test_what_works_on_each_head_needs_heads_of_whole_units(function: str) -> None:
    """Three units that no state is in cannot be shared by two heads either: the constructor says so."""
    lines = ("state h", "local q: 3, r: 3", "weights V: matrix", "q = W@x", f"r = {function}", "h[t] = tanh(V@r)")
    cell = partitioned(*lines)
    assert [(c.left, c.right) for c in cell.constraints if c.divides and c.left == constant(3)] == [
        (constant(3), NUM_HEADS)
    ]
