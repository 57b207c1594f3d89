"""`check` on texts that are right: a whole typed cell as a hand would write it, then one feature at a time."""

from __future__ import annotations

import pytest

from rnncc.ir.cell import Constraint, Initialiser, Input, State
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, ONE, constant, floor_divide, named, scale
from rnncc.ir.term import Equation, Eye, Num, OfMatrix, Op, Product, Row, Share, Term, Transposed, Val, walk
from rnncc.ir.typed import Group, GroupMember, Init, Param, ParameterType, Shape, Typed
from tests.stages.checking import typed

MATRIX, VECTOR = ParameterType("matrix"), ParameterType("vector")
BUILT_IN = (Group("W", MATRIX), Group("R", MATRIX), Group("b", VECTOR), Group("bR", VECTOR))
H, WIDE = Shape(HIDDEN_SIZE), Shape(HIDDEN_SIZE, INPUT_SIZE, "matrix")


def total(first: Term, *others: Term) -> Term:
    """A sum, as the text's are read."""
    for term in others:
        first = Op("add", (first, term))
    return first


def term(cell: Typed, target: str) -> Term:
    """The right side of an equation."""
    (found,) = (equation.term for equation in cell.equations if equation.target == target)
    return found


def test_an_elman_cell_is_what_a_hand_would_write() -> None:
    cell = typed("state h", "h[t] = tanh(W@x + R@h[t-1] + b)", "init b_h = 1")
    products = (Product(Val("W_h"), Val("x")), Product(Val("R_h"), Val("h__1")))
    assert cell == Typed(
        name="Cell",
        inputs=(Input("x", INPUT_SIZE),),
        states=(State("h", HIDDEN_SIZE),),
        sizes=(),
        constants=(),
        groups=BUILT_IN,
        members=(GroupMember("W_h", "W", "h"), GroupMember("R_h", "R", "h"), GroupMember("b_h", "b", "h")),
        params=(),
        inits=(Init("b_h", Initialiser("constant", (1.0,))),),
        equations=(Equation("h", "h[t]", Op("tanh", (total(*products, Val("b_h")),))),),
        state_delays={"h": 1},
        value_delays={},
        shapes={
            "x": Shape(INPUT_SIZE), "h": H, "h__1": H, "W_h": WIDE, "R_h": Shape(HIDDEN_SIZE, HIDDEN_SIZE, "matrix"),
            "b_h": H,
        },
        constraints=(),
        divisible=frozenset(),
        input_dims=frozenset({"I"}),
        output="h",
    )  # fmt: skip


def test_every_gate_has_an_equation_of_its_own_in_the_order_of_the_text() -> None:
    cell = typed("state h", "h[t] = f*i", "i, f = sigmoid(W@x + R@h[t-1])")
    assert [(each.target, each.written) for each in cell.equations] == [("h", "h[t]"), ("i", "i"), ("f", "f")]
    assert [member.name for member in cell.members] == ["W_i", "R_i", "W_f", "R_f"]


def test_a_loop_makes_an_equation_a_turn() -> None:
    lines = ("const L = 2", "state h", "s[0] = h[t-1]", "for l in 1..L:", "    s[l] = tanh(R@s[l-1])")
    cell = typed(*lines, "h[t] = s[L] + W@x", L=3)
    assert [each.target for each in cell.equations] == ["s_0", "s_1", "s_2", "s_3", "h"]
    assert term(cell, "s_3") == Op("tanh", (Product(Val("R_s_3"), Val("s_2")),))
    assert (cell.constants[0].value, cell.constants[0].shaping) == (3, True)


def test_what_is_read_of_the_past_is_counted() -> None:
    cell = typed("state h, c", "h[t] = tanh(W@x[t-2] + R@h[t-3] + c[t-1])", "c[t] = h[t-1] + x[t-1]")
    assert (cell.state_delays, cell.value_delays) == ({"h": 3, "c": 1}, {"x": 2})
    assert {"x__1", "x__2", "h__delay2__1", "c__1"} <= set(cell.shapes)


def test_functions_of_matrices_and_across_units_stay_as_they_were_meant() -> None:
    lines = ("v = 2*repeat(layernorm((A - T(A) + eye(H))@h[t-1]), 2)", "i, f = split(v)", "h[t] = i*f")
    cell = typed("state h", "param A: matrix", "local v: 2*H", *lines)
    matrix = Op("add", (Op("sub", (Val("A"), Transposed(Val("A")))), Eye(HIDDEN_SIZE)))
    normed = Row("layernorm", (Product(matrix, Val("h__1")),))
    assert term(cell, "v") == Op("mul", (Num(2), Row("repeat", (normed,), times=2)))
    assert (term(cell, "i"), term(cell, "f")) == (Share(Val("v"), ("i", "f"), 0), Share(Val("v"), ("i", "f"), 1))
    assert cell.shapes["v"] == Shape(scale(HIDDEN_SIZE, 2))
    assert cell.params == (Param("A", MATRIX, Initialiser()),)


def test_functions_of_matrices_give_matrices_and_norms() -> None:
    cell = typed("state h", "dim P = 4", "param A: matrix, M: matrix(P, H), v: vector", "buffer s: vector = 2",
                 "Q = expm(A)@diag(s)", "n = norm(M)", "h[t] = Q@h[t-1] + n + T(M)@(softmax(M, axis=rows)@x)",
                 "param x1: vector")  # fmt: skip
    matrix = Shape(HIDDEN_SIZE, HIDDEN_SIZE, "matrix")
    assert cell.shapes["A"] == cell.shapes["Q"] == matrix
    assert (cell.shapes["n"], cell.shapes["s"]) == (Shape(HEADS), Shape(HIDDEN_SIZE))
    assert term(cell, "Q") == Product(OfMatrix("expm", Val("A")), OfMatrix("diag", Val("s")))
    assert term(cell, "n") == OfMatrix("norm", Val("M"))
    softmax = OfMatrix("softmax", Val("M"), "rows")
    assert softmax.operator == "softmax_rows" and softmax in list(walk(term(cell, "h")))
    assert [param.trained for param in cell.params] == [True, True, True, False, True]


def test_sizes_are_solved_and_what_divides_them_is_known() -> None:
    cell = typed("const chunk = 4", "dim K", "state h", "local m: K", "m = softmax(W@x + R@h[t-1])",
                 "h[t] = repeat(m, chunk)*tanh(W@x + h[t-1])")  # fmt: skip
    assert cell.sizes[0].solved == floor_divide(HIDDEN_SIZE, constant(4))
    assert cell.divisible == {(HIDDEN_SIZE, constant(4))}
    # K keeps its name, though it is H//4.
    assert cell.shapes["m"] == Shape(named("K"))
    assert cell.shapes["R_m"] == Shape(named("K"), HIDDEN_SIZE, "matrix")


def test_a_width_that_a_later_equation_decides_is_not_divided() -> None:
    """The columns of Q are twice as many as p has units, and p is H wide."""
    cell = typed("state h", "weights Q: matrix", "param p: vector", "v = Q@repeat(p, 2)", "h[t] = tanh(W@x + p*v)")
    assert (cell.shapes["p"], cell.constraints) == (H, ())
    assert cell.shapes["Q_v"] == Shape(HIDDEN_SIZE, scale(HIDDEN_SIZE, 2), "matrix")


def test_dims_of_inputs_alone_are_known() -> None:
    cell = typed("dim P, Q", "input x, e: P, g: Q", "state h, q: Q", "h[t] = W@x + M@e", "q[t] = g + R@h[t]",
                 "weights M: matrix")  # fmt: skip
    assert cell.input_dims == {"I", "P"}


def test_the_output_may_be_any_value() -> None:
    assert typed("state h", "output y", "h[t] = h[t-1] + W@x", "y = R@h[t]").output == "y"


def test_what_partition_finds_is_not_yet_said() -> None:
    cell = typed("state h", "init q = 1", "h[t] = elu(R@h[t-1]) + W@x")
    assert [init.name for init in cell.inits] == ["q"]


def test_constraints_on_the_inputs_are_left_for_construction() -> None:
    cell = typed("dim P", "state h", "input x, e: P", "h[t] = h[t-1] + x*sigmoid(W@x + b) + e")
    pairs = [(constraint.left, constraint.right, constraint.why) for constraint in cell.constraints]
    assert (INPUT_SIZE, HIDDEN_SIZE, "line 5") in pairs
    assert cell.sizes[0].solved == HIDDEN_SIZE


@pytest.mark.parametrize(
    ("equation", "why"),
    [
        ("h[t] = mask*tanh(W@x + R@h[t-1] + b)", "line 4, where the input 'mask' has width input_size"),
        ("h[t] = h[t-1] + 2*mask[t-1]", "line 4, where the input 'mask' has width input_size"),
        ("h[t] = h[t-1] + x + V@mask", "line 4"),
    ],
)
def test_a_constraint_names_the_input_that_is_as_wide_as_x(equation: str, why: str) -> None:
    cell = typed("input x, mask", "state h; weights V: matrix", equation)
    assert Constraint(INPUT_SIZE, HIDDEN_SIZE, why) in cell.constraints


def test_a_required_dim() -> None:
    (size,) = typed("dim P", "state h: P, c", "c[t] = R@h[t-1] + W@x", "h[t] = R@c[t]").sizes
    assert (size.default, size.solved) == (None, None)


def test_sizes_that_must_be_equal_are_named_without_their_factor() -> None:
    cell = typed("state h: 2*H", "h[t] = 0.5*h[t-1] + concat(x, x)")
    assert [(each.left, each.right) for each in cell.constraints if not each.divides] == [(INPUT_SIZE, HIDDEN_SIZE)]


def test_sizes_that_must_be_equal_are_named_without_what_both_sides_have() -> None:
    cell = typed("state h; local y: 2*H; output y", "h[t] = tanh(W@x + R@h[t-1])", "y = concat(h[t-1], x)")
    assert [(each.left, each.right) for each in cell.constraints if not each.divides] == [(INPUT_SIZE, HIDDEN_SIZE)]


def test_one_number_for_all_heads_and_one_for_each() -> None:
    """As docs/language.md says in "Heads"."""
    ends = "h[t] = sigmoid(v)*h[t-1] + W@x"
    given = typed("input g: 1", "state h", "v = 2*g", ends)
    assert given.shapes["v"].width == ONE
    for declared, width in (("1", ONE), ("num_heads", HEADS)):
        made = typed("state h", f"local v: {declared}", "v = W@x", ends)
        assert (made.shapes["v"].width, made.shapes["W_v"].width) == (width, width)
    reduced = typed("state h", "local v: 1", "v = sum(h[t-1])", ends)
    assert reduced.shapes["v"].width == HEADS
