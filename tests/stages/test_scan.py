"""Loops without products: which they are, what a step does to its carries, and how their kernels are laid out."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rnncc.ir.artifact import OF_EVERY_PACKAGE
from rnncc.ir.expr import Const
from rnncc.ir.layout import ScanShape
from rnncc.ir.lowered import LoweredCell, NoForm, scan_programs
from rnncc.ir.problem import Problem
from rnncc.ir.recurrence import RecurrenceKind
from rnncc.ir.scan import ScanLoop, row_values, without_names
from rnncc.ir.step import Statement
from rnncc.ir.target import GPUS
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.show.schedule import show_scan
from rnncc.stages.classify import classify
from rnncc.stages.schedule import plan_scan
from rnncc.stages.schedule.kernels import family_names, newton_loops, scan_kernels
from rnncc.stages.schedule.scan import scan_ctas, scan_schedule
from rnncc.verify.reference import Interpreter
from tests.compiling import front, lowered, plan_of
from tests.rendering import for_gpus
from tests.shipped import PARALLEL, only

# Forward; every backward of them is a scan.
SCANS, WALKS = only("AFFINE"), only("ELEMENTWISE")
FAMILIES = {
    "AFFINE": "scan",
    "ELEMENTWISE": "forward walk, backward scan",
    "DENSE": "alternating",
    "MATRIX": "by head, alternating",
}
# The matrix loops whose steps have products, or matrices of several shapes.
OTHERS = {"fastweights": 0, "ltc_pairs": 0, "mamba3": 1, "masslstm": 0, "mesanet": 0, "ntm": 0}
MIXED = {
    stem: [FAMILIES["DENSE" if index == OTHERS.get(stem) else kind] for index, (_, kind, _) in enumerate(segments)]
    for stem, segments in PARALLEL.items()
    if stem not in (*SCANS, *WALKS)
}


@pytest.fixture(scope="module")
def plans() -> dict[str, LoweredCell]:
    return {cell: plan_of(cell) for cell in (*SCANS, *WALKS, *MIXED)}


def test_what_is_a_scan_and_what_a_walk(plans: dict[str, LoweredCell]) -> None:
    scans = {cell: ["scan"] * len(PARALLEL[cell]) for cell in SCANS}
    expected = scans | {cell: ["forward walk, backward scan"] for cell in WALKS} | MIXED
    assert {cell: [family for _, family in family_names(plan)] for cell, plan in plans.items()} == expected
    for plan in plans.values():
        for loop in plan.loops:
            masked = next(other for other in plan.loops if other.segment == loop.segment and other.masked)
            for own, other in ((loop.scan_forward, masked.scan_forward), (loop.scan_backward, masked.scan_backward)):
                assert isinstance(own, NoForm) == isinstance(other, NoForm)
                assert isinstance(own, NoForm) or isinstance(other, NoForm) or own.family == other.family


@pytest.mark.parametrize(
    ("declared", "equations", "families"),
    [
        ("input gap: 1\nstate h", "", ["scan"]),
        ("input gap: num_heads\nstate h", "", ["scan"]),
        ("input gap: 1 per sequence\nstate h", "", ["scan"]),
        ("state h, gap: num_heads", "gap[t] = 0.5*gap[t-1] + W@x", ["scan", "scan"]),
        ("state h, gap: num_heads", "gap[t] = 0.5*gap[t-1] + mean(h[t-1])", ["alternating"]),
    ],
)
def test_one_number_for_all_units_is_spread_before_a_scan(declared: str, equations: str, families: list[str]) -> None:
    """Its gradient is a sum over the units, which the backward loop has not got: that stays a scan."""
    gap = "gap[t-1]" if equations else "gap"
    step = f"local k: 1\nk = W@x\nu = W@x\nh[t] = exp(-{gap}*{gap})*h[t-1] + k*u"
    plan = lowered(Source("narrow.rnn", f"cell Narrow\n{declared}\n{equations}\n{step}"))
    assert [family for _, family in family_names(plan)] == families


def test_these_are_all_shipped_cells_that_are_not_dense() -> None:
    found = set()
    for path in shipped_cells():
        cell = front(read_source(path))[0][0]
        if any(recurrence.kind is not RecurrenceKind.DENSE for recurrence in classify(cell)):
            found.add(path.stem)
    assert found == {*SCANS, *WALKS, *MIXED}, "tests/shipped.py: PARALLEL has a line for each of these"


def evaluate(loop: ScanLoop, carries: dict[str, Tensor], given: dict[str, Tensor], mapped: bool) -> list[Tensor]:
    """The carries after a step: by its statements, or by its map."""
    machine = Interpreter({}, {}, 1, next(iter(carries.values())))
    if not mapped:
        known = given | carries
        for statement in loop.statements:
            known[statement.target] = machine.expression(statement.expr, known.__getitem__)
        return [known[edge.link] for edge in loop.edges]
    assert loop.map
    known = dict(given)  # no carry: the map reads none
    for statement in loop.map.statements:
        known[statement.target] = machine.expression(statement.expr, known.__getitem__)
    found = []
    for row, offset in zip(loop.map.matrix, loop.map.offset, strict=True):
        total = machine.expression(offset, known.__getitem__)
        for edge, slope in zip(loop.edges, row, strict=True):
            if slope is not None:
                total = total + machine.expression(slope, known.__getitem__) * carries[edge.name]
        found.append(total)
    return found


@pytest.mark.parametrize("cell", [*SCANS, *WALKS, *MIXED])
def test_the_map_of_a_step_is_the_step(cell: str, plans: dict[str, LoweredCell]) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return torch.randn(64, generator=generator, dtype=torch.float64)

    for program, loop in scan_programs(plans[cell]):
        if loop.map is None:
            continue
        given = {item.name: draw() for group in (loop.reads, loop.vectors) for item in group}
        given |= {name: (draw() > 0).double() for name in row_values(loop)} | {
            name: draw().abs() for name in loop.constants
        }
        carries = {edge.name: draw() for edge in loop.edges}
        own, expected = (evaluate(loop, carries, given, mapped) for mapped in (True, False))
        for value, wanted in zip(own, expected, strict=True):
            finite = wanted.isfinite()
            assert finite.sum() > 16, program
            torch.testing.assert_close(value.expand(64)[finite], wanted.expand(64)[finite], atol=1e-12, rtol=1e-12)
        # What is kept is worked out by the map and left alone by it.
        assert set(loop.kept) <= {statement.target for statement in loop.map.statements}


@pytest.mark.parametrize("new", ["h[t-1] + (u - h[t-1])", "0*h[t-1] + u", "u*tanh(h[t-1] - h[t-1]) + u"])
def test_a_map_reads_no_carry_that_cancels(new: str) -> None:
    plan = lowered(Source("<cancels>", f"cell Cancels\nstate h\nu = W@x\nh[t] = {new}\n"))
    loop = plan.loops[0].scan_forward
    assert isinstance(loop, ScanLoop)
    carries, u = {"h__1": torch.full((8,), 5.0)}, torch.linspace(-1, 1, 8)
    (own,), (expected,) = (evaluate(loop, carries, {loop.reads[0].name: u}, mapped) for mapped in (True, False))
    torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("cell", [*WALKS, "rwkv4"])
def test_the_tangent_of_a_walk_is_the_derivative_of_its_step(cell: str, plans: dict[str, LoweredCell]) -> None:
    generator = torch.Generator().manual_seed(0)
    walks = [(program, loop) for program, loop in scan_programs(plans[cell]) if loop.map is None]
    assert walks
    for program, loop in walks:
        assert loop.tangent, program
        named = [item.name for group in (loop.reads, loop.vectors) for item in group]
        given = {name: torch.randn(64, generator=generator, dtype=torch.float64) for name in named}
        given |= {name: (torch.randn(64, generator=generator) > 0).double() for name in row_values(loop)}
        given |= {name: torch.rand(64, generator=generator, dtype=torch.float64) for name in loop.constants}
        carries = {e.name: torch.randn(64, generator=generator, dtype=torch.float64) for e in loop.edges}
        leaves = {name: value.requires_grad_() for name, value in carries.items()}
        following = evaluate(loop, leaves, given, mapped=False)
        machine = Interpreter({}, {}, 1, following[0])
        known = given | leaves
        for statement in (*loop.statements, *loop.tangent.statements):
            known[statement.target] = machine.expression(statement.expr, known.__getitem__)
        for new, row in zip(following, loop.tangent.matrix, strict=True):
            exact = torch.autograd.grad(new.sum(), list(leaves.values()), allow_unused=True, retain_graph=True)
            for derivative, entry in zip(exact, row, strict=True):
                own = machine.expression(entry, known.__getitem__) if entry else torch.zeros(64)
                wanted = torch.zeros(64) if derivative is None else derivative
                torch.testing.assert_close(own.detach().expand(64).double(), wanted.double(), atol=1e-12, rtol=1e-12)


def shapes(plan: LoweredCell) -> list[tuple[int, str, ScanShape]]:
    return [
        (element_bytes, form, shape)
        for kernels in scan_kernels(plan, newton=True)
        for element_bytes, schedule in ((4, kernels.full), (2, kernels.half))
        for form, shape in schedule.forms
    ]


def test_a_loop_that_reads_nothing_has_layouts() -> None:
    text = "cell Alone\nstate h\nparam v: vector = uniform(-1, 1)\nu = W@x\nh[t] = v*h[t-1] + v\ny = h[t]*u\n"
    plan = lowered(Source("<alone>", text))
    loop = plan.loops[0].scan_forward
    assert isinstance(loop, ScanLoop) and loop.reads == ()
    assert {shape.shared_bytes for _, form, shape in shapes(plan) if form == "vectorised"} != {0}


@pytest.mark.long
def test_layouts_keep_to_their_limits(plans: dict[str, LoweredCell]) -> None:
    for plan in plans.values():
        for element_bytes, form, shape in shapes(plan):
            assert shape.resident * shape.threads * shape.registers <= 65_536 and shape.registers <= 255
            assert all(shape.shared_bytes_of(1) <= gpu.shared_bytes for gpu in GPUS.values())
            resident = shape.resident if form == "newton" else 2
            assert resident * (shape.shared_bytes_of(16) + 1024) <= 233_472
            assert (shape.least_ctas > 1) == (form == "newton")
            # A loop of very many tensors has its narrow layout in every form.
            if form == "narrow" or shape.depth == 1:
                assert (shape.vector, shape.depth) == (1, 1)
            else:
                assert shape.vector * element_bytes <= 16
                assert shape.vector * shape.steps * element_bytes % 16 == 0


ALIKE = """cell Alike
state p, q, r
output y
p[t] = tanh(p[t-1] + 0.5) + x
q[t] = tanh(q[t-1] + {other}) + x
r[t] = tanh(r[t-1])*0.5 + x
y = p[t] + q[t] + r[t]
"""


@pytest.mark.parametrize(("other", "shared"), [("0.5", {"alike_1": "alike_0"}), ("0.25", {})])
def test_steps_that_differ_in_names_alone_share_kernels(other: str, shared: dict[str, str]) -> None:
    plan = lowered(Source("<alike>", ALIKE.format(other=other)))
    kernels = scan_kernels(plan)
    ends = ("forward", "backward", "masked_forward", "masked_backward")
    expected = {f"{name}_{end}": f"{first}_{end}" for name, first in shared.items() for end in ends}
    assert {row.program: row.made_for for row in kernels if not row.are_own} == expected
    host = next(file.text for file in for_gpus([plan]).files if file.path == "src/alike_cuda.cpp")
    assert re.findall(r"void alike_1_(\w+)_cuda.*?\"(\w+)\"", host, re.DOTALL) == [
        (end, f"{shared.get('alike_1', 'alike_1')}_{end}") for end in ends
    ]


def test_many_states_of_one_form_have_one_kernel() -> None:
    """All of S6's 16 states but the last, beside which the output is computed. Each form and dtype has a file."""
    (made_for,) = {row.made_for for row in scan_kernels(plan_of("s6")) if row.program == "s6_14_forward"}
    assert made_for == "s6_0_forward"
    names = {unit.name for unit in for_gpus([plan_of("s6")]).device_units}
    assert {name for name in names if name.endswith("_forward_tall_f32") and "masked" not in name} == {
        "s6_0_forward_tall_f32",
        "s6_15_forward_tall_f32",
    }


def test_what_makes_steps_differ(plans: dict[str, LoweredCell]) -> None:
    """The line of the source does not; the sign of a zero does."""
    loop = plans["mingru"].loops[0].scan_forward
    assert isinstance(loop, ScanLoop)

    def told(value: float, line: int) -> Hashable:
        return without_names(replace(loop, statements=(Statement("v", Const(value), line),)))

    assert told(0.0, 1) == told(0.0, 2)
    assert told(0.0, 1) != told(-0.0, 1)
    assert told(math.nan, 1) == told(float("nan"), 1)


def test_forms_differ(plans: dict[str, LoweredCell]) -> None:
    """But for loops of very many tensors, which have no registers for parts in pieces: one of RWKV-4's."""
    alike = {
        program
        for plan in plans.values()
        for program, loop in scan_programs(plan)
        if (schedule := scan_schedule(loop, 2)).vectorised == schedule.narrow
    }
    assert alike == {"rwkv4_2_backward", "rwkv4_2_masked_backward"}


@pytest.mark.parametrize(
    ("clusters", "most", "rounds", "ctas"),
    [
        (1, 16, 1, 1),  # one CTA goes through all steps at once
        (1, 16, 5, 8),
        (1, 16, 10**6, 16),
        (1, 1, 10**6, 1),  # no clusters
        (132, 16, 10**6, 2),
        (133, 16, 10**6, 2),
        (264, 16, 10**6, 1),
    ],
)
def test_ctas_that_share_steps(clusters: int, most: int, rounds: int, ctas: int) -> None:
    assert scan_ctas(clusters, most, 132, rounds) == ctas


def test_a_plan_for_a_gpu(plans: dict[str, LoweredCell]) -> None:
    loop = plans["mingru"].loops[0].scan_forward
    assert isinstance(loop, ScanLoop)
    h200 = plan_scan(loop, Problem(1024, 1, "bf16", 4), GPUS["h200"])
    assert h200.ctas > 1 and plan_scan(loop, Problem(1024, 1, "bf16", 4), GPUS["a100"]).ctas == 1
    # Two streams of 2 bytes in; out 2 bytes, which a backward reads as well.
    assert math.isclose(h200.step_us, 4096 * 6 / 4_800_000, rel_tol=0.01)
    walk = plans["indrnn"].loops[0].scan_forward
    assert isinstance(walk, ScanLoop)
    assert plan_scan(walk, Problem(64, 1, "fp32", 1), GPUS["h200"]).ctas == 1


@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "dtype", "gpu", "ctas", "takes"),
    [
        ("sru", 64, 1, "fp32", "h200", 16, "newton for more than 128 steps"),
        ("sru", 1024, 2, "fp32", "h200", 8, "newton for more than 128 steps"),
        ("sru", 1024, 4, "fp32", "h200", 4, ""),  # not all at once
        ("sru", 1024, 8, "fp32", "h200", 2, ""),  # the walk keeps all SMs busy
        ("indrnn", 64, 1, "fp32", "h200", 16, "newton for more than 1024 steps"),
        ("indrnn", 512, 1, "fp32", "h200", 16, "newton for more than 1024 steps"),
        ("indrnn", 1024, 1, "fp32", "h200", 16, ""),  # a walk's step takes a few cycles
        ("sru", 60, 1, "bf16", "h200", 0, ""),  # rows that are no pieces of 16 bytes
        ("sru", 64, 1, "fp32", "a100", 1, ""),  # no clusters
    ],
)
def test_where_newton_iterates(
    cell: str, hidden: int, batch: int, dtype: str, gpu: str, ctas: int, takes: str, plans: dict[str, LoweredCell]
) -> None:
    walk, scan = plans[cell].loops[0].scan_forward, plans["mingru"].loops[0].scan_forward
    assert isinstance(walk, ScanLoop) and isinstance(scan, ScanLoop)
    plan = plan_scan(walk, Problem(hidden, 1, dtype, batch), GPUS[gpu])
    assert (plan.newton_ctas, plan.takes_newton) == (ctas, bool(takes))
    _, said = list(show_scan(plan))[-1].split(": ")
    assert said.startswith(takes or "the walk")
    affine = plan_scan(scan, Problem(hidden, 1, dtype, batch), GPUS[gpu])
    assert not affine.takes_newton and "newton" not in dict(affine.schedule.forms)


@pytest.mark.long
def test_kernels_that_iterate_are_made_where_they_are_asked_for(plans: dict[str, LoweredCell]) -> None:
    def texts(cell: str, newton: bool) -> list[str]:
        files = {f.path: f.text for f in for_gpus([plans[cell]], newton=newton).files}
        forms = "\n".join(text for path, text in files.items() if path.startswith(f"src/{cell}_0_masked_forward_"))
        return [forms, *(files[f"src/{cell}_{name}"] for name in ("scans.cuh", "cuda.cpp"))]

    for cell in (*WALKS, "rwkv4"):
        for newton in (True, False):
            kernels, steps, host = texts(cell, newton)
            assert (f"rnncc::newton<rnncc::{cell}_0_masked_forward_newton_shape>" in kernels) == newton
            assert steps.count("static void tangent(") == 2 * newton and "_backward_newton" not in kernels
            own = host.partition(f"namespace rnncc::{cell}_0_forward {{")[2].partition("};")[0]
            assert ".vectorised = {{" in own and (".newton = {{" in own) == newton
    assert newton_loops([plans["rwkv4"]]) == ["rwkv4_0"] and newton_loops([plans["mingru"], plans["scrn"]]) == []
    # Of an affine loop there is nothing else.
    assert texts("mingru", True) == texts("mingru", False)


def test_files_of_a_package(plans: dict[str, LoweredCell]) -> None:
    def names(cell: str) -> set[str]:
        return {unit.name for unit in for_gpus([plans[cell]]).device_units}

    # Each kernel has a file for each dtype.
    def files(loop: str, forms: Sequence[str] = ("",)) -> set[str]:
        variants = ("forward", "backward", "masked_forward", "masked_backward")
        kernels = [f"{loop}_{variant}{form}" for variant in variants for form in forms]
        return {f"{kernel}_{dtype}" for kernel in kernels for dtype in ("f32", "bf16", "f16")}

    scans = ("_vectorised", "_tall", "_narrow")

    # A loop with products has more for calls of one step, which have no masks.
    single = {f"scrn_1_{way}_single_{dtype}" for way in ("forward", "backward") for dtype in ("f32", "bf16", "f16")}
    assert names("mingru") == {*OF_EVERY_PACKAGE, *files("mingru_0", scans)}
    assert names("scrn") == {*OF_EVERY_PACKAGE, *files("scrn_0", scans), *files("scrn_1"), *single}
    texts = {file.path: file.text for file in for_gpus([plans["scrn"]]).files}
    assert "scrn_0_forward_vectorised" in texts["src/scrn_0_forward_vectorised_f32.cu"]
    assert "run_sequence<rnncc::scrn_1_forward::Loop, float>" in texts["src/scrn_1_forward_f32.cu"]
    host = texts["src/scrn_cuda.cpp"]
    assert '{tables, info, &scans, nullptr, false, "scrn_0_forward"}' in host
    assert '{tables, info, nullptr, nullptr, true, "scrn_1_forward"}' in host
