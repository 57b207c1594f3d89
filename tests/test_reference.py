"""The reference interpreter against torch.nn and against simpler ways to say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc.ir.cell import (
    ACTIVE,
    RESET,
    Cell,
    Contraction,
    Delay,
    Placement,
    Pointwise,
    Role,
    RowOp,
    State,
    Value,
)
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, ONE, Dim, named, scale
from rnncc.ir.expr import Const, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import BlockDiagonal
from rnncc.stages.mask import mask
from rnncc.verify.reference import Arguments, Interpreter, complete_sizes, run
from tests import builders, shipped
from tests.problems import make_problem

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 4, 6


def problem_of(cell: Cell, heads: int = 1, seed: int = 0) -> Arguments:
    return make_problem(cell, STEPS, BATCH, {"I": INPUT, "H": HIDDEN}, heads, seed)


def outcome(cell: Cell, problem: Arguments, **extra: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return run(cell, replace(problem, **extra))


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def load(layer: torch.nn.RNNBase, problem: Arguments, gates: str, last_bias: dict[str, Tensor]) -> None:
    """Copy a problem's parameters into a torch.nn layer; `last_bias` is the recurrent bias by gate."""
    p = problem.parameters
    zeros = torch.zeros(HIDDEN, dtype=torch.float64)
    packed = {
        "weight_ih_l0": [p[f"W_{g}"] for g in gates],
        "weight_hh_l0": [p[f"R_{g}"] for g in gates],
        "bias_ih_l0": [p[f"b_{g}"] for g in gates],
        "bias_hh_l0": [last_bias.get(g, zeros) for g in gates],
    }
    layer.load_state_dict({name: torch.cat(rows) for name, rows in packed.items()})


def test_lstm_is_torchs() -> None:
    problem = problem_of(builders.lstm())
    layer = torch.nn.LSTM(INPUT, HIDDEN, dtype=torch.float64)
    load(layer, problem, "ifgo", {})
    found, final = outcome(builders.lstm(), problem)
    expected, (h, c) = layer(problem.inputs["x"], (problem.initial["h"][None], problem.initial["c"][None]))
    same(found["h"], expected)
    same(final["h"], h[0])
    same(final["c"], c[0])


def test_gru_is_torchs() -> None:
    problem = problem_of(builders.gru())
    layer = torch.nn.GRU(INPUT, HIDDEN, dtype=torch.float64)
    load(layer, problem, "rzn", {"n": problem.parameters["bR_n"]})
    found, final = outcome(builders.gru(), problem)
    expected, h = layer(problem.inputs["x"], problem.initial["h"][None])
    same(found["h"], expected)
    same(final["h"], h[0])


@pytest.mark.parametrize("stem", ["lstm", "rhn", "onlstm", "taugru", "qrnn", "rwkv4"])
def test_reverse_is_forward_on_the_flipped_sequence(stem: str) -> None:
    (cell,) = shipped.cells(stem)
    problem = make_problem(cell, STEPS, BATCH, {"I": 8, "H": 8})
    flipped = replace(problem, inputs={name: value.flip(0) for name, value in problem.inputs.items()})
    found, final = outcome(cell, problem, reverse=True)
    expected, expected_final = outcome(cell, flipped)
    for name in found:
        same(found[name], expected[name].flip(0))
    for name in final:
        same(final[name], expected_final[name])


@pytest.mark.parametrize("stem", ["lstm", "taugru", "qrnn", "rwkv4", "slstm"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_batch_entry_past_its_length_is_as_if_alone(stem: str, reverse: bool) -> None:
    (cell,) = shipped.cells(stem)
    problem = make_problem(cell, STEPS, BATCH, {"I": 8, "H": 8})
    lengths = torch.tensor([5, 2, 0])
    found, final = outcome(cell, problem, lengths=lengths, reverse=reverse)
    for entry, length in enumerate(lengths.tolist()):
        initial = {name: value[entry : entry + 1] for name, value in problem.initial.items()}
        if not length:
            for name, value in initial.items():
                same(final[name][entry : entry + 1], value)
            continue
        inputs = {name: value[:length, entry : entry + 1] for name, value in problem.inputs.items()}
        alone = replace(problem, inputs=inputs, initial=initial)
        expected, expected_final = outcome(cell, alone, reverse=reverse)
        same(found[cell.output][:length, entry : entry + 1], expected[cell.output])
        for name in final:
            same(final[name][entry : entry + 1], expected_final[name])


@pytest.mark.parametrize("stem", ["lstm", "taugru", "qrnn", "slstm"])
def test_a_reset_starts_a_new_sequence(stem: str) -> None:
    (cell,) = shipped.cells(stem)
    problem = make_problem(cell, STEPS, BATCH, {"I": 8, "H": 8})
    reset = torch.zeros(STEPS, BATCH)
    reset[2] = 1
    found, final = outcome(cell, problem, reset=reset)
    head = replace(problem, inputs={name: value[:2] for name, value in problem.inputs.items()})
    tail = replace(problem, inputs={name: value[2:] for name, value in problem.inputs.items()}, initial={})
    same(found[cell.output][:2], outcome(cell, head)[0][cell.output])
    expected, expected_final = outcome(cell, tail)
    same(found[cell.output][2:], expected[cell.output])
    for name in final:
        same(final[name], expected_final[name])


@pytest.mark.always(stem=shipped.COVERING)
@pytest.mark.parametrize("stem", shipped.STEMS)
def test_the_mask_rewrite_says_the_same(stem: str) -> None:
    """Resets and lengths as flags here, and as equations in `stages.mask`."""
    for cell in shipped.cells(stem):
        open_dims = {size.name: 4 for size in cell.sizes if size.default is None and size.solved is None}
        problem = make_problem(cell, STEPS, BATCH, {"I": 8, "H": 8, **open_dims})
        reset = (torch.rand(STEPS, BATCH, generator=torch.Generator().manual_seed(0)) < 0.3).double()
        lengths = torch.tensor([5, 3, 1])
        delayed = any(isinstance(node, Delay) for segment in cell.segments for node in segment.batched)
        if delayed:
            # x[t-1] is restarted by the batched code, not by the rewrite.
            reset = torch.zeros_like(reset)
        active = (torch.arange(STEPS)[:, None] < lengths).double()
        masks = {RESET: reset[..., None], ACTIVE: active[..., None]}
        found, final = outcome(mask(cell), replace(problem, inputs={**problem.inputs, **masks}))
        expected, expected_final = outcome(cell, problem, reset=reset, lengths=lengths)
        for name in final:
            same(final[name], expected_final[name])
        output = mask(cell).output
        same(found[output] * active[..., None], expected[cell.output] * active[..., None])


def block_diagonal(blocks: Tensor) -> Tensor:
    """[N, D, E] -> [N*D, N*E]."""
    count, rows, columns = blocks.shape
    result = blocks.new_zeros(count, rows, count, columns)
    for number, block in enumerate(blocks):
        result[number, :, number] = block
    return result.reshape(count * rows, count * columns)


def test_heads_are_diagonal_blocks_a_dense_matrix() -> None:
    """Two heads of D units: R is [N, D, D]; the same cell with the block-diagonal matrix written out."""
    cell = builders.lstm()
    problem = problem_of(cell, heads=2)
    dense = {
        name: block_diagonal(value.reshape(2, 3, 3)) if name.startswith("R_") else value
        for name, value in problem.parameters.items()
    }
    found, _ = outcome(cell, problem)
    expected, _ = outcome(cell, replace(problem, parameters=dense, num_heads=1))
    same(found["h"], expected["h"])
    blocks = {
        name: value.reshape(2, 3, 3) if name.startswith("R_") else value for name, value in problem.parameters.items()
    }
    same(outcome(cell, replace(problem, parameters=blocks))[0]["h"], found["h"])


def interpreter(heads: int, **widths: Dim) -> Interpreter:
    values = {name: Value(name, Role.NODE, Placement.S, width) for name, width in widths.items()}
    return Interpreter(values, {"H": HIDDEN, "K": 2}, heads, torch.zeros((), dtype=torch.float64))


PACKED = scale(HIDDEN_SIZE, 2)


@pytest.mark.parametrize(
    ("operator", "result", "expected"),
    [
        # v is [k=2, N=2, D=3]: head 0 has units 0-2 and 6-8, head 1 has 3-5 and 9-11.
        (RowOperator.SUM, HEADS, [0 + 1 + 2 + 6 + 7 + 8, 3 + 4 + 5 + 9 + 10 + 11]),
        (RowOperator.SUM, ONE, [66]),
        (RowOperator.MEAN, HEADS, [4, 7]),
        (RowOperator.MAX, HEADS, [8, 11]),
        (RowOperator.CUMSUM, PACKED, [0, 1, 3, 3, 7, 12, 9, 16, 24, 21, 31, 42]),
        (RowOperator.CUMSUM_REVERSED, PACKED, [24, 24, 23, 42, 39, 35, 21, 15, 8, 30, 21, 11]),
    ],
)
def test_reductions_and_scans_stay_in_a_head(operator: RowOperator, result: Dim, expected: list[float]) -> None:
    machine = interpreter(2, v=PACKED, out=result)
    v = torch.arange(12.0, dtype=torch.float64)[None]
    found = machine.node(RowOp("out", operator, ("v",)), {"v": v})
    assert found.tolist() == [[float(number) for number in expected]]


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        (RowOperator.LAYERNORM, lambda row: torch.nn.functional.layer_norm(row, row.shape[-1:], eps=0.1)),
        (RowOperator.RMSNORM, lambda row: torch.nn.functional.rms_norm(row, row.shape[-1:])),
        (RowOperator.SOFTMAX, lambda row: row.softmax(-1)),
        (RowOperator.VARIANCE, lambda row: torch.std(row, -1, correction=0, keepdim=True) ** 2),
        (RowOperator.SQUARES, lambda row: torch.var(row, -1, keepdim=True) * (row.shape[-1] - 1)),
    ],
    ids=["layernorm", "rmsnorm", "softmax", "variance", "squares"],
)
def test_norms_stay_in_a_head(operator: RowOperator, function: Callable[[Tensor], Tensor]) -> None:
    is_narrow = operator in (RowOperator.VARIANCE, RowOperator.SQUARES)
    machine = interpreter(2, v=PACKED, out=HEADS if is_narrow else PACKED)
    v = torch.randn(3, 12, dtype=torch.float64)
    by_heads = v.reshape(3, 2, 2, 3).transpose(1, 2)  # [batch, head, part, unit]
    expected = function(by_heads.flatten(-2))
    if not is_narrow:
        expected = expected.reshape(by_heads.shape).transpose(1, 2)
    found = machine.node(RowOp("out", operator, ("v",), epsilon=0.1), {"v": v})
    torch.testing.assert_close(found, expected.flatten(1))


def test_spread_is_the_adjoint_of_mean() -> None:
    machine = interpreter(2, v=PACKED, m=HEADS)
    found = machine.node(RowOp("v", RowOperator.SPREAD, ("m",)), {"m": torch.tensor([[6.0, 12.0]])})
    assert found.tolist() == [[1.0, 1.0, 1.0, 2.0, 2.0, 2.0] * 2]


@pytest.mark.parametrize("heads", [1, 2])
def test_slices_are_cut_along_the_packed_axis(heads: int) -> None:
    machine = interpreter(heads, v=PACKED, h=HIDDEN_SIZE)
    v = torch.arange(12.0)[None]
    second = machine.node(RowOp("h", RowOperator.SLICE, ("v",), HIDDEN_SIZE), {"v": v})
    assert second.tolist() == [list(range(6, 12))]
    back = machine.node(RowOp("v", RowOperator.PAD, ("h",), HIDDEN_SIZE), {"h": second})
    assert back.tolist() == [[0] * 6 + list(range(6, 12))]
    both = machine.node(RowOp("v", RowOperator.CONCAT, ("h", "h")), {"h": second})
    assert both.tolist() == [list(range(6, 12)) * 2]


@pytest.mark.parametrize(("heads", "expected"), [(1, [0, 0, 0, 1, 1, 1]), (2, [0, 0, 0, 1, 1, 1])])
def test_repeat_and_its_adjoint(heads: int, expected: list[float]) -> None:
    machine = interpreter(heads, k=named("K"), h=HIDDEN_SIZE)
    found = machine.node(RowOp("h", RowOperator.REPEAT, ("k",), times=3), {"k": torch.tensor([[0.0, 1.0]])})
    assert found.tolist() == [expected]
    back = machine.node(RowOp("k", RowOperator.SEGMENT_SUM, ("h",), times=3), {"h": torch.arange(6.0)[None]})
    assert back.tolist() == [[3.0, 12.0]]


def test_narrow_values_broadcast_over_their_units() -> None:
    machine = interpreter(2, v=PACKED, m=HEADS, one=ONE)
    known = {
        "v": torch.zeros(1, 12, dtype=torch.float64),
        "m": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        "one": torch.tensor([[10.0]], dtype=torch.float64),
    }
    expr = builders.add(Ref("v"), Ref("m"), Ref("one"))
    found = machine.pointwise(PACKED, expr, known)
    assert found.tolist() == [[11.0, 11.0, 11.0, 12.0, 12.0, 12.0] * 2]


def test_a_transposed_product_is_the_adjoint() -> None:
    machine = interpreter(2, y=PACKED, x=HIDDEN_SIZE)
    matrix_value = Value("M", Role.PARAMETER, Placement.P, PACKED, HIDDEN_SIZE, BlockDiagonal(HEADS))
    machine.values = {**machine.values, "M": matrix_value}
    generator = torch.Generator().manual_seed(0)
    matrix, x, y = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((12, 3), (5, 6), (5, 12)))
    forward = machine.node(Contraction("y", "M", "x"), {"M": matrix, "x": x})
    backward = machine.node(Contraction("x", "M", "y", transposed=True), {"M": matrix, "y": y})
    same((forward * y).sum(), (x * backward).sum())


def test_matrix_arithmetic_of_the_prologue() -> None:
    """h[t] = (M - T(M) - 0.5*eye(H))@h[t-1] + W@x, per block."""
    cell = builders.assemble(
        "Antisymmetric",
        "h",
        [
            builders.parameter("W", "weight_ih", "h", INPUT_SIZE),
            builders.parameter("M", "M", "h", HIDDEN_SIZE, BlockDiagonal(HEADS)),
        ],
        [Contraction("h__W", "W_h", "x")],
        [Contraction("h__P", "P", "h__1"), Pointwise("h", builders.add(Ref("h__W"), Ref("h__P")))],
        [],
        [],
    )
    skew = builders.sub(Ref("M_h"), apply("transpose", Ref("M_h")))
    damped = builders.sub(skew, builders.mul(Const(0.5), apply("eye", Ref("M_h"))))
    value = Value("P", Role.NODE, Placement.P, HIDDEN_SIZE, HIDDEN_SIZE, BlockDiagonal(HEADS))
    cell = replace(cell, prologue=(Pointwise("P", damped),), values=(*cell.values, value))
    problem = problem_of(cell, heads=2)
    found, _ = outcome(cell, problem)
    blocks = problem.parameters["M_h"].reshape(2, 3, 3)
    matrix = block_diagonal(blocks - blocks.mT - 0.5 * torch.eye(3, dtype=torch.float64))
    h = problem.initial["h"]
    for t in range(STEPS):
        h = problem.inputs["x"][t] @ problem.parameters["W_h"].T + h @ matrix.T
        same(found["h"][t], h)


def test_a_learned_state_starts_from_its_parameter_and_a_delay_from_its_state() -> None:
    (cell,) = shipped.cells("taugru")
    state = next(s for s in cell.states if s.delay_of is None)
    root = builders.parameter("x", "x", "x", None).members[0]
    learned = replace(builders.parameter("h0", "h0", "h", None), members=(replace(root, name="h0", width=HIDDEN_SIZE),))
    states: tuple[State, ...] = tuple(replace(s, initial=None) if s is state else s for s in cell.states)
    value = Value("h0", Role.PARAMETER, Placement.P, HIDDEN_SIZE)
    changed = replace(cell, states=states, parameters=(*cell.parameters, learned), values=(*cell.values, value))
    problem = problem_of(changed)
    found, _ = outcome(changed, replace(problem, initial={}))
    h0 = problem.parameters["h0"].expand(BATCH, HIDDEN)
    expected, _ = outcome(cell, replace(problem, initial={s.name: h0 for s in cell.states}))
    same(found["h"], expected["h"])
    # Only h given: the delay state holds the same.
    given, _ = outcome(cell, replace(problem, initial={"h": h0}))
    same(given["h"], expected["h"])


def test_gradients_flow_to_everything() -> None:
    cell = builders.gru()
    problem = problem_of(cell)
    leaves = [*problem.parameters.values(), *problem.inputs.values(), *problem.initial.values()]
    for leaf in leaves:
        leaf.requires_grad_()
    found, _ = outcome(cell, problem)
    gradients = torch.autograd.grad(found["h"].square().sum(), leaves)
    assert all(float(gradient.norm()) > 0 for gradient in gradients)


def test_dtype_is_the_inputs() -> None:
    cell = builders.layernorm_toy()
    problem = problem_of(cell)

    def single(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.float() for name, value in group.items()}

    halves = replace(
        problem,
        parameters=single(problem.parameters),
        inputs=single(problem.inputs),
        initial=single(problem.initial),
    )
    assert outcome(cell, halves)[0]["h"].dtype == torch.float32


def test_sizes_are_solved_or_missed() -> None:
    (cell,) = shipped.cells("onlstm")
    sizes = complete_sizes(cell, {"I": 8, "H": 8})
    assert sizes["K"] * 4 == 8
    (cell,) = shipped.cells("lstmp")
    with pytest.raises(KeyError, match="the size P of LSTMP is missing"):
        complete_sizes(cell, {"I": 8, "H": 8})
