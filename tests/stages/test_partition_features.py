"""`partition` on one feature of the language at a time."""

from __future__ import annotations

import math

import pytest

from rnncc.ir.cell import Constraint, Contraction, Delay, Initialiser, Placement, Pointwise, RowOp, Stream
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, ONE, add, constant, named, scale
from rnncc.ir.expr import Const, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.surrogates import SURROGATES
from tests.stages.checking import ELMAN, codes, node, partitioned, targets


def test_delays_of_states_are_hidden_states() -> None:
    cell = partitioned("state h = 0.5", "h[t] = tanh(W@x + R@h[t-3] + b)")
    assert [(s.name, s.delay_of, s.initial) for s in cell.states] == [
        ("h", None, 0.5),
        ("h__delay1", "h", 0.5),
        ("h__delay2", "h__delay1", 0.5),
    ]
    (segment,) = cell.segments
    assert segment.states == ("h", "h__delay1", "h__delay2")
    assert segment.sequences == ("h",)
    assert node(cell, "h__R") == Contraction("h__R", "R_h", "h__delay2__1")
    assert node(cell, "h__delay1") == Pointwise("h__delay1", Ref("h__1"))
    assert node(cell, "h__delay2") == Pointwise("h__delay2", Ref("h__delay1__1"))


def test_a_delay_runs_with_its_state_also_when_a_later_segment_alone_reads_it() -> None:
    cell = partitioned("state h, s", "s[t] = 0.5*s[t-1] + W@x", "h[t] = tanh(R@h[t-1] + s[t-2] + b)")
    first, second = cell.segments
    assert first.states == ("s", "s__delay1")
    assert first.sequences == ("s", "s__delay1__1")
    assert Stream("s__delay1__1", ("s__delay1__1",)) in second.streams


def test_delays_of_inputs_are_chained() -> None:
    cell = partitioned("state h", "weights V: matrix", "h[t] = tanh(W@x + V@x[t-2] + h[t-1] + b)")
    batched = cell.segments[0].batched
    assert [each for each in batched if isinstance(each, Delay)] == [Delay("x__1", "x"), Delay("x__2", "x__1")]


def test_a_value_has_a_chain_of_delays_and_its_other_names_share_it() -> None:
    lines = ("state h", "weights k: vector", "z = v", "v = u[t-1]", "h[t] = a*h[t-1] + v[t-1] + k*z[t-2] + u[t-2]")
    cell = partitioned(*lines, "a = sigmoid(0.5*u)", "u = W@x + b")
    batched = cell.segments[0].batched
    chain = [Delay("u__1", "u"), Delay("u__2", "u__1"), Delay("u__3", "u__2")]
    assert [each for each in batched if isinstance(each, Delay)] == chain
    assert cell.delays == ("u__1", "u__2", "u__3")


def test_loops_make_one_value_a_turn() -> None:
    cell = partitioned(
        "const L = 2",
        "state h",
        "s[0] = h[t-1]",
        "for l in 1..L:",
        "    s[l] = tanh((W@x if l == 1 else 0) + R@s[l-1] + b)",
        "h[t] = s[L]",
    )
    assert cell.constants[0].shaping
    assert [member.name for member in cell.parameters[0].members] == ["W_s_1"]
    assert [member.name for member in cell.parameters[1].members] == ["R_s_1", "R_s_2"]
    assert node(cell, "s_1__R") == Contraction("s_1__R", "R_s_1", "h__1")
    # The zero that the `if` leaves is no term.
    assert node(cell, "s_2") == Pointwise("s_2", apply("tanh", apply("add", Ref("s_2__R"), Ref("b_s_2"))))
    assert cell.segments[0].phases == 2
    lines = ("const L = 2", "state h", "s[0] = h[t-1]", "for l in 1..L:", "    s[l] = tanh(R@s[l-1])")
    deeper = partitioned(*lines, "h[t] = s[L] + W@x", L=5)
    assert deeper.segments[0].phases == 5
    assert deeper.constants[0].value == 5


def test_functions_are_constants_too() -> None:
    lines = ("const act = tanh", "state h", "h[t] = act(W@x + R@h[t-1] + b)")
    cell = partitioned(*lines)
    assert (cell.constants[0].value, cell.constants[0].shaping) == ("tanh", True)
    sums = apply("add", Ref("h__x"), Ref("h__R"))
    assert node(cell, "h") == Pointwise("h", apply("tanh", sums))
    assert node(partitioned(*lines, act="relu"), "h") == Pointwise("h", apply("relu", sums))


def test_a_constant_that_is_only_a_number_stays_a_value() -> None:
    cell = partitioned("const dt = 0.5", "state h", "h[t] = h[t-1] + dt*tanh(W@x + R@h[t-1] + b)")
    assert not cell.constants[0].shaping
    assert cell.segments[0].constants == ("dt",)
    shaped = partitioned("const k = 2", "state h", "h[t] = k*h[t-k] + W@x + b")
    # Compiled in as a number, since the delay already is.
    assert node(shaped, "h") == Pointwise("h", apply("add", Ref("h__x"), apply("mul", Const(2), Ref("h__delay1__1"))))


def test_split_shares_what_is_left() -> None:
    cell = partitioned(
        "dim P = 3",
        "state h",
        "local v: 2*H + P, k: P",
        "v = W@x + R@h[t-1] + b",
        "i, k, g = split(v)",
        "h[t] = i*tanh(g) + sum(k)",
    )
    assert node(cell, "i") == RowOp("i", RowOperator.SLICE, ("v",))
    assert node(cell, "k") == RowOp("k", RowOperator.SLICE, ("v",), HIDDEN_SIZE)
    assert node(cell, "g") == RowOp("g", RowOperator.SLICE, ("v",), add(HIDDEN_SIZE, named("P")))
    assert "packed into one" in cell.single_head_because


def test_split_of_multiples_of_one_size_keeps_heads() -> None:
    cell = partitioned("state h", "local v: 2*H", "v = W@x + R@h[t-1]", "i, g = split(v)", "h[t] = i*g")
    assert cell.single_head_because == ""


def test_concat_and_repeat() -> None:
    cell = partitioned(
        "state h", "local v: 2*H, w: 2*H", "v = concat(h[t-1], W@x)", "w = repeat(h[t-1], 2)", "h[t] = R@(v*w) + b"
    )
    assert node(cell, "v") == RowOp("v", RowOperator.CONCAT, ("h__1", "v__W"))
    assert node(cell, "w") == RowOp("w", RowOperator.REPEAT, ("h__1",), times=2)
    (matrix,) = [parameter for parameter in cell.parameters if parameter.name == "R"]
    assert matrix.columns == scale(HIDDEN_SIZE, 2)


def test_types_of_groups() -> None:
    cell = partitioned(
        "state h",
        "weights R: diag, W: blockdiag(4), p: vector, V: matrix(H, H)",
        "param lam: scalar = 3, D: diag",
        "h[t] = tanh(lam*(W@x) + R@h[t-1] + p*h[t-1] + V@h[t-1] + D@h[t-1] + b)",
    )
    shapes = {
        parameter.name: (parameter.columns, diagonal_blocks(parameter.structure)) for parameter in cell.parameters
    }
    assert shapes == {
        "W": (INPUT_SIZE, constant(4)),
        "R": (None, ONE),
        "b": (None, ONE),
        "p": (None, ONE),
        "V": (HIDDEN_SIZE, HEADS),
        "lam": (None, ONE),
        "D": (None, ONE),
    }
    assert cell.parameters[1].attribute == "weight_hh"
    contractions = [each for each in cell.segments[0].nodes if isinstance(each, Contraction)]
    assert [each.matrix for each in contractions] == ["V_h"]
    assert Constraint(INPUT_SIZE, constant(4), "line 3", divides=True) in cell.constraints


def test_a_blocked_matrix_on_a_state_needs_blocks_that_heads_divide() -> None:
    cell = partitioned("state h", "weights R: blockdiag(8)", ELMAN)
    assert diagonal_blocks(cell.parameters[1].structure) == constant(8)
    assert [(c.left, c.right) for c in cell.constraints if c.right == HEADS] == [
        (HIDDEN_SIZE, HEADS),
        (constant(8), HEADS),
    ]


def test_members_of_different_columns_are_parameters_of_their_own() -> None:
    cell = partitioned("dim P = 3", "state h, c: P", "h[t] = tanh(W@x + R@c[t] + b)", "c[t] = tanh(W@x + R@h[t-1] + b)")
    assert [(parameter.name, parameter.attribute) for parameter in cell.parameters] == [
        ("W", "weight_ih"),
        ("R_h", "R_h"),
        ("R_c", "R_c"),
        ("b", "bias_ih"),
    ]
    assert cell.parameters[1].columns == named("P")


def test_a_recurrent_bias_for_every_gate_is_called_as_in_torch() -> None:
    cell = partitioned("state h", "h[t] = tanh(W@x + b + R@h[t-1] + bR)")
    assert [parameter.attribute for parameter in cell.parameters] == ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]


def test_rows_stand_in_the_order_of_the_gates() -> None:
    """The order of the text, not of dependence or of use."""
    cell = partitioned(
        "state h", "h[t] = f*tanh(W@x + b)", "f = sigmoid(W_g@x + W@x + b)", "g = W@x", "init W_f = xavier"
    )
    assert [row.name for row in cell.parameters[0].members] == ["W_h", "W_f", "W_g"]
    assert cell.parameters[0].members[1].initialiser == Initialiser("xavier")


def test_what_nothing_needs_is_not_made() -> None:
    cell = partitioned("state h", "param k: scalar", "z = sigmoid(W@x + b)", "h[t] = W@x + h[t-1]")
    assert [row.name for parameter in cell.parameters for row in parameter.members] == ["W_h"]
    assert targets(cell.segments[0].batched) == ["h__W"]


def test_initial_values() -> None:
    written = "state h = learned, m = -inf, n = 1/2"
    cell = partitioned(written, "h[t] = max(m[t-1], n[t-1])*h[t-1] + W@x", "m[t] = m[t-1]", "n[t] = n[t-1]")
    assert [state.initial for state in cell.states] == [None, -math.inf, 0.5]
    (learned,) = [parameter for parameter in cell.parameters if parameter.name == "h0"]
    assert learned.members[0].width == HIDDEN_SIZE


@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_surrogates(name: str) -> None:
    cell = partitioned("const k = 10.0", "state h", f"h[t] = heaviside(W@x + h[t-1], grad={name}(k))")
    assert node(cell, "h__0") == Pointwise("h__0", apply("add", Ref("h__W"), Ref("h__1")))
    value = apply("heaviside", Ref("h__0"))
    assert node(cell, "h") == Pointwise("h", apply(f"surrogate_{name}", Ref("h__0"), value, Ref("k")))


def test_a_derivative_reads_its_operand_by_name() -> None:
    """A part of the step is computed once, however often the derivative names its argument."""
    cell = partitioned("state h", "h[t] = round(tanh(R@h[t-1]), grad=u -> u*u)*round(tanh(R@h[t-1]), grad=1)")
    v = Ref("h__0")
    once, twice = (apply("surrogate_given", v, apply("round", v), slope) for slope in (Const(1.0), apply("mul", v, v)))
    assert node(cell, "h") == Pointwise("h", apply("mul", twice, once))


def test_w_on_a_state_leaves_one_head() -> None:
    cell = partitioned("state h", "h[t] = tanh(W@h[t-1] + b)", "input x")
    assert "W_h multiplies a value that depends on a state (line 3)" in cell.single_head_because
    assert diagonal_blocks(cell.parameters[0].structure) == ONE


def test_a_shared_matrix_is_blocked_where_any_operand_depends_on_a_state() -> None:
    cell = partitioned("state h", "param M: matrix", "z = tanh(W@x)", "h[t] = tanh(M@z + M@h[t-1])")
    assert diagonal_blocks(cell.parameters[1].structure) == HEADS


def test_parameter_arithmetic_is_done_once() -> None:
    cell = partitioned(
        "state h", "param nu: vector", "i, j = exp(-exp(nu))*h[t-1] + W@x", "h[t] = i*j + (1 - nu)*h[t-1]"
    )
    assert cell.prologue == (
        Pointwise("i__0", apply("exp", apply("neg", apply("exp", Ref("nu"))))),
        Pointwise("h__0", apply("sub", Const(1), Ref("nu"))),
    )
    assert [weight.name for weight in cell.segments[0].weights] == ["i__0", "h__0"]


def test_a_value_that_batched_work_reads_is_batched() -> None:
    """MinimalRNN: M@z is a product of all steps, and the loop reads z."""
    cell = partitioned("state h", "weights M: matrix", "z = tanh(W@x)", "u = sigmoid(R@h[t-1] + M@z + b)",
                   "h[t] = u*h[t-1] + (1 - u)*z")  # fmt: skip
    (segment,) = cell.segments
    assert targets(segment.batched) == ["z__W", "z", "u__M", "u__x"]
    assert sorted(stream.name for stream in segment.streams) == ["u__x", "z"]


def test_what_a_loop_cannot_compute_is_batched_if_inputs_allow_it() -> None:
    cell = partitioned("input x, time: 1", "state h", "h[t] = h[t-1]*mod(time, 3) + W@x")
    (segment,) = cell.segments
    assert node(cell, "h__x") == Pointwise("h__x", apply("mod", Ref("time"), Const(3)))
    assert Stream("h__x", ("h__x",)) in segment.streams
    assert codes("input x", "state h", "h[t] = mod(h[t-1], 3) + W@x") == ["RNN230"]


def test_a_stream_that_others_read_is_not_hidden_in_a_sum() -> None:
    """RWKV's u + k: k is read elsewhere too, so hoisting the sum would only add a stream."""
    cell = partitioned("state h", "param u: vector", "k = W@x", "h[t] = max(h[t-1], u + k)*k")
    assert [stream.name for stream in cell.segments[0].streams] == ["k"]


def test_outputs_need_no_state_of_their_own() -> None:
    cell = partitioned("state h", "output y", ELMAN, "y = R@h[t] + b")
    assert cell.output == "y"
    values = {value.name: value.placement for value in cell.values}
    assert values["y"] is Placement.Y


def test_order_of_the_text_does_not_matter() -> None:
    first = partitioned("state h, c", "c[t] = f*c[t-1] + W@x", "f = sigmoid(R@h[t-1])", "h[t] = tanh(c[t])")
    second = partitioned("state h, c", "h[t] = tanh(c[t])", "c[t] = f*c[t-1] + W@x", "f = sigmoid(R@h[t-1])")
    assert set(first.segments[0].nodes) == set(second.segments[0].nodes)
    assert first.segments[0].sequences == second.segments[0].sequences


@pytest.mark.parametrize("reduction", ["mean(h[t-1])", "sum(h[t-1])", "sum(W@x + h[t-1])"])
def test_a_state_that_is_a_reduction_is_a_copy_of_one_number_a_head(reduction: str) -> None:
    """The reduction keeps its width, and the state spreads it."""
    for declared in ("state h", "state h: 2*H"):
        cell = partitioned(declared, f"h[t] = {reduction}")
        widths = {value.name: value.width for value in cell.values}
        copy = node(cell, "h")
        assert isinstance(copy, Pointwise) and isinstance(copy.expr, Ref)
        assert widths[copy.expr.name] == HEADS and isinstance(node(cell, copy.expr.name), RowOp)


def test_a_state_takes_over_the_node_of_its_own_width() -> None:
    assert isinstance(node(partitioned("state h", "h[t] = cumsum(h[t-1])"), "h"), RowOp)


@pytest.mark.parametrize("function", ["elu(v + 1)", "mod(v, 3)", "0.5*(leakyrelu(v) + v)"])
def test_what_torch_alone_computes_reads_batched_values(function: str) -> None:
    """A value of inputs does not sink into the loop under a function that loops do not have."""
    cell = partitioned("state h", "u = sin(x)", "v = exp(u)", f"h[t] = layernorm(h[t-1]) + {function} + W@x")
    assert {"u", "v"} <= set(targets(cell.segments[0].batched))


@pytest.mark.parametrize("sum_", ["x + h[t-1]", "h[t-1] + x", "x*(h[t-1] + x)"])
def test_a_sum_with_an_input_has_the_heads_of_the_state(sum_: str) -> None:
    """Whichever stands first: where I == H, x is laid out as the state is."""
    cell = partitioned("state h", f"h[t] = tanh(W@x) + mean({sum_})")
    (reduction,) = (each for each in cell.segments[0].nodes if isinstance(each, RowOp))
    widths = {value.name: value.width for value in cell.values}
    assert (widths[reduction.operands[0]], widths[reduction.target]) == (HIDDEN_SIZE, HEADS)


def test_one_number_a_head_is_none_for_an_input() -> None:
    cell = partitioned("state h", "g = W@x", "h[t] = tanh(W@(x*mean(g)) + R@h[t-1] + b)")
    assert cell.single_head_because == "one number a head meets an input, which has no heads (line 4)"


def test_what_is_computed_from_a_matrix_of_blocks_has_its_blocks() -> None:
    """Also where it multiplies what inputs alone make, and beside a matrix that does so."""
    matrices = "param M: matrix(H, H), K: matrix(H, H), B: blockdiag(3)"
    cell = partitioned("state h", matrices, "u = W@x", "h[t] = tanh(M@h[t-1] + T(M)@u + (M*2 + K)@u + T(B)@u)")
    blocks = [diagonal_blocks(value.structure) for value in cell.values if value.columns == HIDDEN_SIZE]
    assert sorted(map(str, blocks)) == sorted(map(str, [HEADS] * 4 + [constant(3)] * 2))


def test_a_w_that_joins_a_matrix_of_heads_has_one_head() -> None:
    cell = partitioned("state h", "param M: matrix(H, I)", "h[t] = tanh((W + M)@x + M@(0.5*h[t-1]))")
    assert cell.single_head_because == "W_h is joined with a matrix that has a block a head (line 4)"


def test_what_inputs_per_sequence_make_is_computed_once() -> None:
    """Alone, with parameters and constants, and as terms of a sum that stays in the loop. A product that a stream takes
    in is a part of the stream."""
    cell = partitioned(
        "input c: 5 per sequence, d: H per sequence",
        "const k = 2.0",
        "state h",
        "weights V: matrix, U: matrix",
        "f = sigmoid(V@c + b)",
        "g = tanh(U@d + R@h[t-1] + b)",
        "n = tanh(W@x + V@c + b + R@h[t-1])",
        "h[t] = f*h[t-1] + k*d*g - d*n*exp(-k*d)",
    )
    placements = {value.name: value.placement for value in cell.values}
    once = [each.target for each in cell.segments[0].batched if placements[each.target] is Placement.Q]
    assert once == ["f__V", "f", "g__U", "g__c", "n__V", "h__c", "h__c0"]
    assert node(cell, "g__c") == Pointwise("g__c", apply("add", Ref("g__U"), Ref("b_g")))
    assert placements["n__x"] is Placement.X and placements["c"] is Placement.Q
    assert {each.name for each in cell.segments[0].streams} == {"f", "g__c", "n__x", "d", "h__c", "h__c0"}


def test_an_output_of_inputs_per_sequence_alone() -> None:
    cell = partitioned("input c: 5 per sequence", "state h", "weights V: matrix", "output y", ELMAN, "y = V@c")
    assert targets(cell.epilogue) == ["y"]
    assert {value.name: value.placement for value in cell.values}["y"] is Placement.Q
