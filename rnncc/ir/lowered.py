"""All loops of a cell as kernels run them: what `lower` makes, and `schedule` and `render` read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop, inference
from rnncc.ir.kernel import Program
from rnncc.ir.scan import ScanLoop


@dataclass(frozen=True, slots=True)
class NoForm:
    """Stands for a form that a program does not have. `reason` is a clause without a full stop."""

    reason: str


class Unfit(Exception):
    """Says in words why a step does not have a form."""


@dataclass(frozen=True, slots=True)
class LoweredLoop:
    """A segment's loop, plain or with mask streams (`masked`). `fused_…` is the form that the fused GPU kernels take,
    `scan_…` the form of a loop without products."""

    segment: int
    masked: bool
    forward: Program
    backward: Program
    fused_forward: FusedLoop | NoForm
    fused_backward: FusedLoop | NoForm
    scan_forward: ScanLoop | NoForm
    scan_backward: ScanLoop | NoForm

    @property
    def fused(self) -> tuple[FusedLoop, FusedLoop] | NoForm:
        """The fused forms, forward and backward, or why the loop has no fused kernels: these are made where it has the
        form both ways."""
        if isinstance(self.fused_forward, NoForm):
            return self.fused_forward
        if isinstance(self.fused_backward, NoForm):
            return self.fused_backward
        return self.fused_forward, self.fused_backward


@dataclass(frozen=True, slots=True)
class LoweredCell:
    """All loops of a cell. `cell` is the cell's name. `source` is the name of the `.rnn` file, fit for a comment.
    `sizes` names the entries of a call's sizes. `single_head_because`: why the cell takes one head
    only, empty where it takes several. `single`: a single step in one program, for CPUs, where the op of a whole layer
    does not run it (rnncc/stages/single.py)."""

    cell: str
    source: str
    sizes: tuple[str, ...]
    single_head_because: str
    loops: tuple[LoweredLoop, ...]
    single: Program | None = None

    def programs(self) -> Iterator[Program]:
        """Both directions of every loop."""
        for loop in self.loops:
            yield from (loop.forward, loop.backward)

    def plain_loops(self) -> Iterator[LoweredLoop]:
        """The loops without mask streams, one for each segment."""
        return (loop for loop in self.loops if not loop.masked)


def loop_name(plan: LoweredCell, loop: LoweredLoop) -> str:
    """What the names of a loop's programs begin with."""
    return f"{plan.cell.lower()}_{loop.segment}{'_masked' if loop.masked else ''}"


def fused_programs(plan: LoweredCell) -> Iterator[tuple[str, FusedLoop]]:
    """The names of the fused programs, each with the loop that it is laid out for. A forward loop gives two: inference
    has the layout of training, and `as_run` says what it leaves out."""
    for loop in plan.loops:
        if isinstance(loop.fused, NoForm):
            continue
        name, (forward, backward) = loop_name(plan, loop), loop.fused
        yield f"{name}_forward", forward
        yield f"{name}_inference", forward
        yield f"{name}_backward", backward


def as_run(program: str, loop: FusedLoop) -> FusedLoop:
    """The loop as a program runs it: inference leaves out what only a backward reads."""
    return inference(loop) if program.endswith("_inference") else loop


def scan_programs(plan: LoweredCell) -> Iterator[tuple[str, ScanLoop]]:
    """The names of the programs without products, with their loops."""
    for loop in plan.loops:
        for direction, scan in (("forward", loop.scan_forward), ("backward", loop.scan_backward)):
            if isinstance(scan, ScanLoop):
                yield f"{loop_name(plan, loop)}_{direction}", scan
