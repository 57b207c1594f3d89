"""Constructs of the literature that the language does not have: one error each, which names the cause and what comes
nearest. And what is said there, built. Whole files of others are in tests/literature."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rnncc
from rnncc import verify
from rnncc.language.source import Source
from tests.packages import reference_package
from tests.stages.checking import the_error

# Construct: the lines of a cell, the code of its one error, the text at which it stands, and a part of the help.
REFUSED = {
    # Outside the language.
    "DeltaNet": (
        ("state S: matrix", "k, v = W@x", "S[t] = S[t-1] + einsum(v, k)", "h = S[t]@k", "output h"),
        "RNN240", "einsum", "'v@T(k)'",
    ),
    "a matrix without a size": (
        ("state S: matrix, h", "k, v = W@x", "S[t] = S[t-1] + v@T(k)", "h[t] = S[t]@k", "output h"),
        "RNN227", "matrix", "'S: matrix(H, K)'",
    ),
    "tokens by a type": (
        ("input tok: int", "state h", "h[t] = tanh(W@x + tok)"), "RNN229", "int", "torch.nn.Embedding",
    ),
    "embedding": (("state h", "h[t] = tanh(embedding(x) + R@h[t-1])"), "RNN229", "embedding", "torch.nn.Embedding"),
    "attention over a memory": (("state h", "h[t] = attention(R@h[t-1])"), "RNN229", "attention", "a number of slots"),
    # Functions of parameters.
    "pseudo-inverse": (
        ("state h", "param A: matrix(H, H)", "Q = pinv(A)", "h[t] = relu(W@x + Q@h[t-1])"),
        "RNN203", "pinv", "torch.nn.utils.parametrize",
    ),
    "linear system": (
        ("state h", "param A: matrix(H, H), B: matrix(H, H)", "h[t] = relu(W@x + solve(A, B)@h[t-1])"),
        "RNN203", "solve", "'inv(A)@B'",
    ),
    "weight norm": (
        ("state h", "weights V: matrix", "h[t] = tanh(W@x + weight_norm(V)@h[t-1])"),
        "RNN203", "weight_norm", "'diag(g)@normalize(V, axis=rows)' with 'param g: vector'",
    ),
    "orthogonal matrix": (
        ("state h", "h[t] = tanh(W@x + orthogonal(R)@h[t-1])"), "RNN203", "orthogonal", "'expm(A - T(A))'",
    ),
    "frozen matrix": (
        ("state h", "param A: matrix(H, H) = frozen(orthogonal)", "h[t] = tanh(W@x + A@h[t-1])"),
        "RNN224", "frozen(orthogonal)", "'buffer M: matrix = orthogonal'",
    ),
    "type of a buffer": (
        ("state h", "param A: buffer", "h[t] = tanh(W@x + R@h[t-1]) + A"),
        "RNN227", "buffer", "'buffer M: matrix = orthogonal'",
    ),
    "low rank": (
        ("state h", "param V: lowrank(4)", "h[t] = tanh(W@x + V@h[t-1])"), "RNN227", "lowrank(4)", "weights V: lowrank",
    ),
    # Functions that are written otherwise.
    "stopped gradient": (("state h", "h[t] = stop_gradient(h[t-1]) + W@x"), "RNN203", "stop_gradient", "'detach'"),
    "whole division": (("state h", "h[t] = 0.9*h[t-1] + (W@x)//2"), "RNN220", "(W@x)//2", "floor(a/b)"),
    "ceiling": (("state h", "h[t] = 0.9*h[t-1] + ceil(W@x)"), "RNN203", "ceil", "-floor(-v)"),
    "surrogate by name": (
        ("state s, v", "v[t] = 0.9*v[t-1] + W@x", "s[t] = heaviside(v[t] - 1, grad=gaussian(0.5))"),
        "RNN204", "gaussian(0.5)", "grad=u -> exp(-u**2)",
    ),
    "scaled matrices": (
        ("state h", "param M1: matrix", "s = sigmoid(W@x)", "h[t] = (s*M1)@h[t-1] + W@x"),
        "RNN211", "M1", "or declare a vector",
    ),
    "matrices that a gate scales": (
        ("state h", "param M1: matrix", "h[t] = (sigmoid(W@x)*M1)@h[t-1] + W@x"),
        "RNN211", "M1", "'diag(sigmoid(W@x))@M1'",
    ),
    "outer product": (
        ("state h", "h[t] = h[t-1] + sum(outer(W@x, h[t-1]))"),
        "RNN240", "outer", "'(W@x)@T(h[t-1])'",
    ),
    "outer product by a star": (
        ("state h", "h[t] = h[t-1] + sum((W@x)*T(h[t-1]))"),
        "RNN212", "T(h[t-1])", "'v@T(h[t-1])'",
    ),
    "layer norm": (("state h", "h[t] = LN(W@x) + h[t-1]"), "RNN203", "LN", "'layernorm'"),
    "a function in capitals": (("state h", "h[t] = ReLU(W@x) + h[t-1]"), "RNN203", "ReLU", "'relu'"),
    # Time and units.
    "a permutation": (
        ("state h", "h[t] = tanh(W@x + permute(h[t-1], 1))"), "RNN203", "permute", "'buffer P: matrix' and 'P@v'",
    ),
    "running minimum": (("state h", "h[t] = cummin(W@x + h[t-1])"), "RNN203", "cummin", "cumsum(exp(-10*v))"),
    "max-plus product": (
        ("state h", "param A: matrix", "h[t] = W@x + maxplus(A, h[t-1])"),
        "RNN203", "maxplus", "'max(A + one@T(v), axis=rows)'",
    ),
    "causal convolution of a projection": (
        ("state h", "u = conv1d(W@x, 3)", "h[t] = 0.9*h[t-1] + u"),
        "RNN229", "conv1d", "k0*u + k1*u[t-1]",
    ),
    "causal convolution of what depends on a state": (
        ("state h", "u = W@x + R@h[t-1]", "h[t] = 0.9*h[t-1] + u + 0.5*u[t-2]"),
        "RNN216", "u[t-2]", "'state u_held', 'u_held[t] = u', 'u_held[t-2]'",
    ),
    "delay": (
        ("state h", "u = W@x", "h[t] = 0.9*h[t-1] + shift(u, 1)"), "RNN203", "shift", "'u[t-1]' is an older value",
    ),
    "convolution by one matrix of a projection": (
        ("state h", "u = W@x", "weights K: matrix", "h[t] = 0.9*h[t-1] + K@u + K@u[t-1]"),
        "RNN210", "K@u[t-1]", "'K2@u[t-1]'",
    ),
    "repetitions by a size": (
        ("dim N = 16", "state s: H*N", "local u: H*N", "u = repeat(W@x, N)", "s[t] = 0.9*s[t-1] + u", "output s"),
        "RNN220", "N", "const N",
    ),
}  # fmt: skip


@pytest.mark.parametrize("construct", REFUSED)
def test_one_error_names_the_cause_and_what_comes_nearest(construct: str) -> None:
    lines, code, text, nearest = REFUSED[construct]
    error = the_error(*lines)
    assert error.code == code
    assert error.source is not None and error.source.text[error.span.start : error.span.end] == text
    assert nearest in error.help


SAID = """
cell StraightThrough
state h
param V: matrix(H, H)
Q = V + detach(sign(V) - V)
h[t] = tanh(W@x + Q@h[t-1])

cell Quantised
state h
h[t] = round(8*tanh(W@x + R@h[t-1]), grad=1)/8

cell Gaussian
state s, v
v[t] = 0.9*v[t-1] + W@x
s[t] = heaviside(v[t] - 1, grad=u -> exp(-(u/0.5)**2))

cell Convolved
state h
u = W@x
h[t] = 0.9*h[t-1] + u + 0.5*(W_u@x[t-1])

cell ConvolvedUnits
state h
weights k0: vector, k1: vector, k2: vector
u = W@x
c = k0*u + k1*u[t-1] + k2*u[t-2]
h[t] = 0.9*h[t-1] + c

cell Held
state h, u_held
u = W@x + R@h[t-1]
u_held[t] = u
h[t] = 0.9*h[t-1] + u + 0.5*u_held[t-2]

cell ConvolvedTwice
state h
weights W2: matrix
h[t] = tanh(W@x + W2@x[t-1] + R@h[t-1])

cell Rows
state S1, S2
output y
local k1: 1, k2: 1, q1: 1, q2: 1
v, k1, k2, q1, q2 = W@x
a = sigmoid(W@x + b)
S1[t] = a*S1[t-1] + k1*v
S2[t] = a*S2[t-1] + k2*v
y = q1*S1[t] + q2*S2[t]

cell Rotated
state p, q
a, c = W@x
p[t] = a*p[t-1] - c*q[t-1] + W@x
q[t] = c*p[t-1] + a*q[t-1]

cell Clockwork
state h, n
n[t] = n[t-1] + 1
h[t] = where(mod(n[t], 4) == 0, tanh(W@x + R@h[t-1]), h[t-1])

cell LowRank
state h
param U: matrix(H, 4), V: matrix(4, H)
h[t] = tanh(W@x + U@(V@h[t-1]))

cell Solved
state h
param A: matrix(H, H), B: matrix(H, H)
h[t] = tanh(W@x + (inv(eye(H) + A@T(A))@B)@h[t-1])

cell WeightNormed
state h
weights V: matrix
param g: vector
h[t] = tanh(W@x + (diag(g)@normalize(V, axis=rows))@h[t-1])

cell Orthogonal
state h
param A: matrix
buffer M: matrix = orthogonal
h[t] = tanh(W@x + expm(A - T(A))@h[t-1] + M@h[t-1])

cell Noisy
input noise: H
state h
h[t] = tanh(W@x + R@h[t-1] + 0.1*noise)

cell Delayed
input d: 1
state h
w1 = max(0, 1 - abs(d - 1))
w2 = max(0, 1 - abs(d - 2))
h[t] = tanh(W@x + R@(w1*h[t-1] + w2*h[t-2]))

cell Turned
input n: 1
state h
s[0] = h[t-1]
for l in 1..4:
    s[l] = where(l <= n, tanh(R@s[l-1] + b), s[l-1])
h[t] = s[4] + W@x

cell Mixed
state h
local s: 1
param M1: matrix, M2: matrix
s = sigmoid(W@x)
h[t] = tanh(s*(M1@h[t-1]) + (1 - s)*(M2@h[t-1]) + b)

cell Scored
state a
param A: matrix
m = detach(max(a[t-1]))
a[t] = W@x + m + log(exp(A)@exp(a[t-1] - m))

cell Running
state h
v = tanh(W@x + R@h[t-1])
h[t] = log(cumsum(exp(10*v)))/10 - log(cumsum(exp(-10*v)))/10 + tanh(1.12838*(v + 0.0894*v**3))

cell Moved
state h
buffer P: matrix
h[t] = tanh(W@x + P@h[t-1])

cell Parts
dim P = 2
state h: 3*P
a, c, d = split(h[t-1])
h[t] = tanh(W@x + concat(c, d, a))

cell StateSpace
state h
weights A: vector
h[t] = A*h[t-1] + W@x

cell Measured
state h
v = W@x
w = exp(sum(log(1 + v*v))/8) + mean((v - mean(v))**2) + v/sqrt(sum(v*v)) - floor(-v) + sign(v)*floor(abs(v))
h[t] = 0.5*h[t-1] + w/8
"""


def test_what_is_named_instead_is_right() -> None:
    package, cells = reference_package(Source("said.rnn", SAID), "said")
    for cell in cells:
        case, layer_class = verify.Case(5, 3), getattr(package, cell.name)
        result = verify.verify(layer_class, cell, cases=(case,), dtypes=(torch.float64,), allow_fallback=True)
        assert result.passed, cell.name


def test_parametrizations_stand_for_functions_of_matrices() -> None:
    text = "cell Own\nstate h\nparam A: matrix(H, H)\nh[t] = relu(W@x + A@h[t-1])\n"
    layer = rnncc.compile(text, "own").Own(3, 4)

    class Skew(nn.Module):
        def forward(self, matrix: torch.Tensor) -> torch.Tensor:
            exponential: torch.Tensor = torch.linalg.matrix_exp(matrix - matrix.T)
            return exponential

    nn.utils.parametrize.register_parametrization(layer, "A_l0", Skew())
    x, h = torch.randn(5, 2, 3), torch.zeros(2, 4)
    output, _ = layer(x)
    for t in range(5):
        h = torch.relu(x[t] @ layer.weight_ih_l0.T + h @ layer.A_l0.T)
        torch.testing.assert_close(output[t], h)
    output.sum().backward()
    assert layer.parametrizations.A_l0.original.grad.abs().sum() > 0
