"""Cells with one number per head, which nothing declares."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh
from torch.nn.functional import softplus

from .loop import Case, Table, Values, bdm, heads, mm, wide

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell Undeclared
input x, gap: 1
state h, m
weights V: matrix
param k: scalar = 0.5
u = W@x
e = sum(h[t-1]*u)
mean_u = mean(u)
a = 2*sigmoid(k*e - mean_u)
decay = exp(-softplus(k)*gap)
p, q = split(softmax(concat(a, 0.3*e)))
m[t] = decay*m[t-1] + a*u
h[t] = p*tanh(u + R@h[t-1] + V@(a*decay) + b) + q*sin(m[t])
""",
    lambda H: {"h": (H, 0.0), "m": (H, 0.0)},
    extra={"gap": 1},
    heads=2,
)
def undeclared(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Numbers per head, and what is made of them."""
    u = p.W_u @ x()
    e = heads(s("h") * u, k.N).sum(-1)
    a = 2 * sigmoid(p.k * e - heads(u, k.N).mean(-1))
    decay = torch.exp(-softplus(p.k) * x("gap"))
    first, second = torch.softmax(torch.stack((a, 0.3 * e)), 0)
    m = decay * s("m") + wide(a, k.D) * u
    block = p.V_h if p.V_h.dim() == 3 else p.V_h[None]
    product = bdm(block, a * decay)
    h = wide(first, k.D) * tanh(u + mm(p.R_h, s("h")) + product + p.b_h) + wide(second, k.D) * torch.sin(m)
    return {"h": h, "m": m}
