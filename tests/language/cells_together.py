"""Cells in which older values, functions of matrices, buffers and inputs per sequence meet, or zeros of both signs."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh

from .loop import Case, Table, Values, heads, mm, wide

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell Conditioned
input x, c: 4 per sequence, d: H per sequence = 0.5, ts: 1 = 2
state h
output y
weights V: matrix, B: matrix, k: vector
param K: matrix
buffer A: matrix = spectral(0.9), s: vector
Q = expm(K - T(K))
S = A*relu(A)
u = W@x + V@c + s*d
n = S@u[t-1] + k*u[t-2] + ts[t-1]*d
z = sigmoid(W@x + V@c + Q@h[t-1] + ts + b)
h[t] = z*h[t-1] + (1 - z)*tanh(n + R@h[t-1])
y = h[t] + tanh(V_u@c)*n + (B@(u*d))
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
    extra={"c": 4, "d": 6, "ts": 1},
    per_sequence=("c", "d"),
    defaults={"ts": 2.0},
)
def conditioned(p: Any, s: Any, x: Any, k: Any) -> Values:
    u = p.W_u @ x() + p.V_u @ x("c") + p.s * x("d")
    n = p.A * p.A.relu() @ (x("u", 1) + torch.zeros_like(u)) + p.k_n * x("u", 2) + x("ts", 1) * x("d")
    q = torch.linalg.matrix_exp(p.K - p.K.mT)
    z = sigmoid(p.W_z @ x() + p.V_z @ x("c") + mm(q, s("h")) + x("ts") + p.b_z)
    h = z * s("h") + (1 - z) * tanh(n + mm(p.R_h, s("h")))
    return {"h": h, "u": u, "out": h + tanh(p.V_u @ x("c")) * n + p.B_y @ (u * x("d"))}


@case(
    """
cell ConditionedDecay
input x, c: 4 per sequence, g: 1 per sequence, ts: H = 0.5, w: 4 per sequence = 0.25
state h, m
weights V: matrix, M: matrix, E: matrix
buffer D: diag = 0.5
const K = 2
def past(v, n) = v[t-n]
u[0] = normalize(M, axis=rows)@x*sigmoid(V@c)
for l in 1..K:
    u[l] = past(u[l-1], l) + D@(softmax(V, axis=columns)@c) + E@w
e = sum(u[K]*ts)
r = ts*sum(w)
h[t] = sigmoid(V@c + g)*h[t-1] + u[K][t-1]*past(ts, 1) + e[t-1]
m[t] = exp(-r[t-1])*m[t-1] + h[t]*g
""",
    lambda H: {"h": (H, 0.0), "m": (H, 0.0)},
    heads=2,
    extra={"c": 4, "g": 1, "ts": 6, "w": 4},
    per_sequence=("c", "g", "w"),
    defaults={"ts": 0.5, "w": 0.25},
)
def conditioned_decay(p: Any, s: Any, x: Any, k: Any) -> Values:
    u0 = torch.nn.functional.normalize(p.M_u_0, dim=1) @ x() * sigmoid(p.V_u_0 @ x("c"))
    u1 = x("u0", 1) + p.D * (p.V_u_1.softmax(0) @ x("c")) + p.E_u_1 @ x("w")
    u2 = x("u1", 2) + p.D * (p.V_u_2.softmax(0) @ x("c")) + p.E_u_2 @ x("w")
    e, r = heads(u2 * x("ts"), k.N).sum(-1), x("ts") * wide(heads(x("w"), k.N).sum(-1), k.D)
    older = x("e", 1) if x("e", 1).dim() == 0 else wide(x("e", 1), k.D)
    h = sigmoid(p.V_h @ x("c") + x("g")) * s("h") + x("u2", 1) * x("ts", 1) + older
    return {"h": h, "m": torch.exp(-x("r", 1)) * s("m") + h * x("g"), "u0": u0, "u1": u1, "u2": u2, "e": e, "r": r}


@case(
    """
cell SignedZeros
state h, c = -0.0
local p: 1, q: 1
p = max(abs(x)*0.0)
q = max(abs(x)*(-0.0))
# 1 where a zero is positive, else 0.
s = where(1/p > 0, 1, 0) - where(1/q > 0, 1, 0)
c[t] = where(1/c[t-1] > 0, 1, -1)
h[t] = where(1/h[t-1] > 0, 1, -1) + tanh(W@x)*s
""",
    lambda H: {"h": (H, 0.0), "c": (H, -0.0)},
)
def signed_zeros(p: Any, s: Any, x: Any, k: Any) -> Values:
    def sign(value: torch.Tensor) -> torch.Tensor:
        return torch.where(1 / value > 0, 1.0, -1.0).double()

    zeros = [torch.where(1 / (x().abs() * zero).amax() > 0, 1.0, 0.0) for zero in (0.0, -0.0)]
    return {"h": sign(s("h")) + tanh(p.W_h @ x()) * (zeros[0] - zeros[1]), "c": sign(s("c"))}
