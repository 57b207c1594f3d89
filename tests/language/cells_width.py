"""Cells about widths, heads, types of parameters and names."""

from __future__ import annotations

from typing import Any

import torch
from torch import sigmoid, tanh
from torch.nn import functional as F

from .loop import Case, Table, Values, bdm, heads, ln, mm, per, wide

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell ExtraIn
dim E = 4
input gap: 1, x, ev: E
state h
weights V: matrix
h[t] = gap*h[t-1] + tanh(W@x + V@ev + R@h[t-1] + gap - ev_sum)
local ev_sum: 1
ev_sum = sum(ev)
""",
    lambda H: {"h": (H, 0.0)},
    extra={"gap": 1, "ev": 4},
)
def extra_in(p: Any, s: Any, x: Any, k: Any) -> Values:
    return {"h": x("gap") * s("h") + tanh(p.W_h @ x() + p.V_h @ x("ev") + mm(p.R_h, s("h")) + x("gap") - x("ev").sum())}


@case(
    """
cell Typed
state h
weights u: vector, Dg: diag, BD: blockdiag(2), BW: blockdiag(3)
h[t] = tanh(u*h[t-1] + Dg@h[t-1]*2 + BD@(h[t-1]*h[t-1]) + BW@(h[t-1] + 1) + W@x)
""",
    lambda H: {"h": (H, 0.0)},
)
def typed(p: Any, s: Any, x: Any, k: Any) -> Values:
    h = s("h")
    return {"h": tanh(p.u_h * h + p.Dg_h * h * 2 + bdm(p.BD_h, h * h) + bdm(p.BW_h, h + 1) + p.W_h @ x())}


@case(
    """
cell BlockInput
state h
weights W: blockdiag(2), Dg: diag
h[t] = tanh(W@x + Dg@x + R@h[t-1])
""",
    lambda H: {"h": (H, 0.0)},
    square=True,
    heads=3,
)
def block_input(p: Any, s: Any, x: Any, k: Any) -> Values:
    return {"h": tanh(bdm(p.W_h, x()) + p.Dg_h * x() + mm(p.R_h, s("h")))}


@case(
    """
cell Antisym
const gamma = 0.3
state h
param M: matrix, K: matrix
h[t] = h[t-1] + 0.2*tanh(W@x + (M - T(M) - gamma*eye(H))@h[t-1] + (K@T(K))@sin(h[t-1]) + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
    arguments={"gamma": 0.7},
)
def antisym(p: Any, s: Any, x: Any, k: Any) -> Values:
    N = k.N
    M = p.M.reshape(N, k.D, k.D)
    K = p.K.reshape(N, k.D, k.D)
    A = M - M.transpose(1, 2) - 0.7 * torch.eye(k.D, dtype=torch.float64)
    B = K @ K.transpose(1, 2)
    return {"h": s("h") + 0.2 * tanh(p.W_h @ x() + mm(A, s("h")) + mm(B, torch.sin(s("h"))) + p.b_h)}


@case(
    """
cell LowRankOut
dim P = 4
state h: P
output y
param C: matrix(P, H), G: matrix(H, P)
y = G@h[t] + W@x
h[t] = tanh(C@tanh(G@h[t-1] + b) + W@x)
""",
    lambda H: {"h": (4, 0.0)},
    heads=2,
)
def low_rank_out(p: Any, s: Any, x: Any, k: Any) -> Values:
    C, G = (p.C, p.G)
    h = tanh(mm(C, tanh(mm(G, s("h")) + p.b_h)) + p.W_h @ x())
    return {"h": h, "out": mm(G, h) + p.W_y @ x()}


@case(
    """
cell OnLike
const chunk = 3
dim K
state h, c
local m: K, v: K
m = cumsum(softmax(W@x + R@h[t-1] + b))
v = cumsum(R@h[t-1])
rm = repeat(1 - m, chunk)
rv = repeat(v*m, chunk)
c[t] = rm*c[t-1] + tanh(W@x + R@h[t-1] + b)*rv
h[t] = tanh(c[t]) + mean(c[t]) - sum(h[t-1])*0.1
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=2,
)
def on_like(p: Any, s: Any, x: Any, k: Any) -> Values:
    N = k.N
    m = per(lambda r: torch.cumsum(torch.softmax(r, -1), -1), p.W_m @ x() + mm(p.R_m, s("h")) + p.b_m, N)
    v = per(lambda r: torch.cumsum(r, -1), mm(p.R_v, s("h")), N)
    rm = (1 - m).repeat_interleave(3)
    rv = (v * m).repeat_interleave(3)
    c = rm * s("c") + tanh(p.W_c @ x() + mm(p.R_c, s("h")) + p.b_c) * rv
    mean = wide(heads(c, N).mean(-1), k.D)
    sm = wide(heads(s("h"), N).sum(-1), k.D)
    return {"c": c, "h": tanh(c) + mean - sm * 0.1}


@case(
    """
cell PackSplit
state h, c
local v: 4*H, a: 2*H, q: 3*H
param g: vector = 1
v = layernorm(W@x) + layernorm(R@h[t-1]) + b
a, i, o = split(v)
a1, a2 = split(rmsnorm(a))
q = concat(a1*c[t-1], i, o)
w = tanh(R@concat(h[t-1], c[t-1]) + b)
u = tanh(R@q)
c[t] = sigmoid(a1)*c[t-1] + a2*w
h[t] = sigmoid(o)*tanh(c[t]) + g*u
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=3,
)
def pack_split(p: Any, s: Any, x: Any, k: Any) -> Values:
    N, H = (k.N, k.H)
    v = ln(p.W_v @ x(), N, 4) + ln(mm(p.R_v, s("h"), 1, 4), N, 4) + p.b_v
    a, i, o = (v[: 2 * H], v[2 * H : 3 * H], v[3 * H :])
    rn = per(lambda r: F.rms_norm(r, r.shape[-1:]), a, N, 2)
    a1, a2 = (rn[:H], rn[H:])
    q = torch.cat([a1 * s("c"), i, o])
    w = tanh(mm(p.R_w, torch.cat([s("h"), s("c")]), 2) + p.b_w)
    u = tanh(mm(p.R_u, q, 3))
    c = sigmoid(a1) * s("c") + a2 * w
    return {"c": c, "h": sigmoid(o) * tanh(c) + p.g * u}


@case(
    """
cell WideState
state h, c: 2*H = 0.25
local v: 2*H
v = tanh(W@x + R@h[t-1] + b)
c[t] = 0.9*c[t-1] + v*cumsum(c[t-1])*0.1
h[t] = tanh(R@c[t])
""",
    lambda H: {"h": (H, 0.0), "c": (2 * H, 0.25)},
    heads=3,
)
def wide_state(p: Any, s: Any, x: Any, k: Any) -> Values:
    v = tanh(p.W_v @ x() + mm(p.R_v, s("h"), 1, 2) + p.b_v)
    c = 0.9 * s("c") + v * per(lambda r: torch.cumsum(r, -1), s("c"), k.N, 2) * 0.1
    return {"c": c, "h": tanh(mm(p.R_h, c, 2))}


@case(
    """
cell Exact
state values, n, pow
param torch: vector, sizes: scalar, tools: matrix, frame: vector = 1, int64_t: vector, std: vector, rows: matrix
weights masked: vector, M_PI: matrix
head = sigmoid(W@x + R@n[t-1] + masked*values[t-1] + b)
f = tanh(torch*head + sizes*pow[t-1])
step = tools@f
streams = step + M_PI@values[t-1]
call = streams*frame + int64_t
size_t = call + 1
values[t] = tanh(size_t)
self = values[t] + std
pow[t] = self*0.1
V = R@pow[t]
parameters = V + f
functional = parameters*1 + rows@values[t]
N = functional*2
n[t] = tanh(N + values[t])
""",
    lambda H: {"values": (H, 0.0), "n": (H, 0.0), "pow": (H, 0.0)},
    heads=2,
)
def exact(p: Any, s: Any, x: Any, k: Any) -> Values:
    head = sigmoid(p.W_head @ x() + mm(p.R_head, s("n")) + p.masked_head * s("values") + p.b_head)
    f = tanh(p.torch * head + p.sizes * s("pow"))
    st = mm(p.tools, f) + mm(p.M_PI_streams, s("values"))
    v = tanh(st * p.frame + p.int64_t + 1)
    pw = (v + p.std) * 0.1
    return {"values": v, "pow": pw, "n": tanh((mm(p.R_V, pw) + f + mm(p.rows, v)) * 2 + v)}


@case(
    """
cell DimDef
dim M = 4, Z = 2
state h, m: M = 0.1
weights E: matrix
param A: matrix(M, M), B: matrix(M, Z), C: matrix(Z, H)
u = C@h[t-1]
local u: Z
m[t] = tanh(A@m[t-1] + B@u)
h[t] = tanh(W@x + E@m[t] + b)
""",
    lambda H: {"h": (H, 0.0), "m": (8, 0.1)},
    arguments={"M": 8, "Z": 4},
    heads=2,
)
def dim_def(p: Any, s: Any, x: Any, k: Any) -> Values:
    m = tanh(mm(p.A, s("m")) + mm(p.B, mm(p.C, s("h"))))
    return {"m": m, "h": tanh(p.W_h @ x() + mm(p.E_h, m) + p.b_h)}


@case(
    """
cell GapState
input x, gap: 1
state h, g: 1 = 1, k: 1
weights u: vector
k[t] = 0.5*k[t-1] + gap[t-1]*g[t-1]
g[t] = tanh(gap + k[t]) - 0.2*g[t-2]
h[t] = tanh(W@x + u*g[t] + R@h[t-1])*k[t] + sum(h[t-1])*0.1 + mean(h[t-1])*g[t-1]
""",
    lambda H: {"h": (H, 0.0), "g": (1, 1.0), "k": (1, 0.0)},
    extra={"gap": 1},
)
def gap_state(p: Any, s: Any, x: Any, k: Any) -> Values:
    kk = 0.5 * s("k") + x("gap", 1) * s("g")
    g = tanh(x("gap") + kk) - 0.2 * s("g", 2)
    return {
        "k": kk,
        "g": g,
        "h": tanh(p.W_h @ x() + p.u_h * g + mm(p.R_h, s("h"))) * kk + s("h").sum() * 0.1 + s("h").mean() * s("g"),
    }


@case(
    """
cell ParamOnly
state h
param a: vector, k: scalar, M: matrix
v = M@(sigmoid(a) + 1)
w = layernorm(a)*k
h[t] = tanh(v + w + R@h[t-1] + M@h[t-1] + W@x + softmax(a) + sum(a)*0.1)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def param_only(p: Any, s: Any, x: Any, k: Any) -> Values:
    N = k.N
    return {
        "h": tanh(
            mm(p.M, sigmoid(p.a) + 1)
            + ln(p.a, N) * p.k
            + mm(p.R_h, s("h"))
            + mm(p.M, s("h"))
            + p.W_h @ x()
            + per(lambda r: torch.softmax(r, -1), p.a, N)
            + wide(heads(p.a, N).sum(-1), k.D) * 0.1
        )
    }


@case(
    """
cell RowsEpi
state h, c
output y
local v: 3*H
c[t] = 0.9*c[t-1] + W@x
h[t] = tanh(R@h[t-1] + c[t])
v = R@h[t] + b
p1, q = split(v)
local p1: 2*H
y = mean(p1)*q + cumsum(h[t]) + rmsnorm(c[t])*sum(h[t-1]) + max(h[t], c[t]) + elu(h[t]) + mod(c[t], 0.3)
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=2,
)
def rows_epi(p: Any, s: Any, x: Any, k: Any) -> Values:
    N, H, D = (k.N, k.H, k.D)
    c = 0.9 * s("c") + p.W_c @ x()
    h = tanh(mm(p.R_h, s("h")) + c)
    v = mm(p.R_v, h, 1, 3) + p.b_v
    p1, q = (v[: 2 * H], v[2 * H :])
    y = (
        wide(heads(p1, N, 2).mean(-1), D) * q
        + per(lambda r: r.cumsum(-1), h, N)
        + per(lambda r: F.rms_norm(r, r.shape[-1:]), c, N) * wide(heads(s("h"), N).sum(-1), D)
        + torch.maximum(h, c)
        + F.elu(h)
        + torch.remainder(c, 0.3)
    )
    return {"h": h, "c": c, "out": y}


@case(
    """
cell SecondOperand
input g: 2
state h
weights V: matrix, U: matrix
i, f = sigmoid(W@x + V@tanh(x) + R@h[t-1] + b)
u = tanh(W@x + U@concat(x, g) + b)
h[t] = f*h[t-1] + i*u
""",
    lambda H: {"h": (H, 0.0)},
    extra={"g": 2},
)
def second_operand(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Two products make a stream, and what the second one works on is written inside it."""
    i, f = (
        sigmoid(W @ x() + V @ tanh(x()) + mm(R, s("h")) + b)
        for W, V, R, b in ((p.W_i, p.V_i, p.R_i, p.b_i), (p.W_f, p.V_f, p.R_f, p.b_f))
    )
    u = tanh(p.W_u @ x() + p.U_u @ torch.cat((x(), x("g"))) + p.b_u)
    return {"h": f * s("h") + i * u}


@case(
    """
cell Spread
state h, c: 2*H = 0.5, m = learned, s
output y
param a: vector
local v: H, w: 2*H
v = mean(h[t-1])
w = mean(a)
h[t] = sum(0.2*cumsum(v) + 0.1*R@m[t-1])
c[t] = mean(cumsum(w) + c[t-1])
e = mean(W@x*m[t-2] + h[t])
m[t] = e
s[t] = sum(W@x + b)
y = mean(c[t])*1 + cumsum(s[t]) + cumsum(s[t-1]*m[t])
""",
    lambda H: {"h": (H, 0.0), "c": (2 * H, 0.5), "m": (H, None), "s": (H, 0.0)},
    heads=2,
)
def spread(p: Any, s: Any, x: Any, k: Any) -> Values:
    """States and declared values whose equation is a reduction hold it in every unit of the head."""
    N, D = k.N, k.D

    def mean(v: Any, of: int = 1) -> Any:
        return heads(v, N, of).mean(-1)

    v, w = wide(mean(s("h")), D), wide(mean(p.a), D).repeat(2)
    h = wide(heads(0.2 * per(lambda r: r.cumsum(-1), v, N) + 0.1 * mm(p.R_h, s("m")), N).sum(-1), D)
    c = wide(mean(per(lambda r: r.cumsum(-1), w, N, 2) + s("c"), 2), D).repeat(2)
    m = wide(mean(p.W_e @ x() * s("m", 2) + h), D)
    sums = wide(heads(p.W_s @ x() + p.b_s, N).sum(-1), D)
    y = wide(mean(c, 2), D) + per(lambda r: r.cumsum(-1), sums, N) + per(lambda r: r.cumsum(-1), s("s") * m, N)
    return {"h": h, "c": c, "m": m, "s": sums, "out": y}
