"""Cells whose text states sizes: formulas as defaults of dims, vectors of a stated width."""

from __future__ import annotations

from typing import Any

import torch
from torch import tanh

from .loop import Case, Table, Values, heads, mm, wide

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell DefaultFormulas
dim K = H + 2, D = H//num_heads, P = I*2
state h, s: K
local q: D*num_heads, e: P
weights V: matrix
e = W@x
q = W@x + R@h[t-1]
s[t] = 0.5*s[t-1] + tanh(W@x + R@s[t-1] + b)
h[t] = tanh(V@e + mean(q*q) + mean(s[t]) + b)
""",
    lambda H: {"h": (H, 0.0), "s": (H + 2, 0.0)},
    heads=2,
)
def default_formulas(p: Any, s: Any, x: Any, k: Any) -> Values:
    new = 0.5 * s("s") + tanh(p.W_s @ x() + mm(p.R_s, s("s")) + p.b_s)
    q = p.W_q @ x() + mm(p.R_q, s("h"))
    means = heads(q * q, k.N).mean(-1) + heads(new, k.N).mean(-1)
    return {"s": new, "h": tanh(mm(p.V_h, p.W_e @ x()) + wide(means, k.D) + p.b_h)}


@case(
    """
cell VectorsOfWidths
dim K = H + 2
state h, s: K
param lam: vector(num_heads) = 0.5, u: vector(2*H), w: vector(K), e: vector(I)
weights g: vector(K)
buffer m: vector(K) = uniform(0, 1)
local v: 2*H
a = exp(-exp(lam))
v = tanh(u)*(R@h[t-1])
s[t] = a*s[t-1] + m*tanh(W@x + w + g*s[t-1])
h[t] = tanh(W@(x*e) + mean(v) + mean(s[t]))
""",
    lambda H: {"h": (H, 0.0), "s": (H + 2, 0.0)},
    heads=2,
)
def vectors_of_widths(p: Any, s: Any, x: Any, k: Any) -> Values:
    a = torch.exp(-torch.exp(p.lam))
    v = tanh(p.u) * mm(p.R_v, s("h"), 1, 2)
    inside = p.m * tanh(p.W_s @ x() + p.w + p.g_s * s("s"))
    new = wide(a, len(inside) // k.N) * s("s") + inside
    means = heads(v, k.N, 2).mean(-1) + heads(new, k.N).mean(-1)
    return {"s": new, "h": tanh(p.W_h @ (x() * p.e) + wide(means, k.D))}
