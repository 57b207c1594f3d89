"""Hypothesis strategies that build cells from the operator table."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from rnncc.ir.cell import (
    Cell,
    Contraction,
    Input,
    Node,
    Parameter,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Stream,
    Value,
)
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, ONE, Dim, scale
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import BlockDiagonal
from rnncc.language.operators import OPERATORS, STEPS
from rnncc.language.surrogates import DERIVATIVES
from tests import builders

H = HIDDEN_SIZE
WIDE = scale(H, 2)
# What a loop may hold; clamp is drawn apart, so that its bounds are in order.
DRAWN = tuple(sorted(n for n, row in OPERATORS.items() if row.in_loop and n not in {"clamp", "epsilon"}))
ARITHMETIC = ("add", "sub", "mul")


def _into(domain: tuple[float, float], expr: Expr) -> Expr:
    """An expression bounded to a domain, smoothly."""
    low, high = domain
    return builders.add(Const(low), builders.mul(Const(high - low), apply("sigmoid", expr)))


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...], depth: int = 3) -> Expr:
    """An expression over values, whose every argument lies in its operator's domain."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if draw(st.integers(0, 5)) == 0:
            return Const(draw(st.sampled_from([0.5, 1.0, -1.5, 2.0])))
        return Ref(draw(st.sampled_from(names)))
    smaller = expressions(names, depth - 1)
    if draw(st.booleans()):
        return apply(draw(st.sampled_from(ARITHMETIC)), draw(smaller), draw(smaller))
    name = draw(st.sampled_from((*DRAWN, "clamp", "square")))
    if name == "clamp":
        return apply("clamp", draw(smaller), apply("neg", apply("sigmoid", draw(smaller))), Const(0.4))
    if name == "square":
        return apply("pow", draw(smaller), Const(draw(st.sampled_from([1.0, 2.0, 3.0]))))
    row = OPERATORS[name]
    if name in DERIVATIVES:
        v = Ref(draw(st.sampled_from(names)))
        slope = Const(draw(st.sampled_from([1.0, 3.0])))
        return apply(name, v, apply(draw(st.sampled_from(STEPS)), v), slope)
    if row.domain[0] > 0 or name == "log1p":
        return apply(name, *(_into(row.domain, draw(smaller)) for _ in range(row.arity)))
    return apply(name, *(draw(smaller) for _ in range(row.arity)))


@st.composite
def cells(draw: st.DrawFn, contractions: bool = True) -> Cell:
    """A cell of one segment: up to three states, products, reductions, packed values, shared scalars."""
    states = ("h", "c", "m")[: draw(st.integers(1, 3))]
    widths: dict[str, Dim] = {}
    wide = [f"{s}__1" for s in states] + ["a__x", "e__x", "p_a", "q_a"]
    narrow = ["gap"]
    nodes: list[Node] = []
    matrices: list[str] = []
    for number in range(draw(st.integers(1, 6))):
        name = f"v{number}"
        kind = draw(st.sampled_from(["pointwise"] * 4 + ["matrix", "reduce", "scan", "split", "repeat"]))
        # What reads weights alone would stand in the prologue, not in a loop.
        source = draw(st.sampled_from([w for w in wide if w not in ("p_a", "q_a")]))
        if kind == "pointwise" or not contractions:
            nodes.append(Pointwise(name, draw(expressions((*wide, *narrow)))))
        elif kind == "matrix":
            matrices.append(name)
            nodes.append(Contraction(name, f"R_{name}", source))
        elif kind == "reduce":
            operator = draw(st.sampled_from([RowOperator.SUM, RowOperator.MEAN]))
            nodes.append(RowOp(name, operator, (source,)))
            widths[name] = HEADS
            narrow.append(name)
            continue
        elif kind == "scan":
            nodes.append(RowOp(name, RowOperator.CUMSUM, (source,)))
        elif kind == "split":
            other = draw(st.sampled_from([w for w in wide if w not in ("p_a", "q_a")]))
            first, second = draw(st.permutations([Dim(()), H]))
            widths[f"{name}p"] = WIDE
            nodes += [
                RowOp(f"{name}p", RowOperator.CONCAT, (source, other)),
                RowOp(name, RowOperator.SLICE, (f"{name}p",), first),
            ]
            if draw(st.booleans()):
                nodes.append(RowOp(f"{name}q", RowOperator.SLICE, (f"{name}p",), second))
                wide.append(f"{name}q")
        else:
            widths[f"{name}p"] = WIDE
            nodes += [
                RowOp(f"{name}p", RowOperator.REPEAT, (source,), times=2),
                RowOp(name, RowOperator.SLICE, (f"{name}p",), H),
            ]
        wide.append(name)
    for state in states:
        # Bounded, so that no draw overflows; some states are plain copies.
        expr = draw(expressions((*wide, *narrow)))
        nodes.append(Pointwise(state, apply("tanh", expr)))
        if draw(st.booleans()):
            wide.append(state)
    sequences = (*states, *(w for w in wide if w.startswith("v") and draw(st.booleans())))
    parameters: list[Parameter] = [
        builders.parameter("W", "weight_ih", ("a", "e"), INPUT_SIZE),
        builders.parameter("p", "p", "a", None),
        builders.parameter("q", "q", "a", None),
    ]
    weights = ["p", "q"]
    if matrices:
        parameters.append(builders.parameter("R", "weight_hh", matrices, H, BlockDiagonal(HEADS)))
        weights.append("R")
    batched: list[Node] = [Contraction("a__x", "W_a", "x"), Contraction("e__x", "W_e", "x")]
    cell = builders.assemble(
        "Random",
        states,
        parameters,
        batched,
        nodes,
        [Stream("W", ("a__x", "e__x")), Stream("gap", ("gap",))],
        weights,
        widths={**widths, "q_a": ONE},
        sequences=tuple(dict.fromkeys(sequences)),
    )
    gap = Value("gap", Role.INPUT, Placement.X, ONE)
    return replace(cell, inputs=(*cell.inputs, Input("gap", ONE)), values=(*cell.values, gap))
