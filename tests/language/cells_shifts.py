"""Cells that read older values of what inputs make."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh
from torch.nn import functional as F

from .loop import Case, Table, Values, heads, ln, mm, wide

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell Convolved
state h
weights k0: vector, k1: vector, k3: vector, A: matrix
u = W@x + b
c = silu(k0*u + k1*u[t-1] + k3*u[t-3] + b)
r, i = sigmoid(A@c + b)
h[t] = r*h[t-1] + i*c
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def convolved(p: Any, s: Any, x: Any, k: Any) -> Values:
    u = p.W_u @ x() + p.b_u
    c = F.silu(p.k0_c * u + p.k1_c * x("u", 1) + p.k3_c * x("u", 3) + p.b_c)
    r, i = sigmoid(p.A_r @ c + p.b_r), sigmoid(p.A_i @ c + p.b_i)
    return {"h": r * s("h") + i * c, "u": u}


@case(
    """
cell OlderRounds
const K = 2
input x, gap: 1
state h, c
output y
local w: 2*H, e: 2
def older(a, n) = a[t-n]
u[0] = W@x
for l in 1..K:
    u[l] = tanh(u[l-1][t-l] + 0.5*older(u[l-1], 1) + W@x + b)
e = concat(max(x), gap)
w = repeat(u[K], 2)
v = u[1][t-1]
f, o = split(w[t-1])
c[t] = sigmoid(f)*c[t-1] + sum(e[t-2])*o
h[t] = tanh(R@h[t-1] + u[K][t-2] + v[t-2]*sin(2*gap[t-1]) + b)*c[t]
y = h[t] + layernorm(v[t-1] + u[0][t]) + elu(u[K][t-3])
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    extra={"gap": 1},
)
def older_rounds(p: Any, s: Any, x: Any, k: Any) -> Values:
    u0 = p.W_u_0 @ x()
    u1 = tanh(x("u0", 1) + 0.5 * x("u0", 1) + p.W_u_1 @ x() + p.b_u_1)
    u2 = tanh(x("u1", 2) + 0.5 * x("u1", 1) + p.W_u_2 @ x() + p.b_u_2)
    e, w = torch.cat([x().amax(0, keepdim=True), x("gap")]), u2.repeat_interleave(2)
    f, o = (x("w", 1) + torch.zeros_like(w)).chunk(2)
    c = sigmoid(f) * s("c") + x("e", 2).sum() * o
    h = tanh(mm(p.R_h, s("h")) + x("u2", 2) + x("u1", 3) * torch.sin(2 * x("gap", 1)) + p.b_h) * c
    out = h + ln(x("u1", 2) + u0) + F.elu(x("u2", 3))
    return {"h": h, "c": c, "out": out, "u0": u0, "u1": u1, "u2": u2, "e": e, "w": w}


@case(
    """
cell OlderHeads
state h
weights k: vector, V: matrix
u = x_2[t-1]*k + b
x_2 = tanh(W@x)
q = sum(u*k)
a = sigmoid(q[t-1] + q)
h[t] = a*h[t-1] + tanh(V@u[t-2] + W@x[t-1]) + 0.1*(W_x_2@x[t-1])
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
)
def older_heads(p: Any, s: Any, x: Any, k: Any) -> Values:
    x_2 = tanh(p.W_x_2 @ x())
    u = x("x_2", 1) * p.k_u + p.b_u
    q = heads(u * p.k_q, k.N).sum(-1)
    a = wide(sigmoid(x("q", 1) + q), k.D)
    n = tanh(p.V_h @ (x("u", 2) + torch.zeros_like(u)) + p.W_h @ x(back=1))
    return {"h": a * s("h") + n + 0.1 * (p.W_x_2 @ x(back=1)), "x_2": x_2, "u": u, "q": q}


@case(
    """
cell OlderNames
state h
output y
z = x
v = z[t-1]
u = W@v
y = h[t-1]*u[t-1] + v[t-2]
h[t] = tanh(R@h[t-1] + z[t-2] + v[t-1] + 0.5*x[t-1] + 0.25*z[t-4])
""",
    lambda H: {"h": (H, 0.0)},
    square=True,
)
def older_names(p: Any, s: Any, x: Any, k: Any) -> Values:
    u = p.W_u @ x(back=1)
    h = tanh(mm(p.R_h, s("h")) + 2 * x(back=2) + 0.5 * x(back=1) + 0.25 * x(back=4))
    return {"h": h, "u": u, "out": s("h") * x("u", 1) + x(back=3)}
