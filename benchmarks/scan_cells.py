"""The cells of the scan benchmarks: which there are, and what the loops of each read and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import rnncc
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.recurrence import MIXING, RecurrenceKind
from rnncc.ir.request import Request
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.pipeline import compile_cells

# What is no shipped cell: the recurrence that peers offer, with both coefficients given; and the LRU without its
# output's products, which its functional op leaves to the layer.
TEXTS = {
    "affine": """cell Affine
input x: H, a: H
state h
h[t] = a*h[t-1] + x
""",
    "lru": """cell LRULoop
state p, q
param nu: vector = uniform(-6.9, -2.3), th: vector = uniform(-3, 1.8), gam: vector = uniform(-3, -0.8)
u, w = W@x
re = exp(-exp(nu))*cos(exp(th))
im = exp(-exp(nu))*sin(exp(th))
p[t] = re*p[t-1] - im*q[t-1] + exp(gam)*u
q[t] = im*p[t-1] + re*q[t-1] + exp(gam)*w
""",
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Numbers per channel and step that the loops of a cell must read and write: forward without gradients, what
    a training forward writes beyond that, and backward."""

    forward: int
    kept: int
    backward: int

    def of(self, run: str) -> int:
        """The numbers of a benchmark's pass, `fw` or `fw+bw`."""
        return self.forward if run == "fw" else self.forward + self.kept + self.backward


@cache
def analysed(name: str) -> CompiledCell:
    """A cell by its name here, with what the stages make of it."""
    request = Request(Source(f"{name}.rnn", TEXTS[name]), name) if name in TEXTS else read_request(name)
    return compile_cells(request, "differentiate").cells[0]


@cache
def module_of(name: str, newton: bool = False) -> ModuleType:
    """The cell's package, built; `newton`: with the kernels that iterate. Raises RnnccError."""
    if name in TEXTS:
        return rnncc.compile(TEXTS[name], parallel_newton=newton)
    return rnncc.load(name, parallel_newton=newton)


def layer_class(name: str) -> Any:
    """The cell's layer."""
    return getattr(module_of(name), analysed(name).name)


def op_of(name: str, newton: bool = False) -> Any:
    """The cell's functional op."""
    return getattr(module_of(name, newton), analysed(name).name.lower())


@cache
def shipped() -> tuple[str, ...]:
    """The shipped cells none of whose loops mixes units, by name."""
    stems = sorted(path.stem for path in shipped_cells())
    return tuple(stem for stem in stems if classes(stem).isdisjoint(MIXING))


def classes(name: str) -> set[RecurrenceKind]:
    """The classes of a cell's groups of states."""
    return {recurrence.kind for recurrence in analysed(name).recurrences}


@cache
def traffic(name: str) -> Traffic:
    """What a cell's loops move: every stream once, whatever of the states the output and the backward need once."""
    forward = kept = backward = 0
    spec = layer_class(name).spec
    for segment, adjoint in zip(spec.segments, analysed(name).adjoints, strict=True):
        given = [member for stream in adjoint.segment.streams for member in stream.members]
        returned = {i for i, s in enumerate(segment.sequences) if i in segment.needed or s.name == spec.output}
        saved = segment.plain.saved_sequence
        forward += len(given) + len(returned)
        kept += len([same for same in saved if same not in returned])
        backward += len(adjoint.streams_read) + len(saved) + len(returned) + len(adjoint.stream_cotangents)
    return Traffic(forward, kept, backward)
