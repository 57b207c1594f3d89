"""Cells about time, order, segments and functions."""

from __future__ import annotations

from math import inf, pi
from typing import Any

import torch
from torch import Tensor, sigmoid, tanh
from torch.nn import functional as F

from .loop import Case, Table, Values, ln, mm, per, spike

CASES: list[Case] = []
case = Table(CASES)


@case(
    """
cell DelayMix
state h = learned, c = 0.5
weights u: vector, V: matrix, U: matrix, Q: matrix
f = sigmoid(u*c[t-2] + V@x[t-2] + b)
c[t] = f*c[t-1] + W@x[t-1] + c[t-3]*0.1
h[t] = tanh(W@x + R@h[t-2] + U@c[t-2] + Q@c[t])
""",
    lambda H: {"h": (H, None), "c": (H, 0.5)},
    heads=2,
)
def delay_mix(p: Any, s: Any, x: Any, k: Any) -> Values:
    f = sigmoid(p.u_f * s("c", 2) + p.V_f @ x(back=2) + p.b_f)
    c = f * s("c") + p.W_c @ x(back=1) + s("c", 3) * 0.1
    return {"h": tanh(p.W_h @ x() + mm(p.R_h, s("h", 2)) + mm(p.U_h, s("c", 2)) + mm(p.Q_h, c)), "c": c}


@case(
    """
cell Learned
state h = learned, m = -inf, s = learned
i = W@x + R@h[t-1] + b
m[t] = max(i, m[t-1] - 0.5)
s[t] = exp(m[t-1] - m[t])*s[t-1] + exp(i - m[t])
h[t] = tanh(s[t])*s[t-1]
""",
    lambda H: {"h": (H, None), "m": (H, -inf), "s": (H, None)},
    heads=3,
)
def learned(p: Any, s: Any, x: Any, k: Any) -> Values:
    i = p.W_i @ x() + mm(p.R_i, s("h")) + p.b_i
    m = torch.maximum(i, s("m") - 0.5)
    ss = torch.exp(s("m") - m) * s("s") + torch.exp(i - m)
    return {"h": tanh(ss) * s("s"), "m": m, "s": ss}


@case(
    """
cell EpiOut
state h, c
output y
weights V: matrix, U: matrix, g: vector
c[t] = sigmoid(W@x + b)*c[t-1] + W@x
h[t] = tanh(R@h[t-1] + W@x + c[t])
q = tanh(V@h[t] + U@(h[t]*c[t-1]) + W@x)
y = g*layernorm(q) + softmax(c[t]) + b
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=3,
)
def epi_out(p: Any, s: Any, x: Any, k: Any) -> Values:
    c = sigmoid(p.W_c @ x() + p.b_c) * s("c") + p.W_c @ x()
    h = tanh(mm(p.R_h, s("h")) + p.W_h @ x() + c)
    q = tanh(mm(p.V_q, h) + mm(p.U_q, h * s("c")) + p.W_q @ x())
    return {"h": h, "c": c, "out": p.g_y * ln(q, k.N) + per(lambda r: torch.softmax(r, -1), c, k.N) + p.b_y}


@case(
    """
cell Stack
state h, a, c
weights V: matrix, Q: matrix
z = sigmoid(W@x + b)
a[t] = z*a[t-1] + (1 - z)*tanh(W@x + b)
f = sigmoid(R@a[t-1] + b)
c[t] = f*c[t-1] + (1 - f)*a[t]
h[t] = tanh(V@c[t] + R@h[t-1] + Q@a[t-2] + a[t-1])
""",
    lambda H: {"h": (H, 0.0), "a": (H, 0.0), "c": (H, 0.0)},
    heads=2,
)
def stack(p: Any, s: Any, x: Any, k: Any) -> Values:
    z = sigmoid(p.W_z @ x() + p.b_z)
    a = z * s("a") + (1 - z) * tanh(p.W_a @ x() + p.b_a)
    f = sigmoid(mm(p.R_f, s("a")) + p.b_f)
    c = f * s("c") + (1 - f) * a
    return {"a": a, "c": c, "h": tanh(mm(p.V_h, c) + mm(p.R_h, s("h")) + mm(p.Q_h, s("a", 2)) + s("a"))}


@case(
    """
cell Phases
state h, c
p1 = tanh(R@h[t-1] + W@x)
p2 = sigmoid(R@p1 + b)
p3 = relu(R@(p2*c[t-1]) + W@x + b)
p4 = R@p3 + bR
c[t] = p4*p2 + 0.5*c[t-1]
h[t] = tanh(R@c[t]) + p1
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=2,
)
def phases(p: Any, s: Any, x: Any, k: Any) -> Values:
    p1 = tanh(mm(p.R_p1, s("h")) + p.W_p1 @ x())
    p2 = sigmoid(mm(p.R_p2, p1) + p.b_p2)
    p3 = torch.relu(mm(p.R_p3, p2 * s("c")) + p.W_p3 @ x() + p.b_p3)
    p4 = mm(p.R_p4, p3) + p.bR_p4
    c = p4 * p2 + 0.5 * s("c")
    return {"h": tanh(mm(p.R_h, c)) + p1, "c": c}


@case(
    """
cell WonState
state h
h[t] = tanh(W@(x*h[t-1]) + R@h[t-1] + b)
""",
    lambda H: {"h": (H, 0.0)},
    square=True,
)
def won_state(p: Any, s: Any, x: Any, k: Any) -> Values:
    return {"h": tanh(p.W_h @ (x() * s("h")) + mm(p.R_h, s("h")) + p.b_h)}


@case(
    """
cell Shared
state h
f = sigmoid(W@x + R@h[t-1] + b)
n = tanh(W_f@x + R_f@(f*h[t-1]) + b_f*2)
h[t] = f*n + (1 - f)*h[t-1] + W_f@x
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def shared(p: Any, s: Any, x: Any, k: Any) -> Values:
    f = sigmoid(p.W_f @ x() + mm(p.R_f, s("h")) + p.b_f)
    n = tanh(p.W_f @ x() + mm(p.R_f, f * s("h")) + p.b_f * 2)
    return {"h": f * n + (1 - f) * s("h") + p.W_f @ x()}


@case(
    """
cell Nested
const L = 2, J = 2
state h
s[0] = h[t-1]
for l in 1..L:
    for j in 1..J:
        q[(l-1)*J + j] = sigmoid((W@x if l == 1 else 0) + R@s[(l-1)*J + j - 1] + b)
        s[(l-1)*J + j] = s[(l-1)*J + j - 1]*q[(l-1)*J + j] + (0.1*l if j == J else 0.2)
h[t] = tanh(s[L*J])
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def nested(p: Any, s: Any, x: Any, k: Any) -> Values:
    v = s("h")
    n = 0
    for outer in (1, 2):
        for j in (1, 2):
            n += 1
            q = sigmoid(
                (getattr(p, f"W_q_{n}") @ x() if outer == 1 else 0)
                + mm(getattr(p, f"R_q_{n}"), v)
                + getattr(p, f"b_q_{n}")
            )
            v = v * q + (0.1 * outer if j == 2 else 0.2)
    return {"h": tanh(v)}


@case(
    """
cell NoInput
input x
state h
output y
y = h[t]*2
h[t] = tanh(R@h[t-1] + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def no_input(p: Any, s: Any, x: Any, k: Any) -> Values:
    h = tanh(mm(p.R_h, s("h")) + p.b_h)
    return {"h": h, "out": h * 2}


@case(
    """
cell NoParam
state h
h[t] = 0.5*h[t-1] + sin(x)*h[t-2]
""",
    lambda H: {"h": (H, 0.0)},
    square=True,
)
def no_param(p: Any, s: Any, x: Any, k: Any) -> Values:
    return {"h": 0.5 * s("h") + torch.sin(x()) * s("h", 2)}


_TWELVE = "\n".join(
    (
        "cell Twelve",
        f"state {', '.join(f'a{i}' for i in range(12))}",
        "a0[t] = tanh(W@x + R@a11[t-1] + b)",
        *(f"a{i}[t] = 0.{i % 9 + 1}*a{i}[t-1] + tanh(a{i - 1}[t] + W@x) - a{(i + 5) % 12}[t-1]" for i in range(1, 12)),
    )
)


@case(_TWELVE, lambda H: {f"a{i}": (H, 0.0) for i in range(12)}, heads=2)
def twelve(p: Any, s: Any, x: Any, k: Any) -> Values:
    r = {"a0": tanh(p.W_a0 @ x() + mm(p.R_a0, s("a11")) + p.b_a0)}
    for i in range(1, 12):
        r[f"a{i}"] = (
            (i % 9 + 1) / 10 * s(f"a{i}") + tanh(r[f"a{i - 1}"] + getattr(p, f"W_a{i}") @ x()) - s(f"a{(i + 5) % 12}")
        )
    return r


@case(
    """
cell Greek
state h
h[t] = σ(W·x + R·h[t-1] + b)⊙tanh(W·x + 2**2*0.25 - x_2**2 + -h[t-1]**2)
x_2 = W@x
""",
    lambda H: {"h": (H, 0.0)},
)
def greek(p: Any, s: Any, x: Any, k: Any) -> Values:
    return {
        "h": sigmoid(p.W_h @ x() + mm(p.R_h, s("h")) + p.b_h)
        * tanh(p.W_h @ x() + 1 - (p.W_x_2 @ x()) ** 2 - s("h") ** 2)
    }


@case(
    """
cell ElemAll
state h, e
weights u: vector
v = W@x + u*h[t-1] + b
p0 = tanh(v) + sigmoid(v) + relu(v) + exp(-abs(v)) + log(1 + v*v) + sqrt(1 + v*v) + abs(v)
p1 = max(v, h[t-1]) + min(v, h[t-1]) + softplus(v) + logsigmoid(v) + silu(v) + gelu(v) + hardsigmoid(v) + hardtanh(v)
p2 = sin(v) + cos(v) + sign(v)*v + where(v > 0.2, v, h[t-1]) + clamp(v, -0.5, 0.5) + log1p(v*v) + logaddexp(v, h[t-1])
p3 = (v >= 0)*v + (v < h[t-1]) + (v <= 1)*h[t-1] + (v == 0) + (v != 0)*v + (1.1 + v*v)**(h[t-1]*0.1) + v**3 + 2**v
e[t] = tanh(0.1*p0 + 0.1*p1)*0.5 + e[t-1]/(1 + p2*p2)
h[t] = tanh(p3*0.1) + 0.1*p0 + 0.1*p1 + 0.1*p2 + e[t]
""",
    lambda H: {"h": (H, 0.0), "e": (H, 0.0)},
    heads=2,
)
def elem_all(p: Any, s: Any, x: Any, k: Any) -> Values:
    h1 = s("h")
    v = p.W_v @ x() + p.u_v * h1 + p.b_v
    p0 = tanh(v) + sigmoid(v) + F.relu(v) + torch.exp(-v.abs()) + torch.log(1 + v * v) + torch.sqrt(1 + v * v) + v.abs()
    p1 = (
        torch.maximum(v, h1)
        + torch.minimum(v, h1)
        + F.softplus(v)
        + F.logsigmoid(v)
        + F.silu(v)
        + F.gelu(v)
        + F.relu6(v + 3) / 6
        + F.hardtanh(v)
    )
    p2 = (
        torch.sin(v)
        + torch.cos(v)
        + torch.sign(v) * v
        + torch.where(v > 0.2, v, h1)
        + v.clamp(-0.5, 0.5)
        + torch.log1p(v * v)
        + torch.logaddexp(v, h1)
    )
    p3 = (
        (v >= 0).double() * v
        + (v < h1).double()
        + (v <= 1).double() * h1
        + (v == 0).double()
        + (v != 0).double() * v
        + (1.1 + v * v) ** (h1 * 0.1)
        + v**3
        + 2**v
    )
    e = tanh(0.1 * p0 + 0.1 * p1) * 0.5 + s("e") / (1 + p2 * p2)
    return {"e": e, "h": tanh(p3 * 0.1) + 0.1 * p0 + 0.1 * p1 + 0.1 * p2 + e}


@case(
    """
cell BatchAll
input x, time: 1
state h
param tau: vector = 2, M: matrix(H, I), Q: matrix
v = elu(W@x + b) + leakyrelu(W@x) + mod(time*3, abs(tau) + 0.5) + mod(W@x, 0.7)
w = (M + M)@x + T(T(M))@x - (Q@M)@x
h[t] = tanh(v)*h[t-1] + tanh(w)
""",
    lambda H: {"h": (H, 0.0)},
    extra={"time": 1},
)
def batch_all(p: Any, s: Any, x: Any, k: Any) -> Values:
    a = p.W_v @ x()
    v = F.elu(a + p.b_v) + F.leaky_relu(a) + torch.remainder(x("time") * 3, p.tau.abs() + 0.5) + torch.remainder(a, 0.7)
    Q = p.Q if p.Q.dim() == 2 else p.Q[0]
    return {"h": tanh(v) * s("h") + tanh(2 * (p.M @ x()) + p.M @ x() - Q @ p.M @ x())}


@case(
    """
cell Kinks
state h, c
c[t] = max(x, h[t-1]) + min(c[t-1], x) + relu(c[t-1]) + max(c[t-1], 0)
h[t] = clamp(c[t] - x, -1, 1) + abs(h[t-1]) + hardtanh(x + h[t-1]) + relu(x)*max(max(x, c[t-1]), h[t-1])
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    square=True,
    whole=True,
)
def kinks(p: Any, s: Any, x: Any, k: Any) -> Values:
    X, h, c0 = (x(), s("h"), s("c"))
    c = torch.maximum(X, h) + torch.minimum(c0, X) + F.relu(c0) + torch.maximum(c0, torch.zeros_like(c0))
    most = torch.maximum(torch.maximum(X, c0), h)
    return {"c": c, "h": (c - X).clamp(-1, 1) + h.abs() + F.hardtanh(X + h) + F.relu(X) * most}


def surrogate(kind: str, v: Tensor, k: float) -> Tensor:
    """heaviside(v, grad=kind(k)); the derivatives are those of the papers that `rnncc.language.operators` cites."""
    s = sigmoid(k * v)
    derivative = {
        "fast_sigmoid": 1 / (1 + k * v.abs()) ** 2,
        "atan": k / 2 / (1 + (pi / 2 * k * v) ** 2),
        "sigmoid": k * s * (1 - s),
        "triangular": k * torch.relu(1 - v.abs()),
    }[kind]
    return spike(v, derivative.detach())


@case(
    """
cell Spikes
const k = 3.0
state v, s, q
param th: vector
a = heaviside(v[t-1] - th, grad=fast_sigmoid(10))
c = heaviside(v[t-1]*2, grad=atan(k))
d = heaviside(W@x + R@s[t-1], grad=sigmoid(4))
e = heaviside(v[t-1] + 0.1, grad=triangular(0.5))
g = heaviside(W@x, grad=atan(2))
s[t] = a + c*d + e
q[t] = 0.5*q[t-1] + g*v[t-1] + heaviside(v[t-1])
v[t] = 0.9*v[t-1] + W@x + R@s[t] - 0.3*s[t-1]*a
""",
    lambda H: {"v": (H, 0.0), "s": (H, 0.0), "q": (H, 0.0)},
    heads=2,
)
def spikes(p: Any, s: Any, x: Any, k: Any) -> Values:
    v = s("v")
    a = surrogate("fast_sigmoid", v - p.th, 10.0)
    c = surrogate("atan", v * 2, 3.0)
    d = surrogate("sigmoid", p.W_d @ x() + mm(p.R_d, s("s")), 4.0)
    e = surrogate("triangular", v + 0.1, 0.5)
    g = surrogate("atan", p.W_g @ x(), 2.0)
    S = a + c * d + e
    return {
        "s": S,
        "q": 0.5 * s("q") + g * v + (v > 0).double().detach(),
        "v": 0.9 * v + p.W_v @ x() + mm(p.R_v, S) - 0.3 * s("s") * a,
    }
