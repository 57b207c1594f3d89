"""Cells whose gradients their text changes, by `detach` and step functions with `grad=`, and that need none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, exp, sigmoid, tanh

from .loop import Case, Table, Values, given, mm

CASES: list[Case] = []
case = Table(CASES)


def square(matrix: Tensor, k: Any) -> Tensor:
    """A matrix of heads as [N, D, D]."""
    return matrix.reshape(k.N, k.D, k.D)


@case(
    """
cell Quantised
const s = 0.5, width = 2.0
state h, v
param th: vector
c = round(4*tanh(W@x + R@h[t-1] + b), grad=1)/4
e = heaviside(v[t-1] - th, grad=u -> exp(-s*u**2))
f = floor(3*(W@x), grad=-0.5*s)
g = sign(v[t-1] + c, grad=u -> 1/(1 + width*abs(u))**2)
v[t] = 0.9*v[t-1] + c - e*g + 0.1*f
h[t] = tanh(v[t])*e + 0.3*round(2*h[t-1], grad=atan(width)) + floor(h[t-1], grad=triangular(0.7))
""",
    lambda H: {"h": (H, 0.0), "v": (H, 0.0)},
    heads=2,
    arguments={"width": 3.0},
)
def quantised(p: Any, s: Any, x: Any, k: Any) -> Values:
    h, v = s("h"), s("v")
    a = 4 * tanh(p.W_c @ x() + mm(p.R_c, h) + p.b_c)
    c = given(a, a.round(), torch.ones_like(a)) / 4
    spiked = v - p.th
    e = given(spiked, (spiked > 0).double(), exp(-0.5 * spiked**2))
    b = 3 * (p.W_f @ x())
    f = given(b, b.floor(), torch.full_like(b, -0.25))
    signed = v + c
    g = given(signed, signed.sign(), 1 / (1 + 3 * signed.abs()) ** 2)
    new = 0.9 * v + c - e * g + 0.1 * f
    r = given(2 * h, (2 * h).round(), 1.5 / (1 + (torch.pi * 3 * h) ** 2))
    return {"v": new, "h": tanh(new) * e + 0.3 * r + given(h, h.floor(), 0.7 * torch.relu(1 - h.abs()))}


@case(
    """
cell ScanSteps
state h, m
a = sigmoid(W@x + b)
u = round(2*(W@x), grad=u0 -> exp(-abs(u0)))
h[t] = a*h[t-1] + (1 - a)*u + 0.5*detach(a)*u
m[t] = 0.5*detach(m[t-1]) + a*m[t-1] + h[t]
""",
    lambda H: {"h": (H, 0.0), "m": (H, 0.0)},
)
def scan_steps(p: Any, s: Any, x: Any, k: Any) -> Values:
    a = sigmoid(p.W_a @ x() + p.b_a)
    w = 2 * (p.W_u @ x())
    u = given(w, w.round(), exp(-w.abs()))
    h = a * s("h") + (1 - a) * u + 0.5 * a.detach() * u
    return {"h": h, "m": 0.5 * s("m").detach() + a * s("m") + h}


@case(
    """
cell Stopped
state h, m
param p: vector, q: vector
v = R@h[t-1]
w = tanh(W@x + v + b)
h[t] = w*detach(w) + detach(p)*m[t-1] + q*detach(x) + detach(h[t-1])*h[t-1] + detach(R@m[t-1])
m[t] = detach(m[t-1]*0.5 + w) + 0.1*detach(R@h[t-1])
""",
    lambda H: {"h": (H, 0.0), "m": (H, 0.0)},
    square=True,
    heads=2,
)
def stopped(p: Any, s: Any, x: Any, k: Any) -> Values:
    """One path of w is stopped and the other not; nothing reaches m's matrices, p, nor what m was before."""
    h, m = s("h"), s("m")
    w = tanh(p.W_w @ x() + mm(p.R_v, h) + p.b_w)
    new = w * w.detach() + p.p.detach() * m + p.q * x().detach() + h.detach() * h + mm(p.R_h, m).detach()
    return {"h": new, "m": (m * 0.5 + w).detach() + 0.1 * mm(p.R_m, h).detach()}


@case(
    """
cell Ternary
state h
output y
param V: matrix, G: matrix, p: vector
Q = V + detach(sign(V) - V)
S = 0.1*heaviside(G, grad=u -> exp(-u**2)) - round(10*G, grad=0.5)
z = round(W@x + p, grad=1)
h[t] = tanh(W@x + Q@h[t-1] + S@h[t-1] + sign(p, grad=2))
y = floor(3*h[t] + 0.3, grad=u -> u) + z*detach(z)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def ternary(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Steps of parameters, of inputs, and behind the loop."""
    V, G, h = square(p.V, k), square(p.G, k), s("h")
    Q = given(V, V.sign(), torch.ones_like(V))
    S = 0.1 * given(G, (G > 0).double(), exp(-(G**2))) - given(10 * G, (10 * G).round(), torch.full_like(G, 0.5))
    b = p.W_z @ x() + p.p
    z = given(b, b.round(), torch.ones_like(b))
    new = tanh(p.W_h @ x() + mm(Q, h) + mm(S, h) + given(p.p, p.p.sign(), torch.full_like(p.p, 2.0)))
    y = 3 * new + 0.3
    return {"h": new, "out": given(y, y.floor(), y) + z * z.detach()}


@case(
    """
cell StepsOfSteps
const act = round, k = 2
state h
a = act(round(3*(W@x + R@h[t-1]), grad=1)/2, grad=u -> exp(-u**2))
c = sign(floor(4*h[t-1], grad=u -> cos(u)) + 0.5, grad=v -> heaviside(v, grad=w -> w)*k + round(v/2, grad=1))
h[t] = 0.3*a + 0.2*c + tanh(W@x + heaviside(h[t-1] if k == 2 else x, grad=u -> u if k == 2 else 0))
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def steps_of_steps(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Steps of steps; and steps in a derivative, which is differentiated no further."""
    h = s("h")
    i = 3 * (p.W_a @ x() + mm(p.R_a, h))
    r = given(i, i.round(), torch.ones_like(i)) / 2
    a = given(r, r.round(), exp(-(r**2)))
    f = given(4 * h, (4 * h).floor(), torch.cos(4 * h)) + 0.5
    c = given(f, f.sign(), 2 * (f > 0).double() + (f / 2).round())
    return {"h": 0.3 * a + 0.2 * c + tanh(p.W_h @ x() + given(h, (h > 0).double(), h))}


@case(
    """
cell Defined
state h, v
const θ = 0.3, k = 2.0
def slope(u) = exp(-k*u**2)
def spike(u, θ0) = heaviside(u - θ0, grad=δ -> slope(δ))
def quantised(u, levels, g) = round(levels*u, grad=g)/levels
def straight(f, u) = u + detach(f(u) - u)
def held(s) = 0.5*detach(s[t-1]) + 0.4*s[t-1]
z = spike(v[t-1], θ)
c = quantised(tanh(W@x + R@h[t-1] + b), 4, 1) + quantised(h[t-1], 2, triangular(0.7))
v[t] = held(v) + c - detach(z)*θ
h[t] = 0.5*straight(sign, v[t]) + z + 0.1*held(h)
""",
    lambda H: {"h": (H, 0.0), "v": (H, 0.0)},
    heads=2,
)
def defined(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Functions of the cell's own, which stop gradients, or have derivatives that they are given."""
    h, v = s("h"), s("v")
    u = v - 0.3
    z = given(u, (u > 0).double(), exp(-2 * u**2))
    a, r = 4 * tanh(p.W_c @ x() + mm(p.R_c, h) + p.b_c), 2 * h
    c = given(a, a.round(), torch.ones_like(a)) / 4 + given(r, r.round(), 0.7 * torch.relu(1 - r.abs())) / 2
    new = 0.5 * v.detach() + 0.4 * v + c - z.detach() * 0.3
    straight = given(new, new.sign(), torch.ones_like(new))
    return {"v": new, "h": 0.5 * straight + z + 0.1 * (0.5 * h.detach() + 0.4 * h)}


@case(
    """
cell GradientFromElsewhere
state h, g
weights Q: matrix
v = Q@h[t-1]
# The loop of h makes v, and the loop of g alone has a gradient for it.
h[t] = 0.5*h[t-1] + tanh(W@x + detach(v))
g[t] = 0.5*g[t-1] + tanh(v)
""",
    lambda H: {"h": (H, 0.0), "g": (H, 0.0)},
    heads=2,
)
def gradient_from_elsewhere(p: Any, s: Any, x: Any, k: Any) -> Values:
    v = mm(p.Q_v, s("h"))
    return {"h": 0.5 * s("h") + tanh(p.W_h @ x() + v.detach()), "g": 0.5 * s("g") + tanh(v)}


@case(
    """
cell PartsForFixedMatrices
state h: 2*H, c: 2*H
buffer M: matrix(H, H), N: matrix(H, H)
p, q = split(tanh(h[t-1]))
old, young = split(c[t-1])
# No gradient of a buffer needs q, nor what it is a part of; no more than that of young.
h[t] = tanh(concat(p, M@q) + W@x)
c[t] = 0.5*concat(N@young, old) + h[t]
""",
    lambda H: {"h": (2 * H, 0.0), "c": (2 * H, 0.0)},
    heads=2,
)
def parts_for_fixed_matrices(p: Any, s: Any, x: Any, k: Any) -> Values:
    H, u, c = k.H, tanh(s("h")), s("c")
    h = tanh(torch.cat([u[:H], mm(p.M, u[H:])]) + p.W_h @ x())
    return {"h": h, "c": 0.5 * torch.cat([mm(p.N, c[H:]), c[:H]]) + h}
