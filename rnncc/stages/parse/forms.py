"""How each declaration is written, for messages."""

from __future__ import annotations

FORMS = {
    "CELL": "cell NAME",
    "INPUT": "input x, gap: 1, c: 64 per sequence",
    "STATE": "state h, c: P = 0",
    "OUTPUT": "output y",
    "DIM": "dim P = 64, K",
    "CONST": "const dt = 0.1, act = tanh",
    "LOCAL": "local v: 4*H, w: P",
    "PARAM": "param g: vector = 1, M: matrix",
    "BUFFER": "buffer M: matrix = orthogonal",
    "WEIGHTS": "weights p: vector, Q: matrix",
    "INIT": "init R = orthogonal",
    "DEF": "def gate(u) = sigmoid(W@x + R@u + b)",
    "FOR": "for l in 1..L:",
}
