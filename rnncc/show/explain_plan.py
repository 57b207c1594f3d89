"""The decisions about a cell's kernels on a GPU, in words and as data (`rnncc explain FILE --hidden H`)."""

from __future__ import annotations

from typing import Any

from rnncc.ir.family import ALTERNATING, Scope
from rnncc.ir.layout import GpuPlan, KernelLayout, LoopKernels, PlannedScan, Rejected, Row
from rnncc.show.schedule import show_kernels

# The keys of a kernel, in the order of `rnncc explain --json`.
_KERNEL_KEYS = ("family", "scope", "tiles", "registers", "shared_bytes", "predicted_us_per_step")


def plan_facts(plan: GpuPlan | None) -> dict[str, Any]:
    """The keys of a plan, with those of the costliest segment's forward kernel at the top. Without a plan all are
    null."""
    if plan is None:
        return dict.fromkeys((*_KERNEL_KEYS, "solve_ms", "is_measured")) | {"rejected": [], "kernels": None}
    costliest = max(plan.loops, key=lambda loop: loop.forward.step_us or 0)
    forward, backward = (
        _scan_facts(schedule) if isinstance(schedule, PlannedScan) else _schedule_facts(schedule, plan.problem.batch)
        for schedule in (costliest.forward, costliest.backward)
    )
    backward["after_us_per_step"] = costliest.after_us
    top = {key: forward[key] for key in (*_KERNEL_KEYS, "rejected")}
    about = {"solve_ms": plan.solve_ms, "is_measured": plan.target.is_measured}
    return top | about | {"kernels": {"forward": forward, "backward": backward}}


def _schedule_facts(schedule: LoopKernels, batch: int) -> dict[str, Any]:
    kernel = schedule.kernel_for(batch)
    if kernel is None:
        facts: dict[str, Any] = dict.fromkeys(_KERNEL_KEYS)
        if not schedule.is_impossible:
            facts |= {"family": ALTERNATING.name, "scope": ALTERNATING.scope.value}
            facts["predicted_us_per_step"] = schedule.step_us
    else:
        facts = _kernel_facts(kernel) | {"launches": kernel.launches(batch)}
        facts["predicted_us_per_step"] = schedule.step_us
    others = [_kernel_facts(other) for other in schedule.kernels if other is not kernel]
    table = [_row_facts(row) for row in schedule.table]
    rejected = [_rejected_facts(entry) for entry in schedule.rejected]
    return facts | {"other_batches": others, "table": table, "rejected": rejected}


def _scan_facts(plan: PlannedScan) -> dict[str, Any]:
    forms = {
        form: {
            "tiles": {"ctas": plan.ctas_of(shape)} | dict(shape.tiles),
            "registers": shape.registers,
            "shared_bytes": shape.shared_bytes_of(plan.ctas_of(shape)),
            "threads": shape.threads,
        }
        for form, shape in plan.schedule.forms
    }
    facts: dict[str, Any] = {
        "family": plan.schedule.family.name,
        "scope": Scope.CLUSTER.value if plan.ctas > 1 else "cta",
        "predicted_us_per_step": plan.step_us,
        "other_batches": [],
        "table": [],
        "rejected": [],
    }
    facts |= {"form": plan.form, "takes_newton": plan.takes_newton}
    return facts | forms.pop(plan.form) | forms


def _kernel_facts(kernel: KernelLayout) -> dict[str, Any]:
    return {
        "family": kernel.family.name,
        "scope": kernel.scope,
        "tiles": dict(kernel.tiles),
        "registers": kernel.registers,
        "shared_bytes": kernel.shared_bytes,
        "predicted_us_per_step": kernel.step_us,
        "threads": kernel.threads,
        "name": kernel.symbol,
        "launch_batch": kernel.launch_batch,
    }


def _row_facts(row: Row) -> dict[str, Any]:
    choices = [{"name": choice.kernel.symbol, "pass_us": round(choice.pass_us, 3)} for choice in row.choices]
    return {"batch": row.batch, "kernels": choices}


def _rejected_facts(rejected: Rejected) -> dict[str, Any]:
    return {
        "family": rejected.name,
        "predicted_us_per_step": rejected.step_us,
        "limits": [{"name": limit.name, "reason": limit.reason, "numbers": limit.numbers} for limit in rejected.limits],
    }


def plan_words(plan: GpuPlan) -> list[str]:
    """The same as lines."""
    lines = show_kernels(plan).splitlines()
    return [f"  {line}" for line in (*lines, f"  found in {plan.solve_ms} ms")]
