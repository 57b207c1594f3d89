"""What tests on a GPU share: packages with fused kernels, calls of their ops, and the float64 reference."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import rnncc
from rnncc import verify
from rnncc.driver import build_package
from rnncc.ir.family import FUSED as FUSED_FAMILIES
from rnncc.ir.family import Family
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.language.read import read_request
from rnncc.machine.targets import planned
from rnncc.runtime.kernels.index import read_index

DEVICE = "cuda"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CLASSES = {
    "lstm": "LSTM", "gru": "GRU", "elman": "Elman", "slstm": "sLSTM", "peepholelstm": "PeepholeLSTM",
    "layernormgru": "LayerNormGRU", "gruv3": "GRUv3", "layernormlstm": "LayerNormLSTM", "sgu": "SGU",
    "timeawarelstm": "TimeAwareLSTM", "onlstm": "ONLSTM", "lstmp": "LSTMP", "lmu": "LMU",
    "mogrifierlstm": "MogrifierLSTM",
}  # fmt: skip
# The sizes with kernels of their own, one package a cell: every fused family and scope is among them.
FUSED: Mapping[str, tuple[tuple[int, str], ...]] = {
    "lstm": (
        (16, "bf16"), (64, "bf16"), (96, "fp16"), (256, "fp16"), (768, "bf16"), (1000, "fp16"), (192, "fp32"),
        (512, "fp32"),
    ),
    "gru": ((64, "bf16"), (256, "bf16"), (768, "fp16"), (384, "fp32")),
    "elman": ((96, "bf16"),),
    "slstm": ((64, "fp16"), (128, "fp32")),
    "peepholelstm": ((64, "fp16"),),
    # Steps of several phases: products that wait for each other, norms, sums that do not take every operand.
    "gruv3": ((64, "bf16"), (256, "fp32"), (768, "bf16")),
    "layernormlstm": ((64, "bf16"), (256, "fp16"), (768, "bf16")),
    "sgu": ((64, "fp16"), (768, "bf16")),
    # A sum over all heads, taken after the loop.
    "timeawarelstm": ((64, "bf16"), (256, "fp32"), (768, "bf16")),
    # Running sums and repeated values.
    "onlstm": ((64, "bf16"), (256, "fp32"), (768, "bf16")),
    # Values of several widths.
    "lstmp": ((64, "bf16"), (256, "fp32"), (768, "bf16")),
    "lmu": ((64, "bf16"), (256, "fp16"), (768, "bf16")),
    "mogrifierlstm": ((64, "fp32"), (768, "bf16")),
}  # fmt: skip
# The sizes of a cell's own, in eighths of its hidden size.
EIGHTHS = {"onlstm": {"K": 2}, "lstmp": {"P": 5}, "lmu": {"N": 3}, "mogrifierlstm": {"I": 5}}


def own_sizes(cell: str, hidden: int) -> dict[str, int]:
    return {name: hidden * eighths // 8 for name, eighths in EIGHTHS.get(cell, {}).items()}


class Packages:
    """Packages by cell: with the kernels of FUSED, or with the alternating ones alone. Processes that want the same one
    at once build it once: the cache sees to that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sys.path.insert(0, str(folder))

    def __call__(self, cell: str, fused: bool = True) -> ModuleType:
        if not fused:
            return rnncc.load(cell)
        name = f"{cell}_fused"
        if not (self.folder / name).exists():
            problems = tuple(Problem(head_dim, 1, dtype) for head_dim, dtype in FUSED[cell])
            build_package(replace(read_request(cell), name=name, problems=problems), self.folder)
        return importlib.import_module(name)

    def of(self, request: Request) -> ModuleType:
        """The module of a request's cells, with the kernels of its problems: `rnncc.load` leaves them to first use."""
        if not (self.folder / request.name).exists():
            build_package(request, self.folder)
        return importlib.import_module(request.name)

    def families(self, cell: str) -> dict[str, Family]:
        """The family of every fused kernel of a package by the kernel's symbol."""
        named = {family.name: family for family in FUSED_FAMILIES}
        index = self.folder / f"{cell}_fused" / "cuda" / "fused.txt"
        return {kernel.name: named[kernel.family] for table in read_index(index) for kernel in table.kernels}


def add_kernels(module: ModuleType, folder: Path) -> int:
    """Gives a package those of a folder with an index: how many."""
    count: int = importlib.import_module(f"{module.__name__}._runtime.kernels.fused").STATE.library.rnncc_add_kernels(
        str(folder).encode()
    )
    return count


def is_for_hopper() -> bool:
    """Whether kernels are planned for a GPU of compute capability 9.0."""
    target = planned("auto")
    return target is not None and target.has_warpgroups


def launches_of(run: Callable[[], object]) -> list[str]:
    """The names of the kernels that a call runs, one per launch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type.name == "CUDA"]


def ctas_of(run: Callable[[], object], folder: Path) -> dict[str, int]:
    """How many CTAs each kernel has that a call runs, by the kernel's name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    # Only a trace in a file tells them.
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    return {event["name"]: prod(event["args"]["grid"]) for event in events if event.get("cat") == "kernel"}


def kernels_of(run: Callable[[], object]) -> set[str]:
    """The names of the kernels that a call runs."""
    return set(launches_of(run))


@dataclass(frozen=True)
class Call:
    """A call of a cell's functional op, and what flows back into it.

    streams [T, B, Σwidth]; weights as packed; states [B, width]; cotangents: of the output and the final states
    """

    op: Callable[..., Any]
    streams: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    cotangents: tuple[Tensor, ...]
    heads: int = 1
    keywords: Mapping[str, Any] | None = None

    def leaves(self) -> Call:
        """The same call on copies that gradients are asked of."""
        groups = ([t.detach().clone().requires_grad_() for t in g] for g in (self.streams, self.weights, self.states))
        streams, weights, states = (tuple(group) for group in groups)
        return replace(self, streams=streams, weights=weights, states=states)

    def exact(self) -> Call:
        """The same numbers in float64, for the reference."""

        def cast(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(tensor.double() for tensor in tensors)

        keywords = {**(self.keywords or {}), "backend": "reference"}
        return replace(
            self, streams=cast(self.streams), weights=cast(self.weights), states=cast(self.states),
            cotangents=cast(self.cotangents), keywords=keywords,
        )  # fmt: skip

    def values(self) -> dict[str, Tensor]:
        """The output and the final states."""
        y, last = self.op(self.streams, self.weights, self.states, num_heads=self.heads, **(self.keywords or {}))
        finals = last if isinstance(last, tuple) else (last,)
        return {"y": y} | {f"final {i}": value for i, value in enumerate(finals)}

    def inputs(self) -> dict[str, Tensor]:
        """Everything that has a gradient, by the gradient's name."""
        groups = (("d_stream", self.streams), ("d_weight", self.weights), ("d_state", self.states))
        return {f"{name} {i}": tensor for name, group in groups for i, tensor in enumerate(group)}

    def gradients(self, values: Mapping[str, Tensor], *, retain_graph: bool = False) -> dict[str, Tensor]:
        """The gradient of every input."""
        wanted = self.inputs()
        found = torch.autograd.grad(
            tuple(values.values()), tuple(wanted.values()), self.cotangents, retain_graph=retain_graph
        )
        return dict(zip(wanted, found, strict=True))

    def run(self) -> dict[str, Tensor]:
        """Output, final states and every gradient, and what the same call gives without gradients."""
        call = self.leaves()
        values = call.values()
        found = {name: value.detach() for name, value in values.items()} | call.gradients(values)
        with torch.no_grad():
            return found | {f"{name}, inference": value for name, value in self.values().items()}


def draw(
    module: ModuleType,
    cell: str,
    head_dim: int,
    heads: int,
    batch: int,
    steps: int,
    dtype: torch.dtype,
    *,
    seed: int = 0,
    **keywords: Any,
) -> Call:
    """A call with normal pre-activations, small states, and recurrent weights that neither fade nor grow."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).to(DEVICE, dtype)

    layer_class = getattr(module, CLASSES[cell])
    hidden = head_dim * heads
    own = own_sizes(cell, hidden)
    sizes = {"I": 1, "H": hidden, "num_heads": heads} | own
    (segment,) = layer_class.spec.segments
    inputs = own.pop("I", 1)
    layer = layer_class(inputs, hidden, num_heads=heads, **own)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-1, 1, generator=generator).div_(head_dim**0.5)
    weights = tuple(getattr(layer, f"{w.attribute}_l0").detach().to(DEVICE, dtype) for w in segment.plain.weights)
    streams = tuple(normal(steps, batch, stream.width(sizes)) for stream in segment.streams)
    # One number per batch entry is a time, which is not negative.
    streams = tuple(stream.abs() if stream.shape[-1] == 1 else stream for stream in streams)
    states = tuple(0.1 * normal(batch, state.width(sizes)) for state in segment.states)
    (output,) = (state.width(sizes) for state in segment.states if state.name == layer_class.spec.output)
    cotangents = (normal(steps, batch, output), *(normal(*state.shape) for state in states))
    return Call(getattr(module, cell), streams, weights, states, cotangents, heads, {**own, **keywords})


def assert_true(call: Call, dtype: torch.dtype) -> None:
    """Everything that a call gives is the float64 reference's, within the bound of the dtype."""
    expected = call.exact().run()
    errors = {name: verify.relative_error(value, expected[name]) for name, value in call.run().items()}
    bound = verify.BOUNDS[dtype]
    assert {name: f"{error:.1e}" for name, error in errors.items() if not error <= bound} == {}
