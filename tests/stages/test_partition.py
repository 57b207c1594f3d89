"""`partition` on the cells that everybody knows: the whole value, or its parts, as written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.ir.cell import (
    Constraint,
    Contraction,
    Initialiser,
    Member,
    Parameter,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Segment,
    State,
    Stream,
    Weight,
    value_table,
)
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, constant, named, scale
from rnncc.ir.expr import Apply, Const, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import BlockDiagonal, diagonal_blocks
from rnncc.ir.verify import verify
from rnncc.language.read import read_source
from tests.compiling import front
from tests.stages.checking import node, partitioned, targets

CELLS = sorted((Path(__file__).parents[2] / "cells").glob("*.rnn"))


def _gate(name: str) -> tuple[Contraction, Pointwise]:
    return (
        Contraction(f"{name}__W", f"W_{name}", "x"),
        Pointwise(f"{name}__x", apply("add", Ref(f"{name}__W"), Ref(f"b_{name}"))),
    )


def test_gru_is_what_a_hand_would_write() -> None:
    cell = partitioned(
        "state h",
        "r, z = sigmoid(W@x + R@h[t-1] + b)",
        "n = tanh(W@x + b + r*(R@h[t-1] + bR))",
        "h[t] = (1 - z)*n + z*h[t-1]",
    )
    default = Initialiser()

    def members(group: str, gates: str) -> tuple[Member, ...]:
        return tuple(Member(f"{group}_{gate}", HIDDEN_SIZE, default) for gate in gates)

    assert cell.parameters == (
        Parameter("W", "weight_ih", members("W", "rzn"), INPUT_SIZE),
        Parameter("R", "weight_hh", members("R", "rzn"), HIDDEN_SIZE, BlockDiagonal(HEADS)),
        Parameter("b", "bias_ih", members("b", "rzn"), is_bias=True),
        Parameter("bR", "bR", members("bR", "n"), is_bias=True),
    )
    assert cell.prologue == ()
    assert cell.epilogue == ()
    assert cell.output == "h"
    assert cell.states == (State("h", HIDDEN_SIZE),)
    assert cell.constraints == (Constraint(HIDDEN_SIZE, HEADS, "num_heads", divides=True),)
    reset = apply("mul", Ref("r"), apply("add", Ref("n__R"), Ref("bR_n")))
    kept = apply("mul", Ref("z"), Ref("h__1"))
    (segment,) = cell.segments
    assert segment == Segment(
        states=("h",),
        streams=(Stream("W", ("r__x", "z__x", "n__x")),),
        weights=(Weight("R", ("R_r", "R_z", "R_n")), Weight("bR", ("bR_n",))),
        constants=(),
        batched=(*_gate("r"), *_gate("z"), *_gate("n")),
        nodes=(
            Contraction("r__R", "R_r", "h__1"),
            Pointwise("r", apply("sigmoid", apply("add", Ref("r__x"), Ref("r__R")))),
            Contraction("z__R", "R_z", "h__1"),
            Pointwise("z", apply("sigmoid", apply("add", Ref("z__x"), Ref("z__R")))),
            Contraction("n__R", "R_n", "h__1"),
            Pointwise("n", apply("tanh", apply("add", Ref("n__x"), reset))),
            Pointwise("h", apply("add", apply("mul", apply("sub", Const(1), Ref("z")), Ref("n")), kept)),
        ),
        sequences=("h",),
        phases=1,
    )
    values = value_table(cell)
    assert values["h__1"].role is Role.PREVIOUS
    assert diagonal_blocks(values["R_n"].structure) == HEADS
    assert values["W_n"].columns == INPUT_SIZE
    assert [values[name].placement for name in ("W_n", "x", "n__x", "n")] == [
        Placement.P,
        Placement.X,
        Placement.X,
        Placement.S,
    ]


def test_lstm_packs_its_gates_and_starts_as_told() -> None:
    cell = partitioned(
        "state h, c",
        "i, f, g, o = W@x + R@h[t-1] + b",
        "c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)",
        "h[t] = sigmoid(o)*tanh(c[t])",
        "init b_f = 1",
        "init R = orthogonal",
    )
    (segment,) = cell.segments
    assert segment.states == ("h", "c")
    assert segment.streams == (Stream("W", ("i__x", "f__x", "g__x", "o__x")),)
    assert segment.sequences == ("h", "c")
    starts = {member.name: member.initialiser for parameter in cell.parameters for member in parameter.members}
    assert starts["b_f"] == Initialiser("constant", (1.0,))
    assert starts["b_i"] == Initialiser()
    assert starts["R_o"] == Initialiser("orthogonal")


def test_mingru_reads_pre_activations() -> None:
    cell = partitioned("state h", "z = sigmoid(W@x + b)", "n = W@x + b", "h[t] = (1 - z)*h[t-1] + z*n")
    (segment,) = cell.segments
    assert segment.streams == (Stream("W", ("z__x", "n")),)
    assert targets(segment.batched) == ["z__W", "z__x", "n__W", "n"]
    assert segment.nodes[0] == Pointwise("z", apply("sigmoid", Ref("z__x")))
    assert value_table(cell)["z"].placement is Placement.X
    assert segment.phases == 0


def test_scrn_is_two_segments_and_an_epilogue() -> None:
    cell = partitioned(
        "const alpha = 0.95",
        "state h, s",
        "output y",
        "weights M: matrix",
        "u = W@x",
        "s[t] = (1 - alpha)*u + alpha*s[t-1]",
        "h[t] = sigmoid(M@s[t] + W@x + R@h[t-1] + b)",
        "y = tanh(R@h[t] + M@s[t] + b)",
    )
    slow, fast = cell.segments
    assert (slow.states, slow.phases, slow.constants) == (("s",), 0, ("alpha",))
    assert (fast.states, fast.phases) == (("h",), 1)
    assert targets(fast.batched) == ["h__M", "h__W", "h__x"]
    assert fast.batched[0] == Contraction("h__M", "M_h", "s")
    assert fast.streams == (Stream("h__x", ("h__x",)),)
    assert targets(cell.epilogue) == ["y__R", "y__M", "y"]
    assert cell.output == "y"


def test_what_the_epilogue_reads_of_the_past_is_a_sequence() -> None:
    """The output path of the intersection RNN: R_y@h[t-1] for all steps after the loop."""
    cell = partitioned("state h", "output y", "y = tanh(R@h[t-1] + b)", "h[t] = tanh(W@x + R@h[t-1] + b)")
    (segment,) = cell.segments
    assert segment.sequences == ("h", "h__1")
    assert cell.epilogue[0] == Contraction("y__R", "R_y", "h__1")


def test_an_elementwise_output_sinks_into_the_loop() -> None:
    cell = partitioned("state c", "output h", "f, o = sigmoid(W@x + b)", "c[t] = f*c[t-1] + (1 - f)*x", "h = c[t]*o")
    (segment,) = cell.segments
    assert cell.epilogue == ()
    assert segment.sequences == ("c", "h")
    assert value_table(cell)["h"].placement is Placement.Y
    assert [stream.name for stream in segment.streams] == ["W", "x"]


def test_equal_operands_are_computed_once() -> None:
    cell = partitioned("state h, c", "i, f = W@x + R@tanh(h[t-1]) + b", "c[t] = f*c[t-1] + i", "h[t] = c[t]")
    (segment,) = cell.segments
    assert segment.nodes[0] == Pointwise("i__0", apply("tanh", Ref("h__1")))
    assert [each.operand for each in segment.nodes if isinstance(each, Contraction)] == ["i__0", "i__0"]


def test_a_norm_is_one_node() -> None:
    cell = partitioned(
        "state h",
        "local v: 2*H",
        "v = layernorm(R@h[t-1])",
        "i, g = split(v)",
        "h[t] = i*tanh(g + rmsnorm(softmax(W@x)))",
    )
    (segment,) = cell.segments
    assert targets(segment.nodes)[:2] == ["v__R", "v"]
    assert node(cell, "v") == RowOp("v", RowOperator.LAYERNORM, ("v__R",), epsilon=1e-5)
    assert value_table(cell)["v"].width == scale(HIDDEN_SIZE, 2)
    assert [node.operator for node in segment.batched if isinstance(node, RowOp)] == [
        RowOperator.SOFTMAX,
        RowOperator.RMSNORM,
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ("d = v - mean(v)", "y = d/sqrt(mean(d*d) + 0.001)"),
        ("y = (v - mean(v))/sqrt(mean((v - mean(v))**2) + 0.001)",),
        ("m = mean(v)", "s = mean((v - m)*(v - m))", "y = (v - m)/(0.001 + s)**0.5"),
        ("d = v - mean(v)", "y = d*(1/sqrt(mean(d**2) + 0.001))"),
        ("d = v - mean(v)", "s = sqrt(mean(d**2) + 0.001)", "y = 1/s*d"),
        ("d = v - mean(v)", "y = d*(mean(d*d) + 0.001)**(-0.5)"),
    ],
    ids=" ; ".join,
)
def test_a_layernorm_that_is_written_out_is_one_node(lines: tuple[str, ...]) -> None:
    cell = partitioned("state h", "v = R@h[t-1] + W@x", *lines, "h[t] = tanh(y)")
    assert node(cell, "y") == RowOp("y", RowOperator.LAYERNORM, ("v",), epsilon=0.001)
    assert targets(cell.segments[0].nodes) == ["v__R", "v", "y", "h"]


def test_a_softmax_that_is_written_out_is_one_node() -> None:
    lines = ("p = exp(v - detach(max(v)))", "y = p/sum(p)", "h[t] = tanh(y)")
    cell = partitioned("state h", "v = R@h[t-1] + W@x", *lines)
    assert node(cell, "y") == RowOp("y", RowOperator.SOFTMAX, ("v",))


def test_squares_of_deviations_are_one_node() -> None:
    lines = ("m = mean(v)", "d = v - m", "h[t] = d/(sqrt(mean(d*d)) + 0.1) + d*sum((v - m)**2)")
    cell = partitioned("state h", "v = R@h[t-1] + W@x", *lines)
    rows = [node for node in cell.segments[0].nodes if isinstance(node, RowOp)]
    assert [(row.operator, row.operands) for row in rows] == [
        (RowOperator.MEAN, ("v",)),
        (RowOperator.VARIANCE, ("v", "m")),
        (RowOperator.SQUARES, ("v", "m")),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        # Deviations from another value's mean, or of it, and what no gradient flows through.
        ("d = v - mean(u)", "y = d/sqrt(mean(d*d) + 0.001)"),
        ("d = u - mean(v)", "y = d/sqrt(mean(d*d) + 0.001)"),
        ("d = v - detach(mean(v))", "y = d/sqrt(mean(d*d) + 0.001)"),
        # One number, spread over the units.
        ("local d: H", "d = mean(v) - mean(mean(v))", "y = v + d/sqrt(mean(d*d) + 0.001)"),
        # Of two values.
        ("d = v - mean(v)", "e = u - mean(u)", "y = d/sqrt(mean(d*e) + 0.001)"),
    ],
    ids=" ; ".join,
)
def test_what_is_no_variance_stays(lines: tuple[str, ...]) -> None:
    cell = partitioned("state h", "v = R@h[t-1] + W@x", "u = tanh(v)", *lines, "h[t] = tanh(y)")
    found = {node.operator for node in cell.segments[0].nodes if isinstance(node, RowOp)}
    assert found == {RowOperator.MEAN}


def test_a_variance_of_another_value_makes_no_norm() -> None:
    lines = ("d = v - mean(v)", "e = u - mean(u)", "h[t] = d/sqrt(mean(e*e) + 0.001)")
    cell = partitioned("state h", "v = R@h[t-1] + W@x", "u = tanh(v)", *lines)
    found = {node.operator for node in cell.segments[0].nodes if isinstance(node, RowOp)}
    assert found == {RowOperator.MEAN, RowOperator.VARIANCE}


def test_matrices_of_parameters_are_values_of_the_prologue() -> None:
    cell = partitioned(
        "const gamma = 0.5",
        "state h",
        "param M: matrix",
        "h[t] = h[t-1] + tanh(W@x + (M - T(M) - gamma*eye(H))@h[t-1] + b)",
    )
    skew = apply("sub", Ref("M"), Apply("transpose", (Ref("M"),)))
    damping = apply("mul", Ref("gamma"), apply("eye", Ref("M")))
    assert cell.prologue == (Pointwise("h__0", apply("sub", skew, damping)),)
    matrix = value_table(cell)["h__0"]
    assert (matrix.width, matrix.columns, diagonal_blocks(matrix.structure)) == (HIDDEN_SIZE, HIDDEN_SIZE, HEADS)
    assert diagonal_blocks(value_table(cell)["M"].structure) == HEADS


def test_functions_of_matrices_are_values_of_the_prologue() -> None:
    cell = partitioned(
        "state h",
        "weights V: matrix",
        "param A: matrix, g: vector, e: vector",
        "buffer s: vector = 1",
        "S = A - T(A)",
        "D = diag(exp(g))",
        "n = norm(V_h)",
        "h[t] = tanh(W@x + (diag(s)@relu(V)@D/n)@h[t-1] + cayley(S)@h[t-1] + D@h[t-1] + (A + D)@h[t-1] + e*n + b)",
    )
    made = {node.target: node.expr for node in cell.prologue if isinstance(node, Pointwise)}
    skew = apply("sub", Ref("A"), apply("transpose", Ref("A")))
    # The diagonal of D is named once; nothing reads D itself, since its products work unit by unit.
    (exps,) = (name for name, expr in made.items() if expr == apply("exp", Ref("g")))
    assert "D" not in made and made["S"] == skew
    scaled = apply("scale_columns", apply("scale_rows", Ref("s"), apply("relu", Ref("V_h"))), Ref(exps))
    matrices = [name for name in made if value_table(cell)[name].columns is not None]
    assert {made[name] for name in matrices} == {
        skew,
        apply("cayley", Ref("S")),
        apply("div", scaled, apply("norm", Ref("V_h"))),
        apply("add", Ref("A"), apply("diag", Ref(exps))),
    }
    (norm,) = (name for name, expr in made.items() if expr == apply("norm", Ref("V_h")))
    assert value_table(cell)[norm].width == HEADS
    assert {diagonal_blocks(value_table(cell)[name].structure) for name in (*matrices, "V_h", "A")} == {HEADS}
    products = [each.matrix for each in cell.segments[0].nodes if isinstance(each, Contraction)]
    assert sorted(products) == sorted(set(matrices) - {"S"})
    trained = {parameter.name: parameter.trained for parameter in cell.parameters}
    assert trained == {"W": True, "V": True, "b": True, "A": True, "g": True, "e": True, "s": False}


def test_a_dim_is_solved_from_the_widths() -> None:
    cell = partitioned(
        "const chunk = 4",
        "dim K",
        "state h",
        "local m: K",
        "m = cumsum(softmax(W@x + R@h[t-1] + b))",
        "h[t] = repeat(m, chunk)*tanh(W@x + h[t-1])",
    )
    (size,) = cell.sizes
    assert size.solved is not None
    assert Constraint(HIDDEN_SIZE, constant(4), "line 7", divides=True) in cell.constraints
    assert Constraint(named("K"), HEADS, "line 6", divides=True) in cell.constraints
    assert value_table(cell)["W_m"].width == named("K")
    assert cell.constants[0].shaping


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", CELLS, ids=lambda path: path.stem)
def test_shipped_cells(path: Path) -> None:
    """Every shipped cell holds all invariants, with no warning but what its form asks for."""
    for (cell, found), (again, _) in zip(front(read_source(path)), front(read_source(path)), strict=True):
        verify(cell)
        # Mogrifier's W stands before an input that the state gates: that is the cell.
        expected = {"RNN257"} if path.stem == "mogrifierlstm" else set()
        assert {each.code for each in found} - {"RNN258", "RNN262", "RNN271", "RNN272"} == expected
        assert again == cell
