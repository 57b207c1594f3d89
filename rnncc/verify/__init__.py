"""The built op against the float64 reference: outputs, final states and every gradient (`rnncc verify`).

The reference is `rnncc.verify.reference`, which interprets the cell in eager torch with torch's own autograd.
It shares neither the derived backward pass nor the generated code with what it verifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Any

import torch
from torch import Tensor

from rnncc.ir.cell import Cell
from rnncc.runtime.kernels import fused
from rnncc.verify.cases import CASES, HALF, Case, cases_of, problem_sizes
from rnncc.verify.problem import Named, Problem
from rnncc.verify.runner import Runner, together

__all__ = [
    "BOUNDS", "CASES", "DTYPES", "HALF", "Case", "Doubt", "Report", "Row", "Runner", "cases_of", "problem_sizes",
    "relative_error", "verify",
]  # fmt: skip

# The allowed relative error ‖ours - reference‖/‖reference‖, by dtype. Inputs and parameters are rounded to the dtype
# before both run, so that only the arithmetic differs. A cell that amplifies rounding may exceed its bound, up to twice
# the error of its eager loop in that dtype (both errors are samples of one distribution). This is judged case by case:
# a sequence of one step hardly ever exceeds the bound.
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

# The dtypes that kernels of a device take.
DTYPES = {"cpu": tuple(BOUNDS), "cuda": tuple(fused.DTYPES)}

# The error of one eager loop may be small by chance. So this many loops run, whose inputs differ by roundings, and the
# largest error counts. Where a row fails, more loops run: the gradient of a scalar is one sum, and how much of it
# cancels differs from loop to loop.
SAMPLES, MORE_SAMPLES = 4, 16

# Why nothing sure can be said of a batch entry.
RANGE = "the eager loop overflows"
ROUNDING = "rounding may turn a relu, comparison or spike over"

# A bound above this proves little: the eager loop in that dtype is off by as much. One above LOST proves nothing: the
# loop follows another trajectory, whose gradients may be of any size. What exceeds it is not judged.
WEAK = 0.1
LOST = 1.0

EPSILON = {dtype: torch.finfo(dtype).eps for dtype in BOUNDS}

# Where the relative error of a value in float64 exceeds DIGITS, its terms cancel: the exact value is zero, and only
# rounding is left. Two such remainders may differ by far more than a factor of two, so NOISE times the rounding is
# allowed; a wrong gradient is much larger than that.
DIGITS = 1e-3
NOISE = 100.0


@dataclass(frozen=True, slots=True)
class Row:
    """One compared quantity: the worst relative error over the cases, and what was allowed.

    quantity  `output`, `h_n` (a final state), `d_x` (a gradient)
    dtype     without `torch.`
    error     relative, without a unit; NaN where nothing could be judged
    bound     the largest error that passes
    cases     the number of cases in which it could be judged
    zero      whether it is zero in exact arithmetic, so that only rounding is left to compare
    """

    quantity: str
    dtype: str
    error: float
    bound: float
    cases: int = 1
    zero: bool = False

    @property
    def judged(self) -> bool:
        """Whether there was anything to compare."""
        return self.cases > 0

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.judged and self.error <= self.bound

    @property
    def failed(self) -> bool:
        """Whether the error is no number, or beyond the bound."""
        return self.judged and not self.passed

    @property
    def weak(self) -> bool:
        """Whether so much was allowed that passing proves little."""
        return self.judged and self.bound > WEAK


@dataclass(frozen=True, slots=True)
class Doubt:
    """Nothing sure can be said of some batch entries in a dtype.

    entries   how many batch entries, of all cases together
    of        the number of batch entries that the cases of the dtype have
    why       RANGE or ROUNDING
    left_out  whether they took no part in the comparison: where the eager loop overflows, or where rows fail with them
    """

    dtype: str
    entries: int
    of: int
    why: str
    left_out: bool

    def __str__(self) -> str:
        text = f"{self.dtype}: {self.why} in {self.entries} of {self.of} batch entries"
        return f"{text}, which are left out" if self.left_out else text


@dataclass(frozen=True, slots=True)
class Report:
    """The compared quantities, a row for each dtype and quantity, and the doubts. `runners`: what ran, by dtype."""

    rows: tuple[Row, ...]
    runners: Mapping[str, Runner]
    doubts: tuple[Doubt, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether there are rows, every one was judged, and every error is within its bound."""
        return bool(self.rows) and all(row.passed for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether some error is beyond its bound."""
        return any(row.failed for row in self.rows)


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """‖ours - expected‖ / ‖expected‖ in float64; the plain norm where the expected value is zero; NaN never passes."""
    exact = expected.detach().double()
    difference = ours.detach().double() - exact
    largest = exact.abs().max() if exact.numel() else exact.sum()
    if not largest:
        return float(torch.linalg.vector_norm(difference))
    # In units of the largest element: a square of 1e170 is infinite, and that of 1e-170 is zero.
    return float(torch.linalg.vector_norm(difference / largest) / torch.linalg.vector_norm(exact / largest))


def verify(
    layer_class: Any,
    cell: Cell,
    *,
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = (),
    cases: Sequence[Case] = (),
    allow_fallback: bool = False,
) -> Report:
    """Compare `layer_class` (a layer of a built package) with the reference of `cell` over its cases and dtypes.
    `dtypes`: by default all that kernels of the device take. `cases`: others than those of `cases_of`; each runs in
    every dtype.

    Where the eager fallback runs in place of kernels, nothing is judged, since both sides are eager loops then.
    `allow_fallback` compares them all the same.

    Batch entries in which both the kernel and the reference overflow in a dtype take no part. Where rows fail, these
    rows are compared again without the batch entries in which the reference overflows, or in which rounding may flip a
    relu or a spike. Raises ValueError where no small sizes meet the cell's constraints."""
    rows: list[Row] = []
    doubts: list[Doubt] = []
    runners: dict[str, Runner] = {}
    for dtype in dtypes or DTYPES[device]:
        run = cases or [case for case in cases_of(cell) if case.runs_in_half or dtype not in HALF]
        comparisons = [_Comparison(Problem(layer_class, cell, case, dtype, device)) for case in run]
        name = str(dtype).removeprefix("torch.")
        runners[name] = together(comparison.problem.runner() for comparison in comparisons)
        if runners[name].is_fallback and not allow_fallback:
            rows += [_unjudged(q, dtype, name) for q in dict.fromkeys(q for c in comparisons for q in c.exact)]
            continue
        found = _rows(comparisons, dtype, name)
        if undecided := any(row.failed for row in found):
            for comparison in comparisons:
                comparison.keep_sure()
            again = {row.quantity: row for row in _rows(comparisons, dtype, name)}
            found = [again[row.quantity] if row.failed else row for row in found]
        rows += found
        batch = sum(case.batch for case in run)
        overflowing, unsure = sum(c.overflowing for c in comparisons), sum(c.undecided for c in comparisons)
        doubts += [Doubt(name, overflowing, batch, RANGE, True)] if overflowing else []
        doubts += [Doubt(name, unsure, batch, ROUNDING, undecided)] if unsure else []
    return Report(tuple(rows), runners, tuple(doubts))


class _Comparison:
    """A problem, and the results of the layer and of the reference. `overflowing` counts the batch entries that
    overflow, which are left out, `undecided` those in which rounding may flip a branch."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.samples = problem, SAMPLES
        self._run()
        if not _finite(*self.ours.values(), *self.exact.values()):
            self._keep_finite()
        self.overflowing = problem.case.batch - problem.batch
        self.undecided = int((~problem.decided).sum())

    def keep_sure(self) -> None:
        """Leave out the batch entries in which rounding may flip a branch or the eager loop overflows, and run
        again. From now on more eager loops say what rounding does. Rounding excuses no infinity and no NaN: batch
        entries with these stay, if the eager loop has none there."""
        self.samples = MORE_SAMPLES
        if self.problem.batch:
            self._keep(self.problem.decided | ~self.problem.finite(self.ours))
        before = self.problem.batch
        self._keep_finite()
        self.overflowing += before - self.problem.batch

    def _keep_finite(self) -> None:
        """Leave out the batch entries in which the eager loop overflows in the problem's dtype."""
        self._keep(self.problem.finite(self._in(self.problem.dtype)))

    def _keep(self, kept: Tensor) -> None:
        if not kept.all():
            self.problem.keep(kept)
            self._run()

    def _run(self) -> None:
        self._eager: dict[tuple[torch.dtype, int], Named] = {}
        self.exact = self.problem.reference(torch.float64)
        self.ours = self.problem.ours() if self.problem.batch else {}

    def judges(self, quantity: str) -> bool:
        """Whether there is something to compare. There is not where the layer and the eager loop both overflow, as a
        sum over the batch may."""
        if not self.problem.batch:
            return False
        here = _finite(self.ours[quantity], self.exact[quantity])
        return here or _finite(self._in(self.problem.dtype)[quantity])

    def error(self, quantity: str) -> float:
        """How large the relative error of the layer's value is."""
        return relative_error(self.ours[quantity], self.exact[quantity])

    def least_error(self, quantity: str) -> float:
        """The least that the relative error of the layer's value can be: each infinity counts as the dtype's largest
        number."""
        ours, largest = self.ours[quantity], torch.finfo(self.problem.dtype).max
        return relative_error(ours.clamp(-largest, largest), self.exact[quantity])

    def eager_error(self, quantity: str) -> float:
        """The relative error of the eager loop in the dtype, the worst of the samples. In float64 the eager loop is the
        reference itself. There the error in float32 is scaled down, and inputs moved by rounding count where they flip
        no branch: a chaotic cell is as far off in float64 as in float32."""
        dtype = self.problem.dtype
        if dtype != torch.float64:
            return self._worst(quantity, dtype)
        single = self._worst(quantity, torch.float32) * EPSILON[torch.float64] / EPSILON[torch.float32]
        moved = self._worst(quantity, dtype) if self.problem.decided.all() else 0.0
        return max(single, moved)

    def noise(self, quantity: str) -> float:
        """The relative error that rounding may cause where the exact value is zero, so that the value in float64 is
        itself rounding. Returns 0 for any other quantity."""
        single, eager = self._error_in(quantity, torch.float32) / EPSILON[torch.float32], self.eager_error(quantity)
        # An eager loop that overflows says nothing, and excuses nothing.
        if not DIGITS < single * EPSILON[torch.float64] < inf:
            return 0.0
        return NOISE * max(eager if isfinite(eager) else 0.0, single * EPSILON[self.problem.dtype])

    def _worst(self, quantity: str, dtype: torch.dtype) -> float:
        """The largest error of the samples; the first sample's error where that is infinite or NaN."""
        first, *others = (self._error_in(quantity, dtype, sample) for sample in range(self.samples))
        return max([first, *filter(isfinite, others)]) if isfinite(first) else first

    def _error_in(self, quantity: str, dtype: torch.dtype, sample: int = 0) -> float:
        return relative_error(self._in(dtype, sample)[quantity], self.exact[quantity])

    def _in(self, dtype: torch.dtype, sample: int = 0) -> Named:
        if (dtype, sample) not in self._eager:
            self._eager[dtype, sample] = self.problem.reference(dtype, sample)
        return self._eager[dtype, sample]


def _finite(*values: Tensor) -> bool:
    return all(bool(value.isfinite().all()) for value in values)


def _rows(comparisons: list[_Comparison], dtype: torch.dtype, name: str) -> list[Row]:
    judged = {q: [c for c in comparisons if q in c.exact and c.judges(q)] for c in comparisons for q in c.exact}
    every = [(quantity, c) for quantity, found in judged.items() for c in found]
    right = all(c.error(quantity) <= BOUNDS[dtype] for quantity, c in every)
    zeros = {} if right else {(quantity, c): noise for quantity, c in every if (noise := c.noise(quantity))}
    eager = {} if right else {(q, c): c.eager_error(q) for q, c in every if (q, c) not in zeros}
    rows = []
    for quantity, found in judged.items():
        options = []
        for c in found:
            error, bound, pair = c.error(quantity), BOUNDS[dtype], (quantity, c)
            if not error <= bound:
                bound = zeros[pair] if pair in zeros else max(bound, _excuse(quantity, c, eager))
            # Where the bound reaches beyond the dtype's range, so may a value that is within the bound.
            if error == inf and (least := c.least_error(quantity)) <= bound:
                error = least
            # Where the bound is larger than the values, a number beyond it proves nothing. What is no number does.
            if pair in zeros or not LOST < bound < error < inf:
                options.append(Row(quantity, name, error, bound, 1, pair in zeros))
        options = [replace(row, cases=len(options)) for row in options] or [_unjudged(quantity, dtype, name)]
        # The row of the worst case: a failed one, else one that is not weak, and of these the nearest to its bound.
        rows.append(max(options, key=lambda row: (row.failed, not row.weak, row.error / row.bound)))
    return rows


def _unjudged(quantity: str, dtype: torch.dtype, name: str) -> Row:
    return Row(quantity, name, nan, BOUNDS[dtype], 0)


def _excuse(quantity: str, comparison: _Comparison, eager: Mapping[tuple[str, _Comparison], float]) -> float:
    """The bound that the eager loop's errors allow: twice the smaller of two errors. One is the largest error at this
    quantity over all cases. The other is the largest error at any quantity over cases of no more steps, so that a long
    sequence excuses no short one. Returns 0 where an error at this quantity is infinite or NaN."""
    steps = comparison.problem.case.steps
    own = [error for (other, _), error in eager.items() if other == quantity]
    if not all(map(isfinite, own)):
        return 0.0
    every = [(c, error) for (_, c), error in eager.items() if isfinite(error)]
    most = max(error for _, error in every)
    # An eager loop with such errors follows other trajectories, and so do all of its gradients. Then any quantity
    # counts.
    worst = most if 2 * most > WEAK else max(own)
    return 2 * min(worst, max(error for c, error in every if c.problem.case.steps <= steps))
