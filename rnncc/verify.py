"""The built op against the float64 reference: outputs, final states and every gradient (`rnncc verify`).

The reference is `rnncc.reference`, which interprets the checked cell in eager torch with torch's own autograd; it
shares neither the derived backward pass nor the generated code with what it verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from rnncc import reference
from rnncc.branches import Branch, branches
from rnncc.ir.cell import Cell, Constraint, value_table
from rnncc.ir.dim import evaluate

# Relative error ‖ours - reference‖/‖reference‖ allowed, by dtype. Inputs and parameters are rounded to the dtype before
# both run, so that only the arithmetic differs. Below float64, a cell that amplifies rounding may exceed its bound: up
# to twice the error of its eager loop in that dtype (both errors are samples of one distribution).
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

HALF = (torch.bfloat16, torch.float16)

# Of what rounding may turn over, in 16 bits: see `_Problem._decided`.
MARGIN = 2
ROUNDS = 40

# A bound above this proves little: the eager loop in that dtype is off by as much.
WEAK = 0.1

Named = dict[str, Tensor]
Draw = Callable[..., Tensor]  # of sizes: a tensor of normal numbers


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: T steps of B columns, one layer and one direction of it.

    given  whether `hx` is passed, or the states start with their declared (or learned) values
    masked whether the columns have lengths of their own and start anew at some steps
    """

    steps: int
    columns: int
    heads: int = 1
    reverse: bool = False
    given: bool = True
    masked: bool = False

    @property
    def runs_in_half(self) -> bool:
        """Whether 16-bit dtypes run it too: what differs by the way of calling is told in 32 and 64 bits."""
        return self.given and self.heads == 1 and not self.reverse and not self.masked

    def __str__(self) -> str:
        words = [f"T={self.steps} B={self.columns}"]
        words += [f"num_heads={self.heads}"] if self.heads > 1 else []
        words += ["reverse"] if self.reverse else []
        words += [] if self.given else ["no hx"]
        words += ["lengths and reset"] if self.masked else []
        words += [] if self.runs_in_half else ["not in 16 bits"]
        return ", ".join(words)


CASES = (
    Case(1, 1),
    Case(7, 3),
    Case(33, 16),
    Case(4, 3, given=False),
    Case(5, 4, reverse=True),
    Case(9, 5, masked=True),
    Case(6, 3, heads=2),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One compared quantity: the worst relative error over the cases, and what was allowed."""

    quantity: str
    dtype: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.error <= self.bound

    @property
    def weak(self) -> bool:
        """Whether so much was allowed that passing proves little."""
        return self.bound > WEAK


@dataclass(frozen=True, slots=True)
class Undecided:
    """Of the `of` steps of all columns and cases in a 16-bit dtype, those at which rounding may turn a relu, comparison
    or spike over, because no inputs were found with which it does not."""

    dtype: str
    steps: int
    of: int


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared, by dtype and quantity, and the dtypes with steps that hang on rounding."""

    rows: tuple[Row, ...]
    undecided: tuple[Undecided, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every error is within its bound."""
        return all(row.passed for row in self.rows)


def problem_sizes(cell: Cell, num_heads: int = 1) -> dict[str, int]:
    """I, H and every dim: small sizes that meet the cell's constraints, I different from H where they allow it.

    Raises ValueError where there are none for so many heads."""
    for inputs in (7, 12):
        sizes = {"I": inputs, "H": 12, "num_heads": num_heads}
        for size in cell.sizes:
            if size.solved is None:
                sizes[size.name] = size.default if size.default is not None else 6
        for size in cell.sizes:
            if size.solved is not None:
                sizes[size.name] = evaluate(size.solved, sizes)
        if all(_holds(constraint, sizes) for constraint in cell.constraints):
            return sizes
    raise ValueError(f"no small sizes meet the constraints of {cell.name}")


def cases_of(cell: Cell) -> tuple[Case, ...]:
    """The cases that `verify` runs: CASES, less those with several heads for a cell that cannot have them."""
    return tuple(case for case in CASES if case.heads == 1 or _has_heads(cell, case.heads))


def _has_heads(cell: Cell, heads: int) -> bool:
    if cell.single_head_because:
        return False
    try:
        problem_sizes(cell, heads)
    except ValueError:
        return False
    return True


def _holds(constraint: Constraint, sizes: dict[str, int]) -> bool:
    left, right = evaluate(constraint.left, sizes), evaluate(constraint.right, sizes)
    return left % right == 0 if constraint.divides else left == right


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """‖ours - expected‖ / ‖expected‖ in float64; the plain norm where the expected value is zero; NaN never passes."""
    exact = expected.detach().double()
    difference = torch.linalg.vector_norm(ours.detach().double() - exact)
    norm = torch.linalg.vector_norm(exact)
    return float(difference / norm if norm > 0 else difference)


def verify(
    layer_class: Any, cell: Cell, *, device: str = "cpu", dtypes: tuple[torch.dtype, ...] = tuple(BOUNDS)
) -> Report:
    """Compare `layer_class` (a layer of a built package) with the reference of `cell` over its cases and dtypes."""
    rows: list[Row] = []
    undecided: list[Undecided] = []
    for dtype in dtypes:
        worst: dict[str, float] = {}
        cases = [case for case in cases_of(cell) if case.runs_in_half or dtype not in HALF]
        problems = [_Problem(layer_class, cell, case, dtype, device) for case in cases]
        exact = [problem.reference(torch.float64) for problem in problems]
        for problem, expected in zip(problems, exact, strict=True):
            _keep_worst(worst, problem.ours(), expected)
        allowed: dict[str, float] = {}
        if dtype != torch.float64 and not all(error <= BOUNDS[dtype] for error in worst.values()):
            for problem, expected in zip(problems, exact, strict=True):
                _keep_worst(allowed, problem.reference(dtype), expected)
        # An eager loop this far off follows other trajectories (a spike more or less), and so do all its gradients.
        most = max(allowed.values(), default=0.0)
        name = str(dtype).removeprefix("torch.")
        if steps := sum(problem.undecided for problem in problems):
            undecided.append(Undecided(name, steps, sum(case.steps * case.columns for case in cases)))
        for quantity, error in worst.items():
            bound, eager = BOUNDS[dtype], most if 2 * most > WEAK else allowed.get(quantity, 0.0)
            # Where the eager loop is off by infinity, or by no number, it excuses nothing.
            if not error <= bound and isfinite(eager):
                bound = max(bound, 2 * eager)
            rows.append(Row(quantity, name, error, bound))
    return Report(tuple(rows), tuple(undecided))


def _keep_worst(worst: dict[str, float], found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for quantity, value in found.items():
        error = relative_error(value, expected[quantity])
        known = worst.get(quantity, 0.0)
        # NaN compares false with everything: keep it once seen.
        worst[quantity] = error if error != error or error > known else known


class _Problem:
    """One case: a layer, what it is given (standard normal inputs, small initial states; in 16 bits such that rounding
    turns no relu or spike over) and what it is asked for."""

    def __init__(self, layer_class: Any, cell: Cell, case: Case, dtype: torch.dtype, device: str) -> None:
        steps, columns = case.steps, case.columns
        generator = torch.Generator().manual_seed(steps * 1000 + columns)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

        self.cell, self.case = cell, case
        self.sizes = sizes = problem_sizes(cell, case.heads)
        dims = {size.name: sizes[size.name] for size in cell.sizes if size.solved is None}
        torch.manual_seed(0)
        # Made on the CPU: the same parameters on every device. The reverse direction comes with the forward one; it
        # alone is compared.
        self.layer = layer_class(
            sizes["I"], sizes["H"], dtype=dtype, num_heads=case.heads, bidirectional=case.reverse, **dims
        ).to(device)
        self.states = [state for state in cell.states if state.delay_of is None]
        self.parameters: dict[str, Tensor] = self.layer.gate_parameters(0, reverse=case.reverse)
        self.undecided = 0
        self.inputs, self.initial = self._decided(draw) if dtype in HALF else self._drawn(draw)
        self.masks: dict[str, Tensor] = {}
        if case.masked:
            # Every length from T down; a restart in every column, at different steps.
            column, step = torch.arange(columns, device=device), torch.arange(steps, device=device)
            self.masks = {
                "lengths": steps - column % steps,
                "reset": (step[:, None] % (2 + column) == 1).to(dtype),
            }
        with torch.no_grad():
            output, finals = self._run_layer(self.inputs, self.initial)
        self.cotangents = [draw(*value.shape) for value in (output, *finals)]

    def _drawn(self, draw: Draw) -> tuple[Named, Named]:
        """Inputs, and initial states where they are given."""
        steps, columns = self.case.steps, self.case.columns
        inputs = {i.name: draw(steps, columns, evaluate(i.width, self.sizes)) for i in self.cell.inputs}
        # Extra inputs are mostly times and gates: a negative one may leave the domain of a logarithm.
        inputs |= {i.name: inputs[i.name].abs() for i in self.cell.inputs[1:]}
        given = self.states if self.case.given else []
        return inputs, {s.name: 0.1 * draw(columns, evaluate(s.width, self.sizes)) for s in given}

    def _decided(self, draw: Draw) -> tuple[Named, Named]:
        """The same in 16 bits, where rounding might turn a relu or a spike over, and with it the gradients: steps at
        which that could be are drawn again, as long as there are any, at most ROUNDS times; `undecided` counts those
        that are left. What is verified has no part in the choice."""
        inputs, initial = self._drawn(draw)
        found = branches(self.cell)
        for drawn in range(ROUNDS + 1 if found else 0):
            again = self._undecided(inputs, initial, found).to(inputs["x"].device)
            self.undecided = int(again.sum())
            if not self.undecided or drawn == ROUNDS:
                break
            others, first = self._drawn(draw)
            inputs = {name: torch.where(again[..., None], others[name], value) for name, value in inputs.items()}
            initial = {name: torch.where(again[0][..., None], first[name], value) for name, value in initial.items()}
        return inputs, initial

    def _undecided(self, inputs: Named, initial: Named, found: tuple[Branch, ...]) -> Tensor:
        """[T, B]: whether some branch lies nearer to its jump than MARGIN times what the eager loop in the inputs'
        dtype is off by, until then. Equal values that follow from the equations (a relu of a relu) are no jump."""
        exact, rounded = (self._compared(inputs, initial, dtype, found) for dtype in (torch.float64, inputs["x"].dtype))
        result = torch.zeros(inputs["x"].shape[:2], dtype=torch.bool)
        for branch, values, others in zip(found, exact, rounded, strict=True):
            off = (others - values).abs().amax(2, keepdim=True).cummax(0).values
            for point in branch.points:
                distance = (values - point).abs()
                # `not >=`: an error that is no number decides nothing.
                result |= (~(distance >= MARGIN * off) & (distance > 0)).any(2)
        return result

    @torch.no_grad()
    def _compared(
        self, inputs: Named, initial: Named, dtype: torch.dtype, found: tuple[Branch, ...]
    ) -> Iterator[Tensor]:
        """What each branch looks at, [T, B, width], by the reference in `dtype`. On the CPU: the same problem on every
        device."""
        inputs, initial, parameters = (
            {name: value.detach().to("cpu", dtype) for name, value in values.items()}
            for values in (inputs, initial, self.parameters)
        )
        sequences, _ = reference.run(self.cell, parameters, inputs, initial=initial, sizes=self.sizes)
        machine = reference.Interpreter(value_table(self.cell), self.sizes, self.case.heads, inputs["x"])
        known = {**reference.fixed_values(self.cell, machine, parameters, {}), **inputs, **sequences}
        for branch in found:
            value = machine.pointwise(branch.width, branch.value, known).double()
            yield value.expand(self.case.steps, self.case.columns, value.shape[-1])

    def _run_layer(self, inputs: dict[str, Tensor], initial: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        directions = 2 if self.case.reverse else 1
        hx = tuple(torch.stack([value] * directions) for value in initial.values())
        extras = {name: value for name, value in inputs.items() if name != "x"}
        output, finals = self.layer(inputs["x"], (hx if len(hx) > 1 else hx[0]) if hx else None, **extras, **self.masks)
        output = output.chunk(directions, -1)[-1]
        return output, [final[-1] for final in (finals if isinstance(finals, tuple) else (finals,))]

    def ours(self) -> dict[str, Tensor]:
        """Every quantity by the layer."""
        inputs, initial = _leaves(self.inputs), _leaves(self.initial)
        output, finals = self._run_layer(inputs, initial)
        torch.autograd.backward([output, *finals], self.cotangents)
        gradients = self.layer.gate_parameters(0, reverse=self.case.reverse, grad=True)
        return self._named(output, finals, inputs, initial, {name: gradients[name] for name in self.parameters})

    def reference(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every quantity by the reference, computed in `dtype` from the same numbers."""
        inputs, initial, parameters = (
            _leaves(values, dtype) for values in (self.inputs, self.initial, self.parameters)
        )
        sequences, last = reference.run(
            self.cell, parameters, inputs, initial=initial, sizes=self.sizes, num_heads=self.case.heads,
            reverse=self.case.reverse, lengths=self.masks.get("lengths"), reset=self.masks.get("reset"),
        )  # fmt: skip
        output, finals = sequences[self.cell.output], [last[state.name] for state in self.states]
        if self.masks:
            # What the layer promises of steps past a column's length; the reference leaves them open.
            step = torch.arange(self.case.steps, device=output.device)
            output = torch.where((step[:, None] < self.masks["lengths"])[..., None], output, 0)
        torch.autograd.backward([output, *finals], [value.to(dtype) for value in self.cotangents])
        return self._named(output, finals, inputs, initial, {name: p.grad for name, p in parameters.items()})

    def _named(
        self,
        output: Tensor,
        finals: list[Tensor],
        inputs: dict[str, Tensor],
        initial: dict[str, Tensor],
        gradients: dict[str, Tensor | None],
    ) -> dict[str, Tensor]:
        found = {"output": output}
        found |= {f"{state.name}_n": value for state, value in zip(self.states, finals, strict=True)}
        found |= {f"d_{name}": _gradient(value, value.grad) for name, value in inputs.items()}
        # Where hx takes the place of a learned start and nothing restarts, its gradient is 0 on both sides: no proof.
        idle = {f"{s.name}0" for s in self.states if s.initial is None} if initial and not self.masks else set()
        found |= {
            f"d_{name}": _gradient(value, gradients[name])
            for name, value in self.parameters.items()
            if name not in idle
        }
        # A learned initial state is the parameter h0, so that `d_h0` may be taken; a name of the language has no dot.
        taken = {*inputs, *self.parameters}
        found |= {
            f"d_hx.{name}" if f"{name}0" in taken else f"d_{name}0": _gradient(value, value.grad)
            for name, value in initial.items()
        }
        return found


def _leaves(values: dict[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {name: value.detach().to(dtype or value.dtype, copy=True).requires_grad_() for name, value in values.items()}


def _gradient(value: Tensor, gradient: Tensor | None) -> Tensor:
    # No gradient means that it is zero.
    return torch.zeros_like(value) if gradient is None else gradient
