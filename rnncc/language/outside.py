"""What is outside the language, under which names people ask for it, and what comes nearest."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.language.spelling import as_operand, inside


@dataclass(frozen=True, slots=True)
class Outside:
    """What is outside the language, in words that begin a message, and the nearest supported form."""

    what: str
    nearest: str

    @property
    def message(self) -> str:
        """What the error RNN229 says."""
        return f"{self.what} outside the language"

    @property
    def help(self) -> str:
        """What that error names."""
        return f"the nearest form: {self.nearest}"

    @property
    def in_help(self) -> str:
        """What a help says of it at its end."""
        return f"{self.message}; {self.help}"


CONVOLUTION = Outside(
    "functions and types of convolutions are",
    "along the sequence, older values: 'u = W@x', 'c = k0*u + k1*u[t-1] + k2*u[t-2]' with 'weights k0: vector, k1: "
    "vector, k2: vector', or a matrix for each step, 'W@x + V@x[t-1]'; along the units, products with matrices",
)
COMPLEX = Outside(
    "complex numbers are",
    "two states, the real and the imaginary part: 'p[t] = a*p[t-1] - c*q[t-1] + W@x', 'q[t] = c*p[t-1] + a*q[t-1]'",
)
MORE_AXES = Outside(
    "states and values with more than two axes are",
    "a matrix for each head: 'state S: matrix(H, K)', 'S[t] = 0.9*S[t-1] + v@T(k)', 'y = S[t]@q'",
)
INTEGERS = Outside(
    "whole numbers as inputs are",
    "vectors that are looked up before the layer: 'layer(torch.nn.Embedding(100, 32)(tokens))'",
)
CHOICES = Outside(
    "a choice by position among units is",
    "weights that add up to 1, 'p = softmax(v)'; where two values are compared, 'heaviside(a - c, grad=atan(2))'",
)
KRONECKER = Outside(
    "Kronecker products are",
    "matrices that have few parameters in another way: 'weights R: blockdiag(4)', 'weights R: lowrank(8)'",
)
MEMORY = Outside(
    "memories of open length are",
    "a number of slots, 'dim L = 16': the columns of a matrix, 'state M: matrix(H, L)', which "
    "'M[t-1]@softmax(T(M[t-1])@k)' reads; or a matrix that a call gives, 'input mem: matrix(L, 64) per sequence'",
)

_OUTSIDE = {
    CONVOLUTION: "conv conv1d conv2d conv3d convolution causal_conv1d fold unfold avg_pool max_pool",
    COMPLEX: "complex complex64 complex128 cfloat real imag conj angle polar fft ifft rfft irfft",
    KRONECKER: "kron",
    INTEGERS: "embedding embed lookup",
    CHOICES: "argmax argmin onehot one_hot topk sort argsort multinomial gumbel_softmax categorical "
    "gather index_select take",
    MEMORY: "attention read write memory scaled_dot_product_attention",
}
_TYPES = {
    CONVOLUTION: "conv conv1d conv2d",
    COMPLEX: "complex complex64 complex128 cfloat",
    MORE_AXES: "tensor",
    INTEGERS: "int integer int64 long token index",
}


def _by_name(table: dict[Outside, str]) -> dict[str, Outside]:
    return {name: outside for outside, names in table.items() for name in names.split()}


OUTSIDE_FUNCTIONS = _by_name(_OUTSIDE)
OUTSIDE_TYPES = _by_name(_TYPES)


def pairs(vector: str) -> str:
    """How a value for each pair of units is written, as liquid time-constant networks have it."""
    return (
        f"a value for each pair of units is a matrix: 'one@T({inside(vector)})' has the vector in each row, "
        f"'{as_operand(vector)}@T(one)' in each column, with 'local one: H' and 'one = 1'"
    )
