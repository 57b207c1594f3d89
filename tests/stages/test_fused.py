"""Which programs take the fused form, what it is, and its text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rnncc.ir.dim import named, scale
from rnncc.ir.expr import references
from rnncc.ir.family import Scope
from rnncc.ir.fused import FusedLoop, MatrixPart, MatrixRule, ReductionKind, Relation, inference
from rnncc.ir.layout import LoopKernels
from rnncc.ir.lowered import LoweredCell, NoForm, fused_programs
from rnncc.ir.problem import Problem
from rnncc.ir.scan import row_values
from rnncc.ir.step import Table
from rnncc.ir.target import GPUS
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import locate
from rnncc.stages.render.cuda.fused import fused_steps
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.kernels import planned
from tests.compiling import front, kernel_plan


def plan_of(name_or_text: str) -> LoweredCell:
    source = Source("cell.rnn", name_or_text) if "\n" in name_or_text else read_source(locate(name_or_text))
    return kernel_plan(front(source)[0][0])


def both_ways(plan: LoweredCell) -> tuple[FusedLoop, FusedLoop]:
    loop = plan.loops[0]
    assert isinstance(loop.fused_forward, FusedLoop) and isinstance(loop.fused_backward, FusedLoop)
    return loop.fused_forward, loop.fused_backward


def test_lstm() -> None:
    forward, backward = both_ways(plan_of("lstm"))
    (product,), (start, finish) = forward.phases, forward.stages
    assert product.sums == ("i__R", "f__R", "g__R", "o__R") and product.operands == ("h__1",)
    assert product.matrices == tuple((MatrixPart(name),) for name in ("R_i", "R_f", "R_g", "R_o"))
    assert not product.transposed
    assert [read.name for read in forward.reads] == ["i__x", "f__x", "g__x", "o__x"]
    assert [(edge.name, edge.link) for edge in forward.edges] == [("h__1", "h"), ("c__1", "c")]
    assert start == () and finish[-1].target == "h"
    # Backward: the gates' gradients are operands, made before the product; its sum is h's gradient a step earlier.
    (product,) = backward.phases
    assert sorted(product.operands) == ["d_f", "d_g", "d_i", "d_o"] and len(product.sums) == 1 and product.transposed
    assert backward.kept == ("d_c__1",)
    assert [edge.link for edge in backward.edges] == ["d_h__1__recurrent__clipped", "d_c__1"]
    shifted = [read.name for read in backward.reads if read.edge is not None]
    assert shifted == ["c__1"]


def test_resets_and_lengths_come_before_the_product() -> None:
    plan = plan_of("gru")
    masked = next(loop for loop in plan.loops if loop.masked)
    assert isinstance(masked.fused_forward, FusedLoop)
    assert masked.fused_forward.phases[0].operands == ("h__restarted",)
    # Whether a step is active is known, and not read.
    assert [row.name for row in masked.fused_forward.rows] == ["reset__"]
    assert row_values(masked.fused_forward) == ("reset__", "active__")
    assert [statement.target for statement in masked.fused_forward.stages[0]] == ["h__restarted"]


def test_products_that_wait_for_each_other_are_a_chain() -> None:
    forward, backward = both_ways(plan_of("gruv3"))
    assert [(phase.sums, phase.operands) for phase in forward.phases] == [
        (("r__R", "z__R"), ("h__1",)),
        (("n__R",), ("n__0",)),
    ]
    start, middle, finish = forward.stages
    # What the second product takes is made after the first one, and the gate z stays for the end.
    assert start == () and middle[-1].target == "n__0" and finish[-1].target == "h" and forward.kept == ("z",)
    assert len(backward.phases) == 2 and all(phase.transposed for phase in backward.phases)


def test_a_sum_need_not_take_every_operand() -> None:
    forward, _ = both_ways(plan_of("taugru"))
    (product,) = forward.phases
    assert len(product.operands) == 2 and product.has_holes
    assert [sum(matrix is not None for matrix in row) for row in product.matrices] == [1] * len(product.sums)
    (phase,) = cost_of(forward, "bf16").phases
    assert [(run.sums, run.operands) for run in phase.runs] == [(3, 1), (1, 1)]


def test_operands_that_the_same_sums_take_stand_side_by_side() -> None:
    """The first sum takes the states in the order h, c, d. The second sum takes only c."""
    text = "cell Three\nstate h, c, d\nweights U: matrix, V: matrix\nh[t] = tanh(R@h[t-1] + U@c[t-1] + V@d[t-1])\n"
    forward, _ = both_ways(plan_of(text + "c[t] = tanh(W@x + U@c[t-1] + h[t-1])\nd[t] = h[t]*d[t-1]\n"))
    (product,) = forward.phases
    assert product.operands == ("h__1", "d__1", "c__1")
    assert product.taken_by == ((True, False), (True, False), (True, True))
    step = next(iter(fused_steps(plan_of("wmclstm"))))
    assert [each.text for each in step.constants if each.name == "TAKEN_BY[]"] == ["{0b11, 0b111100, 0b1}"]


def test_a_sum_of_two_matrices_of_one_operand_takes_both() -> None:
    for loop in both_ways(plan_of("cell Two\nstate h\nweights U: matrix\nh[t] = tanh(W@x + R@h[t-1] + U@h[t-1])\n")):
        ((phase),) = loop.phases
        found = {part for row in phase.matrices for part in row}
        assert found == {MatrixPart("R_h"), MatrixPart("U_h")} and not phase.has_holes
        assert len(set(phase.operands)) == 2


def test_norms_are_reductions_over_the_units_of_a_head() -> None:
    forward, _ = both_ways(plan_of("layernormlstm"))
    assert [(len(phase.sums), len(phase.reductions)) for phase in forward.phases] == [(4, 0), (0, 1), (0, 1)]
    # A vector of 4*H units is four numbers of each unit, and all of them are in the mean and the variance.
    moments = forward.phases[1].reductions[0]
    assert moments.sources == tuple(f"v__R__{part}of4" for part in range(4))
    assert moments.kind is ReductionKind.MOMENTS and forward.phases[1].reduced == moments.results
    assert [read.name for read in forward.reads] == [f"v__x__{part}of4" for part in range(4)]
    assert [read.place.offset for read in forward.reads] == [scale(named("H"), part) for part in range(4)]
    # What each head has once goes to tensors of that width.
    assert [write.value for write in forward.row_writes] == ["v__1__part__rsqrt", "h__0__part__rsqrt"]


def test_a_softmax_is_a_largest_number_and_a_sum() -> None:
    forward, _ = both_ways(plan_of("cell Soft\nstate h\nh[t] = softmax(R@h[t-1] + W@x)\n"))
    kinds = [reduction.kind for phase in forward.phases for reduction in phase.reductions]
    assert kinds == [ReductionKind.LARGEST, ReductionKind.SUM]


def test_widths_are_those_of_the_values() -> None:
    hidden, projected = named("H"), named("P")
    forward, backward = both_ways(plan_of("lstmp"))
    for loop in (forward, backward):
        assert set(loop.widths) == {hidden, projected}
        for read in loop.reads:
            assert loop.widths[read.width] == (projected if read.name == "d_h__sequence" else hidden)
    gates, projection = (
        ([forward.widths[at] for at in phase.sum_widths], [forward.widths[at] for at in phase.operand_widths])
        for phase in forward.phases
    )
    assert gates == ([hidden] * 4, [projected])
    assert projection == ([projected], [hidden])


def test_a_matrix_of_one_row_or_column_is_a_vector() -> None:
    """LMU writes one number into its memory: that number is a sum over the units, times a column it is no product."""
    forward, _ = both_ways(plan_of("lmu"))
    assert {vector.matrix for vector in forward.vectors} == {MatrixPart(name) for name in ("R_u", "E_u", "B")}
    assert [forward.widths[reduction.width] for reduction in forward.phases[0].reductions] == [named("H"), named("N")]


def test_running_sums_and_repeated_values_are_one_product() -> None:
    forward, backward = both_ways(plan_of("onlstm"))
    # R; the largest number, and the sum, of a softmax; repeat(cumsum(..)).
    assert [len(phase.sums) for phase in forward.phases] == [6, 0, 0, 2]
    assert [len(phase.sums) for phase in backward.phases] == [2, 0, 1]
    rules = set(filter(None, forward.phases[-1].rules)), set(filter(None, backward.phases[0].rules))
    assert rules == (
        {MatrixRule(Relation.AT_MOST, unit_times=4)},
        {MatrixRule(Relation.AT_LEAST, term_times=4)},
    )


@pytest.mark.parametrize(
    ("equation", "phases"),
    # A running sum of a function of a running sum waits for the first one.
    [("cumsum(R@h[t-1])", 2), ("cumsum(exp(cumsum(R@h[t-1])))", 3)],
)
def test_a_running_sum_is_a_product(equation: str, phases: int) -> None:
    loops = both_ways(plan_of(f"cell Sums\nstate h\nh[t] = tanh({equation} + W@x)\n"))
    for loop, relation in zip(loops, (Relation.AT_MOST, Relation.AT_LEAST), strict=True):
        assert len(loop.phases) == phases
        assert {rule for phase in loop.phases for rule in phase.rules if rule} == {MatrixRule(relation)}


@pytest.mark.parametrize(
    ("lines", "phases"),
    [
        (("h[t] = tanh(layernorm(h[t-1] + W@x))",), (1, 1)),
        (("h[t] = softmax(h[t-1] + W@x)",), (2, 1)),
        (("local a: num_heads", "a = mean(h[t-1])", "h[t] = tanh(a*h[t-1] + W@x)"), (1, 1)),
        (("dim P", "state q: P", "h[t] = h[t-1]*mean(q[t-1]) + W@x", "q[t] = tanh(q[t-1] + mean(h[t-1]))"), (1, 1)),
    ],
    ids=str,
)
def test_reductions_without_a_product(lines: tuple[str, ...], phases: tuple[int, int]) -> None:
    """There is room for no matrix, and head_dims are as in any other fused loop."""
    plan = plan_of(own(*lines))
    for loop, count in zip(both_ways(plan), phases, strict=True):
        assert len(loop.phases) == count and all(phase.reductions for phase in loop.phases)
        assert loop.operands == 0 == cost_of(loop, "bf16").matrix_elements(64, 64)
        assert named("H") in loop.widths
    assert all(isinstance(loop.scan_forward, NoForm) for loop in plan.loops)
    text = {constant.name: constant.text for constant in fused_steps(plan)[0].constants}
    assert set(text["SUMS[]"]) <= set("{0, }") and set(text["OPERANDS[]"]) <= set("{0, }")


def test_inference_writes_what_the_caller_gets() -> None:
    forward, _ = both_ways(plan_of("lstm"))
    kept = inference(forward).writes
    assert kept and all(write.place is not None and write.place.table is Table.SEQUENCES for write in kept)
    assert len(kept) < len(forward.writes)


def own(*lines: str) -> str:
    """A cell of one state h, of these lines."""
    return "\n".join(("cell Own", "state h", *lines, ""))


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("mingru", "a step has no product and no reduction"),
        # No scan either, since its values have several widths.
        (own("input x, a: num_heads", "h[t] = a*h[t-1] + W@x"), "a step has no product and no reduction"),
        (
            "cell Wide\ndim K\ndim M\ndim N\ndim P\nstate h\nlocal p: K, q: M, r: N, v: P\nweights U: matrix\n"
            "p = U@h[t-1]\nq = U@p\nr = U@q\nv = U@r\nh[t] = tanh(U@v + W@x)\n",
            "a step has values of more than 4 widths",
        ),
        (
            "cell Four\nstate h\nweights U: blockdiag(4)\nh[t] = tanh(W@x + U@h[t-1] + b)\n",
            "U_h has another number of blocks than heads: declare it `matrix`",
        ),
        (
            own("weights V: matrix", "h[t] = tanh(V@concat(h[t-1], tanh(h[t-1])))"),
            "V_h multiplies a value that is several",
        ),
        (own("local w: 2*H", "w = repeat(h[t-1], 2)", "a, e = split(w)", "h[t] = tanh(R@a*e)"), "repeat leads from"),
        (own("h[t] = tanh(R@roll(h[t-1], 1))"), "a step moves units of a head"),
        (own("h[t] = tanh(R@h[t-1] + roll(h[t-1], -2, fill=0))"), "a step moves units of a head"),
        (
            own("state n: num_heads", "n[t] = 0.5*n[t-1] + mean(h[t-1])", "h[t] = tanh(R@h[t-1]*n[t])"),
            "n has one number per head",
        ),
        (
            own("state c: 2*H", "a, e = split(c[t-1])", "c[t] = concat(h[t-1], a)", "h[t] = tanh(R@e)"),
            "c has 2 numbers per unit",
        ),
        (
            own("weights V: matrix", "local n: num_heads", "n = V@h[t-1]", "h[t] = tanh(R@h[t-1]*mean(n))"),
            "V_n has one row or column per head",
        ),
        (
            own(
                "local n: 2*num_heads",
                "n = softmax(concat(mean(h[t-1]), sum(h[t-1])))",
                "a, e = split(n)",
                "h[t] = tanh(R@h[t-1]*a + e)",
            ),
            "a value has several numbers per head",
        ),
        (
            own(
                "weights V: matrix, U: matrix, Z: matrix",
                "local n: 1, m: 1",
                "n = V@h[t-1]",
                "m = U@n",
                "h[t] = tanh(Z@m)",
            ),
            "U_m is a matrix of one element",
        ),
        (
            own(
                "dim P",
                "weights V: matrix",
                "local p: P, w: H + P",
                "p = V@h[t-1]",
                "w = concat(h[t-1], p)",
                "h[t] = R@h[t-1]*mean(w)",
            ),
            "values of several widths are put together",
        ),
        (own("local v: 64*H", "v = tanh(R@h[t-1] + W@x)", "h[t] = mean(v)*h[t-1]"), "a value is more than 63 times"),
        (
            own("const L = 17", "q[0] = h[t-1]", "for l in 1..L:\n    q[l] = tanh(R@q[l-1])", "h[t] = q[L]"),
            "a step has 17 products, norms and sums that wait",
        ),
    ],
)
def test_what_does_not_fit(cell: str, why: str) -> None:
    loop = plan_of(cell).loops[0]
    assert isinstance(loop.fused_forward, NoForm) and loop.fused_forward.reason.startswith(why)


def test_the_gradient_of_a_number_per_head_is_a_reduction() -> None:
    text = "cell Paced\ninput x, pace: num_heads\nstate h\nlocal a: 1\na = pace\nh[t] = a*tanh(W@x + R@h[t-1])\n"
    _, backward = both_ways(plan_of(text))
    assert [write.value for write in backward.row_writes] == ["d_pace__sum"]


@pytest.mark.parametrize(
    "lines",
    [
        ("local v: 2*H", "v = gap*tanh(W@x + R@h[t-1] + b)", "p, q = split(v)", "h[t] = tanh(p + q*gap)"),
        ("local m: 1", "v = W@x + R@h[t-1]", "m = gap*tanh(mean(v))", "h[t] = tanh(v - m)"),
    ],
    ids=str,
)
def test_a_gradient_that_is_more_than_one_sum_over_all_heads(lines: tuple[str, ...]) -> None:
    """The reason says what to change, and it helps."""
    made = plan_of(own("input x, gap: 1", *lines)).loops[0].fused_backward
    assert isinstance(made, NoForm) and "more than one sum over all heads: give each head its own" in made.reason
    both_ways(plan_of(own("input x, gap: num_heads", *lines)))


def test_the_gradient_of_a_number_per_batch_entry_is_summed_after_the_loop() -> None:
    _, backward = both_ways(plan_of("timeawarelstm"))
    (late,) = backward.late_sums
    (write,) = (write for write in backward.writes if write.slot == late.terms)
    assert len(backward.phases) == 1 and write.place is None
    (terms,) = (each for stage in backward.stages for each in stage if each.target == write.value)
    # d_gap is the sum of d_log over the units, divided by what the logarithm is of.
    assert set(references(terms.expr)) == {late.terms, "ca__part"}


def test_the_terms_of_a_late_sum_have_a_record_that_nothing_else_has() -> None:
    """The sum for `p` takes d_h itself from its record, so the terms for `gap` are in that of another slot."""
    text = "cell Own\ninput x, gap: 1\nparam p: vector\nstate h\nh[t] = tanh(R@h[t-1] + W@x) + gap + tanh(p)\n"
    plan = plan_of(text)
    _, backward = both_ways(plan)
    (late,) = backward.late_sums
    step = plan.loops[0].backward.step
    assert late.terms in step.stored and not step.places(late.terms)
    assert [write.value for write in backward.writes if write.slot == late.terms] == ["d_gap__sum__of_unit"]


@pytest.mark.parametrize("function", ["mean", "sum", "cumsum"])
def test_a_reduction_of_one_number_per_head_is_that_number(function: str) -> None:
    text = "cell Own\nstate h\nlocal m: 1\nv = tanh(R@h[t-1] + W@x)\nm = mean(v)\nh[t] = v*{} - {}\n"
    given, mean = (both_ways(plan_of(text.format("m", of))) for of in ("m", f"{function}(m)"))
    assert [len(loop.phases) for loop in given] == [len(loop.phases) for loop in mean]


@pytest.mark.parametrize(
    "equations",
    [
        # A running sum of many statements, and one of many statements of a running sum.
        ("s[0] = R@h[t-1] + W@x", "for l in 1..64:", "    s[l] = s[l-1]*(1 - s[l-1])", "h[t] = cumsum(s[64])"),
        ("s[0] = cumsum(R@h[t-1])", "for l in 1..64:", "    s[l] = s[l-1] + s[l-1]", "h[t] = cumsum(s[64] + W@x)"),
        # The gradients of norms are split.
        ("s[0] = layernorm(R@h[t-1] + W@x)", "for l in 1..64:", "    s[l] = s[l-1] + 0.1*s[l-1]", "h[t] = mean(s[64])"),
    ],
    ids=str,
)
def test_values_that_are_read_twice_at_each_statement(equations: tuple[str, ...]) -> None:
    """To read every path would take forever."""
    both_ways(plan_of("\n".join(("cell Own", "state h", *equations, ""))))


def test_loops_that_fit_one_way_only_have_no_kernels() -> None:
    plan = plan_of("lstm")
    assert list(fused_programs(plan))
    loops = tuple(replace(loop, fused_backward=NoForm("why")) for loop in plan.loops)
    one_way = replace(plan, loops=loops)
    assert list(fused_programs(one_way)) == []
    (loop,) = planned(one_way, Problem(64, 1, "bf16"), GPUS["h200"]).loops
    for found in (loop.forward, loop.backward):
        assert isinstance(found, LoopKernels) and not found.kernels
        assert found.rejected[0].limits[0].reason == "why"


def test_text() -> None:
    plan = plan_of("cell Tiny\nstate h\nparam p: vector\nh[t] = tanh(p*h[t-1] + R@h[t-1] + W@x)\n")
    forward = fused_steps(plan)[0]
    assert forward.name == "tiny_0_forward_step"
    numbers = {constant.name: constant.text for constant in forward.constants}
    assert (numbers["SUMS[]"], numbers["OPERANDS[]"]) == ("{1}", "{1}")
    assert (numbers["PHASES"], numbers["READS"], numbers["VECTORS"]) == ("1", "1", "1")
    finish = "\n".join(forward.functions[1].lines)
    assert re.search(r"const float h = fast__::tanh\(.*\);  // cell.rnn:4", finish)
    assert finish.endswith("carry__[0] = h;")


@pytest.mark.one_in(7)
@pytest.mark.parametrize("units", [8, 64, 200, 256, 768, 1000, 1024])
def test_every_kernel_fits_the_gpu(units: int) -> None:
    for name in ("lstm", "gru", "slstm", "elman"):
        for program, loop in fused_programs(plan_of(name)):
            plans = schedule(loop, Problem(units, 1, "bf16"), GPUS["h200"]).kernels
            assert plans, program
            for plan in plans:
                assert plan.threads % 32 == 0 and plan.threads <= 512 and plan.shared_bytes <= 232_448
                assert plan.ctas <= (132 if plan.family.scope is Scope.GRID else 16)
