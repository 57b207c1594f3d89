"""What people look for under a name that the language does not have, and what says the same, or comes nearest to it."""

from __future__ import annotations

from collections.abc import Collection

from rnncc.language.outside import Outside
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import closest

# What people write for a function of another name.
_OTHER_NAMES = {
    "maximum": "max", "minimum": "min", "amax": "max", "amin": "min", "swish": "silu", "ln": "log",
    "LN": "layernorm", "layer_norm": "layernorm", "rms_norm": "rmsnorm",
    "hard_sigmoid": "hardsigmoid", "hard_tanh": "hardtanh", "transpose": "T",
    "step": "heaviside", "chunk": "split", "cat": "concat", "clip": "clamp", "sgn": "sign", "spike": "heaviside",
    "repeat_interleave": "repeat", "rint": "round", "stop_gradient": "detach", "stopgrad": "detach", "stop": "detach",
    "no_grad": "detach", "identity": "eye", "average": "mean",
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
_PERMUTED = (
    "units are moved by a fixed matrix, 'buffer P: matrix' and 'P@v', whose numbers are written into the layer's "
    "gate_parameters()"
)
_ANGLE = (
    "there are no angles: keep the sine and the cosine as two values, or bound a value by 'v/(1 + abs(v))' or 'tanh(v)'"
)
_RUNNING = (
    "a smooth one is made of a running sum: 'log(cumsum(exp(10*v)))/10' is nearly the largest unit so far, "
    "'-log(cumsum(exp(-10*v)))/10' the least"
)
_MAX_PLUS = (
    "a sum of exponentials stands for the largest one: 'm + log(exp(A)@exp(v - m))' with 'm = detach(max(v))', for a "
    "matrix A of parameters"
)
_WORDS = {
    "dropout": "it belongs to the layer: '{cell}(…, recurrent_dropout=0.1)' drops what recurrent products read, "
    "'zoneout=0.1' keeps old states, and 'dropout=0.1' drops between layers",
    "zoneout": "it belongs to the layer: '{cell}(…, zoneout=0.1)'",
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
    "remainder": "write 'mod(a, c)', or 'a - c*floor(a/c)' where a state is read",
    "fmod": "write 'sign(a)*(abs(a) - abs(c)*floor(abs(a/c)))'",
    "leaky_relu": "write 'leakyrelu(v)', or 'max(v, 0.01*v)' where a state is read",
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
    "solve": "write 'inv(A)@B', where A is made of parameters",
    "erf": "write 'tanh(1.12838*(v + 0.0894*v**3))', which is within 0.0005 of it",
    **dict.fromkeys(("atan", "arctan", "asin", "arcsin", "acos", "arccos", "atan2"), _ANGLE),
    **dict.fromkeys(("cummin", "cummax"), _RUNNING),
    **dict.fromkeys(("maxplus", "logmatmul"), _MAX_PLUS),
    "weight_norm": "write 'diag(g)@normalize(V, axis=rows)' with 'param g: vector'",
    "orthogonal": "write 'expm(A - T(A))' or 'cayley(A - T(A))' for a matrix that stays orthogonal, 'init R = "
    "orthogonal' for one that starts so",
    **dict.fromkeys(("pinv", "svd", "qr", "cholesky", "eig", "logm", "det", "trace", "spectral_norm"), _OF_MATRICES),
    **dict.fromkeys(("roll", "shift"), f"{_OLDER}; {_PERMUTED}"),
    **dict.fromkeys(("flip", "permute"), _PERMUTED),
}


def report_outside(outside: Outside, span: Span, report: Report) -> Reported:
    """An error, once for all places where a cell asks for the same thing."""
    return report.once("RNN229", outside.message, span, outside.help)


def instead_of(function: str, cell: str, known: Collection[str]) -> str:
    """What says the same as a function that the language does not have and `cell` calls, or the nearest of the known
    names."""
    name = function.lower()
    if name in _WORDS:
        return _WORDS[name].replace("{cell}", cell)
    # LN is another function than ln.
    other = _OTHER_NAMES.get(function) or _OTHER_NAMES.get(name) or (name if name in known else "")
    return f"write '{other}'" if other else closest(function, known)
