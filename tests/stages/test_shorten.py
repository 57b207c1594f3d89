"""Reductions that need not wait for each other do not: how many phases a step has."""

from __future__ import annotations

import pytest

from rnncc.ir.expr import Apply, Const, Ref, operators, references
from rnncc.ir.fused import FusedLoop, ReductionKind
from tests.stages.test_fused import both_ways, plan_of

SUM, LARGEST, MOMENTS = ReductionKind.SUM, ReductionKind.LARGEST, ReductionKind.MOMENTS
PRODUCT = ()


def phases_of(loop: FusedLoop) -> list[tuple[ReductionKind, ...]]:
    """The reductions of each phase. A product has none."""
    return [tuple(reduction.kind for reduction in phase.reductions) for phase in loop.phases]


@pytest.mark.parametrize(
    ("cell", "norms"), [("layernormlstm", 2), ("layernormlstm_pt", 2), ("layernormgru", 1), ("dreamergru", 1)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_norm_is_one_phase(cell: str, norms: int, masked: bool) -> None:
    loop = next(loop for loop in plan_of(cell).loops if loop.masked is masked)
    assert isinstance(loop.fused_forward, FusedLoop) and isinstance(loop.fused_backward, FusedLoop)
    assert phases_of(loop.fused_forward) == [PRODUCT, *[(MOMENTS,)] * norms]
    assert phases_of(loop.fused_backward) == [*[(SUM, SUM)] * norms, PRODUCT]


def cell(*equations: str) -> str:
    return "\n".join(("cell Own", "state h", *equations, ""))


@pytest.mark.parametrize(
    ("text", "forward", "backward"),
    [
        # A norm by hand is a norm.
        (
            cell("v = R@h[t-1] + W@x", "d = v - mean(v)", "h[t] = d / sqrt(mean(d**2) + 1e-5)"),
            [PRODUCT, (MOMENTS,)],
            [(SUM, SUM), PRODUCT],
        ),
        (
            cell("v = R@h[t-1] + W@x", "m = mean(v)", "h[t] = tanh(v - m) * mean((v - m)*(v - m))"),
            [PRODUCT, (MOMENTS,)],
            [(SUM, SUM), PRODUCT],
        ),
        (
            cell("v = R@h[t-1] + W@x", "d = v - mean(v)", "h[t] = d / (sqrt(sum(d*d)) + 0.1) + mean(v)"),
            [PRODUCT, (MOMENTS,)],
            [(SUM, SUM), PRODUCT],
        ),
        # Two variances come with one mean.
        (
            cell("v = R@h[t-1] + W@x", "m = mean(v)", "h[t] = layernorm(v)*tanh(v - m) + mean((v - m)**2)"),
            [PRODUCT, (MOMENTS,)],
            [(SUM, SUM, SUM), PRODUCT],
        ),
        # What is no mean of squared deviations waits for the mean.
        (
            cell("v = R@h[t-1] + W@x", "m = mean(v)", "h[t] = tanh(v - m) * mean(abs(v - m))"),
            [PRODUCT, (SUM,), (SUM,)],
            None,
        ),
        # A sum of multiples of a number per head does not wait for that number.
        (
            cell("v = R@h[t-1] + W@x", "m = mean(v*v)", "h[t] = tanh(v - mean(tanh(v) - m*v))"),
            [PRODUCT, (SUM, SUM, SUM)],
            [(SUM, SUM), PRODUCT],
        ),
        # But a sum of products stays as it is: Σv·u and mean(u)·Σv may be much larger than what is left.
        (
            cell("v = R@h[t-1] + W@x", "u = tanh(v)", "h[t] = tanh(v + mean(v*(u - mean(u))))"),
            [PRODUCT, (SUM,), (SUM,)],
            None,
        ),
        (cell("h[t] = softmax(R@h[t-1] + W@x)"), [PRODUCT, (LARGEST,), (SUM,)], None),
        (cell("h[t] = rmsnorm(R@h[t-1] + W@x)"), [PRODUCT, (SUM,)], [(SUM,), PRODUCT]),
    ],
)
def test_phases_of_equations(
    text: str, forward: list[tuple[ReductionKind, ...]], backward: list[tuple[ReductionKind, ...]] | None
) -> None:
    loops = both_ways(plan_of(text))
    assert phases_of(loops[0]) == forward
    assert backward is None or phases_of(loops[1]) == backward


@pytest.mark.parametrize("moved", ["d / sqrt(mean(d**2) + 1e-5)", "d*(1 / sqrt(mean(d**2) + 1e-5))", "layernorm(v)"])
def test_a_norm_divides_by_nothing_but_its_count(moved: str) -> None:
    forward, backward = both_ways(plan_of(cell("v = R@h[t-1] + W@x", "d = v - mean(v)", f"h[t] = tanh({moved})")))
    made = {each.target: each.expr for stage in forward.stages for each in stage}
    divisors = [expr.arguments[1] for expr in made.values() if isinstance(expr, Apply) and expr.operator == "div"]
    assert all(isinstance(divisor, Const | Ref) and "sqrt" not in str(divisor) for divisor in divisors)
    assert sum("rsqrt" in operators(expr) for expr in made.values()) == 1
    if moved == "layernorm(v)":
        found = {name for stage in backward.stages for each in stage for name in operators(each.expr)}
        assert not found & {"sqrt", "rsqrt"}


def test_several_quotients_by_a_square_root_share_one_inverse() -> None:
    text = cell("n = sqrt(1 + mean(h[t-1]*h[t-1]))", "h[t] = tanh(W@x + (R@h[t-1])/n) + b/n - h[t-1]*n")
    forward, _ = both_ways(plan_of(text))
    made = [each for stage in forward.stages for each in stage]
    assert sum("rsqrt" in operators(each.expr) for each in made) == 1
    assert not any("div" in operators(each.expr) and "n" in references(each.expr) for each in made)
    assert sum("n__inverse" in references(each.expr) for each in made) == 2


def test_a_sum_that_goes_to_memory_alone_is_made() -> None:
    """A cell of one head adds up the gradient of a number per batch entry in the step."""
    text = cell("local u: 1", "weights E: matrix", "u = E@h[t-1]", "h[t] = tanh(R@h[t-1]*gap + W@x + u)")
    _, backward = both_ways(plan_of(text.replace("state h", "input gap: 1\nstate h")))
    (write,) = (write for write in backward.row_writes if write.slot == "d_gap__sum")
    assert any(write.value in phase.reduced for phase in backward.phases)
