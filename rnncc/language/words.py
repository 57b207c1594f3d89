"""The words of the language by what they mean: the parser knows them, and so do the grammars of editors."""

from __future__ import annotations

# A statement begins with one of these, or is an equation.
STATEMENTS = (
    "input", "state", "output", "dim", "const", "local", "param", "buffer", "weights", "init", "def", "for", "cell",
)  # fmt: skip
# Words of the language wherever they stand.
EVERYWHERE = ("for", "if", "else", "in")
# `input c: 64 per sequence`: words of the language there alone.
PER, SEQUENCE = "per", "sequence"
# `input u in place of x`: likewise, behind `in`.
PLACE, OF = "place", "of"
TYPES = ("vector", "scalar", "matrix", "diag", "blockdiag", "sparse", "mask", "lowrank")
# Initialisers, and how many numbers each takes.
INITIALISERS = {
    "default": 0, "zeros": 0, "ones": 0, "xavier": 0, "xavier_normal": 0, "kaiming": 0, "orthogonal": 0, "eye": 0,
    "constant": 1, "uniform": 2, "normal": 2, "spectral": 1,
}  # fmt: skip
# How a state may start, beside a number.
LEARNED = "learned"
EYE = "eye"
GROUPS = ("W", "R", "b", "bR")
NUMBERS = ("inf", "pi")
SIZES = ("I", "H")
# The layer's argument, which widths may name.
NUM_HEADS = "num_heads"
# The input, and the time of a step.
STEP = ("x", "t")
