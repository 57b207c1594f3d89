"""Cells whose loops have what no shipped cell has, for the fused kernels."""

from __future__ import annotations

# The projection is normed over its own width, which is wider than the hidden size.
OWN = {
    "normed": """cell Normed
dim P
state h: P, c
weights U: matrix
i, f, g = W@x + R@h[t-1] + b
c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)
h[t] = layernorm(U@c[t])
""",
    # A running sum over values of two parts.
    "running": """cell Running
state h
local v: 2*H
v = cumsum(softmax(W@x + R@h[t-1] + b))
p, q = split(v)
h[t] = tanh(p - q*h[t-1])
""",
    # A running sum takes two values twice: in the backward both parts have the same gradient.
    "twice": """cell Twice
state h
local v: 3*H
p = tanh(W@x + R@h[t-1] + b)
v = cumsum(concat(p, p, h[t-1]))
a, c, d = split(v)
h[t] = tanh(0.01*a + 0.01*c - 0.02*d)
""",
    # Each unit of a head has the same two numbers.
    "numbers": """cell Numbers
input x, p: 2*num_heads
state h
local a: 1, c: 1
a, c = split(p)
h[t] = tanh(a*(W@x + R@h[t-1]) + c*h[t-1])
""",
    # A mean of one number per head.
    "mean": """cell Mean
state h
local m: 1
v = tanh(W@x + R@h[t-1])
m = mean(v)
h[t] = m*v - mean(m)*cumsum(m)
""",
    # Repeated running sums, with statements in between.
    "repeated": """cell Repeated
dim K
state h
local v: K, w: K
v = cumsum(softmax(W@x + R@h[t-1] + b))
w = v*v
h[t] = tanh(repeat(1 - w*v, 4)*repeat(w, 4) + h[t-1])
""",
    # Nothing reads half of v, so half of its gradient is a zero that a product takes.
    "half": """cell Half
state h
local v: 2*H
v = R@h[t-1] + W@x + b
p, q = split(v)
h[t] = tanh(q)
""",
    # Products take what no stage makes: a gradient that comes from another loop, and a part of a value.
    "elsewhere": """cell Elsewhere
state h, g
local v: 2*H, z: 2*H
weights Q: matrix
buffer M: matrix(H, H)
v = Q@h[t-1]
z = tanh(W@x + detach(v))
p, q = split(z)
h[t] = 0.5*h[t-1] + tanh(W@x + M@q + detach(p))
g[t] = 0.5*g[t-1] + tanh(mean(v))
""",
    # A cell of one head: the gradient of `gap` is a sum that goes to memory, and nothing else needs it.
    "gapped": """cell Gapped
input gap: 1
state h
local u: 1
weights E: matrix
u = E@h[t-1]
h[t] = tanh(R@h[t-1]*gap + W@x + u)
""",
    # All numbers of a maximum are negative, so what is padded takes no part. Of two parts, of a narrower value.
    "largest": """cell Largest
dim P
state h, c: P
local w: P
weights U: matrix
v = 0.5*tanh(W@x + R@h[t-1]) - 3
w = tanh(U@h[t-1]) - 5
c[t] = 0.5*c[t-1] + w - 0.5*min(w)
e = max(concat(v, h[t-1] - 8))
h[t] = tanh(v - max(v) + 1) + 0.5*e + 0.1*max(c[t])
""",
    # Two matrices and a vector are not trained, and have no gradient; V has one.
    "echo": """cell Echo
state h
buffer A: matrix = spectral(0.9), s: vector, B: matrix
weights V: matrix
z = sigmoid(W@x + V@h[t-1])
h[t] = 0.7*h[t-1] + z*tanh(W@x + s*(A@h[t-1]) + (B@diag(s))@(z*h[t-1]) + b)
""",
    # No matrix of the loop is trained.
    "reservoir": """cell Reservoir
state h
buffer A: matrix = spectral(0.9)
h[t] = 0.7*h[t-1] + 0.3*tanh(W@x + A@h[t-1] + b)
""",
    # The matrix of the loop is made of a parameter.
    "orthogonal": """cell Orthogonal
state h
param A: matrix
h[t] = tanh(W@x + expm(A - T(A))@h[t-1] + b)
""",
    # What a call gives once: a stream of gates, of units and of one number, each with a stride of 0 over time.
    "once": """cell Once
input c: H per sequence, d: H per sequence, gap: 1 per sequence
state h
weights V: matrix
f, i = sigmoid(V@c + b)
g = tanh(R@h[t-1] + W@x)
h[t] = f*h[t-1] + i*g*exp(-gap) + 0.1*d
""",
    # The gradients of `gap` and of `p` are sums of the same value.
    "shared": """cell Shared
input x, gap: 1
param p: vector
state h
h[t] = tanh(R@h[t-1] + W@x) + 0.1*exp(-gap) + 0.1*tanh(p)
""",
}

STEPS = """cell Steps
state h, v
const k = 2.0
param th: vector
c = round(4*tanh(W@x + R@h[t-1]), grad=1)/4
e = heaviside(v[t-1] - th, grad=u -> exp(-k*u**2))
v[t] = 0.9*v[t-1] + c - detach(e)*v[t-1] + floor(W@x, grad=atan(k))
h[t] = e*c + sign(v[t] - detach(c), grad=u -> 1/(1 + k*abs(u))**2) + 0.1*detach(h[t-1])
"""

# The loop reads u, two older values of it and a sum of others, each as a stream.
OLDER = """cell Older
state h
weights k: vector
u = tanh(W@x + b)
h[t] = u*tanh(R@(u[t-1]*h[t-1]) + u[t-2] + k*u[t-3] + b) + sigmoid(u[t-1])*h[t-1]
"""

NARROW_NORM = (
    "dim P",
    "state h",
    "local v: P",
    "weights U: matrix",
    "v = layernorm(R@h[t-1] + W@x)",
    "h[t] = tanh(U@v)",
)
