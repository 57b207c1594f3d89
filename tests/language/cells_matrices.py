"""Cells with functions of matrices of parameters, and with buffers. torch.linalg says what a matrix is, head by
head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, relu, sigmoid, tanh

from .loop import Case, Table, Values, heads, mm, wide

CASES: list[Case] = []
case = Table(CASES)


def eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype)


def diagonal(vector: Tensor, like: Tensor, k: int = 1) -> Tensor:
    """The diagonal matrix of a vector, in the blocks of another one."""
    return torch.diag_embed(vector if like.dim() == 2 else heads(vector, like.shape[0], k))


@case(
    """
cell Exponential
state h
param A: matrix
Q = expm(A - T(A))
h[t] = relu(W@x + Q@h[t-1] + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
)
def exponential(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Lezcano-Casado & Martínez-Rubio 2019: the matrix in the loop is orthogonal."""
    q = torch.linalg.matrix_exp(p.A - p.A.mT)
    torch.testing.assert_close(q @ q.mT, eye(q).expand_as(q))
    return {"h": relu(p.W_h @ x() + mm(q, s("h")) + p.b_h)}


@case(
    """
cell Scaled
state h, c
weights A: matrix
param D: vector
f = sigmoid(W@x + cayley(A - T(A))@c[t-1] + b)
S = A_f - T(A_f)
Q = inv(eye(H) + S)@(eye(H) - S)@diag(tanh(D))
c[t] = f*c[t-1] + tanh(Q@h[t-1] + W@x)
h[t] = tanh(c[t])
""",
    lambda H: {"h": (H, 0.0), "c": (H, 0.0)},
    heads=2,
)
def scaled(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Helfrich, Willmott & Ye 2018 (scoRNN), and the same orthogonal matrix by `cayley`."""
    skew = p.A_f - p.A_f.mT
    q = torch.linalg.inv(eye(skew) + skew) @ (eye(skew) - skew)
    f = sigmoid(p.W_f @ x() + mm(q, s("c")) + p.b_f)
    c = f * s("c") + tanh(mm(q @ diagonal(tanh(p.D), q), s("h")) + p.W_c @ x())
    return {"h": tanh(c), "c": c}


@case(
    """
cell DaleLaw
state h
weights M: matrix, K: matrix
buffer s: vector
h[t] = tanh(W@x + (relu(M)@diag(s))@h[t-1] + (diag(s)@abs(K) + diag(0.1*s))@(0.5*h[t-1]) + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def dale(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Each unit excites or inhibits: the signs are a buffer."""
    signs = diagonal(p.s, p.M_h)
    first = mm(relu(p.M_h) @ signs, s("h"))
    second = mm(signs @ p.K_h.abs() + 0.1 * signs, 0.5 * s("h"))
    return {"h": tanh(p.W_h @ x() + first + second + p.b_h)}


@case(
    """
cell WeightNorm
state h
weights V: matrix, U: matrix
param g: vector, e: scalar, w: vector
n = norm(U_h)
s = 1/(1 + n)
h[t] = tanh(diag(w)@normalize(W, axis=rows)@x + (diag(g)@normalize(V, axis=rows))@h[t-1] + (e*U*s)@h[t-1] + n*b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
)
def weight_norm(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Salimans & Kingma 2016: torch's weight_norm, of a matrix of inputs and of one in the loop. A norm is a value,
    too: one number per head."""
    weight = torch._weight_norm(p.W_h, p.w.unsqueeze(-1), 0)
    rows = p.V_h / p.V_h.square().sum(-1, keepdim=True).sqrt()
    norm = torch.linalg.matrix_norm(p.U_h).reshape(-1, *[1] * (p.U_h.dim() - 1))
    rest = mm(diagonal(p.g, rows) @ rows + p.e * p.U_h / (1 + norm), s("h"))
    return {"h": tanh(weight @ x() + rest + wide(norm.reshape(-1), 6 // norm.numel()) * p.b_h)}


@case(
    """
cell InputNorm
dim P
state h
weights V: matrix(P, I), A: matrix(H, P)
local u: P
u = (V/norm(V))@x + (2*V/sqrt(1 + norm(V)))@x
h[t] = tanh((A*norm(A))@u + normalize(R, axis=columns)@h[t-1] + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
    arguments={"P": 4},
)
def input_norm(p: Any, s: Any, x: Any, k: Any) -> Values:
    """A matrix on inputs has no heads, and one norm."""
    norm = torch.linalg.matrix_norm(p.V_u)
    u = (p.V_u / norm) @ x() + (2 * p.V_u / (1 + norm).sqrt()) @ x()
    r = torch.nn.functional.normalize(p.R_h, dim=-2)
    return {"h": tanh((p.A_h * torch.linalg.matrix_norm(p.A_h)) @ u + mm(r, s("h")) + p.b_h)}


@case(
    """
cell Stochastic
state h
weights V: matrix, U: matrix
P = softmax(V_h, axis=rows)
h[t] = tanh(W@x + (P - 0.5*V/3)@h[t-1] + (tril(U) - 2*triu(U) + softmax(U, axis=columns))@(0.1*h[t-1]) + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def stochastic(p: Any, s: Any, x: Any, k: Any) -> Values:
    """A row of P sums to 1."""
    exps = p.V_h.exp()
    rows = exps / exps.sum(-1, keepdim=True)
    columns = p.U_h.exp() / p.U_h.exp().sum(-2, keepdim=True)
    u = torch.tril(p.U_h) - 2 * torch.triu(p.U_h) + columns
    return {"h": tanh(p.W_h @ x() + mm(rows - p.V_h / 6, s("h")) + mm(u, 0.1 * s("h")) + p.b_h)}


@case(
    """
cell Echo
state h
const leak = 0.3
buffer A: matrix = spectral(0.9), In: matrix = uniform(-1, 1)
buffer d: vector = 0.5, e: scalar = 2
h[t] = (1 - leak)*h[t-1] + leak*tanh(In@x + e*(A@h[t-1]) + d*h[t-1] + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def echo(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Jaeger 2001, a leaky echo state network. Its matrices are not trained."""
    inner = p.In @ x() + p.e * mm(p.A, s("h")) + p.d * s("h") + p.b_h
    return {"h": 0.7 * s("h") + 0.3 * tanh(inner)}


@case(
    """
cell Blocks
state h
weights B: blockdiag(6)
param v: vector
buffer m: blockdiag(6) = 1
D = diag(v)
n = norm(B_h)
h[t] = tanh(W@x + (expm(B*m) + D/n)@h[t-1] + D@h[t-1] + n*h[t-1] + b)
""",
    lambda H: {"h": (H, 0.0)},
    heads=2,
)
def blocks(p: Any, s: Any, x: Any, k: Any) -> Values:
    """Blocks that the text gives: functions work on each, and a norm is that of all blocks of a head."""
    norm = p.B_h.reshape(k.N, -1).norm(dim=-1)
    units = wide(norm, 6 // k.N)
    first = mm(torch.linalg.matrix_exp(p.B_h * p.m), s("h")) + p.v / units * s("h")
    return {"h": tanh(p.W_h @ x() + first + p.v * s("h") + units * s("h") + p.b_h)}


@case(
    """
cell Wide
state h
dim K = 2
local v: 2*H
weights A: matrix
param g: vector, B: matrix(2*H, 2*H), C: matrix(2*H, H)
v = (diag(g)@A)@h[t-1] + (expm(0.1*B)@C@diag(tanh(q)))@h[t-1] + W@x
q = exp(-0.1*abs(e))
param e: vector
i, o = split(v)
h[t] = tanh(i)*o
""",
    lambda H: {"h": (H, 0.0)},
    heads=3,
)
def wide_matrix(p: Any, s: Any, x: Any, k: Any) -> Values:
    """A value of two parts: head by head, the first half of a head's rows is the first part's."""

    def parted(matrix: Tensor, vector: Tensor) -> Tensor:
        return mm(matrix, vector, 1, 2)

    exponential = torch.linalg.matrix_exp(0.1 * p.B)
    q = (-0.1 * p.e.abs()).exp()
    first = parted(diagonal(p.g, p.A_v, 2) @ p.A_v, s("h"))
    second = parted(exponential @ p.C @ diagonal(tanh(q), p.C), s("h"))
    v = first + second + p.W_v @ x()
    return {"h": tanh(v[:6]) * v[6:]}
