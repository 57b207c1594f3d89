"""RNN25x and RNN27x: cells that compile, but probably mean something else, or run slower than they could."""

from __future__ import annotations

from rnncc.language.codes.entry import Code, cell_text
from rnncc.language.diagnostics import Severity

_WARNING, _NOTE = Severity.WARNING, Severity.NOTE

WARNINGS = (
    Code(
        "RNN251",
        "a value is never used",
        "Nothing that the cell gives out depends on this equation, so it is not computed and its parameters are "
        "not made. Either it was forgotten in another equation or it can go. In a loop, the value of one turn may be "
        "unused where that of another turn is used.",
        cell_text("state h", "z = sigmoid(W@x + b)", "h[t] = tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", "z = sigmoid(W@x + b)", "h[t] = z*tanh(W@x + R@h[t-1] + b)"),
        _WARNING,
    ),
    Code(
        "RNN252",
        "a declaration is never used",
        "A param, group, constant, dim or function is declared that no equation names. A parameter that takes no part "
        "gets no gradient, which stops distributed training with an error; so it is not made.",
        cell_text("state h", "param k: scalar = 1", "h[t] = tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", "param k: scalar = 1", "h[t] = k*tanh(W@x + R@h[t-1] + b)"),
        _WARNING,
        label="never used",
    ),
    Code(
        "RNN253",
        "an input is never used",
        "The module would ask for a tensor at every call and ignore it.",
        cell_text("input x, gap: 1", "state h", "h[t] = tanh(W@x + R@h[t-1] + b)"),
        cell_text("input x, gap: 1", "state h", "h[t] = tanh(gap*(W@x) + R@h[t-1] + b)"),
        _WARNING,
        label="never read",
    ),
    Code(
        "RNN254",
        "a state never reaches the output",
        "The state is computed and kept, but the output does not depend on it, so a loss on the output cannot "
        "train it. It is returned in `h_n` all the same.",
        cell_text("state h, c", "h[t] = tanh(W@x + R@h[t-1] + b)", "c[t] = 0.9*c[t-1] + 0.1*h[t]"),
        cell_text("state h, c", "h[t] = tanh(W@x + R@h[t-1] + c[t-1] + b)", "c[t] = 0.9*c[t-1] + 0.1*h[t]"),
        _WARNING,
        label="not in the output",
    ),
    Code(
        "RNN255",
        "the output depends on no state",
        "The layer's output at each step is a function of that step's input only; the recurrence takes no part in "
        "it. Usually `output` names the wrong value.",
        cell_text("state h", "output y", "h[t] = tanh(W@x + R@h[t-1] + b)", "y = sigmoid(W@x + b)"),
        cell_text("state h", "output y", "h[t] = tanh(W@x + R@h[t-1] + b)", "y = sigmoid(R@h[t] + b)"),
        _WARNING,
        label="reads no state",
    ),
    Code(
        "RNN256",
        "`R` on a value that no state reaches",
        "`R` is by convention the recurrent matrix: it has the shape of a product with a state, is called "
        "`weight_hh`, and is initialised and dropped out as such. On a value made of inputs only, `W` is meant.",
        cell_text("state h", "u = tanh(R@x + b)", "h[t] = tanh(W@x + R@h[t-1] + b) + u"),
        cell_text("state h", "u = tanh(W@x + b)", "h[t] = tanh(W@x + R@h[t-1] + b) + u"),
        _WARNING,
        label="only inputs here",
    ),
    Code(
        "RNN257",
        "`W` on a state",
        "`W` is by convention the matrix of the inputs: it is always dense, also where `num_heads` splits the "
        "recurrent matrices into blocks, so on a state it couples the heads and the cell cannot be built with "
        "`num_heads` above 1. Write `R`, or declare a group.",
        cell_text("state h", "u = W@x + b", "h[t] = tanh(u + W@h[t-1] + b)"),
        cell_text("state h", "u = W@x + b", "h[t] = tanh(u + R@h[t-1] + b)"),
        _WARNING,
        label="couples the heads",
    ),
    Code(
        "RNN258",
        "a gate without a bias",
        "The equation applies matrices but adds no `b`. Some papers leave the bias out on purpose, many only in "
        "the notation. Reported on request only (`rnncc check --pedantic`).",
        cell_text("state h", "h[t] = tanh(W@x + R@h[t-1])"),
        cell_text("state h", "h[t] = tanh(W@x + R@h[t-1] + b)"),
        _WARNING,
        pedantic=True,
        label="no bias",
    ),
    Code(
        "RNN259",
        "exp of an unbounded value in the loop",
        "`exp` of a value that can grow without bound overflows float32 at 88, and one `inf` in the loop makes "
        "everything after it NaN. Bound its argument (`min`, `clamp`, `-softplus`). Where such values are divided by "
        "each other, subtract a running maximum, as sLSTM does (`m`). What inputs alone make gives a warning where "
        "it scales a state, and nowhere else. Inputs other than `x` are taken to be times or gates, so not negative: "
        "`exp(-softplus(lam)*gap)` gives no warning, and overflows where a negative `gap` is passed.",
        cell_text("state h", "i = W@x + R@h[t-1] + b", "h[t] = exp(i)*tanh(W@x + b)"),
        cell_text("state h", "i = W@x + R@h[t-1] + b", "h[t] = exp(min(i, 0))*tanh(W@x + b)"),
        _WARNING,
        label="may overflow",
    ),
    Code(
        "RNN260",
        "division by a state that starts at 0",
        "At the first step (and after each reset) the state is 0, so the quotient is infinite or NaN. Give the "
        "state another initial value, or bound the divisor away from 0: `max(n[t-1], 1)`.",
        cell_text("state h, n", "n[t] = n[t-1] + sigmoid(W@x + b)", "h[t] = tanh(W@x + R@h[t-1] + b)/n[t-1]"),
        cell_text("state h, n = 1", "n[t] = n[t-1] + sigmoid(W@x + b)", "h[t] = tanh(W@x + R@h[t-1] + b)/n[t-1]"),
        _WARNING,
        label="0 at the first step",
    ),
    Code(
        "RNN261",
        "no gradient passes here",
        "The derivative of a step function (`heaviside`, `sign`, `floor`, `round`) is 0 wherever it exists, so nothing "
        "before it is trained. Spiking cells use a surrogate for the backward pass, `heaviside(v, "
        "grad=fast_sigmoid(10))`, and quantised ones the straight-through estimator, `round(v, grad=1)`. Where no "
        "gradient is meant, `detach` says so: `detach(round(v))`.",
        cell_text("state h, v", "v[t] = 0.9*v[t-1] + W@x + R@h[t-1] + b", "h[t] = heaviside(v[t] - 1)"),
        cell_text(
            "state h, v", "v[t] = 0.9*v[t-1] + W@x + R@h[t-1] + b", "h[t] = heaviside(v[t] - 1, grad=fast_sigmoid(10))"
        ),
        _WARNING,
        label="has derivative 0",
    ),
    Code(
        "RNN262",
        "the equations fix a size",
        "Two widths that a user of the layer could choose have to agree: `x + R@h[t-1]` works for "
        "`input_size == hidden_size` only. That may be meant; often a matrix was forgotten. `rnncc explain FILE` lists "
        "these constraints, and the layer checks them when it is made (RNN701). Reported on request only "
        "(`rnncc check --pedantic`).",
        cell_text("state h", "h[t] = tanh(x + R@h[t-1] + b)"),
        cell_text("state h", "h[t] = tanh(W@x + R@h[t-1] + b)"),
        _WARNING,
        pedantic=True,
        label="here they meet",
    ),
    Code(
        "RNN263",
        "numbers make an infinity or a NaN",
        "An expression of finite numbers alone, such as `log(0)`, `log(-1)` or `10**400`, is infinite or NaN. So is "
        "every value that it is added to, at every step. Write `inf` where that is meant, as in a maximum.",
        cell_text("state h", "g = sigmoid(W@x + R@h[t-1] + b)", "h[t] = min(g, -log(0))"),
        cell_text("state h", "g = sigmoid(W@x + R@h[t-1] + b)", "h[t] = min(g, inf)"),
        _WARNING,
        label="not finite",
    ),
    Code(
        "RNN264",
        "a cell takes long to compile",
        "Every turn of a `for` and every gate becomes code of its own, forward and backward, with resets and without. "
        "Hundreds of products or of functions across units, such as `sum`, take a minute to compile, and so do "
        "thousands of functions such as `tanh`. The figures are estimates for one instruction set in float and "
        "double, with resets and without: `rnncc.load` compiles a quarter of that, float without resets, and a call "
        "that needs another quarter has it compiled. `rnncc build` compiles all four, for three instruction sets. "
        "Kernels of GPUs are compiled when a call first needs them, and are not counted: NVRTC takes 14 s for the "
        "backward of 400 times `tanh`, and minutes for that of 1000. The marked equation takes the largest part of "
        "the time. Fewer turns take less. One wide state, `state h: 8*H`, takes one operation where eight states take "
        "eight.",
        cell_text(
            "state h",
            "v[0] = tanh(W@x + R@h[t-1] + b)",
            "for m in 1..500:",
            "    v[m] = tanh(0.9*tanh(0.8*tanh(0.7*tanh(0.6*tanh(v[m-1])))))",
            "h[t] = v[500]",
        ),
        cell_text(
            "state h",
            "v[0] = tanh(W@x + R@h[t-1] + b)",
            "for m in 1..3:",
            "    v[m] = tanh(0.9*tanh(0.8*tanh(0.7*tanh(0.6*tanh(v[m-1])))))",
            "h[t] = v[3]",
        ),
        _WARNING,
        label="the largest part of it",
    ),
    Code(
        "RNN265",
        "a matrix times a diagonal one, element by element",
        "`*` multiplies two matrices element by element, and `diag(a)` is zero beside its diagonal: of `S*diag(a)` "
        "nothing but a diagonal is left. `S@diag(a)` multiplies the columns of S by a, `diag(a)@S` the rows.",
        cell_text(
            "state S: matrix(H, H)",
            "output y",
            "a = sigmoid(W@x + b)",
            "k = W@x",
            "S[t] = S[t-1]*diag(a) + k@T(k)",
            "y = S[t]@k",
        ),
        cell_text(
            "state S: matrix(H, H)",
            "output y",
            "a = sigmoid(W@x + b)",
            "k = W@x",
            "S[t] = S[t-1]@diag(a) + k@T(k)",
            "y = S[t]@k",
        ),
        _WARNING,
        label="element by element",
    ),
    Code(
        "RNN266",
        "a number is added to every element of a matrix that multiplies",
        "Where a paper prints `S(1 - βkkᵀ)`, or `S(α - βkkᵀ)` with a number α, it means a multiple of the identity. "
        "Here a number meets every element of a matrix, as in PyTorch, so the product is another one. Write `eye(K)` "
        "for the identity. Where every element is meant, give the matrix a name of its own: `M = α - β*k@T(k)`.",
        cell_text(
            "state S: matrix(H, H)",
            "output y",
            "local be: 1",
            "k = tanh(W@x + b)",
            "be = sigmoid(W@x + b)",
            "S[t] = S[t-1]@(1 - be*k@T(k)) + be*k@T(k)",
            "y = S[t]@k",
        ),
        cell_text(
            "state S: matrix(H, H)",
            "output y",
            "local be: 1",
            "k = tanh(W@x + b)",
            "be = sigmoid(W@x + b)",
            "S[t] = S[t-1]@(eye(H) - be*k@T(k)) + be*k@T(k)",
            "y = S[t]@k",
        ),
        _WARNING,
        label="every element",
    ),
    Code(
        "RNN271",
        "more than one matrix phase per step",
        "A product with a recurrent matrix that needs the result of another one of the same step has to wait for "
        "it. Each such phase costs one synchronisation per step on a GPU. The GRU of 1406.1078v3 has two, that of v1 "
        "(reset after the product) one.",
        cell_text("state h", "r = sigmoid(W@x + R@h[t-1] + b)", "h[t] = tanh(W@x + R@(r*h[t-1]) + b)"),
        cell_text("state h", "r = sigmoid(W@x + R@h[t-1] + b)", "h[t] = tanh(W@x + r*(R@h[t-1]) + b)"),
        _NOTE,
        label="waits for another product",
    ),
    Code(
        "RNN272",
        "a reduction over the units in the loop",
        "Layer norms, softmax, sums and means of values that depend on a state need all units of a row at once, "
        "at every step. On a GPU a sum, mean or norm needs one more synchronisation per step, a softmax two. "
        "A norm of an input's product is computed before the loop, for all steps together.",
        cell_text("state h", "h[t] = tanh(W@x + layernorm(R@h[t-1]) + b)"),
        cell_text("state h", "h[t] = tanh(layernorm(W@x) + R@h[t-1] + b)"),
        _NOTE,
        label="at every step",
    ),
    Code(
        "RNN273",
        "a product with a diagonal matrix",
        "`weights R: diag` makes `R@h[t-1]` a product unit by unit. It is compiled as such; writing it as "
        "`weights u: vector` and `u*h[t-1]` says so in the equation.",
        cell_text("state h", "weights R: diag", "h[t] = tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", "weights u: vector", "h[t] = tanh(W@x + u*h[t-1] + b)"),
        _NOTE,
        label="unit by unit",
    ),
)
