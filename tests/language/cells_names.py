"""Cells whose values are called as things of C++ and of the generated code are."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh

from .loop import Case, Table, Values, mm

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell Macros
state h, NULL = 1
const INT_MAX = 2
weights M: vector
SIZE_MAX = sigmoid(W@x + R@h[t-1] + b)
E = M*h[t-1] + 1
errno = tanh(E)*INT_MAX
_res = cos(NULL[t-1])
NULL[t] = 0.5*NULL[t-1] + SIZE_MAX*errno*_res
h[t] = tanh(NULL[t])
""",
    lambda H: {"h": (H, 0.0), "NULL": (H, 1.0)},
    heads=2,
)
def macros(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Names that headers of C++ have as macros; M_E is a parameter."""
    gate = sigmoid(p.W_SIZE_MAX @ x() + mm(p.R_SIZE_MAX, s("h")) + p.b_SIZE_MAX)
    null = 0.5 * s("NULL") + gate * tanh(p.M_E * s("h") + 1) * 2 * torch.cos(s("NULL"))
    return {"h": tanh(null), "NULL": null}


@case(
    """
cell OwnNames
state slot, tables
param lanes: vector = 0.5
Kind, dims = sigmoid(W@x + R@slot[t-1] + b)
program = tanh(W@x + R@tables[t-1] + b)
Loop = lanes*program + Kind
STREAMS = max(Loop, dims)
tables[t] = 0.5*tables[t-1] + STREAMS
slot[t] = tanh(tables[t])*Kind
output slot
""",
    lambda H: {"slot": (H, 0.0), "tables": (H, 0.0)},
    heads=2,
)
def own_names(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Names that the generated code has too: of its tables and enums, and of the library."""
    kind = sigmoid(p.W_Kind @ x() + mm(p.R_Kind, s("slot")) + p.b_Kind)
    dims = sigmoid(p.W_dims @ x() + mm(p.R_dims, s("slot")) + p.b_dims)
    program = tanh(p.W_program @ x() + mm(p.R_program, s("tables")) + p.b_program)
    tables = 0.5 * s("tables") + torch.maximum(p.lanes * program + kind, dims)
    return {"slot": tanh(tables) * kind, "tables": tables}


@case(
    """
cell GreekNames
input x, ξ: 2
state h, μ = 1
dim Π = 4
local ψ: 2*H, ν: Π
const τ = 0.5, Δ_t = 2, λ = 0.1
param ω: scalar = 0.5
weights Φ: matrix, Ψ: matrix
α, γ = sigmoid(W@x + R@h[t-1] + b)
ν = tanh(Φ@ξ)
ψ = tanh(Ψ@ν + b)
ε[0], ε[1] = split(ψ)
μ[t] = τ*µ[t-1] + λ*(α*ε[0] + γ*ε[1]) + ω*(W_α@x)
h[t] = tanh(Δ_t*μ[t]) + cos(π*γ)
""",
    lambda H: {"h": (H, 0.0), "mu": (H, 1.0)},
    extra={"xi": 2},
    arguments={"Pi": 2, "tau": 0.25, "Delta_t": 1.5},
    heads=2,
)
def greek(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Greek letters, which everything but the text calls by their English names; µ is another form of μ."""
    alpha, gamma = (
        sigmoid(w @ x() + mm(r, s("h")) + b)
        for w, r, b in ((p.W_alpha, p.R_alpha, p.b_alpha), (p.W_gamma, p.R_gamma, p.b_gamma))
    )
    psi = tanh(p.Psi_psi @ tanh(p.Phi_nu @ x("xi")) + p.b_psi)
    first, second = psi.chunk(2)
    mu = 0.25 * s("mu") + 0.1 * (alpha * first + gamma * second) + p.omega * (p.W_alpha @ x())
    return {"h": tanh(mu * 1.5) + torch.cos(torch.pi * gamma), "mu": mu}


@case(
    """
cell Functions
input x, gap: 1
state h, m = 1
param λ: scalar = 0.3
weights V: matrix
def gate(u) = sigmoid(W@x + R@u + b)
def mix(a, u, v) = a*u + (1 - a)*v
def decayed(s) = exp(-softplus(λ)*gap)*s[t-1]
def on(M, f, u) = f(M@u + 0.5*layernorm(u))
i, o = gate(mix(0.25, decayed(h), m[t-1]))
n = on(R, tanh, h[t-1]*m[t-1])
m[t] = mix(i, decayed(m), n)
h[t] = mix(o, on(V, sin, tanh(m[t])), gap if 1 == 2 else n)
""",
    lambda H: {"h": (H, 0.0), "m": (H, 1.0)},
    extra={"gap": 1},
    heads=2,
)
def functions(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Small functions, of which each call is an expression of its own."""
    decay = torch.exp(-torch.nn.functional.softplus(p.lam) * x("gap"))

    def on(matrix: torch.Tensor, f: Any, u: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.layer_norm(u.reshape(k.N, -1), (k.D,)).reshape(-1)
        found: torch.Tensor = f(mm(matrix, u) + 0.5 * rows)
        return found

    u = 0.25 * decay * s("h") + 0.75 * s("m")
    i = sigmoid(p.W_i @ x() + mm(p.R_i, u) + p.b_i)
    o = sigmoid(p.W_o @ x() + mm(p.R_o, u) + p.b_o)
    n = on(p.R_n, tanh, s("h") * s("m"))
    m = i * decay * s("m") + (1 - i) * n
    return {"h": o * on(p.V_h, torch.sin, tanh(m)) + (1 - o) * n, "m": m}


@case(
    """
cell InFull
state h
weights U: matrix, V: lowrank(2)
def step(u) = V_k@u
r = sigmoid(W_r@x + U_r@h[t-1] + b_r)
z = sigmoid(W_z@x + R@h[t-1] + b_r)
for l in 1..2:
    n[l] = tanh(W_n[l]@x + R@h[t-1] + b)
k = step(r*h[t-1]) + W@x
h[t] = z*h[t-1] + (1 - z)*tanh(n[1]*n[2] + k)
""",
    lambda H: {"h": (H, 0.0)},
    heads=1,
)
def in_full(p: Any, s: Any, x: Any, k: Any) -> Values:
    """An equation calls its own parameters by their full names, in a loop and through a function too."""
    r = sigmoid(p.W_r @ x() + mm(p.U_r, s("h")) + p.b_r)
    z = sigmoid(p.W_z @ x() + mm(p.R_z, s("h")) + p.b_r)
    first, second = (
        tanh(W @ x() + mm(R, s("h")) + b) for W, R, b in ((p.W_n_1, p.R_n_1, p.b_n_1), (p.W_n_2, p.R_n_2, p.b_n_2))
    )
    n = mm(p.V__u_k, mm(p.V__v_k, r * s("h"))) + p.W_k @ x()
    return {"h": z * s("h") + (1 - z) * tanh(first * second + n)}
