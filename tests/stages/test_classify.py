"""Recurrence classes: the expected ones of shipped cells, sympy's verdict, and that the coefficients give the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rnncc.ir.cell import Cell, Contraction, Pointwise, Segment, Stream
from rnncc.ir.dim import INPUT_SIZE
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, operators
from rnncc.ir.recurrence import MIXING, Recurrence, RecurrenceKind
from rnncc.language.source import Source
from rnncc.stages.classify import classify
from rnncc.verify.reference import Arguments, complete_sizes, run
from tests import builders, seeds, shipped
from tests.compiling import front
from tests.problems import make_problem
from tests.shipped import PARALLEL


@pytest.mark.parametrize("stem", shipped.STEMS)
def test_shipped_cells(stem: str) -> None:
    for cell in shipped.cells(stem):
        found = [(" ".join(r.states), r.kind.value, r.form) for r in classify(cell)]
        expected = PARALLEL.get(stem, [(" ".join(segment.states), "DENSE", "") for segment in cell.segments])
        assert found == expected, f"tests/shipped.py: what PARALLEL says of {stem}"


@pytest.mark.parametrize(
    ("stem", "why"),
    [
        ("lstm", "R@h[t-1] mixes the units of a state (line 6)"),
        ("indrnn", "relu clamps an affine map of the state (line 8)"),
        ("brc", "sigmoid of a state (line 8)"),
        ("mingru", "every new state is affine in the previous ones, with coefficients free of them"),
    ],
)
def test_why_names_the_line(stem: str, why: str) -> None:
    assert classify(shipped.cells(stem)[0])[0].why == why


def test_coefficients_of_mingru() -> None:
    (recurrence,) = classify(builders.mingru())
    assert recurrence.matrix == ((builders.sub(Const(1.0), Ref("z")),),)
    assert recurrence.offset == (builders.mul(Ref("z"), Ref("n__x")),)


def elementwise(states: str, *expressions: Expr) -> Cell:
    """A cell whose new states are these expressions of `a`, `e` and the previous states."""
    return builders.assemble(
        "Toy",
        states,
        [builders.parameter("W", "weight_ih", "ae", INPUT_SIZE)],
        [Contraction("a", "W_a", "x"), Contraction("e", "W_e", "x")],
        [Pointwise(state, expression) for state, expression in zip(states, expressions, strict=True)],
        [Stream("W", ("a", "e"))],
        [],
    )


def kind(states: str, *expressions: Expr) -> tuple[str, str]:
    """(class, form)."""
    (recurrence,) = classify(elementwise(states, *expressions))
    return recurrence.kind.value, recurrence.form


H1, A, E = Ref("h__1"), Ref("a"), Ref("e")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (apply("div", H1, apply("exp", A)), ("AFFINE", "diagonal")),
        (apply("where", apply("gt", A, Const(0.0)), H1, A), ("AFFINE", "diagonal")),
        (apply("tanh", A), ("AFFINE", "diagonal")),
        (apply("pow", H1, Const(1.0)), ("AFFINE", "diagonal")),
        (apply("sub", H1, H1), ("AFFINE", "diagonal")),
        (apply("where", apply("gt", H1, Const(0.0)), A, E), ("ELEMENTWISE", "")),
        (apply("pow", H1, Const(2.0)), ("ELEMENTWISE", "")),
        (apply("mul", H1, H1), ("ELEMENTWISE", "")),
        (apply("div", A, H1), ("ELEMENTWISE", "")),
        (apply("abs", H1), ("ELEMENTWISE", "")),
        (apply("sign", H1), ("ELEMENTWISE", "")),
        (apply("max", H1, builders.mul(A, H1)), ("ELEMENTWISE", "")),
        (apply("max", builders.mul(A, H1), E), ("ELEMENTWISE", "clamp")),
        (builders.mul(A, apply("clamp", builders.add(H1, A), Const(-1.0), Const(1.0))), ("ELEMENTWISE", "clamp")),
        (apply("min", apply("relu", apply("neg", H1)), A), ("ELEMENTWISE", "clamp")),
        (builders.add(apply("relu", H1), H1), ("ELEMENTWISE", "")),
        (apply("clamp", A, Const(-1.0), H1), ("ELEMENTWISE", "")),
    ],
)
def test_forms(expression: Expr, expected: tuple[str, str]) -> None:
    assert kind("h", expression) == expected


def test_coupling_up_to_three_states() -> None:
    def ring(states: str) -> list[Expr]:
        return [builders.add(builders.mul(A, Ref(f"{s}__1")), E) for s in states[1:] + states[0]]

    assert kind("hc", *ring("hc")) == ("AFFINE", "affine2")
    assert kind("hcm", *ring("hcm")) == ("AFFINE", "affine3")
    assert kind("hcmn", *ring("hcmn")) == ("ELEMENTWISE", "")


def test_a_new_state_read_in_the_step_is_substituted() -> None:
    """c[t] = a*c[t-1] + e; h[t] = c[t] + h[t-1]."""
    expressions = [builders.add(Ref("c"), H1), builders.add(builders.mul(A, Ref("c__1")), E)]
    cell = elementwise("ch", *reversed(expressions))
    (recurrence,) = classify(cell)
    assert recurrence.matrix == ((A, Const(0.0)), (A, Const(1.0)))
    assert recurrence.offset == (E, E)


def chain(length: int, states: str) -> Cell:
    """Coefficients that would double at every equation if they were written out."""
    text = f"cell Chain\nstate {', '.join(states)}\ne = W@x\n"
    text += "".join(f"a_{s} = sigmoid(W@x)\n" for s in states)
    text += f"v0 = {' + '.join(f'a_{s}*{s}[t-1]' for s in states)}\n"
    text += "".join(f"v{n + 1} = a_{states[0]}*v{n} + v{n} - e*(v{n} + e)/4\n" for n in range(length))
    text += "".join(f"{s}[t] = tanh(e)*(a_{s}*v{length} + {s}[t-1])/4\n" for s in states)
    ((cell, _),) = front(Source("chain.rnn", text))
    return cell


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("states", "form"), [("h", "diagonal"), ("hc", "affine2"), ("hcm", "affine3")])
def test_coefficients_do_not_explode(states: str, form: str) -> None:
    short, long = (classify(chain(length, states))[0] for length in (20, 400))
    assert {(found.kind.value, found.form) for found in (short, long)} == {("AFFINE", form)}
    assert operations(long) < 30 * operations(short)
    cell = chain(20, states)
    check_coefficients(cell, cell.segments[0], short)


def operations(recurrence: Recurrence) -> int:
    """How many operators all coefficients have."""
    entries = [entry for row in recurrence.matrix for entry in row]
    return sum(len(list(operators(e))) for e in (*(e for _, e in recurrence.shared), *entries, *recurrence.offset))


DELTA = """
cell Delta
state S1, S2
output y
local k1: 1, k2: 1, be: 1
v, k1, k2 = W@x
be = sigmoid(W@x)
e = be*(v - (k1*S1[t-1] + k2*S2[t-1]))
S1[t] = S1[t-1] + k1*e
S2[t] = S2[t-1] + k2*e
y = S1[t]
"""


def test_a_delta_rule_of_two_states_is_affine() -> None:
    ((cell, _),) = front(Source("delta.rnn", DELTA))
    (recurrence,) = classify(cell)
    assert (recurrence.kind.value, recurrence.form) == ("AFFINE", "affine2")
    check_coefficients(cell, cell.segments[0], recurrence)


def test_many_coupled_states() -> None:
    """A chain of sums over all of them is left as soon as it is known that no scan takes so many."""
    names = [f"S{n}" for n in range(60)]
    text = f"cell Delta\nstate {', '.join(names)}\nk = W@x\ne = W@x - k*({' + '.join(f'{s}[t-1]' for s in names)})\n"
    text += "".join(f"{name}[t] = {name}[t-1] + k*e\n" for name in names)
    ((cell, _),) = front(Source("delta.rnn", text))
    (recurrence,) = classify(cell)
    assert recurrence.kind.value == "ELEMENTWISE" and recurrence.shared == ()
    assert recurrence.why == "60 states are coupled, and a scan takes up to 3 (line 4)"


# sympy as a second opinion.


def to_sympy(expr: Expr, known: dict[str, Any]) -> Any:
    """The expression with operators that sympy cannot see through as unknown functions."""
    match expr:
        case Const(value):
            return sympy.Rational(value)
        case Ref(name):
            return known.get(name, sympy.Symbol(name))
        case Apply(operator, arguments):
            a = [to_sympy(argument, known) for argument in arguments]
            match operator:
                case "add":
                    return a[0] + a[1]
                case "sub":
                    return a[0] - a[1]
                case "mul":
                    return a[0] * a[1]
                case "div":
                    return a[0] / a[1]
                case "neg":
                    return -a[0]
                case "where":
                    chosen = sympy.Function("chosen")(a[0])
                    return chosen * a[1] + (1 - chosen) * a[2]
                case _:
                    return sympy.Function(operator)(*a)


def is_affine(segment: Segment) -> bool | None:
    """Whether no derivative of a new state by a previous one holds a previous state; None if rows are mixed."""
    known: dict[str, Any] = {}
    for node in segment.nodes:
        if not isinstance(node, Pointwise):
            return None
        known[node.target] = to_sympy(node.expr, known)
    previous = [sympy.Symbol(f"{state}__1") for state in segment.states]
    slopes = [sympy.diff(known[state], symbol) for state in segment.states for symbol in previous]
    return not any(slope.expand().has(*previous) for slope in slopes)


@pytest.mark.parametrize("stem", sorted(PARALLEL))
def test_sympy_agrees_on_shipped_cells(stem: str) -> None:
    (cell,) = shipped.cells(stem)
    for segment, recurrence in zip(cell.segments, classify(cell), strict=True):
        verdict = is_affine(segment)
        assert verdict is None or verdict == (recurrence.kind.value == "AFFINE")


def check_coefficients(cell: Cell, segment: Segment, recurrence: Recurrence) -> None:
    """matrix · previous + offset is the step."""
    sizes = {"I": 6, "H": 6}
    problem = make_problem(cell, steps=4, batch=2, sizes=complete_sizes(cell, sizes))
    found, _ = run(cell, problem)
    for state, row, offset in zip(segment.states, recurrence.matrix, recurrence.offset, strict=True):
        total = offset
        for other, slope in zip(segment.states, row, strict=True):
            total = builders.add(total, builders.mul(slope, Ref(f"{other}__1")))
        nodes = tuple(Pointwise(name, expr) for name, expr in (*recurrence.shared, ("probe__", total)))
        assert_step(cell, problem, state, nodes, found[state])


def assert_step(
    cell: Cell, problem: Arguments, state: str, nodes: tuple[Pointwise, ...], expected: torch.Tensor
) -> None:
    """The last of the nodes, put into the cell's epilogue, equals the new state."""
    value = next(v for v in cell.values if v.name == state)
    made = tuple(replace(value, name=node.target) for node in nodes)
    probe = replace(cell, epilogue=(*cell.epilogue, *nodes), values=(*cell.values, *made))
    found, _ = run(probe, problem)
    torch.testing.assert_close(found["probe__"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stem", [s for s, rows in sorted(PARALLEL.items()) if any(r[1] == "AFFINE" for r in rows)])
def test_coefficients_of_shipped_cells_give_the_step(stem: str) -> None:
    (cell,) = shipped.cells(stem)
    for segment, recurrence in zip(cell.segments, classify(cell), strict=True):
        if recurrence.kind.value == "AFFINE":
            check_coefficients(cell, segment, recurrence)


LEAVES = st.sampled_from([A, E, H1, Ref("c__1"), Const(2.0), Const(1.0)])


def _trees(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    binary = st.builds(apply, st.sampled_from(["add", "sub", "mul"]), children, children)
    unary = st.builds(apply, st.sampled_from(["neg", "sigmoid", "relu"]), children)
    choice = st.builds(lambda x, y: apply("where", apply("gt", A, E), x, y), children, children)
    return binary | unary | choice


@settings(max_examples=seeds.count(100))
@given(st.lists(st.recursive(LEAVES, _trees, max_leaves=6), min_size=2, max_size=2))
def test_random_steps(expressions: list[Expr]) -> None:
    cell = elementwise("hc", *expressions)
    (recurrence,) = classify(cell)
    if recurrence.kind.value == "AFFINE":
        assert is_affine(cell.segments[0])
        check_coefficients(cell, cell.segments[0], recurrence)


def test_a_state_that_is_a_matrix_decides_the_class() -> None:
    text = """cell Memory
dim K = H
state S: matrix(H, K), n: K, U: matrix(K, K)
output y
local k: K
k = W@x
v = W@x
S[t] = 0.9*S[t-1]@U[t-1] + v@T(k)
n[t] = tanh(n[t-1] + T(S[t])@v)
U[t] = 0.5*U[t-1] + n[t]@T(k)
y = S[t]@k
"""
    ((cell, _),) = front(Source("memory.rnn", text))
    (found,) = classify(cell)
    assert found.kind in MIXING
    assert (found.kind, found.form, found.matrix) == (RecurrenceKind.MATRIX, "", ())
    assert found.why == "S is a matrix, H x K (line 3), U is a matrix, K x K (line 3)"


def test_a_matrix_that_is_no_state_leaves_the_class() -> None:
    text = "cell Mixed\nstate h\nM = unflatten(W@x, H, H)\nh[t] = tanh(M@h[t-1] + W@x)\n"
    ((cell, _),) = front(Source("mixed.rnn", text))
    assert [found.kind for found in classify(cell)] == [RecurrenceKind.DENSE]
