"""Cells without a gradient somewhere, beyond the range of 16 bits, chaotic, or that compare parameters with numbers."""

from __future__ import annotations

AWKWARD = """
cell Counter
state h, n
n[t] = n[t-1] + 1
h[t] = tanh(W@x + R@h[t-1] + b)/n[t]

cell NoGradient
state h
output a
local a: 1
h[t] = 0*h[t-1] + 1
a = sum(h[t])

cell Growing
state h
h[t] = 4*h[t-1]*h[t-1] + W@x

cell Ternary
state h
weights V: matrix
Q = heaviside(V - 0.05, grad=triangular(1)) - heaviside(-V - 0.05, grad=triangular(1))
h[t] = tanh(W@x + Q@h[t-1] + b)

cell Threshold
state h
param u: vector
q = where(abs(u) > 0.7*mean(abs(u)), sign(u), 0)
h[t] = tanh(W@x + q*h[t-1])

cell Fives
state h
weights R: blockdiag(5)
h[t] = tanh(W@x + R@h[t-1])

cell Cancelling
state h
local q: 2, n: 2, n1: 1, n2: 1
q = W@x
n = q/sqrt(sum(q*q))
n1, n2 = split(n)
h[t] = tanh(n1*h[t-1] + n2*(W@x))

cell Undecided
state h
h[t] = tanh(W@x + R@h[t-1]) + where(sum(layernorm(W@x)) > 0, 1, 0)

cell Overflowing
state h
h[t] = exp(12 + sigmoid(W@x)) + h[t-1]

cell Chaotic
state h
h[t] = sin(9*h[t-1] + W@x)

cell Amplifying
state h
h[t] = sin(3*h[t-1] + W@x)

cell Parts
dim P = 5
dim Q = 7
state h, m: Q
param A: matrix(Q, P), B: matrix(P, H)
buffer s: vector
m[t] = (A@relu(B))@h[t-1]
h[t] = tanh(W@x + diag(relu(s))@h[t-1] + b)

cell Joined
state h: 2*H
u = W@x
h[t] = tanh(concat(u, x) + R@h[t-1] + mean(h[t-1]))

cell Numbers
state h
h[t] = 1e-6*tanh(W@x + 1e6*(R@h[t-1]))

cell Huge
state h
h[t] = 1e170*tanh(W@x + 1e-170*(R@h[t-1]))

cell Tiny
state h
h[t] = 1e-170*tanh(W@x + 1e170*(R@h[t-1]))
"""
