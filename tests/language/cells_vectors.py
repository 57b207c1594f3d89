"""Cells with functions of vectors: sizes as numbers, lengths, constant vectors, vectors that move."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, tanh
from torch.nn import functional as F

from .loop import Case, Table, Values, heads, mm, per, wide

CASES: list[Case] = []
case = Table(CASES)


def unit(rows: Tensor) -> Tensor:
    """Each row divided by its length."""
    return F.normalize(rows, dim=-1)


@case(
    """
cell SizesInArithmetic
dim K = 3
state h
a = W@x*sqrt(K/num_heads) + b/I
h[t] = (K - 2.5)*tanh(a + R@h[t-1]/sqrt(H) + K*h[t-1]/(H*num_heads))
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def sizes_in_arithmetic(p: Any, s: Any, x: Any, k: Any) -> Values:
    a = p.W_a @ x() * (3 / k.N) ** 0.5 + p.b_a / len(x())
    return {"h": 0.5 * tanh(a + mm(p.R_h, s("h")) / k.H**0.5 + 3 * s("h") / (k.H * k.N))}


@case(
    """
cell Lengths
state h
input e: 4*H
weights V: matrix, B: matrix
param u: vector
local n: num_heads, q: 2*H, far: 4*H
q = V@h[t-1] + W@x
far = normalize(e)
n = norm(q)
l = logsumexp(3*q)
h[t] = tanh(R@normalize(h[t-1]) + n*u/norm(u) + B@far + 0.2*l + normalize(u)*norm(u))
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
    extra={"e": 24},
)
def lengths(p: Any, s: Any, x: Any, k: Any) -> Values:
    q = mm(p.V_q, s("h"), 1, 2) + p.W_q @ x()
    rows = heads(q, k.N, 2)
    u = heads(p.u, k.N)
    n = wide(torch.linalg.vector_norm(rows, dim=-1), k.D)
    length = wide(torch.linalg.vector_norm(u, dim=-1), k.D)
    far = p.B_h @ per(unit, x("e"), k.N, 4)
    sums = wide(torch.logsumexp(3 * rows, -1), k.D)
    before = mm(p.R_h, per(unit, s("h"), k.N))
    return {"h": tanh(before + n * p.u / length + far + 0.2 * sums + unit(u).flatten() * length)}


@case(
    """
cell Counted
dim D = H//num_heads
const n = 3
state h: D*num_heads, q: 2*H
local a: D*num_heads, e: 2*H, w: n*num_heads
a = log(1 + arange(D*num_heads))
e = arange(2*H)/(2*D)
w = W@x - arange(n*num_heads)
c = arange(num_heads) + 1
q[t] = 0.5*q[t-1] + tanh(W@x + e + ones(2*H)/c)
h[t] = tanh(W@x + R@h[t-1] + a*h[t-1]/c + ones(D*num_heads) + mean(w*arange(n*num_heads)) + mean(q[t]*e) + arange(1))
""",
    lambda H: {"h": (H, 0.0), "q": (2 * H, 0.0)},
    heads=2,
)
def counted(p: Any, s: Any, x: Any, k: Any) -> Values:
    count = torch.arange(k.D, dtype=torch.float64)
    a = torch.log(1 + count).repeat(k.N)
    # The units of a head go through both parts.
    e = torch.stack((count, count + k.D))[:, None].expand(2, k.N, k.D).reshape(-1) / (2 * k.D)
    w = p.W_w @ x() - torch.arange(3.0).repeat_interleave(k.N)
    c = torch.arange(1.0, k.N + 1, dtype=torch.float64)
    q = 0.5 * s("q") + tanh(p.W_q @ x() + e + 1 / wide(c, k.D).repeat(2))
    means = (heads(w, k.N, 3) * torch.arange(3.0)).mean(-1) + heads(q * e, k.N, 2).mean(-1)
    new = p.W_h @ x() + mm(p.R_h, s("h")) + a * s("h") / wide(c, k.D) + 1 + wide(means, k.D)
    return {"h": tanh(new), "q": q}


def _rolled(n: int, value: Tensor, places: int, parts: int = 1, fill: float | None = None) -> Tensor:
    """`roll` in each of n heads."""
    rows = heads(value, n, parts)
    units = rows.shape[-1]
    found = rows.roll(places, -1)
    if fill is not None:
        comes = torch.arange(units) - places
        found = torch.where((comes >= 0) & (comes < units), found, fill)
    return found.reshape(n, parts, -1).transpose(0, 1).reshape(-1)


@case(
    """
cell Moved
const back = -2
state h, v: 2*H
input e: 2*H
local u: 2*H
u = roll(e, 3)
v[t] = 0.5*roll(v[t-1], back, fill=0) + 0.3*roll(v[t-1], 1) + tanh(u + W@x)
a = roll(h[t-1], 1, fill=0.25)
c = roll(R@h[t-1], -1, fill=back/4) + roll(W@x, 20, fill=0) + roll(b, -7)
n = roll(sum(h[t-1]), 1, fill=0.5) + roll(mean(h[t-1]), 3)
h[t] = tanh(a*c + 0.2*n + roll(h[t-1], -1, fill=back))
""",
    lambda H: {"h": (H, 0.0), "v": (2 * H, 0.0)},
    heads=2,
    extra={"e": 12},
)
def moved(p: Any, s: Any, x: Any, k: Any) -> Values:
    roll = partial(_rolled, k.N)
    h, v = s("h"), s("v")
    new = 0.5 * roll(v, -2, 2, 0) + 0.3 * roll(v, 1, 2) + tanh(roll(x("e"), 3, 2) + p.W_v @ x())
    c = roll(mm(p.R_c, h), -1, fill=-0.5) + roll(p.W_c @ x(), 20, fill=0) + roll(p.b_c, -7)
    n = 0.5 + heads(h, k.N).mean(-1)
    return {"h": tanh(roll(h, 1, fill=0.25) * c + 0.2 * wide(n, k.D) + roll(h, -1, fill=-2)), "v": new}


@case(
    """
cell MovedBySizes
dim n = 2
state h, v: 2*H
for j in 1..2:
    u[j] = roll(v[t-1], j*n - H//num_heads)
v[t] = 0.5*u[1] + 0.2*u[2] + tanh(W@x)
a = roll(h[t-1], -(H//(2*num_heads)), fill=0.25)
c = roll(R@h[t-1], n, fill=n) + roll(W@x, 5*H)
h[t] = tanh(a + c + 0.1*roll(h[t-1], n - n))
""",
    lambda H: {"h": (H, 0.0), "v": (2 * H, 0.0)},
    heads=2,
)
def moved_by_sizes(p: Any, s: Any, x: Any, k: Any) -> Values:
    roll = partial(_rolled, k.N)
    h, v = s("h"), s("v")
    new = 0.5 * roll(v, 2 - k.D, 2) + 0.2 * roll(v, 4 - k.D, 2) + tanh(p.W_v @ x())
    a = roll(h, -(k.D // 2), fill=0.25)
    c = roll(mm(p.R_c, h), 2, fill=2.0) + roll(p.W_c @ x(), 5 * k.D * k.N)
    return {"h": tanh(a + c + 0.1 * h), "v": new}


@case(
    """
cell SharedKeys
dim D = H//num_heads, g = num_heads
state h: D*num_heads
input c: 2 per sequence
param u: vector(D)
local k: D, q: g*D, e: 4, two: 2, a: D*num_heads
k = W@x
q = tanh(W@x)
e = W@x + b
two = W@x
a = heads(q, g)*heads(u) + mean(heads(c*two))
o = sum(heads(e)) + norm(heads(tanh(c)))
h[t] = tanh(R@h[t-1] + heads(k)*h[t-1] + a + o*heads(k[t-1]) + 0.1*heads(q, g))
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
    extra={"c": 2},
    per_sequence=("c",),
)
def shared(p: Any, s: Any, x: Any, k: Any) -> Values:
    """With as many groups as heads, each head has its own."""
    here, before = p.W_k @ x(), x("k", 1)
    q = tanh(p.W_q @ x())
    a = q * p.u.repeat(k.N) + (x("c") * (p.W_two @ x())).mean()
    o = (p.W_e @ x() + p.b_e).sum() + torch.linalg.vector_norm(tanh(x("c")))
    older = before.repeat(k.N) if before.dim() else before
    new = mm(p.R_h, s("h")) + here.repeat(k.N) * s("h") + a + o * older + 0.1 * q
    return {"h": tanh(new), "k": here}
