"""`def`: a cell with small functions is the cell in which they are written out by hand."""

from __future__ import annotations

import pytest

from rnncc.ir.cell import Contraction
from rnncc.ir.expr import operators
from rnncc.ir.request import Request
from rnncc.ir.step import TileStage
from rnncc.ir.typed import Typed
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from tests.stages.checking import body, codes, errors, marked, typed

ENDS = "h[t] = tanh(i*n + f*h[t-1])"


def placed(*lines: str) -> object:
    """The cell that `partition` makes of these statements."""
    return compile_cells(Request(Source("cell.rnn", body(*lines)), "cell"), "partition").cells[0].cell


# With functions, and by hand.
SAME = {
    "groups": (
        ("state h", "def gate(u) = sigmoid(W@x + R@u + b)", "i, f, n = gate(h[t-1])", ENDS),
        ("state h", "i, f, n = sigmoid(W@x + R@h[t-1] + b)", ENDS),
    ),
    "groups of the argument": (
        ("state h", "def squash(u) = u*sigmoid(u)", "i, f, n = squash(W@x + R@h[t-1] + b)", ENDS),
        ("state h", "i, f, n = (W@x + R@h[t-1] + b)*sigmoid(W@x + R@h[t-1] + b)", ENDS),
    ),
    "several calls in an equation": (
        ("state h, c", "weights V: matrix", "def on(M, u) = tanh(M@u + b)", "c[t] = on(V, c[t-1])",
         "h[t] = on(R, h[t-1]) + on(V, c[t]) + on(W, x)"),
        ("state h, c", "weights V: matrix", "c[t] = tanh(V@c[t-1] + b)",
         "h[t] = tanh(R@h[t-1] + b) + tanh(V@c[t] + b) + tanh(W@x + b)"),
    ),
    "calls in calls": (
        ("state h", "def mix(a, u, v) = a*u + (1 - a)*v", "def gate(u) = sigmoid(W@x + u)",
         "def gated(u, v) = mix(gate(R@u), u, v)", "h[t] = gated(h[t-1], mix(0.5, x, gate(b)))"),
        ("state h", "h[t] = sigmoid(W@x + R@h[t-1])*h[t-1] + (1 - sigmoid(W@x + R@h[t-1]))"
         "*(0.5*x + (1 - 0.5)*sigmoid(W@x + b))"),
    ),
    "names before brackets": (
        ("state h", "const act = relu", "def old(s, k) = s[t-k]", "def called(f, u) = f(u)",
         "h[t] = called(tanh, old(h, 1) + old(x, 1 + 1)) + called(act, W@x)"),
        ("state h", "const act = relu", "h[t] = tanh(h[t-1] + x[t-2]) + act(W@x)"),
    ),
    "parameters that hide names": (
        ("state h", "const k = 3", "weights V: matrix", "def mix(v, h, k) = k*v + (1 - k)*h", "def by(V, u) = V@u",
         "v = sigmoid(W@x + b)", "h[t] = mix(by(V, h[t-1]), by(W, x) + v, 0.5*k)"),
        ("state h", "const k = 3", "weights V: matrix", "v = sigmoid(W@x + b)",
         "h[t] = (0.5*k)*(V@h[t-1]) + (1 - 0.5*k)*(W@x + v)"),
    ),
    "parameters with the name of a loop's variable": (
        ("state h", "def before(s, l) = s[l-1] + l", "s[0] = h[t-1]", "for l in 1..2:",
         "    s[l] = tanh(R@before(s, l))", "h[t] = s[2] + W@x"),
        ("state h", "s[0] = h[t-1]", "for l in 1..2:", "    s[l] = tanh(R@(s[l-1] + l))", "h[t] = s[2] + W@x"),
    ),
    "loops": (
        ("state h", "const L = 2", "def first(k, u) = u if k == 1 else 0", "def turn(k, u) = s[k-1] + u",
         "s[0] = h[t-1]", "for l in 1..L:", "    s[l] = turn(l, tanh(R@s[l-1] + first(l, W@x) + b))", "h[t] = s[L]"),
        ("state h", "const L = 2", "s[0] = h[t-1]", "for l in 1..L:",
         "    s[l] = s[l-1] + tanh(R@s[l-1] + (W@x if l == 1 else 0) + b)", "h[t] = s[L]"),
    ),
    "split": (
        ("state h", "local v: 3*H", "def thirds(u) = split(u)", "v = W@x + R@h[t-1] + b", "i, f, n = thirds(v)", ENDS),
        ("state h", "local v: 3*H", "v = W@x + R@h[t-1] + b", "i, f, n = split(v)", ENDS),
    ),
    "keywords and signs": (
        ("state h", "def spike(u, k) = heaviside(-(u - 1), grad=atan(k))", "h[t] = spike(W@x + R@h[t-1] + b, 2)"),
        ("state h", "h[t] = heaviside(-((W@x + R@h[t-1] + b) - 1), grad=atan(2))"),
    ),
    "without arguments": (
        ("state h", "param k: scalar = 3", "def rate() = exp(-softplus(k))", "h[t] = rate()*h[t-1] + W@x"),
        ("state h", "param k: scalar = 3", "h[t] = exp(-softplus(k))*h[t-1] + W@x"),
    ),
    "numbers fold": (
        ("state h", "def scale(u, k) = k*2*u + 0", "h[t] = scale(W@x + R@h[t-1] + b, 3)"),
        ("state h", "h[t] = 3*2*(W@x + R@h[t-1] + b) + 0"),
    ),
    "widths": (
        ("state h", "dim P = 8", "local p: P", "weights V: matrix, U: matrix", "def low(u) = V@u", "p = low(h[t-1])",
         "h[t] = tanh(W@x + U@p)"),
        ("state h", "dim P = 8", "local p: P", "weights V: matrix, U: matrix",
         "# where the other has its function: messages name lines", "p = V@h[t-1]", "h[t] = tanh(W@x + U@p)"),
    ),
    "members by their full name": (
        ("state h", "def shared(u) = W_i@u + b", "i, n = sigmoid(W@x + R@h[t-1] + b)", "f = shared(x)", ENDS,
         "init b_f = 1"),
        ("state h", "i, n = sigmoid(W@x + R@h[t-1] + b)", "f = W_i@x + b", ENDS, "init b_f = 1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_call_is_what_a_hand_would_write(name: str) -> None:
    short, long = SAME[name]
    assert typed(*short) == typed(*long)
    assert placed(*short) == placed(*long)


def test_an_argument_is_computed_once() -> None:
    """However often the body names it: products, functions across units, and what a loop computes."""
    lines = ("state h", "def odd(u) = u*sigmoid(u) + exp(-u)", "h[t] = odd(tanh(layernorm(R@h[t-1]) + W@x))")
    (made,) = compile_cells(Request(Source("cell.rnn", body(*lines)), "cell"), "lower").cells
    assert [node.matrix for node in made.cell.segments[0].nodes if isinstance(node, Contraction)] == ["R_h"]
    (forward,) = (loop.forward for loop in made.plan.loops if not loop.masked)
    tiles = [stage for stage in forward.stages if isinstance(stage, TileStage)]
    computed = [name for stage in tiles for statement in stage.statements for name in operators(statement.expr)]
    assert computed.count("tanh") == 1


def test_a_function_named_like_a_greek_letter() -> None:
    greek = typed("state h", "def σ_g(υ) = σ(W·x + R·υ + b)", "h[t] = σ_g(h[t-1])")
    assert greek == typed("state h", "h[t] = sigmoid(W@x + R@h[t-1] + b)")


def test_each_cell_has_its_own() -> None:
    text = "cell A\nstate h\ndef f(u) = tanh(u)\nh[t] = f(W@x)\n\ncell B\nstate h\ndef f(u) = relu(u)\nh[t] = f(W@x)\n"
    made = compile_cells(Request(Source("cells.rnn", text), "cells"), "check").cells
    one, other = (cell.typed for cell in made)
    assert isinstance(one, Typed) and "tanh" in str(one.equations) and "relu" in str(other.equations)
    assert codes("state h", "h[t] = f(W@x)") == ["RNN203"]


def test_a_mistake_is_shown_in_the_definition_and_in_the_call() -> None:
    found = errors("state h", "def gate(u) = sigmoid(W@u + c)", "i, f = gate(x)", "h[t] = gate(h[t-1])*i*f")
    (only,) = found
    assert marked(only) == "c" and only.source is not None
    assert [only.source.text[note.span.start : note.span.end] for note in only.notes] == ["gate(x)"]


def test_the_word_def_names_nothing() -> None:
    assert codes("state h", "def = W@x", "h[t] = def") == ["RNN217"]
