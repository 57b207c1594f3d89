"""RNN2xx, errors: what a well-formed text can say that no cell can mean."""

from __future__ import annotations

from rnncc.language.codes.entry import ELMAN, Code, cell_text
from rnncc.language.functions import MATRIX_FUNCTIONS, OF_WIDTHS, PER_HEAD, ROW_FUNCTIONS
from rnncc.language.operators import OPERATORS

_OPERATORS = {name: row for name, row in OPERATORS.items() if row.user}
_FUNCTIONS = ", ".join({**_OPERATORS, **ROW_FUNCTIONS, **MATRIX_FUNCTIONS, **OF_WIDTHS, **PER_HEAD})


CHECK = (
    Code(
        "RNN201",
        "a state without a time",
        "Inside a step a state has two values, the old one `h[t-1]` and the new one `h[t]`. Which of them a "
        "formula means decides what it computes: published implementations of one cell (LEM) differ by exactly "
        "this. So a bare `h` is not guessed.",
        cell_text("state h", "h[t] = tanh(W@x + R@h + b)"),
        cell_text("state h", ELMAN),
    ),
    Code(
        "RNN202",
        "undefined name",
        "Every name is a built-in (`x`, `W`, `R`, `b`, `bR`, `inf`, `pi`), a declaration, or the target of an "
        "equation of the same cell. For an instance such as `n[3]`, an equation or the loop must define exactly "
        "that one.",
        cell_text("state h", "gate = sigmoid(W@x + R@h[t-1] + b)", "h[t] = gat*tanh(W@x + b)"),
        cell_text("state h", "gate = sigmoid(W@x + R@h[t-1] + b)", "h[t] = gate*tanh(W@x + b)"),
    ),
    Code(
        "RNN203",
        "unknown function",
        f"The functions are `{_FUNCTIONS}`. Their definitions are PyTorch's with default arguments. `def gate(u) = "
        "…` defines one of your own, above its first call.",
        cell_text("state h", "h[t] = tahn(W@x + R@h[t-1] + b)"),
        cell_text("state h", ELMAN),
    ),
    Code(
        "RNN204",
        "wrong arguments of a function",
        "The number of arguments or a keyword does not fit the function: `max` and `min` take one value or two, "
        "`clamp` a value and two bounds, `where` a condition and two values, `repeat` a value and a whole number. "
        "Functions across the units (`sum`, `softmax`, …) take values of the step or params: a number has none. There "
        "are two keywords. `axis=rows` or `axis=columns` goes with functions of a matrix such as `softmax`. `grad=` is "
        "the derivative of a step function (`sign`, `heaviside`, `floor`, `round`): a number, `fast_sigmoid(k)`, "
        "`atan(k)`, `sigmoid(k)`, `triangular(k)`, or `u -> exp(-u**2)` of constants and u.",
        cell_text("state h", "h[t] = clamp(W@x + R@h[t-1] + b, 1)"),
        cell_text("state h", "h[t] = clamp(W@x + R@h[t-1] + b, -1, 1)"),
        label="does not fit the function",
    ),
    Code(
        "RNN205",
        "a state is never updated",
        "Exactly one equation gives each state its new value. Without it the state would keep its initial value "
        "for ever: remove it, make it a `param`, or write its equation.",
        cell_text("state h, c", ELMAN),
        cell_text("state h", ELMAN),
    ),
    Code(
        "RNN206",
        "a name is given a value twice",
        "Equations are definitions, sorted by dependence, not assignments that run one after the other; so two of "
        "them cannot have the same target. Give the first value a name of its own.",
        cell_text("state h", "n = W@x + R@h[t-1] + b", "n = tanh(n)", "h[t] = n"),
        cell_text("state h", "a = W@x + R@h[t-1] + b", "n = tanh(a)", "h[t] = n"),
        label="the second equation",
    ),
    Code(
        "RNN207",
        "the new value of a state is written `h[t]`",
        "A state is written at time t. The time is not left out on the left side, for the same reason as on the "
        "right: a reader must see which names are remembered.",
        cell_text("state h", "h = tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", ELMAN),
    ),
    Code(
        "RNN208",
        "a time left of `=` on a value that is not a state",
        "An equation gives a gate its value of this step, and only a state has a time there: `g = …`, `h[t] = …`. If "
        "the next step needs the value of a gate that depends on a state, declare it as a state.",
        cell_text("state h", "g[t] = sigmoid(W@x + b)", "h[t] = g*tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", "g = sigmoid(W@x + b)", "h[t] = g*tanh(W@x + R@h[t-1] + b)"),
        label="has no time index",
    ),
    Code(
        "RNN209",
        "equations depend on each other in a circle",
        "Within one step each value must follow from values known before it; the message prints the circle. "
        "Usually one of the states in it is meant at `[t-1]`.",
        cell_text("state h, c", "c[t] = tanh(W@x + R@h[t] + b)", "h[t] = sigmoid(W@x + b)*c[t]"),
        cell_text("state h, c", "c[t] = tanh(W@x + R@h[t-1] + b)", "h[t] = sigmoid(W@x + b)*c[t]"),
    ),
    Code(
        "RNN210",
        "one group stands before two operands",
        "`R` in the equation of gate i is one matrix, `R_i`. Applied to two different operands in that equation "
        "it would be one matrix shared by both, which is seldom meant. Declare a second group (`weights Q: "
        "matrix`). Or share the matrix: that is what a `param` is for.",
        cell_text("state h, c", "c[t] = tanh(W@x + R@h[t-1] + R@c[t-1] + b)", "h[t] = tanh(c[t])"),
        cell_text("state h, c", "weights Q: matrix", "c[t] = tanh(W@x + R@h[t-1] + Q@c[t-1] + b)", "h[t] = tanh(c[t])"),
        label="a second operand",
    ),
    Code(
        "RNN211",
        "a matrix is used element by element",
        "`*` multiplies two values unit by unit; a matrix acts on a vector with `@`. For a weight of one number per "
        "unit, declare it as `vector`. `diag(g)@M` multiplies the rows of a matrix by a vector, `M@diag(g)` its "
        "columns. So it is for matrices that change with the step: a vector never meets them element by element, and "
        "becomes a matrix by `v@T(k)`, `diag(v)` or `unflatten(v, P, Q)` alone.",
        cell_text("state h", "h[t] = tanh(W*x + R@h[t-1] + b)"),
        cell_text("state h", ELMAN),
    ),
    Code(
        "RNN212",
        "the left side of `@` is not a matrix",
        "`M@v` needs a matrix on its left. A weight of one number per unit (a `vector`, as in peepholes) multiplies "
        "with `*`; a vector times a matrix is written `T(M)@v`. `T(v)` of a vector stands directly right of `@` after "
        "another one alone: `v@T(k)` is the matrix of the products of their units, `sum(v*k)` the sum of `v[i]*k[i]`.",
        cell_text("state h, c", "weights p: vector", "c[t] = tanh(W@x + p@c[t-1] + b)", "h[t] = tanh(R@h[t-1] + c[t])"),
        cell_text("state h, c", "weights p: vector", "c[t] = tanh(W@x + p*c[t-1] + b)", "h[t] = tanh(R@h[t-1] + c[t])"),
    ),
    Code(
        "RNN213",
        "the right side of `@` is not a vector",
        "A matrix multiplies a value of the step, which is an input, a state, a gate or an expression of them. Numbers "
        "and scalars scale with `*`. It multiplies another matrix too, unless one of them is a `diag` that `param` or "
        "`weights` declares: declare a vector, whose `diag(v)` is a matrix like others.",
        cell_text("state h", "h[t] = tanh(W@x + R@0.5 + h[t-1] + b)"),
        cell_text("state h", "h[t] = tanh(W@x + 0.5*h[t-1] + b)"),
        label="not a vector",
    ),
    Code(
        "RNN214",
        "widths do not agree",
        "Values that are added or multiplied element by element have the same width (or width 1, which is spread "
        "over all units). The message says where each width comes from. A target that nothing declares is as wide as "
        "its value says, or else H. Matrices that are added have the same rows and columns, and widths are compared "
        "by name: K is not H, whatever its default.",
        cell_text("dim P = 64", "state m: P, h", ELMAN, "m[t] = m[t-1] + h[t]"),
        cell_text("dim P = 64", "state m: P, h", "weights M: matrix", ELMAN, "m[t] = m[t-1] + M@h[t]"),
    ),
    Code(
        "RNN215",
        "a value of the future",
        "A recurrent layer goes through the sequence once; at step t the steps after it are not known. A "
        "bidirectional layer (`bidirectional=True`) sees the future through its second direction; otherwise shift "
        "the input.",
        cell_text("state h", "h[t] = tanh(W@x[t+1] + R@h[t-1] + b)"),
        cell_text("state h", ELMAN),
        label="not known at t",
    ),
    Code(
        "RNN216",
        "not a time",
        "A state, an input or a value that inputs make is indexed by `t` or `t` minus a whole number known when the "
        "cell is compiled. What depends on a state has no past of its own (declare a state that holds it), what "
        "parameters and inputs per sequence alone make does not change, and a step has no number: `h[0]` or `h[2*t]` "
        "mean nothing here.",
        cell_text("state h", "h[t] = tanh(W@x + R@h[2*t] + b)"),
        cell_text("state h", ELMAN),
        label="no such index",
    ),
    Code(
        "RNN217",
        "a reserved name",
        "Reserved are the keywords of Python and C++, the names of functions, `W R b bR x t H I inf pi`, "
        "everything with `__`, and the forms `d_…`, `saved_…`, `t0`, `t1`…, which the generated code uses for "
        "derivatives and temporaries; so are names of its own (`RNNCC_…`, `Early`, `Late`, `Kept`, `E_`) and what "
        "begins with `_` and a capital, which C++ compilers keep. (`W`, `R`, `b` and `bR` may be re-typed by "
        "`weights`.) The generated code keeps your names, so the clash is refused here instead of there. For the same "
        "reason a constant, dim or input is not called like an argument of the layer (`dropout`, `lengths`), nor a "
        "parameter like an attribute of torch's modules (`type`, `half`).",
        cell_text("state h", "d_gate = sigmoid(W@x + b)", "h[t] = d_gate*tanh(W@x + R@h[t-1] + b)"),
        cell_text("state h", "gate = sigmoid(W@x + b)", "h[t] = gate*tanh(W@x + R@h[t-1] + b)"),
    ),
    Code(
        "RNN218",
        "a name means two things",
        "All things of a cell share one set of names. In the body of a `def` its parameters hide what else has their "
        "names; two of them have two names, and none has that of a `def`.",
        cell_text("input scale: 1", "state h", "const scale = 0.1", "h[t] = scale*tanh(W@x + R@h[t-1] + b)"),
        cell_text("input gap: 1", "state h", "const scale = 0.1", "h[t] = scale*gap*tanh(W@x + R@h[t-1] + b)"),
        label="declared before",
    ),
    Code(
        "RNN219",
        "two spellings meet in one name",
        "In generated code and parameters, the instance `n[1]` of a loop is `n_1`, `α` is `alpha`, and `W_i` is "
        "the W of gate i. Another value with exactly that name would overwrite it: rename it.",
        cell_text(
            "state h",
            "n_1 = sigmoid(W@x + b)",
            "for l in 1..2:",
            "    n[l] = tanh(R@h[t-1] + b)",
            "h[t] = n_1*n[1] + n[2]",
        ),
        cell_text(
            "state h",
            "z = sigmoid(W@x + b)",
            "for l in 1..2:",
            "    n[l] = tanh(R@h[t-1] + b)",
            "h[t] = z*n[1] + n[2]",
        ),
        label="the other spelling",
    ),
    Code(
        "RNN220",
        "not known when the cell is compiled",
        "Loop bounds, indices, delays and the condition of `a if c else b` shape the program. They are whole numbers, "
        "or comparisons of them, made of literals, constants and loop variables. Widths may be made of I, H and dims "
        "as well, `state s: H//2`, and the default of a dim of I, H and num_heads. To choose between values at run "
        "time, write `where(condition, a, b)`.",
        cell_text("state h", "h[t] = tanh((W@x if x > 0 else 0) + R@h[t-1] + b)"),
        cell_text("state h", "h[t] = tanh(where(W@x > 0, W@x, 0) + R@h[t-1] + b)"),
        label="not known when compiling",
    ),
    Code(
        "RNN221",
        "the cell is too large",
        "An equation may have 4,096 nodes and a cell 1,024 equations after its loops are unrolled; "
        "`h[t-k]` reaches back 64 steps at most (each is one more value that the kernels carry), as does `u[t-k]` of "
        "another value (each is one more tensor), and `x[t-k]` 1,024. "
        "Beyond that the generated code would take minutes to compile. Check the loop's bounds.",
        cell_text(
            "state h", "s[0] = h[t-1]", "for l in 1..2000:", "    s[l] = tanh(R@s[l-1] + b)", "h[t] = s[2000] + W@x"
        ),
        label="too many",
    ),
    Code(
        "RNN222",
        "`split` does not come out even",
        "`i, f = split(v)` cuts v along its units: targets with a declared width take theirs, the others share "
        "the rest equally, in whole multiples. `split` stands alone on the right side, with at least two targets. "
        "Declare the width of v (`local v: 4*H`) or of the targets.",
        cell_text("state h", "local v: 3*H", "v = W@x + R@h[t-1] + b", "i, g = split(v)", "h[t] = sigmoid(i)*tanh(g)"),
        cell_text("state h", "local v: 2*H", "v = W@x + R@h[t-1] + b", "i, g = split(v)", "h[t] = sigmoid(i)*tanh(g)"),
        label="cannot be divided so",
    ),
)
