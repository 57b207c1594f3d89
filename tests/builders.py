"""Cells built by hand, node by node: what `partition` makes of the text in each docstring."""

from __future__ import annotations

from collections.abc import Sequence

from rnncc.ir.cell import (
    Cell,
    Contraction,
    Initialiser,
    Input,
    Member,
    Node,
    Parameter,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Segment,
    State,
    Stream,
    Value,
    Weight,
)
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, Dim
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import DENSE, BlockDiagonal, Structure

H = HIDDEN_SIZE


def r(name: str) -> Ref:
    """A reference."""
    return Ref(name)


def add(*terms: Expr) -> Expr:
    """Terms added from the left."""
    result = terms[0]
    for term in terms[1:]:
        result = apply("add", result, term)
    return result


def mul(*factors: Expr) -> Expr:
    """Factors multiplied from the left."""
    result = factors[0]
    for factor in factors[1:]:
        result = apply("mul", result, factor)
    return result


def sub(a: Expr, b: Expr) -> Expr:
    """`a - b`."""
    return apply("sub", a, b)


def call(name: str, *arguments: Expr | str) -> Expr:
    """A call; a text argument is a reference."""
    return apply(name, *(Ref(a) if isinstance(a, str) else a for a in arguments))


def parameter(
    group: str, attribute: str, gates: str | Sequence[str], columns: Dim | None, structure: Structure = DENSE
) -> Parameter:
    """A packed group with one member a gate."""
    members = tuple(Member(f"{group}_{gate}", H, Initialiser()) for gate in gates)
    return Parameter(group, attribute, members, columns, structure, is_bias=attribute.startswith("bias"))


def assemble(
    name: str,
    states: Sequence[str],
    parameters: Sequence[Parameter],
    batched: Sequence[Node],
    nodes: Sequence[Node],
    streams: Sequence[Stream],
    weights: Sequence[str],
    output: str = "h",
    widths: dict[str, Dim] | None = None,
    sequences: Sequence[str] = (),
) -> Cell:
    """A cell of one segment. Widths are H where `widths` does not say otherwise."""
    widths = widths or {}
    values = [Value("x", Role.INPUT, Placement.X, INPUT_SIZE)]
    for item in parameters:
        for m in item.members:
            width = widths.get(m.name, m.width)
            values.append(Value(m.name, Role.PARAMETER, Placement.P, width, item.columns, item.structure))
    values += [Value(f"{s}__1", Role.PREVIOUS, Placement.S, widths.get(s, H)) for s in states]
    for placement, group in ((Placement.X, batched), (Placement.S, nodes)):
        values += [Value(n.target, Role.NODE, placement, widths.get(n.target, H)) for n in group]
    by_name = {p.name: p for p in parameters}
    loop_weights = tuple(Weight(w, tuple(m.name for m in by_name[w].members)) for w in weights)
    segment = Segment(
        tuple(states), tuple(streams), loop_weights, (), tuple(batched), tuple(nodes), tuple(sequences or states), 1
    )
    return Cell(
        name,
        (),
        (),
        (Input("x", INPUT_SIZE),),
        tuple(State(s, widths.get(s, H)) for s in states),
        tuple(parameters),
        (),
        (segment,),
        (),
        output,
        tuple(values),
        (),
    )


def _input_products(gates: str) -> list[Node]:
    nodes: list[Node] = []
    for g in gates:
        nodes += [
            Contraction(f"{g}__W", f"W_{g}", "x"),
            Pointwise(f"{g}__x", add(r(f"{g}__W"), r(f"b_{g}"))),
        ]
    return nodes


def _stream(gates: str) -> Stream:
    return Stream("W", tuple(f"{g}__x" for g in gates))


def lstm() -> Cell:
    """
    i, f, g, o = W@x + R@h[t-1] + b
    c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)
    h[t] = sigmoid(o)*tanh(c[t])
    """
    nodes: list[Node] = []
    for g in "ifgo":
        nodes += [Contraction(f"{g}__R", f"R_{g}", "h__1"), Pointwise(g, add(r(f"{g}__x"), r(f"{g}__R")))]
    nodes += [
        Pointwise("c", add(mul(call("sigmoid", "f"), r("c__1")), mul(call("sigmoid", "i"), call("tanh", "g")))),
        Pointwise("h", mul(call("sigmoid", "o"), call("tanh", "c"))),
    ]
    return assemble(
        "LSTM",
        "hc",
        [
            parameter("W", "weight_ih", "ifgo", INPUT_SIZE),
            parameter("R", "weight_hh", "ifgo", H, BlockDiagonal(HEADS)),
            parameter("b", "bias_ih", "ifgo", None),
        ],
        _input_products("ifgo"),
        nodes,
        [_stream("ifgo")],
        ["R"],
    )


def gru() -> Cell:
    """
    r, z = sigmoid(W@x + R@h[t-1] + b)
    n = tanh(W@x + b + r*(R@h[t-1] + bR))
    h[t] = (1 - z)*n + z*h[t-1]
    """
    nodes: list[Node] = []
    for g in "rz":
        gate = call("sigmoid", add(r(f"{g}__x"), r(f"{g}__R")))
        nodes += [Contraction(f"{g}__R", f"R_{g}", "h__1"), Pointwise(g, gate)]
    nodes += [
        Contraction("n__R", "R_n", "h__1"),
        Pointwise("n", call("tanh", add(r("n__x"), mul(r("r"), add(r("n__R"), r("bR_n")))))),
        Pointwise("h", add(mul(sub(Const(1.0), r("z")), r("n")), mul(r("z"), r("h__1")))),
    ]
    return assemble(
        "GRU",
        "h",
        [
            parameter("W", "weight_ih", "rzn", INPUT_SIZE),
            parameter("R", "weight_hh", "rzn", H, BlockDiagonal(HEADS)),
            parameter("b", "bias_ih", "rzn", None),
            parameter("bR", "bR", "n", None),
        ],
        _input_products("rzn"),
        nodes,
        [_stream("rzn")],
        ["R", "bR"],
    )


def mingru() -> Cell:
    """
    z = sigmoid(W@x + b)
    n = W@x + b
    h[t] = (1 - z)*h[t-1] + z*n
    """
    return assemble(
        "minGRU",
        "h",
        [parameter("W", "weight_ih", "zn", INPUT_SIZE), parameter("b", "bias_ih", "zn", None)],
        _input_products("zn"),
        [
            Pointwise("z", call("sigmoid", "z__x")),
            Pointwise("h", add(mul(sub(Const(1.0), r("z")), r("h__1")), mul(r("z"), r("n__x")))),
        ],
        [_stream("zn")],
        [],
    )


def layernorm_toy() -> Cell:
    """h[t] = tanh(W@x + b + layernorm(R@h[t-1]))"""
    nodes: list[Node] = [
        Contraction("h__R", "R_h", "h__1"),
        RowOp("h__0", RowOperator.LAYERNORM, ("h__R",), epsilon=1e-5),
        Pointwise("h", call("tanh", add(r("h__x"), r("h__0")))),
    ]
    return assemble(
        "LayerNormToy",
        "h",
        [
            parameter("W", "weight_ih", "h", INPUT_SIZE),
            parameter("R", "weight_hh", "h", H, BlockDiagonal(HEADS)),
            parameter("b", "bias_ih", "h", None),
        ],
        _input_products("h"),
        nodes,
        [_stream("h")],
        ["R"],
    )
