"""What people look for under a name that the language does not have, and what says the same, or comes nearest to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rnncc.language.outside import Outside
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import as_operand, closest

# Functions that make or multiply matrices elsewhere; of the first ones all arguments but one are sizes.
_RESHAPED = ("reshape", "view", "matrix")
OF_MATRICES = (*_RESHAPED, "outer", "einsum", "bmm", "tensordot", "cdist", "pairwise")
# What people write for a function of another name.
_OTHER_NAMES = {
    "maximum": "max", "minimum": "min", "amax": "max", "amin": "min", "swish": "silu", "ln": "log",
    "LN": "layernorm", "layer_norm": "layernorm", "rms_norm": "rmsnorm",
    "hard_sigmoid": "hardsigmoid", "hard_tanh": "hardtanh", "transpose": "T",
    "step": "heaviside", "chunk": "split", "cat": "concat", "clip": "clamp", "sgn": "sign", "spike": "heaviside",
    "repeat_interleave": "repeat", "rint": "round", "stop_gradient": "detach", "stopgrad": "detach", "stop": "detach",
    "no_grad": "detach", "identity": "eye", "average": "mean",
    "inverse": "inv", "matrix_exp": "expm", "diagonal": "diag", "diag_embed": "diag", "normalise": "normalize",
    "range": "arange", "iota": "arange", "rotate": "roll", "circshift": "roll",
    "frobenius": "norm", "vector_norm": "norm", "l2norm": "norm", "l2_normalize": "normalize", "lse": "logsumexp",
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
_MAX_PLUS = "write 'max(A + one@T(v), axis=rows)', with 'local one: H' and 'one = 1'"
_EACH_PAIR = "write 'abs(u@T(one) - one@T(v))' for each pair of units, with 'local one: H' and 'one = 1'"
_PRODUCTS = (
    "write 'v@T(k)' for the products of the units of two vectors, 'M@v' for a matrix and a vector, 'M@A' for matrices"
)
_UNFLATTENED = "write 'unflatten(v, P, Q)' for a matrix of P*Q/num_heads numbers, after 'local v: P*Q//num_heads'"
SOLVED = "with a matrix that changes, a 'for' takes a fixed number of steps towards the solution (see the cell mesanet)"
_WORDS = {
    "dropout": "it belongs to the layer: '{cell}(…, recurrent_dropout=0.1)' drops what recurrent products read, "
    "'zoneout=0.1' keeps old states, and 'dropout=0.1' drops between layers",
    "zoneout": "it belongs to the layer: '{cell}(…, zoneout=0.1)'",
    "linear": "write 'W@x + b'",
    "matmul": "write 'W@x'",
    "dot": "write 'sum(u*v)' for two vectors, 'W@x' for a matrix",
    "inner": "write 'sum(u*v)'",
    "cosine_similarity": "write 'sum(normalize(u)*normalize(v))'",
    "outer": "write '{first}@T({second})': a matrix, which a state holds after 'state S: matrix(H, K)'",
    "cross": "write each unit, 'a2*c3 - a3*c2', of vectors that 'split' has cut",
    **dict.fromkeys(("einsum", "bmm", "tensordot"), _PRODUCTS),
    **dict.fromkeys(_RESHAPED, _UNFLATTENED),
    **dict.fromkeys(("cdist", "pairwise"), _EACH_PAIR),
    "zeros": "write '0': numbers broadcast",
    "full": "write the number: numbers broadcast",
    "var": "write 'mean((v - mean(v))**2)'",
    "std": "write 'sqrt(mean((v - mean(v))**2))'",
    "prod": "write 'exp(sum(log(v)))' where v is positive",
    "cumprod": "write 'exp(cumsum(log(v)))' where v is positive",
    "softmin": "write 'softmax(-v)'",
    "log_softmax": "write 'v - logsumexp(v)'",
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
    "pad": f"{_MOVED}; 'roll(v, 1, fill=0)' moves all of them",
    **dict.fromkeys(("rand", "randn", "noise", "normal", "uniform", "bernoulli", "gaussian"), _NOISE),
    **dict.fromkeys(("solve", "linsolve"), f"write 'inv(A)@B', where A is made of parameters; {SOLVED}"),
    "erf": "write 'tanh(1.12838*(v + 0.0894*v**3))', which is within 0.0005 of it",
    **dict.fromkeys(("atan", "arctan", "asin", "arcsin", "acos", "arccos", "atan2"), _ANGLE),
    **dict.fromkeys(("cummin", "cummax"), _RUNNING),
    **dict.fromkeys(("maxplus", "logmatmul"), _MAX_PLUS),
    "weight_norm": "write 'diag(g)@normalize(V, axis=rows)' with 'param g: vector'",
    "orthogonal": "write 'expm(A - T(A))' or 'cayley(A - T(A))' for a matrix that stays orthogonal, 'init R = "
    "orthogonal' for one that starts so",
    **dict.fromkeys(("pinv", "svd", "qr", "cholesky", "eig", "logm", "det", "trace", "spectral_norm"), _OF_MATRICES),
    "shift": f"{_OLDER}; 'roll(v, 1, fill=0)' moves units",
    **dict.fromkeys(("flip", "permute"), _PERMUTED),
}


def report_outside(outside: Outside, span: Span, report: Report) -> Reported:
    """An error, once for all places where a cell asks for the same thing."""
    return report.once("RNN229", outside.message, span, outside.help)


def report_groups(function: str, span: Span, report: Report) -> Reported:
    """An error where a function would work on each group of a vector's units."""
    help = (
        f"write '{function}(S[t], axis=rows)' after 'state S: matrix(H, K)', or '{function}(unflatten(v, P, Q), "
        "axis=rows)' of a vector"
    )
    message = "groups of units are the rows, or the columns, of a matrix"
    return report.error("RNN240", message, span, "of groups", help)


def instead_of(function: str, cell: str, known: Collection[str], arguments: Sequence[str] = ()) -> str:
    """What says the same as a function that the language does not have and `cell` calls with the given arguments, or
    the nearest of the known names."""
    name = function.lower()
    if name in _WORDS:
        first, second = (as_operand(arguments[0]), arguments[1]) if len(arguments) == 2 else ("v", "k")
        words = _WORDS[name].replace("{cell}", cell)
        return words.replace("{first}", first).replace("{second}", second)
    # LN is another function than ln.
    other = _OTHER_NAMES.get(function) or _OTHER_NAMES.get(name) or (name if name in known else "")
    return f"write '{other}'" if other else closest(function, known)
