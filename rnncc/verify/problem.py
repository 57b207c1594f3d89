"""One case of one cell in one dtype: the arguments of the layer and the reference, and the results of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rnncc.analysis.kinks import Branch, branches, fixed_branches
from rnncc.ir.cell import Cell, Pointwise, State, value_table
from rnncc.ir.dim import evaluate
from rnncc.verify import reference
from rnncc.verify.cases import Case, free_sizes, sizes_of
from rnncc.verify.runner import Runner, runner_of

# A branch (a relu, a comparison, a spike) is decided where its value lies farther from the jump than MARGIN times the
# rounding error. Undecided steps are drawn again, for at most ROUNDS rounds, and until PATIENCE rounds in a row brought
# no fewer of them.
MARGIN = 2
ROUNDS = 40
PATIENCE = 6

Named = dict[str, Tensor]
Draw = Callable[..., Tensor]  # draw(*sizes): a tensor of normal numbers


class Problem:
    """A layer, its arguments (standard normal inputs [T, B, width], or [B, width] per sequence, and small initial
    states [B, width]) and the gradients of its results.

    Rounding might flip a relu or a spike, which changes the gradients. So parameters and steps for which that could
    happen are drawn again. `decided`, [B], says for which batch entries it cannot happen; the others may be left
    out later. The layer under test has no part in this choice."""

    def __init__(self, layer_class: Any, cell: Cell, case: Case, dtype: torch.dtype, device: str) -> None:
        steps, batch = case.steps, case.batch
        generator = torch.Generator().manual_seed(steps * 1000 + batch)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

        self.cell, self.case, self.dtype = cell, case, dtype
        self.first = cell.inputs[0].name
        self.sizes = sizes = sizes_of(cell, case)
        self.states = [state for state in cell.states if state.delay_of is None]
        self.batch = batch
        self.masks: Named = {}
        if case.masked:
            # Every length from T down; a restart in every batch entry, at different steps.
            entry, step = torch.arange(batch, device=device), torch.arange(steps, device=device)
            self.masks = {
                "lengths": steps - entry % steps,
                "reset": (step[:, None] % (2 + entry) == 1).to(dtype),
            }
        dims = {size.name: sizes[size.name] for size in free_sizes(cell)}
        fixed_decided = False
        for seed in range(ROUNDS + 1):
            torch.manual_seed(seed)
            # The layer is made on the CPU, so that every device has the same parameters. A layer with the reverse
            # direction also has the forward one, which is not compared.
            self.layer = layer_class(
                sizes["I"], sizes["H"], dtype=dtype, num_heads=case.heads, bidirectional=case.reverse, **dims
            ).to(device)
            self.parameters: Named = self.layer.gate_parameters(0, reverse=case.reverse)
            fixed_decided = self._fixed_decided()
            if fixed_decided:
                break
        # Where kernels run, each call must run them: it raises where the eager fallback would run.
        if not (runner := self.runner()).is_fallback:
            self.layer.backend = runner.device
        self.inputs, self.initial, self.decided = self._decided(draw)
        self.decided &= fixed_decided
        with torch.no_grad():
            output, finals = self.run_layer(self.inputs, self.initial)
        self.cotangents = [draw(*value.shape) for value in (output, *finals)]

    @property
    def batch_axes(self) -> dict[str, int]:
        """The batch axis of every quantity that has one."""
        finals = (f"{state.name}_n" for state in self.states)
        return {
            "output": 1,
            **dict.fromkeys(finals, 0),
            **{f"d_{name}": self._entry_axis(name) for name in self.inputs},
            **{self._initial_gradient(name): 0 for name in self.initial},
        }

    def runner(self) -> Runner:
        """What runs the layer."""
        return runner_of(self.layer)

    def finite(self, found: Named) -> Tensor:
        """[B]: in which batch entries everything that was found of them is finite."""
        finite = torch.ones(self.batch, dtype=torch.bool)
        for name, axis in self.batch_axes.items():
            rows = found[name].movedim(axis, 0).flatten(1)
            finite &= rows.isfinite().all(1).cpu()
        return finite

    def keep(self, kept: Tensor) -> None:
        """Drop the batch entries for which `kept`, [B], is False."""
        chosen = kept.nonzero().squeeze(1).to(self.inputs[self.first].device)
        self.batch, self.decided = len(chosen), self.decided[kept]
        self.inputs = {name: value.index_select(self._entry_axis(name), chosen) for name, value in self.inputs.items()}
        self.initial = {name: value[chosen] for name, value in self.initial.items()}
        output, *finals = self.cotangents
        self.cotangents = [output[:, chosen], *(final[chosen] for final in finals)]
        if self.masks:
            self.masks = {"lengths": self.masks["lengths"][chosen], "reset": self.masks["reset"][:, chosen]}

    # Draw arguments.

    def _drawn(self, draw: Draw) -> tuple[Named, Named]:
        """Inputs, and initial states where they are given."""
        steps, batch = self.case.steps, self.case.batch
        inputs = {
            i.name: draw(*(() if i.per_sequence else (steps,)), batch, evaluate(i.width, self.sizes))
            for i in self.cell.inputs
        }
        # Extra inputs are mostly times and gates: a negative one may leave the domain of a logarithm.
        inputs |= {i.name: inputs[i.name].abs() for i in self.cell.inputs[1:]}
        given = self.states if self.case.given else []
        return inputs, {s.name: 0.1 * draw(batch, evaluate(s.width, self.sizes)) for s in given}

    def _decided(self, draw: Draw) -> tuple[Named, Named, Tensor]:
        """As `_drawn`, with undecided steps drawn again; and which batch entries, [B], are decided at all steps."""
        inputs, initial = self._drawn(draw)
        found = branches(self.cell)
        undecided = torch.zeros(self.case.steps, self.case.batch, dtype=torch.bool)
        counts: list[int] = []
        while found:
            undecided = self._undecided(inputs, initial, found)
            counts.append(int(undecided.sum()))
            stuck = len(counts) > PATIENCE and min(counts[-PATIENCE:]) >= min(counts[:-PATIENCE])
            if not counts[-1] or len(counts) > ROUNDS or stuck:
                break
            others, first = self._drawn(draw)
            again = undecided.to(inputs[self.first].device)
            start = again[-1 if self.case.reverse else 0]
            inputs = {
                name: torch.where((again if self._entry_axis(name) else again.any(0))[..., None], others[name], value)
                for name, value in inputs.items()
            }
            initial = {name: torch.where(start[..., None], first[name], value) for name, value in initial.items()}
        return inputs, initial, ~undecided.any(0)

    def _undecided(self, inputs: Named, initial: Named, found: tuple[Branch, ...]) -> Tensor:
        """[T, B]: whether some branch lies nearer to its jump than MARGIN times its largest rounding error up to that
        step. A value that lies on the jump by its equations (a relu of a relu) is not undecided."""
        result = torch.zeros(self.case.steps, self.case.batch, dtype=torch.bool)
        rounded, share = self._rounding()
        exact, others = (self._compared(inputs, initial, dtype, found) for dtype in (torch.float64, rounded))
        for branch, values, other in zip(found, exact, others, strict=True):
            # Equal infinities have no rounding error, but their difference is NaN.
            off = share * torch.where(other == values, 0, (other - values).abs()).amax(2, keepdim=True)
            if share < 1:
                # The other dtype's error at one step may be small by chance. The largest of all steps is small enough.
                off = off.amax((0, 1), keepdim=True).expand_as(off)
            off = off.flip(0).cummax(0).values.flip(0) if self.case.reverse else off.cummax(0).values
            result |= _near(branch, values, other, off).any(2)
        if self.masks:
            # Nothing is compared past the end of a batch entry.
            result &= torch.arange(self.case.steps)[:, None] < self.masks["lengths"].cpu()
        return result

    @torch.no_grad()
    def _fixed_decided(self) -> bool:
        """Whether every branch that depends on parameters alone is decided."""
        if not (found := fixed_branches(self.cell)):
            return True
        rounded, share = self._rounding()
        both = [self._fixed(dtype) for dtype in (torch.float64, rounded)]
        for branch in found:
            values, others = (machine.part(branch.target, branch.value, fixed).double() for machine, fixed in both)
            if _near(branch, values, others, share * (others - values).abs().max()).any():
                return False
        return True

    def _rounding(self) -> tuple[torch.dtype, float]:
        """A dtype whose rounding errors can be measured against float64, and the factor from these errors to those of
        the problem's dtype. For a problem in float64 that is float32 and the ratio of the epsilons, times a hundred to
        be safe."""
        if self.dtype != torch.float64:
            return self.dtype, 1.0
        return torch.float32, 100 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps

    def _fixed(self, dtype: torch.dtype) -> tuple[reference.Interpreter, Named]:
        """The interpreter, and every value that depends on parameters alone, in `dtype`. It runs on the CPU, so that
        the problem is the same on every device."""
        parameters = _on_cpu(self.parameters, dtype)
        like = torch.zeros((), dtype=dtype)
        machine = reference.Interpreter(value_table(self.cell), self.sizes, self.case.heads, like)
        return machine, reference.fixed_values(self.cell, machine, parameters, {})

    @torch.no_grad()
    def _compared(
        self, inputs: Named, initial: Named, dtype: torch.dtype, found: tuple[Branch, ...]
    ) -> Iterator[Tensor]:
        """The value that decides each branch, [T, B, width], computed by the reference in `dtype`."""
        inputs, initial = (_on_cpu(values, dtype) for values in (inputs, initial))
        masks = {name: value.cpu() for name, value in self.masks.items()}
        sequences, _ = self._run_reference(_on_cpu(self.parameters, dtype), inputs, initial, masks)
        machine, fixed = self._fixed(dtype)
        known = {**fixed, **inputs, **sequences}
        for branch in found:
            value = machine.node(Pointwise(branch.target, branch.value), known).double()
            yield value.expand(self.case.steps, self.case.batch, value.shape[-1])

    # Run.

    def run_layer(self, inputs: Named, initial: Named) -> tuple[Tensor, list[Tensor]]:
        """The layer's output [T, B, width] and final states [B, width], of the direction that is compared."""
        directions = 2 if self.case.reverse else 1
        shapes = {state.name: self._shape(state) for state in self.states}
        hx = tuple(
            torch.stack([value.reshape(len(value), *shapes[name])] * directions) for name, value in initial.items()
        )
        extras = {name: value for name, value in inputs.items() if name != self.first}
        for item in self.cell.inputs:
            if item.grid is not None:
                given, sides = extras[item.name], (evaluate(side, self.sizes) for side in item.grid.sides)
                extras[item.name] = given.reshape(len(given), *sides)
        output, finals = self.layer(
            inputs[self.first], (hx if len(hx) > 1 else hx[0]) if hx else None, **extras, **self.masks
        )
        output = output.chunk(directions, -1)[-1]
        return output, [final[-1].flatten(1) for final in (finals if isinstance(finals, tuple) else (finals,))]

    def _shape(self, state: State) -> tuple[int, ...]:
        """The shape in which hx has a state of one batch entry."""
        if state.grid is None:
            return (evaluate(state.width, self.sizes),)
        return (self.case.heads, *(evaluate(side, self.sizes) // self.case.heads for side in state.grid.sides))

    def _run_reference(
        self, parameters: Named, inputs: Named, initial: Named, masks: Named
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        given = reference.Arguments(
            parameters, inputs, initial, sizes=self.sizes, num_heads=self.case.heads, reverse=self.case.reverse,
            lengths=masks.get("lengths"), reset=masks.get("reset"),
        )  # fmt: skip
        return reference.run(self.cell, given)

    def ours(self) -> Named:
        """Every quantity as the layer computes it."""
        inputs, initial = _leaves(self.inputs), _leaves(self.initial)
        self.layer.zero_grad()
        output, finals = self.run_layer(inputs, initial)
        self._backward([output, *finals])
        gradients = self.layer.gate_parameters(0, reverse=self.case.reverse, grad=True)
        return self._named(output, finals, inputs, initial, {name: gradients[name] for name in self.parameters})

    def reference(self, dtype: torch.dtype, sample: int = 0) -> Named:
        """Every quantity by the reference, computed in `dtype` from the same numbers. In samples
        other than the first, one unit of x is moved by a rounding of it at every step, up or down."""
        inputs, initial, parameters = (
            _leaves(values, dtype) for values in (self.inputs, self.initial, self.parameters)
        )
        given = inputs
        if sample:
            generator = torch.Generator().manual_seed(sample)
            *rows, units = inputs[self.first].shape
            unit = torch.randint(units, (*rows, 1), generator=generator)
            sign = torch.randint(2, (*rows, 1), generator=generator).double() * 2 - 1
            factor = torch.ones(*rows, units, dtype=torch.float64)
            factor.scatter_(2, unit, 1 + sign * torch.finfo(dtype).eps)
            given = {**inputs, self.first: inputs[self.first] * factor.to(inputs[self.first])}
        # What the mask of a sparse matrix leaves out is no part of it, and has a gradient of zero.
        kept = self.layer.gate_masks(0, reverse=self.case.reverse)
        matrices = {name: torch.where(kept[name].to(parameters[name].device), parameters[name], 0) for name in kept}
        sequences, last = self._run_reference({**parameters, **matrices}, given, initial, self.masks)
        output, finals = sequences[self.cell.output], [last[state.name] for state in self.states]
        if self.masks:
            # The layer promises zeros past an entry's length; the reference promises nothing there.
            step = torch.arange(self.case.steps, device=output.device)
            output = torch.where((step[:, None] < self.masks["lengths"])[..., None], output, 0)
        self._backward([output, *finals])
        return self._named(output, finals, inputs, initial, {name: p.grad for name, p in parameters.items()})

    def _backward(self, values: Sequence[Tensor]) -> None:
        """Run backward from all values that have gradients. A counter, or a number that is the same at all steps, has
        none."""
        pairs = [pair for pair in zip(values, self.cotangents, strict=True) if pair[0].requires_grad]
        if pairs:
            torch.autograd.backward([value for value, _ in pairs], [given.to(value.dtype) for value, given in pairs])

    def _named(
        self, output: Tensor, finals: list[Tensor], inputs: Named, initial: Named,
        gradients: dict[str, Tensor | None],
    ) -> Named:  # fmt: skip
        found = {"output": output}
        found |= {f"{state.name}_n": value for state, value in zip(self.states, finals, strict=True)}
        found |= {f"d_{name}": _gradient(value, value.grad) for name, value in inputs.items()}
        # Where hx replaces a learned start and nothing restarts, that start's gradient is 0 on both sides. It proves
        # nothing.
        idle = {f"{s.name}0" for s in self.states if s.initial is None} if initial and not self.masks else set()
        # Buffers have none.
        idle |= {member.name for p in self.cell.parameters if not p.trained for member in p.members}
        found |= {
            f"d_{name}": _gradient(value, gradients[name])
            for name, value in self.parameters.items()
            if name not in idle
        }
        return found | {self._initial_gradient(name): _gradient(value, value.grad) for name, value in initial.items()}

    def _entry_axis(self, name: str) -> int:
        """The batch axis of an input."""
        return next(int(not item.per_sequence) for item in self.cell.inputs if item.name == name)

    def _initial_gradient(self, state: str) -> str:
        # A learned initial state is the parameter h0, so that `d_h0` may be taken; a name of the language has no dot.
        return f"d_hx.{state}" if f"{state}0" in {*self.inputs, *self.parameters} else f"d_{state}0"


def _near(branch: Branch, values: Tensor, rounded: Tensor, off: Tensor) -> Tensor:
    """Where a value lies within MARGIN times `off` of a point at which its branch jumps. A value that lies exactly on
    the point, with rounding and without, does not count."""
    result = torch.zeros_like(values, dtype=torch.bool)
    for point in branch.points:
        distance = (values - point).abs()
        # `not >=`: with an error that is NaN, the value counts as near.
        result |= ~(distance >= MARGIN * off) & ((distance > 0) | (rounded != point))
    return result


def _on_cpu(values: Named, dtype: torch.dtype) -> Named:
    return {name: value.detach().to("cpu", dtype) for name, value in values.items()}


def _leaves(values: Named, dtype: torch.dtype | None = None) -> Named:
    return {name: value.detach().to(dtype or value.dtype, copy=True).requires_grad_() for name, value in values.items()}


def _gradient(value: Tensor, gradient: Tensor | None) -> Tensor:
    # torch gives None where a gradient is zero.
    return torch.zeros_like(value) if gradient is None else gradient
