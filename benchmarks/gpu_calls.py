"""The calls that the GPU benchmarks time: our ops, cuDNN through torch.nn, and loops over steps in torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from gpu_cases import CLASSES, GATES, Case
from measure import Function
from torch import Tensor, nn

import rnncc
from rnncc.driver import build_package
from rnncc.ir.problem import Problem
from rnncc.language.read import read_request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PEERS = {"lstm": nn.LSTM, "gru": nn.GRU, "elman": nn.RNN}


class Work(NamedTuple):
    """A case's call, and of cuDNN the matrix products of its input alone, which the call includes and ours do not."""

    call: Function
    input_products: Function | None = None


class Packages:
    """Built packages in a folder, by cell: with kernels for the sizes of the cases, and without any."""

    def __init__(self, folder: Path, cases: Sequence[Case]) -> None:
        """Builds what the cases need, all cells at once. Raises RnnccError."""
        sys.path.insert(0, str(folder))
        # What has no kernels of its own shall run the alternating ones.
        os.environ["RNNCC_COMPILE"] = "0"
        self.folder = folder
        problems: dict[str, dict[Problem, None]] = {}
        for case in cases:
            if case.who == "rnncc":
                problems.setdefault(case.cell, {})[Problem(case.head_dim, case.heads, case.dtype)] = None
        others = {case.cell for case in cases if case.who not in ("rnncc", "cudnn")}
        with ThreadPoolExecutor(max(1, len(problems) + len(others))) as pool:
            builds: list[Future[object]] = [
                pool.submit(self._build, cell, tuple(wanted)) for cell, wanted in problems.items()
            ]
            builds += [pool.submit(rnncc.load, cell) for cell in others]
            for built in builds:
                built.result()

    def _build(self, cell: str, problems: tuple[Problem, ...]) -> Path:
        return build_package(replace(read_request(cell), name=f"{cell}_sized", problems=problems), self.folder)

    def __call__(self, case: Case) -> ModuleType:
        """The module for a case."""
        return import_module(f"{case.cell}_sized") if case.who == "rnncc" else rnncc.load(case.cell)


def work_of(case: Case, packages: Packages, device: str = "cuda") -> Work:
    """What runs a case, on random numbers."""
    torch.manual_seed(0)
    if case.who == "cudnn":
        return cudnn(case, device)
    tensors = Tensors(case, packages(case), device)
    match case.who:
        case "rnncc" | "alternating":
            return Work(tensors.timed(tensors.by_op))
        case "eager":
            return Work(tensors.timed(Loop(tensors, compiled=False)))
        case "compiled":
            return Work(tensors.timed(Loop(tensors, compiled=True)))
    raise ValueError(f"nobody is called {case.who}")


class Tensors:
    """A case's pre-activations [T, B, Σwidth], recurrent weights and initial states [B, width]."""

    def __init__(self, case: Case, module: ModuleType, device: str) -> None:
        self.case, dtype = case, DTYPES[case.dtype]
        self.op = getattr(module, case.cell)
        layer_class = getattr(module, CLASSES[case.cell])
        self.spec = layer_class.spec
        hidden = case.head_dim * case.heads
        self.sizes = {"I": hidden, "H": hidden, "num_heads": case.heads}
        (self.segment,) = self.spec.segments
        layer = layer_class(1, hidden, num_heads=case.heads, device=device, dtype=dtype)

        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().requires_grad_(case.run == "fw+bw")

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, dtype=dtype)

        widths = [stream.width(self.sizes) for stream in self.segment.streams]
        self.streams = [leaf(normal(case.steps, case.batch, width)) for width in widths]
        self.weights = [leaf(getattr(layer, f"{w.attribute}_l0")) for w in self.segment.plain.weights]
        self.states = [
            leaf(torch.full((case.batch, state.width(self.sizes)), state.initial, device=device, dtype=dtype))
            for state in self.segment.states
        ]
        self.gradient = normal(case.steps, case.batch, hidden)

    def by_op(self) -> Tensor:
        """The output by our op."""
        given = self.streams, self.weights, self.states
        output: Tensor = self.op(*given, num_heads=self.case.heads, backend=self.gradient.device.type)[0]
        return output

    def timed(self, forward: Any) -> Function:
        """The case's passes through `forward`, which gives the output."""
        inputs = [*self.streams, *self.weights, *self.states]
        return passes(forward, inputs, self.gradient, self.case.run)


class Loop:
    """A loop in torch over the cell's step, in the streams' dtype, as one would write it; the step may be compiled."""

    def __init__(self, tensors: Tensors, *, compiled: bool) -> None:
        self.tensors = tensors
        spec, segment = tensors.spec, tensors.segment
        numbers = [float(constant.value) for constant in spec.constants if constant.name in segment.constants]
        step = segment.make_step(tensors.weights, numbers, tensors.sizes)
        self.step = torch.compile(step) if compiled else step
        self.place = [sequence.name for sequence in segment.sequences].index(spec.output)

    def __call__(self) -> Tensor:
        states, outputs = tuple(self.tensors.states), []
        for rows in zip(*self.tensors.streams, strict=True):
            states, values = self.step(rows, states)
            outputs.append(values[self.place])
        return torch.stack(outputs)


def cudnn(case: Case, device: str) -> Work:
    """torch.nn's layer, its weights in one piece as cuDNN wants them; inputs as wide as the hidden size."""
    dtype = DTYPES[case.dtype]
    layer = PEERS[case.cell](case.head_dim, case.head_dim, device=device, dtype=dtype)
    layer.flatten_parameters()
    trained = case.run == "fw+bw"
    x = torch.randn(case.steps, case.batch, case.head_dim, device=device, dtype=dtype, requires_grad=trained)
    states = [
        torch.zeros(1, case.batch, case.head_dim, device=device, dtype=dtype, requires_grad=trained)
        for _ in range(2 if case.cell == "lstm" else 1)
    ]
    gradient = torch.randn(case.steps, case.batch, case.head_dim, device=device, dtype=dtype)

    def forward() -> Tensor:
        output: Tensor = layer(x, tuple(states) if len(states) > 1 else states[0])[0]
        return output

    rows = x.detach().reshape(-1, case.head_dim)
    weight: Tensor = layer.weight_ih_l0.detach()
    gates = torch.randn(rows.shape[0], GATES[case.cell] * case.head_dim, device=device, dtype=dtype)

    def products() -> None:
        torch.mm(rows, weight.t())
        if trained:
            torch.mm(gates, weight)
            torch.mm(gates.t(), rows)

    return Work(passes(forward, [x, *layer.parameters(), *states], gradient, case.run), products)


def passes(forward: Any, inputs: Sequence[Tensor], gradient: Tensor, run: str) -> Function:
    """The forward without gradients, or with the backward to all of `inputs`."""
    if run == "fw":

        def alone() -> None:
            with torch.no_grad():
                forward()

        return alone

    def trained() -> None:
        torch.autograd.grad(forward(), inputs, gradient)

    return trained
