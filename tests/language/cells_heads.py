"""Cells about what heads cut and join, and what they leave whole; single numbers among wide values."""

from __future__ import annotations

from typing import Any

import torch
from torch import tanh

from .loop import Case, Table, Values, heads, mm

CASES: list[Case] = []
case = Table(CASES)


# What inputs alone make is cut and joined as it is, whatever the number of heads.
@case(
    """
cell SplitFree
input x, mem: 8
state h
local q: 3, q1: 1, q2: 2, m1: 4, m2: 4
weights Q: matrix
q = W@x
q1, q2 = split(q)
m1, m2 = split(mem)
h[t] = tanh(q1*(W@x) + R@h[t-1] + Q@concat(m1 + 2*m2, q2, q))
""",
    lambda H: {"h": (H, 0.0)},
    extra={"mem": 8},
    heads=2,
)
def split_free(p: Any, s: Any, x: Any, k: Any) -> Values:
    q, m = p.W_q @ x(), x("mem")
    joined = torch.cat([m[:4] + 2 * m[4:], q[1:], q])
    return {"h": tanh(q[0] * (p.W_h @ x()) + mm(p.R_h, s("h")) + p.Q_h @ joined)}


# In the loop and behind it, each unit stays with its head.
@case(
    """
cell Repeated
state h
output y
local v: 2*H, a: H, c: H, y: 2*H
v = repeat(h[t-1], 2)
a, c = split(v)
h[t] = tanh(a - c*(W@x) + R@h[t-1])
y = repeat(h[t]*x0, 2)
x0 = W@x
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
)
def repeated(p: Any, s: Any, x: Any, k: Any) -> Values:
    count = 1 if p.R_h.dim() == 2 else p.R_h.shape[0]

    def twice(value: torch.Tensor) -> torch.Tensor:
        rows = heads(value, count).repeat_interleave(2, -1)
        return rows.reshape(count, 2, -1).transpose(0, 1).reshape(-1)

    v = twice(s("h"))
    a, c = v.chunk(2)
    h = tanh(a - c * (p.W_h @ x()) + mm(p.R_h, s("h")))
    return {"h": h, "out": twice(h * (p.W_x0 @ x()))}


# A delta rule: both states are read before either is written.
@case(
    """
cell Delta
state S1, S2
output y
local k: 2, n: 2, k1: 1, k2: 1, q1: 1, q2: 1, be: 1
v, k, q1, q2 = W@x
be = sigmoid(W@x)
n = k/sqrt(1 + k*k)
k1, k2 = split(n)
e = be*(v - (k1*S1[t-1] + k2*S2[t-1]))
S1[t] = S1[t-1] + k1*e
S2[t] = S2[t-1] + k2*e
y = q1*S1[t] + q2*S2[t]
""",
    lambda H: {"S1": (H, 0.0), "S2": (H, 0.0)},
    heads=2,
)
def delta(p: Any, s: Any, x: Any, k: Any) -> Values:
    n = p.W_k @ x()
    n = n / torch.sqrt(1 + n * n)
    e = torch.sigmoid(p.W_be @ x()) * (p.W_v @ x() - (n[0] * s("S1") + n[1] * s("S2")))
    one, two = s("S1") + n[0] * e, s("S2") + n[1] * e
    return {"S1": one, "S2": two, "out": p.W_q1 @ x() * one + p.W_q2 @ x() * two}
