"""`schedule`: the layout of a loop on a GPU.

Input: a FusedLoop (or the reason why there is none), a Problem, a Target. Output: a LoopKernels, which has kernels for
small and large batches, and for each family without a kernel the requirements that rule it out. For a ScanLoop the
output is a ScanLayouts for all problems and GPUs (scan.py). Fails with: InternalError only, since the alternating
kernel takes what no fused kernel takes.

Kernels are planned without a GPU and chosen where they run. So some rules stand here in Python and also in C++:
docs/design.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from rnncc.constrint import Infeasible, LimitReached, Limits, WrongAnswer
from rnncc.ir.family import ALTERNATING, Family, Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import Limit, LoopKernels, Rejected
from rnncc.ir.lowered import NoForm
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.language.diagnostics import InternalError
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.cost import LoopCost, cost_of
from rnncc.stages.schedule.expect import after_us, expected, step_times
from rnncc.stages.schedule.families import MODELS, families_for
from rnncc.stages.schedule.layout_model import TILE_BATCH, UNIT_BLOCK, LayoutModel
from rnncc.stages.schedule.scan import plan_scan, scan_schedule
from rnncc.stages.schedule.stepwise import stepwise, stepwise_takes, stepwise_us
from rnncc.stages.schedule.table import BATCHES, Candidate, table

__all__ = ["SearchResult", "after_us", "expected", "find", "plan_scan", "scan_schedule", "schedule"]

# What may be spent on whether one requirement is needless. Where that is not enough, the reason names it too.
REASON_LIMITS = Limits(nodes=200, steps=1_000)
# The small batches for which kernels are sought. Dense kernels take a tile of batch entries at least. The layouts of
# clusters hardly depend on the batch: they are sought for a small one and for a large one.
_DENSE_BATCHES, _ZEROS_BATCHES, _CLUSTER_BATCHES = (
    (TILE_BATCH, 16),
    (TILE_BATCH // 2, TILE_BATCH, 16),
    (16, BATCHES[-1]),
)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A schedule, and a proof for each family that has no kernel. `explained` makes reasons from the proofs on demand,
    because that takes longer than the search."""

    schedule: LoopKernels
    proofs: Mapping[Family | None, Infeasible] = field(default_factory=dict)

    def explained(self) -> LoopKernels:
        """The schedule with what rules out the families that have no kernel."""
        rejected = (
            replace(entry, limits=_limits(self.proofs[entry.family])) if entry.family in self.proofs else entry
            for entry in self.schedule.rejected
        )
        return replace(self.schedule, rejected=tuple(rejected))


def schedule(loop: FusedLoop | NoForm, problem: Problem, target: Target, *, reasons: bool = False) -> LoopKernels:
    """The quickest kernels of a loop. `reasons`: the schedule also says what rules out the families that have no
    kernel."""
    found = find(loop, problem, target)
    return found.explained() if reasons else found.schedule


def find(loop: FusedLoop | NoForm, problem: Problem, target: Target) -> SearchResult:
    """What `schedule` gives, with the proofs from which `SearchResult.explained` makes its reasons later."""
    if isinstance(loop, NoForm):
        return SearchResult(LoopKernels((), None, (Rejected(None, None, (Limit("form", loop.reason, ""),)),), 0))
    cost = cost_of(loop, problem.dtype)
    if too_large := _too_large(cost, problem, target):
        rejected = (Rejected(None, None, too_large), Rejected(ALTERNATING, None, too_large))
        return SearchResult(LoopKernels((), None, rejected, 0))
    alternating = alternating_us(cost, problem, target)
    if unfit := _unfit(problem):
        return SearchResult(LoopKernels((), alternating, (Rejected(None, None, unfit),), 0))

    search = _Search(cost, problem, target)
    search.run()
    if stepwise_takes(loop, problem):
        search.add_stepwise()
    rows = table(search.candidates, search.alternating_us)
    found = LoopKernels(rows, alternating, (), search.nodes)
    taken, times = found.kernel_for(problem.batch), search.times(problem.batch)
    others = [Rejected(family, times.get(family), ()) for family in families_for(cost)]
    if taken is not None:
        others = [entry for entry in others if entry.family is not taken.family]
        others.append(Rejected(ALTERNATING, alternating, ()))
        us = next(each.us for each in search.candidates if each.kernel is taken)
        found = replace(found, step_us=round(us(problem.batch), 3))
    return SearchResult(replace(found, rejected=tuple(others)), search.proofs)


def _too_large(cost: LoopCost, problem: Problem, target: Target) -> tuple[Limit, ...]:
    """What every kernel asks of the GPU's memory, where there is less."""
    elements = problem.heads * cost.matrix_elements(problem.head_dim, problem.head_dim, cost.narrow(problem))
    gigabytes = elements * problem.element_bytes / 1e9
    if gigabytes <= target.memory_gb:
        return ()
    return (Limit("memory", "the recurrent weights lie in it", f"{gigabytes:.0f} GB <= {target.memory_gb} GB"),)


def _unfit(problem: Problem) -> tuple[Limit, ...]:
    """What all fused kernels ask of a problem, where it does not give it."""
    if problem.head_dim % UNIT_BLOCK == 0:
        return ()
    needed = f"a warp takes {UNIT_BLOCK} elements of it at a time"
    return (Limit("head_dim", needed, f"{problem.head_dim} % {UNIT_BLOCK} == 0"),)


@dataclass(slots=True)
class _Search:
    """The search for kernels of one loop on a GPU.

    candidates  the kernels that were found
    proofs      why a family has no kernel
    models      the models of the families
    nodes       the nodes of the searches that found a kernel
    """

    cost: LoopCost
    problem: Problem
    target: Target
    candidates: list[Candidate] = field(default_factory=list)
    proofs: dict[Family | None, Infeasible] = field(default_factory=dict)
    models: dict[Family, LayoutModel] = field(default_factory=dict)
    nodes: int = 0

    def run(self) -> None:
        """Find the quickest kernel of each family for small batches, and for each larger one that none of its kernels
        takes at once. Where there is none, look for one that takes an entry more than those."""
        families = list(families_for(self.cost))
        for batch in BATCHES:
            for family in tuple(families):
                largest = self._largest_launch(family)
                if self._is_sought(family, batch, largest) and not self._add(family, batch):
                    families.remove(family)  # larger batches have no kernel either
                    if largest:
                        self._add(family, largest + 1)

    def _largest_launch(self, family: Family) -> int:
        return max(
            (each.kernel.launch_batch or 0 for each in self.candidates if each.kernel.family is family), default=0
        )

    def _is_sought(self, family: Family, batch: int, largest: int) -> bool:
        if family.scope is Scope.CLUSTER:
            return batch in _CLUSTER_BATCHES
        small = _ZEROS_BATCHES if family.for_zeros else _DENSE_BATCHES
        return batch in small or batch > max(largest, small[-1])

    def _add(self, family: Family, batch: int) -> bool:
        """Add the quickest kernel of a family for a batch. False where there is none."""
        try:
            found = self._quickest(family, replace(self.problem, batch=batch))
        except Infeasible as reason:
            if all(each.kernel.family is not family for each in self.candidates):
                self.proofs[family] = reason
            return False
        if all(each.kernel.symbol != found.kernel.symbol for each in self.candidates):
            self.candidates.append(found)
        return True

    def _quickest(self, family: Family, problem: Problem) -> Candidate:
        if family not in self.models:
            self.models[family] = MODELS[family](self.cost, self.problem, self.target)
        layout_model = self.models[family]
        try:
            solution = layout_model.best(problem.batch)
        except LimitReached as reason:
            raise InternalError(f"the schedule of {family.name} for {problem} takes too long: {reason}") from reason
        except WrongAnswer as mistake:
            raise InternalError(f"the schedule of {family.name} for {problem}: {mistake}") from mistake
        self.nodes += solution.nodes
        kernel = layout_model.scheduled(solution, problem, self.target)
        return Candidate(kernel, step_times(layout_model, kernel, problem, self.target))

    def add_stepwise(self) -> None:
        """Add the kernel that runs any batch by a launch per step."""
        kernel = stepwise(self.cost, self.problem, self.target)
        us = cache(lambda batch: stepwise_us(self.cost, replace(self.problem, batch=batch), self.target))
        self.candidates.append(Candidate(kernel, us))

    def alternating_us(self, batch: int) -> float:
        """The expected time of a step by the alternating kernel."""
        return alternating_us(self.cost, replace(self.problem, batch=batch), self.target)

    def times(self, batch: int) -> dict[Family | None, float]:
        """The least time of each family that has a kernel."""
        found: dict[Family | None, float] = {}
        for each in self.candidates:
            us = round(each.us(batch), 3)
            found[each.kernel.family] = min(us, found.get(each.kernel.family, us))
        return found


def _limits(reason: Infeasible) -> tuple[Limit, ...]:
    """Requirements that cannot hold together. The first is the one for a size: its numbers say how far the others
    go."""
    parts = reason.conflict_within(REASON_LIMITS).parts
    # A requirement that may be needless may have no numbers.
    first = next((part for part in parts if part.numbers), parts[0])
    return tuple(
        Limit(part.requirement.name, part.requirement.reason, part.numbers if part is first else "")
        for part in (first, *(part for part in parts if part is not first))
    )
