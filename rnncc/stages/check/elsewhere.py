"""What people look for under a name that the language does not have, and what says the same, or comes nearest to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import closest


@dataclass(frozen=True, slots=True)
class Outside:
    """What is outside the language, in words that begin a message, and the nearest supported form."""

    what: str
    nearest: str

    @property
    def in_help(self) -> str:
        """What a help says of it at its end."""
        return f"{self.what} outside the language; the nearest form: {self.nearest}"


CONVOLUTION = Outside(
    "functions and types of convolutions are",
    "along the sequence, older values: 'u = W@x', 'c = k0*u + k1*u[t-1] + k2*u[t-2]' with 'weights k0: vector, k1: "
    "vector, k2: vector', or a matrix for each step, 'W@x + V@x[t-1]'; along the units, products with matrices",
)
COMPLEX = Outside(
    "complex numbers are",
    "two states, the real and the imaginary part: 'p[t] = a*p[t-1] - c*q[t-1] + W@x', 'q[t] = c*p[t-1] + a*q[t-1]'",
)
MATRIX_STATE = Outside(
    "states and values with a second axis are",
    "one vector state for each row, with a size that is written out: 'S1[t] = a*S1[t-1] + k1*v', 'y = q1*S1[t] + "
    "q2*S2[t]'",
)
PAIRS = Outside(
    "a value for each pair of units, as in liquid time-constant networks, is",
    "products of matrices with vectors, 'sigmoid(M@v)', as in the shipped cell ltc",
)
INTEGERS = Outside(
    "whole numbers as inputs are",
    "vectors that are looked up before the layer: 'layer(torch.nn.Embedding(100, 32)(tokens))'",
)
CHOICES = Outside(
    "a choice by position among units is",
    "weights that add up to 1, 'p = softmax(v)'; where two values are compared, 'heaviside(a - c, grad=atan(2))'",
)
MEMORY = Outside(
    "memories of open length are",
    "a number of slots that is written out, each of them a state ('state m1, m2') or an input ('input mem: 64')",
)

_OUTSIDE = {
    CONVOLUTION: "conv conv1d conv2d conv3d convolution causal_conv1d fold unfold avg_pool max_pool",
    COMPLEX: "complex complex64 complex128 cfloat real imag conj angle polar fft ifft rfft irfft",
    MATRIX_STATE: "outer kron einsum bmm tensordot cross",
    PAIRS: "cdist pairwise",
    INTEGERS: "embedding embed lookup gather index_select take",
    CHOICES: "argmax argmin onehot one_hot topk sort argsort multinomial gumbel_softmax categorical",
    MEMORY: "attention read write memory scaled_dot_product_attention",
}
_TYPES = {
    CONVOLUTION: "conv conv1d conv2d",
    COMPLEX: "complex complex64 complex128 cfloat",
    MATRIX_STATE: "matrix tensor",
    INTEGERS: "int integer int64 long token index",
}

# What people write for a function of another name.
_OTHER_NAMES = {
    "maximum": "max", "minimum": "min", "amax": "max", "amin": "min", "swish": "silu", "ln": "log",
    "layer_norm": "layernorm", "rms_norm": "rmsnorm",
    "hard_sigmoid": "hardsigmoid", "hard_tanh": "hardtanh", "leaky_relu": "leakyrelu", "transpose": "T",
    "step": "heaviside", "chunk": "split", "cat": "concat", "clip": "clamp", "sgn": "sign", "spike": "heaviside",
    "repeat_interleave": "repeat", "rint": "round", "stop_gradient": "detach", "stopgrad": "detach", "stop": "detach",
    "no_grad": "detach", "fmod": "mod", "remainder": "mod", "identity": "eye", "average": "mean",
    "inverse": "inv", "matrix_exp": "expm", "diagonal": "diag", "diag_embed": "diag", "normalise": "normalize",
    "frobenius": "norm",
}  # fmt: skip
_NOISE = "give it as an input, which the caller draws: 'input noise: H', 'h[t] = … + 0.1*noise'"
_OF_MATRICES = (
    "of matrices of parameters there are T, diag, tril, triu, expm, inv, cayley, softmax and normalize along an axis, "
    "norm, and all elementwise functions; 'torch.nn.utils.parametrize' puts others on a parameter of the layer"
)
_OLDER = "an older state is 'h[t-1]', an older input 'x[t-1]', and 'u[t-1]' is an older value that inputs make"
_MOVED = "'split' and 'concat' move units: 'a, c = split(v)', 'w = concat(c, a)'"
_WORDS = {
    "dropout": "it belongs to the layer: 'LSTM(…, recurrent_dropout=0.1)' drops what recurrent products read, "
    "'zoneout=0.1' keeps old states, and 'dropout=0.1' drops between layers",
    "zoneout": "it belongs to the layer: 'LSTM(…, zoneout=0.1)'",
    "linear": "write 'W@x + b'",
    "matmul": "write 'W@x'",
    "dot": "write 'sum(u*v)' for two vectors, 'W@x' for a matrix",
    "inner": "write 'sum(u*v)'",
    "zeros": "write '0': numbers broadcast",
    "ones": "write '1': numbers broadcast",
    "full": "write the number: numbers broadcast",
    "var": "write 'mean((v - mean(v))**2)'",
    "std": "write 'sqrt(mean((v - mean(v))**2))'",
    "prod": "write 'exp(sum(log(v)))' where v is positive",
    "cumprod": "write 'exp(cumsum(log(v)))' where v is positive",
    "logsumexp": "write 'm + log(sum(exp(v - m)))' with 'm = detach(max(v))'",
    "softmin": "write 'softmax(-v)'",
    "log_softmax": "write 'log(softmax(v))'",
    "tile": "write 'concat(v, v)'",
    "ceil": "write '-floor(-v)'",
    "trunc": "write 'sign(v)*floor(abs(v))'",
    "frac": "write 'v - floor(v)'",
    "div": "write 'a/b', or 'floor(a/b)' for the whole part",
    "floor_divide": "write 'floor(a/b)'",
    "quantize": "write 'round(8*v, grad=1)/8'",
    "ste": "write 'round(v, grad=1)', or 'v + detach(f(v) - v)' for another function f",
    "straight_through": "write 'round(v, grad=1)', or 'v + detach(f(v) - v)' for another function f",
    "pow": "write 'a**b'",
    "square": "write 'v**2'",
    "reciprocal": "write '1/v'",
    "rsqrt": "write '1/sqrt(v)'",
    "neg": "write '-v'",
    "tan": "write 'sin(v)/cos(v)'",
    "sinh": "write '(exp(v) - exp(-v))/2'",
    "cosh": "write '(exp(v) + exp(-v))/2'",
    "relu6": "write 'clamp(v, 0, 6)'",
    "hardswish": "write 'v*hardsigmoid(v)'",
    "softsign": "write 'v/(1 + abs(v))'",
    "mish": "write 'v*tanh(softplus(v))'",
    "glu": "write 'a*sigmoid(c)' of two values",
    "lerp": "write 'a + w*(c - a)'",
    **dict.fromkeys(("delay", "prev", "previous", "lag"), _OLDER),
    "pad": _MOVED,
    **dict.fromkeys(("rand", "randn", "noise", "normal", "uniform", "bernoulli", "gaussian"), _NOISE),
    "solve": "write 'inv(A)@B'",
    "weight_norm": "write 'diag(g)@normalize(V, axis=rows)' with 'param g: vector'",
    "orthogonal": "write 'expm(A - T(A))' or 'cayley(A - T(A))' for a matrix that stays orthogonal, 'init R = "
    "orthogonal' for one that starts so",
    **dict.fromkeys(("pinv", "svd", "qr", "cholesky", "eig", "logm", "det", "trace", "spectral_norm"), _OF_MATRICES),
    **dict.fromkeys(("roll", "shift"), f"{_OLDER}; {_MOVED}"),
    **dict.fromkeys(("flip", "permute"), _MOVED),
}


def _by_name(table: dict[Outside, str]) -> dict[str, Outside]:
    return {name: outside for outside, names in table.items() for name in names.split()}


OUTSIDE_FUNCTIONS = _by_name(_OUTSIDE)
OUTSIDE_TYPES = _by_name(_TYPES)


def report_outside(outside: Outside, span: Span, report: Report) -> Reported:
    """An error, once for all places where a cell asks for the same thing."""
    help = f"the nearest form: {outside.nearest}"
    return report.once("RNN229", f"{outside.what} outside the language", span, help)


def instead_of(function: str, known: Collection[str]) -> str:
    """What says the same as a function that the language does not have, or the nearest of the known names."""
    name = function.lower()
    if name in _WORDS:
        return _WORDS[name]
    if name in _OTHER_NAMES:
        return f"write '{_OTHER_NAMES[name]}'"
    return closest(function, known)
