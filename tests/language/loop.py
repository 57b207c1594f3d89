"""A cell's loop written out in torch: one batch entry, one layer and one direction at a time. The past is a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Values = dict[str, Tensor]
# What a state is before the first step: a number for all of its elements; None: learned.
Start = float | Tensor | None
# States: width or the shape of a matrix's blocks, and the start.
States = Mapping[str, tuple[int | tuple[int, ...], Start]]
Step = Callable[[Any, Any, Any, Any], Values]
# What `Setting` gives for the sizes of a case.
HIDDEN, INPUT, STEPS, BATCH = 6, 5, 7, 3


@dataclass(frozen=True, slots=True)
class Case:
    """A cell's text, its states for a hidden size, and one step of it. `step(p, s, x, k)`: parameters by name, the
    state `s(name, steps back)`, the input or older value `x(name, steps back)`, sizes N, H, D; it returns the new
    states, values that later steps read, and `out` where that is not the first state. `extra`: the widths of further
    inputs; `defaults`: those of them that the layer is not given, with their numbers; `per_sequence`: those that are
    [B, width]. `square`: I == H. `whole`: whole numbers everywhere, so that there are ties. `bounded`: every number
    lies between -1 and 1."""

    text: str
    states: Callable[[int], States]
    step: Step
    heads: int = 1
    extra: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    per_sequence: Collection[str] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    square: bool = False
    whole: bool = False
    bounded: bool = False

    @property
    def name(self) -> str:
        return self.text.split()[1]

    def shape(self, name: str, steps: int) -> tuple[int, ...]:
        """Of a further input."""
        once = (BATCH, self.extra[name])
        return once if name in self.per_sequence else (steps, *once)


@dataclass(frozen=True, slots=True)
class Table:
    """Puts the function that stands below it into a table of cases, as one step of the cell that the text states."""

    cases: list[Case]

    def __call__(self, text: str, states: Callable[[int], States], **options: Any) -> Callable[[Step], Step]:
        def keep(step: Step) -> Step:
            self.cases.append(Case(text, states, step, **options))
            return step

        return keep


@dataclass(frozen=True, slots=True)
class Setting:
    """How a layer is run."""

    heads: int = 1
    steps: int = STEPS
    layers: int = 1
    bidirectional: bool = False
    states: bool = False
    lengths: tuple[int, ...] | None = None
    reset: bool = False


def joined(view: Tensor) -> Tensor:
    """A view of `gate_parameters()` with all sections of a head together: [k, N, D, in] as [N, k*D, in]."""
    return view.transpose(0, 1).flatten(1, 2) if view.dim() == 4 else view


def mm(matrix: Tensor, operand: Tensor, k_in: int = 1, k_out: int = 1) -> Tensor:
    """Dense [out, in] or block-diagonal [N, out, in] times a vector laid out [k, N, D]."""
    if matrix.dim() == 2:
        return matrix @ operand
    heads, _, columns = matrix.shape
    blocks = operand.reshape(k_in, heads, -1).transpose(0, 1).reshape(heads, columns)
    product = torch.einsum("noi,ni->no", matrix, blocks)
    return product.reshape(heads, k_out, -1).transpose(0, 1).reshape(-1)


def bdm(matrix: Tensor, operand: Tensor) -> Tensor:
    """Blocks of neighbouring units."""
    return torch.einsum("noi,ni->no", matrix, operand.reshape(matrix.shape[0], -1)).reshape(-1)


def heads(value: Tensor, count: int, k: int = 1) -> Tensor:
    """[k*N*D] as [N, k*D]."""
    return value.reshape(k, count, -1).transpose(0, 1).reshape(count, -1)


def per(function: Callable[[Tensor], Tensor], value: Tensor, count: int, k: int = 1) -> Tensor:
    """A function of each head's units."""
    return function(heads(value, count, k)).reshape(count, k, -1).transpose(0, 1).reshape(-1)


def wide(value: Tensor, units: int) -> Tensor:
    """The number of each head for all its units."""
    return value.reshape(-1, 1).expand(-1, units).reshape(-1)


def ln(value: Tensor, count: int = 1, k: int = 1) -> Tensor:
    """layernorm of each head's units."""
    return per(lambda rows: torch.nn.functional.layer_norm(rows, rows.shape[-1:]), value, count, k)


class Given(torch.autograd.Function):
    """A value with the derivative that is given."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, value: Tensor, derivative: Tensor) -> Tensor:
        ctx.save_for_backward(derivative)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        return d * ctx.saved_tensors[0], None, None


def given(v: Tensor, value: Tensor, derivative: Tensor) -> Tensor:
    """The value, whose derivative by v is `derivative`; nothing flows through either."""
    result: Tensor = Given.apply(v, value.detach(), derivative.detach())  # type: ignore[no-untyped-call]
    return result


def spike(v: Tensor, derivative: Tensor) -> Tensor:
    """heaviside(v), whose derivative is `derivative`."""
    return given(v, (v > 0).to(v), derivative)


def one_direction(
    case: Case, parameters: Mapping[str, Tensor], inputs: Values, initial: Values, hx: Values | None,
    lengths: tuple[int, ...] | None, reset: Tensor | None, k: Any, reverse: bool,
) -> tuple[Tensor, Values]:  # fmt: skip
    """The output [T, B, width], zeros past an entry's end, and the final states [B, width]."""
    steps, batch = inputs["x"].shape[:2]
    finals: dict[str, list[Tensor]] = {name: [] for name in initial}
    outputs: dict[tuple[int, int], Tensor] = {}
    p = SimpleNamespace(**parameters)
    for entry in range(batch):
        length = steps if lengths is None else lengths[entry]
        start = {name: hx[name][entry] if hx is not None else initial[name] for name in initial}
        past: list[Values] = []
        for t in reversed(range(length)) if reverse else range(length):
            now = {name: value[entry] if value.dim() == 2 else value[t, entry] for name, value in inputs.items()}
            later = t + 1 if reverse else t  # the later one of the two steps between which nothing passes
            if reset is not None and later < length and reset[later, entry]:
                past, start = [], initial

            def s(name: str, back: int = 1, past: list[Values] = past, start: Values = start) -> Tensor:
                return past[-back][name] if back <= len(past) else start[name]

            def x(name: str = "x", back: int = 0, past: list[Values] = past, now: Values = now) -> Tensor:
                if name not in now:
                    return past[-back][name] if back <= len(past) else torch.zeros((), dtype=torch.float64)
                if back == 0:
                    return now[name]
                return past[-back][f"input {name}"] if back <= len(past) else torch.zeros_like(now[name])

            made = case.step(p, s, x, k)
            outputs[t, entry] = made.get("out", made[next(iter(initial))])
            past = [*past, {**made, **{f"input {name}": value for name, value in now.items()}}]
        for name in initial:
            finals[name].append(past[-1][name] if past else start[name])
    zero = torch.zeros_like(next(iter(outputs.values())))
    rows = [torch.stack([outputs.get((t, entry), zero) for entry in range(batch)]) for t in range(steps)]
    return torch.stack(rows), {name: torch.stack(values) for name, values in finals.items()}


def compare(
    make: Callable[..., Any], case: Case, setting: Setting, seed: int, kernels: bool = True
) -> dict[str, float]:
    """The largest difference, relative to the largest value or to 1, of output, final states and every gradient
    between a layer in float64 and the loop written out. `kernels`: whether the layer has any."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        value = torch.randn(*shape, generator=generator, dtype=torch.float64)
        if case.bounded:
            return value.tanh()
        return value.round() if case.whole else value

    width = HIDDEN if case.square else INPUT
    directions = 2 if setting.bidirectional else 1
    layer = make(
        width, HIDDEN, setting.layers, bidirectional=setting.bidirectional, num_heads=setting.heads,
        dtype=torch.float64, **case.arguments,
    )  # fmt: skip
    if "zoneout" in case.arguments:
        layer.eval()  # each element is the mean of what it is and what it was
    assert ("CPU kernels" in layer.explain()) == kernels
    parameters: list[Values] = []
    masks: list[Values] = []
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            drawn = draw(*tensor.shape)
            # A mask keeps most elements.
            tensor.copy_(drawn > -0.5 if tensor.dtype is torch.bool else drawn if case.whole else 0.6 * drawn)
    places = [(index // directions, index % directions == 1) for index in range(setting.layers * directions)]
    trained = {member.name for each in layer.spec.parameters if each.trained for member in each.members}
    for number, reverse in places:
        views = layer.gate_parameters(number, reverse=reverse)
        own = layer.gate_masks(number, reverse=reverse)
        masks.append({name: joined(mask) for name, mask in own.items()})
        views |= {name: views[name] * mask for name, mask in own.items()}
        parameters.append({n: joined(v.detach()).clone().requires_grad_(n in trained) for n, v in views.items()})
    further = {name: case.shape(name, setting.steps) for name in case.extra}
    inputs = {
        "x": draw(setting.steps, BATCH, width),
        **{name: draw(*shape).abs() for name, shape in further.items() if name not in case.defaults},
    }
    written_out = {name: torch.full(further[name], value, dtype=torch.float64) for name, value in case.defaults.items()}
    states = case.states(HIDDEN)
    shapes = {name: w if isinstance(w, tuple) else (w,) for name, (w, _) in states.items()}
    hx = {name: draw(len(places), BATCH, *shape) for name, shape in shapes.items()} if setting.states else None
    reset = torch.rand(setting.steps, BATCH, generator=generator) < 0.3 if setting.reset else None

    ours = [{name: v.clone().requires_grad_() for name, v in group.items()} for group in (inputs, hx or {})]
    theirs = [{name: v.clone().requires_grad_() for name, v in group.items()} for group in (inputs, hx or {})]
    theirs[0] |= written_out
    k = SimpleNamespace(N=setting.heads, H=HIDDEN, D=HIDDEN // setting.heads)
    current, finals = theirs[0], {name: [] for name in states}  # type: ignore[var-annotated]
    for number in range(setting.layers):
        outputs = []
        for place in range(number * directions, (number + 1) * directions):
            own = parameters[place]
            initial = {
                name: own[f"{name}0"]
                if value is None
                else torch.as_tensor(value, dtype=torch.float64).expand(shapes[name])
                for name, (_, value) in states.items()
            }
            given = {name: value[place] for name, value in theirs[1].items()} if hx is not None else None
            output, last = one_direction(
                case, own, current, initial, given, setting.lengths, reset, k, places[place][1]
            )  # fmt: skip
            outputs.append(output)
            for name, value in last.items():
                finals[name].append(value)
        current = {**theirs[0], "x": torch.cat(outputs, -1)}
    expected = {"output": current["x"], **{f"{name}_n": torch.stack(values) for name, values in finals.items()}}

    given_states = tuple(ours[1].values()) or None
    extra = {name: value for name, value in ours[0].items() if name != "x"}
    lengths = list(setting.lengths) if setting.lengths is not None else None
    single = given_states[0] if given_states and len(states) == 1 else given_states
    output, ends = layer(ours[0]["x"], single, lengths=lengths, reset=reset, **extra)
    ends = ends if isinstance(ends, tuple) else (ends,)
    found = {"output": output, **{f"{name}_n": value for name, value in zip(states, ends, strict=True)}}

    weights = {name: draw(*value.shape) for name, value in expected.items()}
    for results in (expected, found):
        # A state may stand at -inf before its first step.
        terms = [(torch.where(value.isfinite(), value, 0) * weights[name]).sum() for name, value in results.items()]
        total = torch.stack(terms).sum()
        if total.requires_grad:  # a cell may detach all that it reads; then gradients are 0
            torch.autograd.backward(total)
    for group, other in zip(ours, theirs, strict=True):
        for name, value in group.items():
            found[f"d {name}"], expected[f"d {name}"] = gradient(value), gradient(other[name])
    for place, (number, reverse) in enumerate(places):
        gradients = layer.gate_parameters(number, reverse=reverse, grad=True)
        for name, value in parameters[place].items():
            label = f"d {name} of {places[place]}"
            found[label] = torch.zeros_like(value) if gradients[name] is None else joined(gradients[name])
            # What a mask leaves out has a gradient of zero.
            expected[label] = gradient(value) * masks[place].get(name, torch.ones(()))
    assert {name: value.shape for name, value in found.items()} == {name: v.shape for name, v in expected.items()}
    return {name: difference(found[name], value) for name, value in expected.items()}


def gradient(value: Tensor) -> Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad


def difference(found: Tensor, expected: Tensor) -> float:
    """NaN where one is finite or differs in sign and the other is not."""
    same = (found == expected) & ~expected.isfinite()
    distance = torch.where(same, 0, (found - expected).abs())
    scale = torch.where(expected.isfinite(), expected.abs(), 1).max().clamp(min=1)
    return float((distance.max() / scale).detach())
