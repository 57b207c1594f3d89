"""The reverse equations: their structure on known cells, their numbers against torch.autograd in float64."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rnncc.analysis.recurrent import CLIP, recurrent_reads
from rnncc.analysis.untrained import untrained
from rnncc.ir.adjoint import Adjoint, OuterProduct
from rnncc.ir.cell import Cell, Contraction, Node, Pointwise, RowOp, Segment, Stream, operands
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, scale
from rnncc.ir.expr import Apply, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.stages.check.unroll import MOST_EQUATIONS
from rnncc.stages.differentiate import derivatives, differentiate
from rnncc.stages.differentiate.cotangents import LONGEST_SUM
from rnncc.stages.mask import mask
from rnncc.verify.reference import fixed_values, run
from tests import builders, seeds, shipped
from tests.adjoint_interpreter import backward, forward, machine_of
from tests.compiling import cell_of, kernel_plan
from tests.problems import make_problem
from tests.random_cells import cells
from tests.rendering import for_gpus

BUILT = [builders.lstm, builders.gru, builders.mingru, builders.layernorm_toy]
ROOT = Path(__file__).parents[2]


def operations(expr: Expr) -> int:
    """The number of operators in an expression."""
    return 1 + sum(operations(argument) for argument in expr.arguments) if isinstance(expr, Apply) else 0


def relative(found: Tensor, expected: Tensor) -> float:
    """‖found - expected‖ / ‖expected‖. Gradients sum terms of size 1: where they cancel to less than 0.01, their
    rounding does not shrink with them, and the error is relative to 0.01."""
    return float((found - expected).norm()) / max(float(expected.norm()), 0.01)


def check_gradients(
    cell: Cell, steps: int = 4, batch: int = 3, heads: int = 1, seed: int = 0, clip: float = math.inf, **sizes: int
) -> None:
    """Each segment's adjoint program against autograd through the same loop, with a random gradient for every
    sequence and final state, and `clip` as the bound of the recurrent gradient."""
    problem = make_problem(cell, steps, batch, {"I": 5, "H": 4, **sizes}, heads, seed)
    found, _ = run(cell, problem)
    found |= problem.inputs
    generator = torch.Generator().manual_seed(seed + 1)
    for segment, adjoint in zip(cell.segments, differentiate(cell), strict=True):
        machine = machine_of(cell, adjoint, problem.sizes, heads, problem.inputs["x"])
        fixed = fixed_values(cell, machine, problem.parameters, problem.constants)
        fixed[CLIP.name] = machine.number(clip)[None]
        members = [member for stream in segment.streams for member in stream.members]
        weights = [member for weight in segment.weights for member in weight.members]
        leaves = {name: found[name].detach().clone().requires_grad_() for name in members}
        leaves |= {name: fixed[name].clone().requires_grad_() for name in weights if name not in untrained(cell)}
        initial = {name: problem.initial[name].clone().requires_grad_() for name in segment.states}
        streams = {name: leaves[name] for name in members}
        sequences, final = forward(segment, machine, {**fixed, **leaves}, streams, initial)
        outputs = [sequences[name] for name in segment.sequences] + [final[name] for name in segment.states]
        gradients = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in outputs]
        reached = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        wanted = [*leaves.values(), *initial.values()]
        expected = torch.autograd.grad([o for o, _ in reached], wanted, [g for _, g in reached], allow_unused=True)
        with torch.no_grad():
            renamed, _ = forward(adjoint.segment, machine, fixed, streams, initial)
            for name, sequence in sequences.items():
                assert torch.equal(renamed[name], sequence), f"naming changed {name}"
            split = len(segment.sequences)
            result = backward(
                adjoint,
                machine,
                fixed,
                streams,
                initial,
                renamed,
                dict(zip(segment.sequences, gradients[:split], strict=True)),
                dict(zip(segment.states, gradients[split:], strict=True)),
            )
        both = {**result.streams, **result.weights}
        computed = [both[name] for name in leaves] + [result.states[name] for name in initial]
        for name, found_gradient, gradient in zip((*leaves, *initial), computed, expected, strict=True):
            error = relative(found_gradient, torch.zeros_like(found_gradient) if gradient is None else gradient)
            assert error < 1e-10, f"{cell.name}: the gradient of {name} is off by {error:.1e}"


@pytest.mark.parametrize("build", BUILT)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("steps", [1, 4])
def test_gradients_equal_autograd(build: Callable[[], Cell], heads: int, steps: int) -> None:
    check_gradients(build(), steps=steps, heads=heads)


@pytest.mark.always(stem=shipped.COVERING[::4])
@pytest.mark.parametrize("stem", shipped.STEMS)
def test_gradients_of_shipped_cells(stem: str) -> None:
    for cell in shipped.cells(stem):
        open_dims = {size.name: 4 for size in cell.sizes if size.default is None and size.solved is None}
        check_gradients(cell, H=8, I=8, **open_dims)
        check_gradients(mask(cell), H=8, I=8, **open_dims)
        check_gradients(cell, H=8, I=8, clip=0.0, **open_dims)
        check_gradients(mask(cell), H=8, I=8, clip=0.2, **open_dims)
        if not shipped.is_one_head_only(cell):
            check_gradients(cell, heads=2, H=8, I=8, **open_dims)


@settings(max_examples=seeds.count(30))
@given(cell=cells(), heads=st.sampled_from([1, 2]))
def test_gradients_of_random_cells(cell: Cell, heads: int) -> None:
    check_gradients(cell, steps=3, batch=2, heads=heads)


@pytest.mark.parametrize(
    "value",
    [
        "sqrt(relu(a))", "sqrt(1 - hardtanh(a))", "sqrt(max(a, 0))", "sqrt(-min(a, 0))", "sqrt(clamp(a, 0, 9))",
        "sqrt(clamp(0, a, 9))", "sqrt(-clamp(0, -9, a))",
    ],
)  # fmt: skip
def test_a_gradient_that_is_dropped_may_be_infinite(value: str) -> None:
    """The derivative of sqrt at 0 is infinite. torch drops it where a relu is 0; times 0 it would be no number."""
    text = f"cell Dropped\nstate h\na = W@x + R@h[t-1] + b\nh[t] = {value}"
    check_gradients(cell_of(text))


def test_bounds_of_clamp_the_wrong_way_round_have_the_gradients_of_torch() -> None:
    text = "cell Crossed\nstate h\nparam u: vector, v: vector\nh[t] = clamp(W@x + R@h[t-1], u, v)"
    check_gradients(cell_of(text), H=32)


def only(cell: Cell) -> Adjoint:
    """The adjoint of a cell with one segment."""
    (adjoint,) = differentiate(cell)
    return adjoint


def count(adjoint: Adjoint) -> int:
    """Operators in the reverse equations."""
    return sum(operations(node.expr) for node in adjoint.nodes if isinstance(node, Pointwise))


def test_lstm_saves_gates_and_states_and_takes_few_operations() -> None:
    adjoint = only(builders.lstm())
    assert adjoint.saved == ("f__sigmoid", "i__sigmoid", "g__tanh", "o__sigmoid")
    assert adjoint.saved_states == ("h", "c")
    assert adjoint.streams_read == ()
    assert [node.target for node in adjoint.recompute] == ["c__tanh"]
    assert 22 <= count(adjoint) <= 30
    assert adjoint.stream_cotangents == tuple((f"{g}__x", f"d_{g}") for g in "ifgo")
    assert adjoint.outer_products == tuple(OuterProduct(f"R_{g}", f"d_{g}", "h__1") for g in "ifgo")
    assert adjoint.nodes[0] == Pointwise("d_h", builders.add(Ref("d_h__carry"), Ref("d_h__sequence")))


def test_what_is_kept_in_16_bits_leaves_out_what_compounds() -> None:
    """A cotangent on its way back through c meets the forget gate at every step, nothing else that is saved; through
    the GRU's h it meets z, and of h itself, which is returned anyhow, only sums of multiples are made."""
    lstm, gru, peephole = (differentiate(shipped.cells(name)[0])[0] for name in ("lstm", "gru", "peepholelstm"))
    assert lstm.rounded == ("i__sigmoid", "g__tanh", "o__sigmoid", "h")
    assert gru.rounded == ("r", "n__R", "h")
    # c feeds the gates of a peephole LSTM: what brings their cotangents back to it compounds as well.
    assert peephole.rounded == ("o", "h")


def test_an_output_within_what_compounds_is_exact() -> None:
    """Also by way of what several equations share, and of a saved value that recompute=True makes again from it."""
    shared = "p, q = W@x + b\nv = h[t-1] - p\nh[t] = q*v*0.1 + h[t-1] + 0.05*v*v"
    again = "p, q = W@x + b\ng = R@h[t-1] + u*h[t-1] + p\nc[t] = c[t-1]*g*0.1 + p\nh[t] = 0.5*h[t-1] + q*c[t]"
    for head, text in (("state h", shared), ("state h, c\nparam u: vector", again)):
        cell = cell_of(f"cell Cell\n{head}\n{text}\n")
        assert differentiate(cell)[0].rounded == ()


def test_gru_recomputes_the_candidate() -> None:
    adjoint = only(builders.gru())
    assert adjoint.saved == ("r", "z", "n__R")
    assert adjoint.streams_read == ("n__x",)
    assert [name for name, _ in adjoint.vector_cotangents] == ["bR_n"]


def test_mingru_saves_nothing_but_the_state() -> None:
    adjoint = only(builders.mingru())
    assert (adjoint.saved, adjoint.saved_states) == ((), ("h",))
    assert count(adjoint) <= 9


def test_a_statistic_of_a_row_is_summed_once() -> None:
    adjoint = only(builders.layernorm_toy())
    sums = [node for node in adjoint.nodes if isinstance(node, RowOp) and node.operator is RowOperator.SUM]
    # One for the deviation, one for the mean.
    assert len(sums) == 2
    assert adjoint.saved == ("h__0__centred", "h__0__part__rsqrt")


@pytest.mark.parametrize(
    ("norm", "parts"),
    [
        ("layernorm", [RowOperator.MEAN, RowOperator.VARIANCE]),
        ("rmsnorm", [RowOperator.MEAN]),
        ("softmax", [RowOperator.MAX, RowOperator.SUM]),
    ],
)
def test_norms_are_taken_apart(norm: str, parts: list[RowOperator]) -> None:
    cell = cell_of(f"cell A\nstate h\nv = R@h[t-1] + W@x\nh[t] = tanh({norm}(v)) + {norm}(2*v)\n")
    found = [node.operator for node in only(cell).segment.nodes if isinstance(node, RowOp)]
    assert found == 2 * parts
    check_gradients(cell, heads=2)


@pytest.mark.parametrize("taken", ["sum", "mean"])
def test_squares_of_deviations(taken: str) -> None:
    text = f"cell A\nstate h\nv = R@h[t-1] + W@x\nd = v - mean(v)\nh[t] = tanh(v*{taken}(d*d)) + d\n"
    adjoint = only(cell_of(text))
    check_gradients(cell_of(text), heads=2)
    # The mean gets nothing from them.
    assert sum(isinstance(node, RowOp) and node.operator is RowOperator.SUM for node in adjoint.nodes) == 2


def test_a_norm_takes_the_mean_that_is_there() -> None:
    text = "cell A\nstate h\nv = R@h[t-1] + W@x\nm = mean(v)\nh[t] = tanh(layernorm(v)) + m\n"
    (mean, variance) = (node for node in only(cell_of(text)).segment.nodes if isinstance(node, RowOp))
    assert (mean.target, variance.operands) == ("m", ("v", "m"))


def with_nodes(*nodes: Node, states: str = "h", sequences: tuple[str, ...] = ()) -> Cell:
    """A cell on the stream `a__x` alone."""
    batched = [Contraction("a__x", "W_a", "x")]
    weights = [builders.parameter("W", "weight_ih", "a", INPUT_SIZE)]
    stream = [Stream("W", ("a__x",))]
    return builders.assemble("Toy", states, weights, batched, nodes, stream, [], sequences=sequences)


def test_what_no_gradient_reaches_yields_nothing() -> None:
    dead = Pointwise("dead", apply("tanh", Ref("a__x")))
    live = Pointwise("h", apply("mul", Ref("h__1"), Ref("h__1")))
    adjoint = only(with_nodes(dead, live))
    assert {node.target for node in adjoint.nodes} == {"d_h", "d_h__1"}
    assert adjoint.stream_cotangents == ()
    assert adjoint.saved == ()


def test_a_sign_stops_the_gradient() -> None:
    adjoint = only(with_nodes(Pointwise("h", apply("sign", Ref("h__1")))))
    assert adjoint.nodes == ()
    assert adjoint.state_cotangents == ()


def test_a_state_that_only_keeps_another_passes_its_cotangent_on() -> None:
    delay = Pointwise("k", Ref("h__1"))
    adjoint = only(with_nodes(delay, Pointwise("h", apply("add", Ref("k__1"), Ref("a__x"))), states="hk"))
    assert dict(adjoint.state_cotangents) == {"h": "d_k", "k": "d_h"}
    assert adjoint.stream_cotangents == (("a__x", "d_h"),)


def test_a_hidden_state_has_no_sequence_gradient() -> None:
    adjoint = only(with_nodes(Pointwise("h", apply("add", Ref("h__1"), Ref("a__x"))), sequences=("a__x",)))
    assert adjoint.nodes == (Pointwise("d_a__x", builders.add(Ref("d_a__x__sequence"), Ref("d_h__carry"))),)
    assert adjoint.state_cotangents == (("h", "d_h__carry"),)


def test_a_split_goes_back_as_one_concatenation() -> None:
    nodes: list[Node] = [
        RowOp("v", RowOperator.CONCAT, ("a__x", "h__1")),
        RowOp("p", RowOperator.SLICE, ("v",), HIDDEN_SIZE),
        RowOp("q", RowOperator.SLICE, ("v",)),
        Pointwise("h", apply("mul", Ref("p"), Ref("q"))),
    ]
    cell = with_nodes(*nodes)
    wide = tuple(replace(v, width=scale(HIDDEN_SIZE, 2)) if v.name == "v" else v for v in cell.values)
    check_gradients(replace(cell, values=wide), heads=2)
    operators = [node.operator for node in only(replace(cell, values=wide)).nodes if isinstance(node, RowOp)]
    assert operators == [RowOperator.CONCAT, RowOperator.SLICE, RowOperator.SLICE]


def test_a_maximum_is_a_constant_to_softmax() -> None:
    def gradients(*nodes: Node) -> Adjoint:
        cell = with_nodes(*nodes)
        narrow = tuple(replace(v, width=HEADS) if v.name in ("m", "s") else v for v in cell.values)
        check_gradients(replace(cell, values=narrow), heads=2)
        return only(replace(cell, values=narrow))

    adjoint = gradients(
        Pointwise("v", apply("add", Ref("a__x"), Ref("h__1"))),
        RowOp("m", RowOperator.MAX, ("v",)),
        Pointwise("e", apply("exp", apply("sub", Ref("v"), Ref("m")))),
        RowOp("s", RowOperator.SUM, ("e",)),
        Pointwise("h", apply("div", Ref("e"), Ref("s"))),
    )
    assert "d_m" not in {node.target for node in adjoint.nodes}


def test_names_given_do_not_meet_the_cells_own() -> None:
    nodes = [
        Pointwise("h__1__tanh", apply("add", Ref("a__x"), Ref("a__x"))),
        Pointwise("h", builders.mul(apply("tanh", Ref("h__1")), Ref("h__1__tanh"))),
    ]
    adjoint = only(with_nodes(*nodes))
    targets = [node.target for node in adjoint.segment.nodes]
    assert targets == ["h__1__tanh", "h__1__tanh2", "h"]
    check_gradients(with_nodes(*nodes))


def shares_a_parameter(equations: int) -> Cell:
    """A cell whose loop gives as many equations, each of which reads the params u and v, and h[t-1]."""
    lines = ["cell A", "state h", "param u: vector, v: vector", "y[0] = W@x", f"for l in 1..{equations - 2}:"]
    lines += ["    y[l] = 0.9*y[l-1] - u*v + 0.1*h[t-1]", f"h[t] = y[{equations - 2}]", ""]
    return cell_of("\n".join(lines))


def test_many_equations_give_a_cotangent_parts() -> None:
    check_gradients(shares_a_parameter(LONGEST_SUM + 2))
    check_gradients(shares_a_parameter(2 * LONGEST_SUM + 7), heads=2)


@pytest.mark.long
def test_as_many_equations_as_a_cell_may_have_are_rendered() -> None:
    plan = kernel_plan(shares_a_parameter(MOST_EQUATIONS))
    assert for_gpus([plan]).files


SCRIPT = """
from rnncc.stages.mask import mask
from tests import builders, shipped
from rnncc.stages.differentiate import differentiate
cells = [builders.lstm(), builders.layernorm_toy(), *shipped.cells("phasedlstm"), *shipped.cells("slstm")]
print([repr(differentiate(cell)) for cell in cells])
"""


@pytest.mark.long
def test_output_does_not_depend_on_the_hash_seed() -> None:
    outputs = set()
    for seed in ("0", "1", "42"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True, cwd=ROOT
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("lstm", {"h__1": {"i__R", "f__R", "g__R", "o__R"}}),
        # r*h[t-1] is an operand; z*h[t-1] is none, and keeps the value itself.
        ("gruv3", {"h__1": {"r__R", "z__R", "n__0"}}),
        # The projection multiplies a value of this step, made of c[t-1] among others.
        ("lstmp", {"h__1": {"i__R", "f__R", "g__R", "o__R"}}),
        # R@z[t] reads no earlier value.
        ("lem", {"h__1": {"d1__R", "d2__R", "nz__R"}}),
        # The second round's operand is carried on as well.
        ("rhn", {"h__1": {"n_1__R", "g_1__R"}}),
        ("cornn", {"h__1": {"z__R"}, "z__1": {"z__M"}}),
        ("taugru", {"h__1": {"u__R", "g__R", "a__R"}, "h__delay1__1": {"z__R"}}),
        ("mingru", {}),
    ],
)
def test_what_reads_earlier_values_for_products(stem: str, expected: dict[str, set[str]]) -> None:
    (cell,) = shipped.cells(stem)
    (segment,) = cell.segments
    assert readers(segment) == expected
    # In a masked cell it is what a reset leaves.
    restarted = {name.replace("__1", "__restarted"): targets for name, targets in expected.items()}
    assert readers(mask(cell).segments[0]) == restarted


def readers(segment: Segment) -> dict[str, set[str]]:
    """The targets of the nodes that read an alias, by the value behind it."""
    found = recurrent_reads(segment)
    return {
        name: {node.target for node in found.nodes if alias in operands(node)} for alias, name in found.aliases.items()
    }


def test_equations_that_two_programs_share_are_differentiated_once() -> None:
    """The plain and the masked program of a cell have most of them in common."""
    derivatives.derivative.cache_clear()
    compile_cells(read_request("lstm"), "differentiate")
    info = derivatives.derivative.cache_info()
    assert info.hits > 0.4 * info.misses > 0
