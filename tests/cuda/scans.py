"""Calls of the ops of cells without a recurrent matrix: whatever sizes, layouts of the streams, and values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

import rnncc
from rnncc.language.read import read_source
from rnncc.machine.paths import locate
from rnncc.runtime.modules.function_inputs import taken_streams
from rnncc.verify import BOUNDS, relative_error
from tests.compiling import front
from tests.cuda import harness
from tests.cuda.harness import Call
from tests.shipped import only

# LRU's output is a product of its states, which its op leaves to the layer: its loop alone.
LRU = """cell LRULoop
state p, q
param nu: vector = uniform(-6.9, -2.3), th: vector = uniform(-3, 1.8), gam: vector = uniform(-3, -0.8)
u, w = W@x
re = exp(-exp(nu))*cos(exp(th))
im = exp(-exp(nu))*sin(exp(th))
p[t] = re*p[t-1] - im*q[t-1] + exp(gam)*u
q[t] = im*p[t-1] + re*q[t-1] + exp(gam)*w
"""
AFFINE, ELEMENTWISE = only("AFFINE"), only("ELEMENTWISE")
CELLS = (*AFFINE, *ELEMENTWISE, "rwkv4")  # rwkv4: a clamp, and two affine loops stacked on it
# What is computed between or after the loops of the others, their ops leave to the layers.
WITH_OPS = tuple(cell for cell in CELLS if cell not in ("griffinblock", "s6"))

Values = dict[str, Tensor]
Fill = Callable[[Tensor], Tensor]
Layout = tuple[Callable[[int, int, int], Sequence[int]], Callable[[Tensor, int, int, int], Tensor]]
# By name: the shape of a stream's memory for (steps, batch, width), and the stream [T, B, width] as a view of it.
LAYOUTS: dict[str, Layout] = {
    "steps first": (lambda t, b, w: (t, b, w), lambda base, t, b, w: base),
    "batch first": (lambda t, b, w: (b, t, w), lambda base, t, b, w: base.transpose(0, 1)),
    "wider rows": (lambda t, b, w: (t, b, w + 5), lambda base, t, b, w: base[..., 3 : w + 3]),
    "misaligned": (lambda t, b, w: (t * b * w + 1,), lambda base, t, b, w: base[1:].view(t, b, w)),
    "misaligned, batch first": (
        lambda t, b, w: (t * b * w + 1,), lambda base, t, b, w: base[1:].view(b, t, w).transpose(0, 1)
    ),
    "every third step": (lambda t, b, w: (3 * t, b, w), lambda base, t, b, w: base[1::3]),
    "one batch entry for all": (lambda t, b, w: (t, 1, w), lambda base, t, b, w: base.expand(t, b, w)),
}  # fmt: skip


@cache
def package(name: str) -> tuple[Any, Any]:
    """A cell's layer, and the op of its loops on what they read."""
    if name == "lru":
        module, cell = rnncc.compile(LRU), "LRULoop"
    else:
        ((found, _), *_) = front(read_source(locate(name)))
        module, cell = rnncc.load(name), found.name
    layer_class = getattr(module, cell)
    return layer_class, loops_alone(layer_class)


def draw_scan(
    name: str,
    steps: int,
    batch: int,
    hidden: int,
    dtype: torch.dtype,
    *,
    layout: str = "steps first",
    fill: Fill = lambda values: values,
    state_dtype: torch.dtype | None = None,
    seed: int = 0,
    **keywords: Any,
) -> Call:
    """A call with normal pre-activations, passed through `fill`, and normal states of either sign; parameters as they
    are initialised. `streams` of the call are the memory that its op views."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).to(harness.DEVICE, of)

    layer_class, op = package(name)
    spec, sizes = layer_class.spec, {"I": hidden, "H": hidden, "num_heads": 1}
    memory, view = LAYOUTS[layout]
    given = taken_streams(spec)
    widths = [stream.width(sizes) for stream in given]
    streams = tuple(fill(normal(*memory(steps, batch, width))) for width in widths)
    states = tuple(normal(batch, s.width(sizes), of=state_dtype or dtype) for s in spec.visible_states())
    if name == "rwkv4":
        # The sum of weights that divides its output.
        states = (states[0], states[1].abs(), states[2])
    # Where streams are not wide they do not say how many inputs there are.
    keywords |= {"hidden_size": hidden, "input_size": hidden}

    def viewed(memories: Sequence[Tensor], *rest: Any, **options: Any) -> Any:
        own = [view(base, steps, batch, width) for base, width in zip(memories, widths, strict=True)]
        return op(own, *rest, **options)

    cotangents = (normal(steps, batch, hidden), *(normal(*state.shape, of=state.dtype) for state in states))
    weights = tuple(weight.to(harness.DEVICE, dtype) for weight in _weights(layer_class, hidden, seed).values())
    return Call(viewed, streams, weights, states, cotangents, 1, keywords)


def _weights(layer_class: Any, hidden: int, seed: int) -> Values:
    """What the loops read at every step, by name: parameters, and functions of parameters."""
    spec, sizes = layer_class.spec, {"I": hidden, "H": hidden, "num_heads": 1}
    torch.manual_seed(seed)
    layer = layer_class(hidden, hidden)
    parameters = {p.attribute: getattr(layer, f"{p.attribute}_l0").detach() for p in spec.parameters}
    values: dict[str, Tensor] = {}
    constants = {c.name: float(c.value) for c in spec.constants if not c.shaping}
    spec.derive(values, parameters, constants, sizes)
    weights = {weight.name: weight for loop in spec.segments for weight in loop.plain.weights}
    return {name: weight.tensor(parameters, values) for name, weight in weights.items()}


def _one(sizes: Mapping[str, int]) -> int:
    return 1


def _hidden(sizes: Mapping[str, int]) -> int:
    return sizes["H"]


def loops_alone(layer_class: Any) -> Callable[..., Any]:
    """The functional op of a cell, but that a function of parameters is itself a parameter: rounding it is no matter of
    the kernels."""
    package, spec = layer_class.__module__.rpartition(".")[0], layer_class.spec
    specs, function = (sys.modules[f"{package}._runtime.{name}"] for name in ("spec", "modules.function"))

    def own(loop: Any) -> Any:
        given = (w if w.attribute else replace(w, attribute=w.name, made_of=()) for w in loop.weights)
        return replace(loop, weights=tuple(given))

    weights = [weight for loop in spec.segments for weight in loop.plain.weights]
    made = {weight.name for weight in weights if not weight.attribute}
    vectors = [
        specs.ParameterSpec(name, name, (specs.MemberSpec(name, _one if len(value) == 1 else _hidden),))
        for name, value in sorted(_weights(layer_class, 8, 0).items())
        if name in made
    ]
    segments = [replace(loop, plain=own(loop.plain), masked=own(loop.masked)) for loop in spec.segments]
    other = replace(spec, derive=lambda *_: None, parameters=(*spec.parameters, *vectors), segments=tuple(segments))
    return partial(function.run_function, other)


def assert_as(found: Values, expected: Values, bound: float, eager: Callable[[], Values] | None = None) -> None:
    """Each within a relative error: the bound, or where that does not do twice the error of the eager loop in the same
    dtype, as `rnncc verify` has it: an eager loop that is off by infinity excuses nothing. What is not finite is so in
    both, and of outputs the same."""
    errors = _errors(found, expected)
    missed = [name for name, error in errors.items() if not error <= bound]
    eager_errors = _errors(eager(), expected) if eager and missed else {}
    excuses = {name: error for name, error in eager_errors.items() if isfinite(error)}
    allowed = {name: max(bound, 2 * excuses.get(name, 0.0)) for name in missed}
    wrong = [
        f"{name}: {errors[name]:.1e} of {allowed[name]:.1e}" for name in missed if not errors[name] <= allowed[name]
    ]
    assert not wrong, ", ".join(wrong)
    for name, value in expected.items():
        ours, exact = found[name].double(), value.double()
        assert torch.equal(ours.isfinite(), exact.isfinite()), f"{name}: other values are finite"
        if not name.startswith("d_"):
            rest = ~exact.isfinite()
            assert torch.equal(ours[rest].nan_to_num(7), exact[rest].nan_to_num(7)), f"{name}: other infinities"


def _errors(found: Values, expected: Values) -> dict[str, float]:
    """By name, of what is finite in `expected`. Infinite where there is no number."""
    errors = {}
    for name, exact in expected.items():
        finite = exact.isfinite()
        error = relative_error(found[name][finite], exact[finite])
        errors[name] = error if isfinite(error) else inf
    return errors


def assert_true(call: Call, dtype: torch.dtype) -> None:
    """Everything that a call gives is the float64 reference's, within the bound of `rnncc verify`."""
    eager = replace(call, keywords={**(call.keywords or {}), "backend": "reference"})
    assert_as(call.run(), call.exact().run(), BOUNDS[dtype], eager.run)
