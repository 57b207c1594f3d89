"""Cells with matrices of low rank."""

from __future__ import annotations

from typing import Any

from torch import sigmoid, tanh

from .loop import Case, Table, Values, mm

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell LowRank
state h, c
weights R: lowrank(2)
i, f = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@(i*h[t-1]) + R_f@c[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = tanh(c[t])
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=3,
)
def low_rank(p: Any, s: Any, x: Any, k: Any) -> Values:
    """One factor after the other, block by block; another equation's matrix is both of its factors."""
    h, c = s("h"), s("c")
    i = sigmoid(p.W_i @ x() + mm(p.R__u_i, mm(p.R__v_i, h)) + p.b_i)
    f = sigmoid(p.W_f @ x() + mm(p.R__u_f, mm(p.R__v_f, h)) + p.b_f)
    g = tanh(p.W_g @ x() + mm(p.R__u_g, mm(p.R__v_g, i * h)) + mm(p.R__u_f, mm(p.R__v_f, c)) + p.b_g)
    new = f * c + i * g
    return {"c": new, "h": tanh(new)}


@case(
    """
cell LowRankInput
dim K = 3
state h, m: K
weights W: lowrank(K), V: lowrank(2)
param Q: matrix(K, H)
m[t] = 0.5*m[t-1] + Q@h[t-1]
h[t] = tanh(W@x + R@h[t-1] + V@m[t-1] + b)
""",
    lambda H: {"h": (H, 0.0), "m": (3, 0.0)},
)
def low_rank_input(p: Any, s: Any, x: Any, k: Any) -> Values:
    """W and a group of the text; a rank that is a size of the cell."""
    inputs = p.W__u_h @ (p.W__v_h @ x()) + mm(p.V__u_h, mm(p.V__v_h, s("m")))
    return {"h": tanh(inputs + mm(p.R_h, s("h")) + p.b_h), "m": 0.5 * s("m") + mm(p.Q, s("h"))}
