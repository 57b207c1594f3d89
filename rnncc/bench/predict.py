"""What is expected of a call, to stand beside what was measured: the least time that arithmetic and memory allow, and
on a GPU the time by which kernels are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rnncc.bench.parties import DTYPES, PEERS, Case, Party, Sizes
from rnncc.bench.timing import between_events, by_the_clock
from rnncc.ir.family import ALTERNATING
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS, Target
from rnncc.stages.schedule.kernels import call_time, planned
from rnncc.verify.runner import runner_of

# A product is doubled in size until it takes so long; the tensor that is copied.
_PRODUCT_SECONDS, _LARGEST, _COPIED_BYTES = 0.02, 8192, 256 << 20
_REPEATS = 4


@dataclass(frozen=True, slots=True)
class Work:
    """What a call must do, however it is done.

    flops       of its matrix products, 2 per multiply-add
    loop_flops  of these, those of products within the steps; None where it is not known
    moved       bytes: what the call is given and gives, and with a backward also the gradients, each once
    """

    flops: int
    loop_flops: int | None
    moved: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved


@dataclass(frozen=True, slots=True)
class Roofs:
    """The most that this machine was measured to do: FLOPs a second in products of large matrices, and bytes a second
    in copies of large tensors (each byte is read and written, and counts twice)."""

    flops: float
    moved: float

    def least_ms(self, work: Work) -> float:
        """The least time for the work, in milliseconds, where everything comes from memory and goes there."""
        return 1e3 * max(work.flops / self.flops, work.moved / self.moved)


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of ours in a pass, in milliseconds, for calls in a row.

    roofline  the least time (`Roofs.least_ms`)
    loops     the time of the loops by the schedule's model; None where there is none, and `why_not` says why
    outside   the least time of the products outside the loops
    """

    run: str
    roofline: float
    loops: float | None
    outside: float
    why_not: str = ""

    @property
    def total(self) -> float | None:
        """The loops, and what is outside them."""
        return None if self.loops is None else self.loops + self.outside


def work_of(party: Party, sizes: Sizes, run: str) -> Work:
    """The work of a party's call in a pass."""
    training = run == "training"
    output = party.forward()
    tensors = [*party.inputs, *party.layer.parameters(), output]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors) * (2 if training else 1)
    if party.name in PEERS:
        rows = sizes.steps * sizes.batch * (3 if training else 1)
        own, recurrent = (2 * rows * PEERS[party.name][1] * size * sizes.hidden for size in (sizes.input, sizes.hidden))
        return Work(own + recurrent, recurrent, moved)
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    if training:
        # The counter does not work with torch.autograd.grad.
        with counter:
            party.forward().backward(torch.ones_like(output))  # type: ignore[no-untyped-call]
        for tensor in (*party.inputs, *party.layer.parameters()):
            tensor.grad = None
    else:
        with counter, torch.no_grad():
            party.forward()
    counts = {str(name): count for name, count in counter.get_flop_counts().get("Global", {}).items()}
    ops = {name: count for name, count in counts.items() if name.startswith("rnncc_")}
    loops = sum(count for name, count in ops.items() if not name.endswith((".linear", ".linear_backward")))
    return Work(counter.get_total_flops(), loops if ops else None, moved)


def measure_roofs(sizes: Sizes) -> Roofs:
    """Measures what this machine does at most, with the sizes' dtype on their device."""
    options = sizes.options()
    # A CPU may multiply 16-bit numbers as float32, where that is quicker than torch's products of them.
    dtypes = {DTYPES[sizes.dtype], torch.float32} if sizes.device == "cpu" else {DTYPES[sizes.dtype]}
    flops = max(_most_flops(dtype, sizes.device) for dtype in dtypes)
    given = torch.zeros(_COPIED_BYTES // DTYPES[sizes.dtype].itemsize, **options)
    taken = torch.zeros_like(given)
    return Roofs(flops, 2 * _COPIED_BYTES / _best(lambda: taken.copy_(given), sizes.device))


def _most_flops(dtype: torch.dtype, device: str) -> float:
    """FLOPs a second in products of large matrices, which grow until one takes long enough."""
    flops, size, took = 0.0, 512, 0.0
    while took < _PRODUCT_SECONDS and size <= _LARGEST:
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        result = torch.empty_like(a)
        took = _best(lambda a=a, b=b, out=result: torch.mm(a, b, out=out), device)  # type: ignore[misc]
        flops, size = max(flops, 2 * size**3 / took), 2 * size
    return flops


def _best(function: Callable[[], Tensor], device: str) -> float:
    timer = by_the_clock(function) if device == "cpu" else lambda: between_events(function, 1) / 1e3
    timer()
    return min(timer() for _ in range(_REPEATS))


def target_named(gpu: str) -> Target | None:
    """The GPU that the driver calls so ("NVIDIA H200"), if plans are known for it."""
    return next((target for name, target in GPUS.items() if name in gpu.lower().split()), None)


def loops_us(plan: LoweredCell, problem: Problem, target: Target, steps: int, training: bool) -> float | None:
    """Microseconds that the schedule expects of a call's loops, by the kernels that packages have; `problem.batch` is
    the call's. None where the model does not know a loop."""
    # Packages have kernels that are laid out for the default batch.
    laid_out = replace(problem, batch=Problem(problem.head_dim, problem.heads, problem.dtype).batch)
    found = call_time(plan, laid_out, target, batch=problem.batch, steps=steps, training=training)
    if found is not None:
        return found.total
    total = 0.0
    for loop in planned(plan, problem, target).loops:
        for direction in (loop.forward, loop.backward) if training else (loop.forward,):
            if direction.step_us is None:
                return None
            total += steps * direction.step_us
        total += steps * (loop.after_us or 0.0) if training else 0.0
    return total


def expected(case: Case, layer: Any, plan: LoweredCell, work: Work, roofs: Roofs, run: str) -> Expected:
    """What is expected of our layer in a pass on the device of the case."""
    sizes, roofline = case.sizes, roofs.least_ms(work)
    outside = 1e3 * (work.flops - (work.loop_flops or 0)) / roofs.flops

    def unknown(why: str) -> Expected:
        return Expected(run, roofline, None, outside, why)

    if sizes.device == "cpu":
        return unknown("schedules are for GPUs")
    ran = runner_of(layer)
    if ran.is_fallback or any(ALTERNATING.name in loop for loop in ran.loops):
        return unknown(f"there is no model for what ran: {ran.words}")
    name = torch.cuda.get_device_name()
    target = target_named(name)
    if target is None:
        return unknown(f"no schedule is known for {name}")
    problem = Problem(sizes.hidden // sizes.heads, sizes.heads, sizes.dtype, sizes.batch)
    loops = loops_us(plan, problem, target, sizes.steps, run == "training")
    if loops is None:
        return unknown("the model does not know the kernels of a loop")
    return Expected(run, roofline, loops / 1e3, outside)
