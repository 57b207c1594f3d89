"""RNN2xx, errors: sizes, types, initialisers, constants, and what equations make of what is declared."""

from __future__ import annotations

from rnncc.language.codes.entry import ELMAN, Code, cell_text
from rnncc.language.functions import ALONG_AXIS, MATRIX_FUNCTIONS, OF_GRIDS
from rnncc.language.operators import OPERATORS

_MAKE = ("eye", "unflatten")
_OF_MATRICES = ", ".join(f"`{name}`" for name in MATRIX_FUNCTIONS if name not in (*OF_GRIDS, *ALONG_AXIS, *_MAKE))
_OF_INPUTS = ", ".join(f"`{name}`" for name, row in OPERATORS.items() if row.user and not row.in_loop)

DECLARE = (
    Code(
        "RNN223",
        "a dim has no possible value",
        "A dim is a positive whole number, or a sum, product or whole quotient (`//`) of others. Here it is zero "
        "or negative, or two uses of it contradict each other.",
        cell_text("dim P = 0", "state h: P", ELMAN),
        cell_text("dim P = 64", "state h: P", ELMAN),
        label="too small",
    ),
    Code(
        "RNN224",
        "bad initialiser",
        "`init NAME = …` names a group, a member of one (`b_f`), a param or a buffer. What it can start from: a "
        "number, `uniform(a, b)`, `normal(mean, std)`, `xavier`, `xavier_normal`, `kaiming`, `orthogonal`, `eye` and "
        "`spectral(radius)`; the last six need a matrix, and `spectral` a square one. Numbers are finite and within "
        "float32, `a` is not above `b`, `std` not negative, a radius above 0. A formula of numbers, constants, sizes, "
        "`ones(H)` and `arange(H)` has the shape of what starts so: `ones(H)@T(arange(K))` that of a matrix(H, K).",
        cell_text("state h", ELMAN, "init b = orthogonal"),
        cell_text("state h", ELMAN, "init R = orthogonal"),
        label="no initialiser",
    ),
    Code(
        "RNN225",
        "bad initial value of a state",
        "A state starts as a number within float32, as `-inf`, or as `learned` (a parameter). A square matrix may also "
        "start as `eye`, the identity, or a multiple of it (`0.1*eye`). Anything else, such as a function of the first "
        "input, is passed to the module as `hx`.",
        cell_text("state h = tanh(x)", ELMAN),
        cell_text("state h = learned", ELMAN),
        label="not known before the run",
    ),
    Code(
        "RNN226",
        "bad constant",
        "A constant is a number, made of numbers and earlier constants, or the name of a function (`const act = "
        "tanh`). It becomes a keyword of the module's constructor. What is trained is a `param`; what depends on "
        "the input is an equation.",
        cell_text("state h", "const k = x", "h[t] = k*tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", "param k: scalar = 1", "h[t] = k*tanh(W@x + R@h[t-1] + b)"),
        label="not constant",
    ),
    Code(
        "RNN227",
        "bad type",
        "The types of parameters are `vector`, `scalar`, `matrix`, `matrix(rows, columns)`, `diag`, "
        "`blockdiag(n)`, `lowrank(k)`, `sparse(density=d)` and `mask`.",
        cell_text("state h", "weights p: vectr", "h[t] = tanh(W@x + p*h[t-1] + b)"),
        cell_text("state h", "weights p: vector", "h[t] = tanh(W@x + p*h[t-1] + b)"),
        label="no such type",
    ),
    Code(
        "RNN228",
        "an `eye` of no size",
        "`eye(n)` stands beside another matrix of its size, which says how many blocks it has, as in `eye(H) - A`. "
        "By itself it multiplies by one.",
        cell_text("state h", "h[t] = tanh(W@x + eye(H)@h[t-1] + b)"),
        cell_text("state h", "h[t] = tanh(W@x + h[t-1] + b)"),
        label="no other matrix",
    ),
    Code(
        "RNN229",
        "outside the scope of the language",
        "A state is a vector or a matrix, and a step is made of products with matrices and of functions applied "
        "element by element, or across units. Convolutions of units, complex numbers, whole numbers as inputs, choices "
        "by position, three axes and memories of open length are other kinds of programs. The message names the "
        "nearest form that can be stated. Other errors of the cell are not shown beside this one.",
        cell_text("state h", "h[t] = tanh(W@x + conv1d(h[t-1]))"),
        label="outside the language",
    ),
    Code(
        "RNN230",
        "the function is not available in the loop",
        f"{_OF_MATRICES} work on matrices of parameters only; {_OF_INPUTS} and `heads` also on inputs. "
        "In the sequential part, on values that depend on a state, they are not compiled. `leakyrelu(v)` can be "
        "written `max(v, 0.01*v)`, `elu(v)` `where(v > 0, v, exp(min(v, 0)) - 1)`.",
        cell_text("state h", "h[t] = leakyrelu(W@x + R@h[t-1] + b)"),
        cell_text("state h", "v = W@x + R@h[t-1] + b", "h[t] = max(v, 0.01*v)"),
        label="reads a state",
    ),
    Code(
        "RNN231",
        "a cell without a state",
        "What makes a cell recurrent is what it remembers: at least one `state`. A layer without one is an "
        "ordinary feed-forward layer of torch.nn.",
        cell_text("h = tanh(W@x + b)"),
        cell_text("state h", ELMAN),
        label="has no state",
    ),
    Code(
        "RNN232",
        "bad output",
        "`output NAME` names one value of the step, a state or a gate; it stands at most once. Without it the "
        "first state is the output. Other states are returned on request (`return_sequences_of=`).",
        cell_text("state h", "output y", ELMAN, "output h", "y = sigmoid(R@h[t] + b)"),
        cell_text("state h", "output y", ELMAN, "y = sigmoid(R@h[t] + b)"),
        label="cannot be an output",
    ),
    Code(
        "RNN233",
        "the equation has no such parameter",
        "`W_f` is the parameter W of the equation of gate f. Another equation shares it by writing `W_f`. But f's own "
        "equation must use it too, as `W` or as `W_f`, for it decides the shape and the place in the packed tensor.",
        cell_text("state h", "f = sigmoid(R@h[t-1] + b)", "h[t] = f*tanh(W_f@x + R@h[t-1] + b)"),
        cell_text("state h", "f = sigmoid(W@x + R@h[t-1] + b)", "h[t] = f*tanh(W_f@x + R@h[t-1] + b)"),
        label="no such parameter",
    ),
    Code(
        "RNN234",
        "a declaration inside a loop",
        "A `for` holds equations and further loops. Declarations say what is true of the whole cell: write them "
        "above it.",
        cell_text(
            "state h",
            "for l in 1..2:",
            "    const k = 2",
            "    n[l] = tanh(R@h[t-1] + b)",
            "h[t] = k*n[1] + n[2] + W@x",
        ),
        cell_text(
            "state h", "const k = 2", "for l in 1..2:", "    n[l] = tanh(R@h[t-1] + b)", "h[t] = k*n[1] + n[2] + W@x"
        ),
        label="belongs before the loop",
    ),
    Code(
        "RNN235",
        "the constant cannot take this value",
        "A constant that shapes the program (a loop bound, a delay, a width, a function) may be given another "
        "value when the cell is compiled: `rnncc.load(text, L=3)`. The name must be such a constant of the cell "
        "and the value of its kind, which is a whole number or the name of a function.",
        cell_text(
            "const L = 2",
            "state h",
            "s[0] = h[t-1]",
            "for l in 1..L:",
            "    s[l] = tanh(R@s[l-1] + b)",
            "h[t] = s[L] + W@x",
        ),
        shaping=(("L", "tanh"),),
        label="no such constant",
    ),
    Code(
        "RNN236",
        "the target cannot be written",
        "Inputs, params, constants, dims, groups and loop variables have their values from elsewhere; an "
        "equation defines a gate (a new name) or a state's `[t]`.",
        cell_text("input gap: 1", "state h", "gap = 2", "h[t] = gap*tanh(W@x + R@h[t-1] + b)"),
        cell_text("input gap: 1", "state h", "twice = 2*gap", "h[t] = twice*tanh(W@x + R@h[t-1] + b)"),
        label="cannot be written",
    ),
    Code(
        "RNN237",
        "division by zero",
        "The divisor is made of numbers alone, and is zero: the quotient is infinite or NaN at every step, and has no "
        "derivative. Write `inf` where infinity is meant. Where a divisor may become zero, bound it: `v/max(n, 1e-6)`.",
        cell_text("state h", "h[t] = tanh(W@x + R@h[t-1] + b)/(1 - 1)"),
        cell_text("state h", "h[t] = tanh(W@x + R@h[t-1] + b)/(1 - 0.5)"),
        label="this is zero",
    ),
    Code(
        "RNN238",
        "an input cannot be given so",
        "A call may leave out an input that has a default, a number for every step and sequence. An input `per "
        "sequence` is given once for all steps. `x` can be neither: it says how many steps and sequences there are. "
        "`input u in place of x` gives it another name; it stands alone on its line, above all other statements.",
        cell_text("input gap: 1 = x", "state h", "h[t] = gap*tanh(W@x + R@h[t-1] + b)"),
        cell_text("input gap: 1 = 1", "state h", "h[t] = gap*tanh(W@x + R@h[t-1] + b)"),
        label="not known before the run",
    ),
    Code(
        "RNN239",
        "a function of matrices on something else",
        "`expm`, `inv`, `cayley`, `tril` and `triu` take a whole matrix. They are computed once a call, before the "
        "steps, so all of it is made of parameters, buffers and numbers: of nothing that an input or a state reaches. "
        "`T`, `diag`, `norm` and functions along an axis, such as `softmax(M, axis=rows)`, take matrices that change "
        "with the step too; a vector has no axis.",
        cell_text("state h", "h[t] = tanh(W@x + expm(R@h[t-1]) + b)"),
        cell_text("state h", "h[t] = tanh(W@x + expm(R)@h[t-1] + b)"),
        label="not made of parameters",
    ),
    Code(
        "RNN240",
        "a matrix that is written in another way",
        "The products of the units of two vectors are `v@T(k)`, a matrix; a state that holds it is declared by its "
        "rows and columns, `state S: matrix(H, K)`, and read by `S[t]@q`. `unflatten(v, P, Q)` makes a matrix of a "
        "vector's units, and `axis=rows` works on each of its rows. Other errors of the cell are not shown beside this "
        "one.",
        cell_text(
            "dim K = 16",
            "state S: H*K",
            "output y",
            "local k: K",
            "k, v = W@x",
            "S[t] = S[t-1] + outer(v, k)",
            "y = v*v",
        ),
        cell_text(
            "dim K = 16",
            "state S: matrix(H, K)",
            "output y",
            "local k: K",
            "k, v = W@x",
            "S[t] = S[t-1] + v@T(k)",
            "y = S[t]@k",
        ),
        label="not a known function",
    ),
)
