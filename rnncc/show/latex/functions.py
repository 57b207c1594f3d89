"""How functions of the language are written on a page, and the sentence that says what an unusual one means."""

from __future__ import annotations

from rnncc.show.latex.names import function
from rnncc.show.latex.pieces import Formula, text

# TeX of functions that stand before their arguments, and widths in em. All others are upright words.
_WRITTEN = {
    "sigmoid": (r"\sigma", 0.6),
    "tanh": (r"\tanh", 2.1),
    "exp": (r"\exp", 1.6),
    "log": (r"\log", 1.4),
    "sin": (r"\sin", 1.3),
    "cos": (r"\cos", 1.5),
    "max": (r"\max", 2.0),
    "min": (r"\min", 1.8),
    "relu": (r"\operatorname{ReLU}", 2.5),
    "silu": (r"\operatorname{SiLU}", 2.2),
    "gelu": (r"\operatorname{GELU}", 2.7),
    "elu": (r"\operatorname{ELU}", 2.0),
    "leakyrelu": (r"\operatorname{LeakyReLU}", 4.7),
    "layernorm": (r"\operatorname{LayerNorm}", 5.2),
    "rmsnorm": (r"\operatorname{RMSNorm}", 4.6),
    "heaviside": (r"\Theta", 0.8),
    "detach": (r"\operatorname{sg}", 1.0),
    "logsigmoid": (r"\log \sigma", 2.1),
}
# What a reader may not know. `{0}` is the name as it is written.
MEANINGS = {
    "sigmoid": r"${0}(v) = 1 / (1 + e^{{-v}})$",
    "softplus": r"${0}(v) = \log(1 + e^v)$",
    "silu": r"${0}(v) = v\,\sigma(v)$",
    "hardsigmoid": r"${0}(v) = \min(\max(v/6 + 1/2, 0), 1)$",
    "hardtanh": r"${0}(v) = \min(\max(v, -1), 1)$",
    "heaviside": r"${0}(v)$ is 1 where $v > 0$, else 0",
    "detach": r"no gradient passes ${0}$",
    "clamp": r"${0}(v, a, b) = \min(\max(v, a), b)$",
    "expm": r"${0}$ is the exponential of a matrix",
    "cayley": r"${0}(M) = (\mathrm{{I}} + M)^{{-1}} (\mathrm{{I}} - M)$",
    "cumsum": r"${0}$ gives running sums over the units",
    "repeat": r"${0}_k$ repeats each unit $k$ times",
    "roll": r"${0}_n$ moves units by $n$ places in each head; what leaves comes in again, or $a$ for ${0}_{{n,a}}$",
    "arange": r"${0}(n)$ counts $0, 1, \dots$ in each head",
    "heads": r"${0}_g$ gives each head a copy of one of $g$ groups (of the whole vector, for ${0}$)",
    "split": r"${0}$ cuts a vector into equal parts, unless widths are given",
    "normalize": r"${0}$ divides by lengths",
    "axis": r"a function works within each row where $\mathrm{{rows}}$ stands below it, within each column where "
    r"$\mathrm{{columns}}$ does",
    "unflatten": r"${0}_{{P \times Q}}$ makes the rows of a matrix of a vector's units, head by head",
    "tril": r"${0}$ keeps the lower triangle",
    "triu": r"${0}$ keeps the upper triangle",
    "layernorm": r"${0}$ has no affine part",
    "rmsnorm": r"${0}$ has no affine part",
}
# Surrogate derivatives of a step function in v, with the sharpness k (docs/language.md).
SURROGATES = {
    "fast_sigmoid": r"v \mapsto 1 / (1 + {k}\,\lvert v \rvert)^2",
    "atan": r"v \mapsto \frac{{{k}/2}}{{1 + (\pi\,{k}\,v/2)^2}}",
    "sigmoid": r"v \mapsto {k}\,\sigma({k}\,v)\,(1 - \sigma({k}\,v))",
    "triangular": r"v \mapsto {k}\max(0, 1 - \lvert v \rvert)",
}
# What stands around an argument in place of a function's name.
AROUND = {
    "abs": (r"\lvert", r"\rvert"),
    "norm": (r"\lVert", r"\rVert_{\mathrm{F}}"),
    "floor": (r"\lfloor", r"\rfloor"),
}


def function_name(written: str) -> Formula:
    """A function of the language, or one of the cell's own."""
    return text(*_WRITTEN[written]) if written in _WRITTEN else function(written)
