"""Cells in which one number, or one per head, is spread: for states of several widths, and before a sum."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh
from torch.nn import functional as F

from .loop import Case, Table, Values, heads, mm, wide

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell SharedGap
input gap: 1
local k: 4
state n: 4, S
k, v = W@x
n[t] = exp(-gap)*n[t-1] + k
S[t] = exp(-gap)*S[t-1] + v
output S
""",
    lambda H: {"n": (4, 0.0), "S": (H, 0.0)},
    extra={"gap": 1},
)
def shared_gap(p: Any, s: Any, x: Any, k: Any) -> Values:
    decay = torch.exp(-x("gap"))
    S = decay * s("S") + p.W_v @ x()
    return {"n": decay * s("n") + p.W_k @ x(), "S": S, "out": S}


@case(
    """
cell WideBeforeNarrow
input gap: 1
state S, n: 4
k, v = W@x
S[t] = exp(-gap)*S[t-1] + v
n[t] = exp(-gap)*n[t-1] + k
local k: 4
""",
    lambda H: {"S": (H, 0.0), "n": (4, 0.0)},
    extra={"gap": 1},
)
def wide_before_narrow(p: Any, s: Any, x: Any, k: Any) -> Values:
    decay = torch.exp(-x("gap"))
    return {"S": decay * s("S") + p.W_v @ x(), "n": decay * s("n") + p.W_k @ x()}


@case(
    """
cell SharedGate
state n: 4, S = 0.5, w: 2*H
local fe: 1, k: 4, u: 2*H
fe = sigmoid(W@x)
k, v, u = W@x
n[t] = fe*n[t-1] + k
w[t] = fe*w[t-1] + (1 - fe)*u
S[t] = fe*S[t-1] + (1 - fe)*v
""",
    lambda H: {"n": (4, 0.0), "S": (H, 0.5), "w": (2 * H, 0.0)},
)
def shared_gate(p: Any, s: Any, x: Any, k: Any) -> Values:
    fe = sigmoid(p.W_fe @ x())
    S = fe * s("S") + (1 - fe) * (p.W_v @ x())
    return {"n": fe * s("n") + p.W_k @ x(), "S": S, "w": fe * s("w") + (1 - fe) * (p.W_u @ x())}


@case(
    """
cell DecayOfALoop
state m: 1, n: 4, S
local f: 1, k: 4, fe: 1
f, k, v = W@x
m[t] = max(f + m[t-1], 0)
fe = exp(-m[t])
n[t] = fe*n[t-1] + k
S[t] = fe*S[t-1] + v
output S
""",
    lambda H: {"m": (1, 0.0), "n": (4, 0.0), "S": (H, 0.0)},
)
def decay_of_a_loop(p: Any, s: Any, x: Any, k: Any) -> Values:
    m = torch.maximum(p.W_f @ x() + s("m"), torch.zeros(1, dtype=torch.float64))
    fe = torch.exp(-m)
    S = fe * s("S") + p.W_v @ x()
    return {"m": m, "n": fe * s("n") + p.W_k @ x(), "S": S, "out": S}


@case(
    """
cell OncePerSequence
input rate: 1 per sequence, gap: 1
state n: 4, S
local k: 4
k, v = W@x
n[t] = exp(-rate)*n[t-1] + k*exp(-gap*rate)
S[t] = exp(-rate)*S[t-1] + v*exp(-gap*rate)
output S
""",
    lambda H: {"n": (4, 0.0), "S": (H, 0.0)},
    extra={"rate": 1, "gap": 1},
    per_sequence={"rate"},
)
def once_per_sequence(p: Any, s: Any, x: Any, k: Any) -> Values:
    decay, scale = torch.exp(-x("rate")), torch.exp(-x("gap") * x("rate"))
    S = decay * s("S") + (p.W_v @ x()) * scale
    return {"n": decay * s("n") + (p.W_k @ x()) * scale, "S": S, "out": S}


@case(
    """
cell OnePerHead
input gap: num_heads
dim P = 4
state n: P, S, w: 2*H
local k: P, u: 2*H
k, v, u = W@x
a = sigmoid(mean(v) - gap)
n[t] = a*n[t-1] + exp(-gap)*k
w[t] = a*w[t-1] + exp(-gap)*u
S[t] = a*S[t-1] + exp(-gap)*tanh(v)
output S
""",
    lambda H: {"n": (4, 0.0), "S": (H, 0.0), "w": (2 * H, 0.0)},
    extra={"gap": 1},
)
def one_per_head(p: Any, s: Any, x: Any, k: Any) -> Values:
    v = p.W_v @ x()
    a, decay = sigmoid(v.mean() - x("gap")), torch.exp(-x("gap"))
    S = a * s("S") + decay * tanh(v)
    return {"n": a * s("n") + decay * (p.W_k @ x()), "S": S, "w": a * s("w") + decay * (p.W_u @ x()), "out": S}


@case(
    """
cell OnePerHeadOfSeveral
dim P = 4
state n: P, S, w: 2*H
local k: P, u: 2*H
k, v, u = W@x
a = sigmoid(mean(v))
n[t] = a*n[t-1] + k
w[t] = a*w[t-1] + u
S[t] = a*S[t-1] + v
output S
""",
    lambda H: {"n": (4, 0.0), "S": (H, 0.0), "w": (2 * H, 0.0)},
    heads=2,
)
def one_per_head_of_several(p: Any, s: Any, x: Any, k: Any) -> Values:
    v = p.W_v @ x()
    a = sigmoid(heads(v, k.N).mean(-1))
    S = wide(a, k.D) * s("S") + v
    twice = wide(a, k.D).repeat(2)
    n = wide(a, 4 // k.N) * s("n") + p.W_k @ x()
    return {"n": n, "S": S, "w": twice * s("w") + p.W_u @ x(), "out": S}


@case(
    """
cell SpreadBeforeASum
state h
local p: H, y: H
v = W@x
e = mean(v)
# These are the equations of a softmax, but the number of a head is spread before it is summed up.
p = exp(e - detach(max(e)))
y = p/sum(p)
h[t] = 0.5*h[t-1] + y*v
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def spread_before_a_sum(p: Any, s: Any, x: Any, k: Any) -> Values:
    return {"h": 0.5 * s("h") + (p.W_v @ x()) / k.D}


@case(
    """
cell RowsOfOneNumber
input gap: 1
state h
local q: 1, c: 1, m: 1
v = W@x
q = sigmoid(W@x)
c = cumsum(gap) + softmax(q) + layernorm(gap*q)
m = mean(gap) + sum(q) - max(gap*q) + min(q) + rmsnorm(q + 1)
h[t] = 0.5*h[t-1] + m*v + c*tanh(v)
""",
    lambda H: {"h": (H, 0.0)},
    extra={"gap": 1},
    heads=3,
)
def rows_of_one_number(p: Any, s: Any, x: Any, k: Any) -> Values:
    """One number for all heads is a row of its own, whatever the number of heads."""
    v, q, gap = p.W_v @ x(), sigmoid(p.W_q @ x()), x("gap")
    c = gap.cumsum(0) + q.softmax(0) + F.layer_norm(gap * q, (1,))
    m = gap.mean() + q.sum() - (gap * q).amax() + q.amin() + F.rms_norm(q + 1, (1,))
    return {"h": 0.5 * s("h") + m * v + c * tanh(v)}


@case(
    """
cell Counted
input g: 4
state h, m: 6
weights V: matrix, U: matrix, A: matrix
param c: vector
local q: 6
u = tanh(2*g + W@x + c)
q = W@x + U@u
k = q*m[t-1]
e = sum(k)
m[t] = tanh(k + A@m[t-1] + 0.1*e)
h[t] = tanh(W@x + R@h[t-1] + V@k + U@u + b)
""",
    lambda H: {"h": (H, 0.0), "m": (6, 0.0)},
    heads=2,
    extra={"g": 4},
)
def counted(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Values that nothing declares are as wide as a number says: u has 4 units, k has 6."""
    assert (p.W_u.shape[0], p.c.shape[0], p.V_h.shape[-1] * k.N, p.U_h.shape[-1]) == (4, 4, 6, 4)
    u = tanh(2 * x("g") + p.W_u @ x() + p.c)
    key = (p.W_q @ x() + p.U_q @ u) * s("m")
    e = wide(heads(key, k.N).sum(-1), 6 // k.N)
    m = tanh(key + mm(p.A_m, s("m")) + 0.1 * e)
    h = tanh(p.W_h @ x() + mm(p.R_h, s("h")) + mm(p.V_h, key) + p.U_h @ u + p.b_h)
    return {"h": h, "m": m}
