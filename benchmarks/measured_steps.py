"""Steps that were measured on an H200, and what the cost model says of them.

`results/gpu_kernels.json` has single kernels: microseconds per step of 1024 (float32: 64 or 128) by a layout. `layout`
has the model's variables, or of sparse kernels the tiles; what it leaves open is chosen by the model. On a grid `batch`
is that of all groups. Clusters do not disturb each other, so it is that of one. Two steps of sparse kernels are left
out: inference at 1024 units and a batch of 4, with densities of 0.3 and 0.5, took 1.3 and 1.2 times as long as the
model says. A CTA has 8 units there, and each of its rows has 15 or 16 lists. Dense kernels take half of that.
`gradients` are both kernels of heads.h.

`results/gpu_steps.json` has the LSTM's steps by the kernels that are chosen, and `results/gpu_dense.json` calls of
several cells, back to back. Its rows that name no commit of their own are older: cuBLAS made the gradients of heads'
matrices then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpu_cases import Case, case_of

from rnncc.constrint import Infeasible, Variable
from rnncc.ir.family import ALTERNATING, FAMILIES, GRID, Family, Scope
from rnncc.ir.fused import FusedLoop, inference
from rnncc.ir.layout import KernelLayout
from rnncc.ir.lowered import LoweredCell, NoForm
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule import after_us, expect, expected, rates, schedule
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.cost import LoopCost, cost_of
from rnncc.stages.schedule.expect import step_us
from rnncc.stages.schedule.families import MODELS, families_for
from rnncc.stages.schedule.layout_model import TENTHS_OF_NS
from rnncc.stages.schedule.rates import Rates

RESULTS = Path(__file__).parent / "results"
H200 = GPUS["h200"]
STEPS = 1024
# What a call takes beside its kernels, in microseconds: to prepare them; with a backward, autograd.
CALL, BACKWARD_CALL = 200, 400
_EQUATIONS = {
    "elman": "state h\nweights R: {kind}\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    "lstm": (
        "state h, c\nweights R: {kind}\ni, f, o = sigmoid(W@x + R@h[t-1] + b)\ng = tanh(W@x + R@h[t-1] + b)\n"
        "c[t] = f*c[t-1] + i*g\nh[t] = o*tanh(c[t])\n"
    ),
}


@dataclass(frozen=True)
class Part:
    """A part of a step. `us` gives its microseconds by the rates that are assumed; its kernel's layout does not
    change. `kinds`: the family of its kernel, `launch`, or `gradients`."""

    kinds: tuple[str, ...]
    us: Callable[[], float]


@dataclass(frozen=True)
class Step:
    """A measured step.

    group  the family of its kernel, and float32; or calls of several kernels
    us     microseconds, as measured
    """

    group: str
    name: str
    us: float
    parts: tuple[Part, ...]

    @property
    def predicted_us(self) -> float:
        """What the cost model says."""
        return sum(part.us() for part in self.parts)


@contextmanager
def assumed(changed: Rates) -> Iterator[None]:
    """The cost model has these rates of an H200."""
    with patch.object(rates, "H200", changed):
        yield


@cache
def measured_steps() -> tuple[Step, ...]:
    """All of them, with the layouts that the present rates choose."""
    return (
        *map(_kernel_step, _rows("gpu_kernels.json")),
        *map(_chosen_step, _rows("gpu_steps.json")),
        *(call_step(row) for row in _rows("gpu_dense.json") if row["who"] == "rnncc" and _is_of_loops(row)),
    )


def _is_of_loops(row: dict[str, Any]) -> bool:
    """A single step has kernels of its own, and takes the host's time."""
    return "error" not in row and row["steps"] > 1


def _rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / name).read_text(encoding="utf-8"))["results"]
    return found


_schedule = cache(schedule)


@cache
def _plan(cell: str) -> LoweredCell:
    return compile_cells(read_request(cell), "lower").cells[0].plan


def text_of(cell: str, density: float | None, block: int = 1) -> str:
    """The text of a cell whose recurrent matrices are sparse; nothing where `density` is None."""
    if density is None:
        return ""
    kind = f"sparse(density={density}, block={block})" if block > 1 else f"sparse(density={density})"
    return "cell Own\n" + _EQUATIONS[cell].format(kind=kind)


@cache
def _trained(cell: str, density: float | None = None, block: int = 1) -> tuple[FusedLoop, FusedLoop]:
    """A cell's loops in training. `density`: its recurrent matrices are sparse."""
    plan, text = _plan(cell), text_of(cell, density, block)
    if text:
        plan = compile_cells(Request(Source("own.rnn", text), "own"), "lower").cells[0].plan
    loop = plan.loops[0]
    assert isinstance(loop.fused_forward, FusedLoop) and isinstance(loop.fused_backward, FusedLoop)
    return loop.fused_forward, loop.fused_backward


def _kernel_step(row: dict[str, Any]) -> Step:
    sizes = " ".join(f"{name}={size}" for name, size in row["layout"].items())
    density = f" {row['density']}" if "density" in row else ""
    name = f"{row['family']} {row['cell']} {row['loop']} {row['head_dim']} [{row['batch']}]{density} {sizes}".strip()
    _, back = _trained(row["cell"], row.get("density"), row.get("block", 1))
    group = f"{row['family']} fp32" if row["dtype"] == "fp32" else row["family"]
    if "density" in row and row["family"] == GRID.name:
        group = f"{group} of sparse cells"
    problem = Problem(row["head_dim"], row.get("heads", 1), row["dtype"], row["batch"])
    if row["family"] == "gradients":
        return Step(group, name, row["us"], (_gradients(back, problem, row["steps"]),))
    return Step(group, name, row["us"], (_part(row)[2],))


def _part(row: dict[str, Any]) -> tuple[FusedLoop, KernelLayout, Part]:
    ahead, back = _trained(row["cell"], row.get("density"), row.get("block", 1))
    problem = Problem(row["head_dim"], row.get("heads", 1), row["dtype"], row["batch"])
    planned = back if row["loop"] == "backward" else ahead
    run = inference(ahead) if row["loop"] == "inference" else planned
    family = next(family for family in FAMILIES if family.name == row["family"])
    kernel = _given(family, planned, problem, row["layout"])
    return planned, kernel, _of_kernel(kernel, cost_of(run, problem.dtype), problem)


def given_kernel(row: dict[str, Any]) -> tuple[FusedLoop, KernelLayout, float]:
    """The loop that a row's kernel was planned for, the kernel, and what the cost model says: microseconds per step."""
    planned, kernel, part = _part(row)
    return planned, kernel, part.us()


def _given(family: Family, planned: FusedLoop, problem: Problem, layout: dict[str, int]) -> KernelLayout:
    """A kernel of that layout. `planned`: the loop that it is planned for, since inference has the layouts of
    training."""
    if family.scope is Scope.CLUSTER:
        # As many heads as fill the GPU leave one group a head, hence the wanted batch.
        problem = replace(problem, heads=dict(H200.clusters)[layout["ctas"]])
    layout_model = MODELS[family](cost_of(planned, problem.dtype), problem, H200)
    variables: dict[str, Variable] = {variable.name: variable for variable in layout_model.model.variables}
    given = {variables[name]: size for name, size in layout.items() if name in variables}
    for name in layout.keys() - variables.keys():
        tile = layout_model.tiles[name]
        if isinstance(tile, int):
            assert tile == layout[name]
        else:
            layout_model.model.require(tile == layout[name], because="given: it was measured")
    return layout_model.scheduled(layout_model.best(problem.batch, given), problem, H200)


def _of_kernel(kernel: KernelLayout, known: LoopCost, problem: Problem) -> Part:
    def cluster_us() -> float:
        layout_model = MODELS[kernel.family](known, problem, H200)
        step = layout_model.solution_of(kernel).along(layout_model.batch)(layout_model.step)
        return step(problem.batch) / TENTHS_OF_NS

    def grid_us() -> float:
        return step_us(known, kernel, problem, H200)

    return Part((kernel.family.name,), cluster_us if kernel.family.scope is Scope.CLUSTER else grid_us)


def _gradients(loop: FusedLoop, problem: Problem, steps: int) -> Part:
    return Part(("gradients",), lambda: after_us(loop, problem, steps, H200) / steps)


def _chosen_step(row: dict[str, Any]) -> Step:
    problem = Problem(row["head_dim"], row["heads"], row["dtype"], row["batch"])
    parts = tuple(_CHOSEN[row["what"]](problem))
    group = "calls" if len(parts) > 1 or row["what"].startswith("call") else parts[0].kinds[0]
    name = f"{row['what']} {row['head_dim']}x{row['heads']} [{row['batch']}] {row['dtype']}"
    return Step(f"{group} fp32" if problem.is_float and group != "calls" else group, name, row["us"], parts)


def _fused(loop: FusedLoop, problem: Problem) -> Part:
    """The quickest fused kernel."""
    known, kernels = cost_of(loop, problem.dtype), []
    for family in families_for(known):
        layout_model = MODELS[family](known, problem, H200)
        try:
            kernels.append(layout_model.scheduled(layout_model.best(problem.batch), problem, H200))
        except Infeasible:
            continue
    kernel = min(kernels, key=lambda kernel: kernel.step_us)
    return Part((kernel.family.name,), lambda: step_us(known, kernel, problem, H200))


def _planned(loop: FusedLoop, problem: Problem) -> Part:
    """The kernel that runs."""
    kernel, known = _schedule(loop, problem, H200).kernel_for(problem.batch), cost_of(loop, problem.dtype)
    if kernel is None:
        return _alternating(loop, problem)
    return Part((kernel.family.name,), lambda: step_us(known, kernel, problem, H200))


def _alternating(loop: FusedLoop, problem: Problem) -> Part:
    known = cost_of(loop, problem.dtype)
    return Part((ALTERNATING.name,), lambda: alternating_us(known, problem, H200))


def _call(us: float) -> Part:
    return Part((), lambda: us / STEPS)


def _forward_call(problem: Problem) -> Iterator[Part]:
    yield _planned(_trained("lstm")[0], problem)
    yield _call(CALL)


def _both_ways(problem: Problem) -> Iterator[Part]:
    yield from (_planned(loop, problem) for loop in _trained("lstm"))
    yield _gradients(_trained("lstm")[1], problem, STEPS)
    yield _call(CALL + BACKWARD_CALL)


def _alternating_backward(problem: Problem) -> Iterator[Part]:
    back = _trained("lstm")[1]
    yield _alternating(back, problem)
    yield _gradients(back, problem, STEPS)


def call_step(row: dict[str, Any]) -> Step:
    """A row of gpu_dense.json."""
    case, training, parts = case_of(row), row["run"] == "fw+bw", []
    problem = Problem(case.head_dim, case.heads, case.dtype)
    for loop in _plan(case.cell).plain_loops():
        assert not isinstance(loop.fused, NoForm)
        ahead, back = loop.fused
        parts.append(_run(ahead, ahead if training else inference(ahead), problem, case))
        if training:
            parts.append(_run(back, back, problem, case))
        if training and loop.backward.step.outers:
            after = _gradients(back, replace(problem, batch=case.batch), case.steps)
            parts.append(after if "commit" in row else replace(after, us=partial(_by_library, after)))
    return Step("dense calls", str(case), 1000 * row["queued_ms"] / case.steps, tuple(parts))


def _run(planned: FusedLoop, run: FusedLoop, problem: Problem, case: Case) -> Part:
    """All steps of a loop, and its launches, by the kernels of a package."""
    kernels, problem = _schedule(planned, problem, H200), replace(problem, batch=case.batch)
    kernel = kernels.kernel_for(case.batch)

    def us() -> float:
        found = expected(run, kernels, problem, H200)
        return found.start / case.steps + found.step

    return Part((ALTERNATING.name if kernel is None else kernel.family.name, "launch"), us)


def _by_library(after: Part) -> float:
    """The time of gradients that cuBLAS makes."""
    with patch.object(expect, "_has_kernel", lambda problem: False):
        return after.us()


_CHOSEN: dict[str, Callable[[Problem], Iterator[Part]]] = {
    "fused forward": lambda problem: iter((_fused(inference(_trained("lstm")[0]), problem),)),
    "fused backward": lambda problem: iter((_fused(_trained("lstm")[1], problem),)),
    "alternating forward": lambda problem: iter((_alternating(inference(_trained("lstm")[0]), problem),)),
    "alternating training forward": lambda problem: iter((_alternating(_trained("lstm")[0], problem),)),
    "alternating backward + gradients": _alternating_backward,
    "call forward": _forward_call,
    "call forward + backward": _both_ways,
}
