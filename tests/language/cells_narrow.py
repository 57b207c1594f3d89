"""Cells with one number per head, which nothing declares."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh
from torch.nn.functional import softplus

from .loop import Case, Table, Values, bdm, given, heads, mm, wide

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


@case(
    """
cell GreekFunctions
input x, Δt: 1
state h, μ
weights Φ: matrix
param λ: scalar = 0.5
dim K
local φ: K*num_heads
def ρ(β) = sum(β*h[t-1])
def σ2(β) = sigmoid(Φ@β - λ)
def mixed(γ, ψ) = γ*exp(-Δt) + (1 - γ)*ψ
u = W@x + b
α = sigmoid(ρ(u))
φ = σ2(u)
ε = mean(φ) + mixed(α, max(u))
p, q = split(softmax(concat(α, ε)))
μ[t] = mixed(α, μ[t-1]) + ε*u
h[t] = p*tanh(μ[t] + R@h[t-1]) + q*sin(u)
""",
    lambda H: {"h": (H, 0.0), "mu": (H, 0.0)},
    extra={"Deltat": 1},
    arguments={"K": 3},
    heads=2,
)
def greek(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Functions of the cell's own that make numbers per head, in Greek."""
    u = p.W_u @ x() + p.b_u
    alpha = sigmoid(heads(u * s("h"), k.N).sum(-1))
    phi = sigmoid(p.Phi_phi @ u - p.lam)
    decay = torch.exp(-x("Deltat"))
    epsilon = heads(phi, k.N).mean(-1) + alpha * decay + (1 - alpha) * heads(u, k.N).amax(-1)
    first, second = torch.softmax(torch.stack((alpha, epsilon)), 0)
    mu = wide(alpha, k.D) * decay + wide(1 - alpha, k.D) * s("mu") + wide(epsilon, k.D) * u
    h = wide(first, k.D) * tanh(mu + mm(p.R_h, s("h"))) + wide(second, k.D) * torch.sin(u)
    return {"h": h, "mu": mu}


@case(
    """
cell Largest
state h, m
local q: 2*num_heads, s: 1, g: 2*H
param p: vector
weights Q: matrix, V: matrix
def widest(f, y) = f(y) - f(-y)
u = W@x + R@h[t-1] + b
c = round(3*tanh(u), grad=1)/3
e = max(c)
a = min(tanh(V@m[t-1]) - 2)
q = Q@h[t-1]
g = concat(u, m[t-1])
s = max(q)
w = exp(u - max(u))
m[t] = 0.5*m[t-1] + e*a + sigmoid(min(c))*w/sum(w) - 3
h[t] = tanh(u*s) + max(max(m[t]), a) + 0.1*widest(max, g) - 0.1*max(W@x) + max(p)
""",
    lambda H: {"h": (H, 0.0), "m": (H, 0.0)},
    heads=2,
)
def largest(p: Any, s: Any, x: Any, k: Any) -> Values:
    """The largest and the least units of each head, all of which may be negative, and of which several may be equal."""

    def most(value: torch.Tensor, parts: int = 1) -> torch.Tensor:
        return wide(heads(value, k.N, parts).amax(-1), k.D)

    u = p.W_u @ x() + mm(p.R_u, s("h")) + p.b_u
    c = given(3 * tanh(u), (3 * tanh(u)).round(), torch.ones_like(u)) / 3
    a = -most(2 - tanh(mm(p.V_a, s("m"))))
    q = mm(p.Q_q, s("h"), k_out=2)
    g = torch.cat((u, s("m")))
    w = torch.exp(u - most(u))
    total = wide(heads(w, k.N).sum(-1), k.D)
    m = 0.5 * s("m") + most(c) * a + sigmoid(-most(-c)) * w / total - 3
    spread = most(g, 2) - most(-g, 2)
    h = tanh(u * most(q, 2)) + torch.maximum(most(m), a) + 0.1 * spread - 0.1 * most(p.W_h @ x()) + most(p.p)
    return {"h": h, "m": m}


@case(
    """
cell NarrowDecays
input x, gap: 1
state h, c
local a: num_heads, q: 1, v: H
a = sigmoid(W@x + b)
q = W@x
v = q
c[t] = exp(-gap)*c[t-1] + v
h[t] = a*h[t-1] + gap*(W@x) + v*c[t-1]
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    extra={"gap": 1},
    heads=2,
)
def narrow_decays(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Loops without products: one number for all units of a head, in place of a number a unit."""
    a, q = sigmoid(p.W_a @ x() + p.b_a), p.W_q @ x()
    c = torch.exp(-x("gap")) * s("c") + q
    h = wide(a, k.D) * s("h") + x("gap") * (p.W_h @ x()) + q * s("c")
    return {"h": h, "c": c}


@case(
    """
cell NarrowOnce
input c: 1 per sequence
state h
h[t] = exp(-c*c)*h[t-1] + c*(W@x)
""",
    lambda H: {"h": (H, 0.0)},
    extra={"c": 1},
    per_sequence=("c",),
)
def narrow_once(p: Any, s: Any, x: Any, k: Any) -> Values:
    """The same of an input per sequence."""
    return {"h": torch.exp(-(x("c") ** 2)) * s("h") + x("c") * (p.W_h @ x())}
