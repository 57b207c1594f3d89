"""One case of benchmarks/gpu_flashrnn.py, which starts this program: `flashrnn_case.py CASE [FOLDER] [--quick]`, where
FOLDER holds FlashRNN's package.

It prepares everything, says so on standard output, waits for a line on standard input, measures, and says the rows. It
speaks one line of JSON at a time; all other text goes to standard error.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_calls
import gpu_cases
import torch
from flashrnn_cases import LAYOUTS, Case, case_named, failure, party_of, row_of
from flashrnn_package import Package, find
from gpu_cases import PASSES, STEPS
from measure import Function, gpu_ms
from torch import Tensor

from rnncc.compat import FlashRNNConfig, flashrnn
from rnncc.compat.cells import op

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
# The axes of FlashRNN's interface: batch, time, gate, head, state in the head; P is the state of the step before.
INPUT, RECURRENT, OUTPUT = "BTGHD", "GHDP", "BTHD"
ROUNDS = 2


class Data:
    """Random tensors of a case, in the shapes of FlashRNN's interface, and the output in float32."""

    def __init__(self, case: Case, device: str = "cuda") -> None:
        torch.manual_seed(0)
        heads, head_dim = case.heads, case.head_dim

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, dtype=torch.bfloat16)

        self.wx = normal(case.batch, STEPS, 4, heads, head_dim)
        self.recurrent = normal(4, heads, head_dim, head_dim) / head_dim**0.5
        self.bias = normal(4, heads, head_dim)
        self.gradient = normal(case.batch, STEPS, heads, head_dim)
        options = FlashRNNConfig(function=case.cell, backend="vanilla", dtype="float32")
        with torch.no_grad():
            self.expected = flashrnn(self.wx, self.recurrent, self.bias, config=options)[0][0]


class Party:
    """Somebody's forward on the data, in the order of axes that it takes."""

    def __init__(self, data: Data, forward: Forward, axes: tuple[str, str, str], *, bias_within: bool = True) -> None:
        """With `bias_within` false, the bias is a part of the input already."""
        self.forward, self.axes = forward, axes
        added = data.wx if bias_within else data.wx + data.bias
        inputs = ordered(added, INPUT, axes[0]), ordered(data.recurrent, RECURRENT, axes[1])
        self.inputs = [leaf.detach().requires_grad_() for leaf in (*inputs, *([data.bias] if bias_within else []))]
        self.bias = data.bias
        self.gradient = ordered(data.gradient, OUTPUT, axes[2])

    def output(self) -> Tensor:
        """h of all steps."""
        return self.forward(self.inputs[0], self.inputs[1], self.inputs[2] if len(self.inputs) > 2 else self.bias)

    def timed(self, run: str) -> Function:
        """The passes of a run."""
        return gpu_calls.passes(self.output, self.inputs, self.gradient, run)

    def results(self, run: str) -> list[Tensor]:
        """In the order of axes of the interface: h, or with the backward the gradients of the input and of R."""
        if run == "fw":
            with torch.no_grad():
                return [ordered(self.output(), self.axes[2], OUTPUT)]
        gradients = torch.autograd.grad(self.output(), self.inputs[:2], self.gradient)
        return [ordered(gradients[0], self.axes[0], INPUT), ordered(gradients[1], self.axes[1], RECURRENT)]


def ordered(tensor: Tensor, axes: str, wanted: str) -> Tensor:
    """The tensor with its axes in the wanted order, in memory too."""
    return tensor.permute([axes.index(axis) for axis in wanted]).contiguous()


def rnncc_party(case: Case, data: Data, layout: str) -> Party:
    """rnncc: `interface` by its function that has FlashRNN's arguments, `own` by the op of the cell."""
    if layout == "interface":
        options = FlashRNNConfig(function=case.cell)

        def by_function(wx: Tensor, recurrent: Tensor, bias: Tensor) -> Tensor:
            return flashrnn(wx, recurrent, bias, config=options)[0][0]

        return Party(data, by_function, (INPUT, RECURRENT, OUTPUT))
    hidden = case.heads * case.head_dim
    run = op(gpu_cases.CLASSES[case.cell]).run

    def by_op(wx: Tensor, recurrent: Tensor, bias: Tensor) -> Tensor:
        stream, weight = wx.reshape(STEPS, case.batch, -1), recurrent.reshape(-1, case.head_dim)
        options = {"hidden_size": hidden, "num_heads": case.heads, "backend": wx.device.type}
        h: Tensor = run([stream], [weight], None, **options)[0]
        return h.reshape(STEPS, case.batch, case.heads, case.head_dim)

    return Party(data, by_op, ("TBGHD", RECURRENT, "TBHD"), bias_within=False)


def flashrnn_party(case: Case, data: Data, layout: str, package: Package) -> Party:
    """FlashRNN in a layout."""
    if layout == "interface":
        return Party(data, package.forward(package.interface), (INPUT, RECURRENT, OUTPUT))
    own = package.own()
    axes = (own.input_shape, own.recurrent_shape, own.output_shape.replace("S", ""))
    return Party(data, package.forward(own), axes)


class Work:
    """A case that is ready to be measured: rnncc and the peer in every layout that both have."""

    def __init__(self, case: Case) -> None:
        """Compiles, and runs everything once. Raises where the peer cannot run."""
        self.case = case
        self.data = Data(case)
        # Triton's backend copies its tensors into an order of its own, whatever order they have.
        self.layouts = [layout for layout in LAYOUTS if layout == "interface" or case.beside != "triton_fused"]
        if case.beside == "cudnn":
            self.layouts = ["own"]
        try:
            self.ours = {layout: rnncc_party(case, self.data, layout) for layout in self.layouts}
            for party in self.ours.values():
                party.results("fw+bw")
        except Exception as error:
            raise RuntimeError("rnncc:") from error
        self.package = None if case.beside == "cudnn" else Package(case)
        if self.package is not None:
            # This call compiles. `own` has the same kernels.
            flashrnn_party(case, self.data, "interface", self.package).output()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def rows(self, quick: bool) -> list[dict[str, Any]]:
        """The rows of both, and of passes in which one of them failed a row that says so."""
        rows = []
        for layout in self.layouts:
            for run in PASSES:
                try:
                    rows += self.pair(layout, run, quick)
                except Exception as error:
                    # Triton's errors have no class in common with others.
                    traceback.print_exc()
                    rows.append(failure(self.case, said(error), run, layout))
        return rows

    def pair(self, layout: str, run: str, quick: bool) -> list[dict[str, Any]]:
        """The peer's row and rnncc's, measured in turn."""
        ours, (peer, dtype) = self.ours[layout], party_of(self.case)
        about = {
            "rnncc": {"dtype": "bf16", "backend": "op" if layout == "own" else "compat"},
            peer: {"dtype": dtype, "backend": self.case.beside},
        }
        functions = {"rnncc": ours.timed(run)}
        measured = {"rnncc": compared(ours, self.data, run)}
        if self.package is None:
            functions |= cudnn(self.case, run)
            measured[peer] = {"difference": None, "from_float32": None}
        else:
            theirs = flashrnn_party(self.case, self.data, layout, self.package)
            functions[peer] = theirs.timed(run)
            measured[peer] = compared(theirs, self.data, run, ours)
        times = in_turn(functions, quick)
        if "input" in times:
            measured[peer]["input_ms"] = times.pop("input")["ms"]
        return [
            row_of(self.case, who, run=run, layout=layout, **about[who], **took, **measured[who])
            for who, took in times.items()
        ]


def cudnn(case: Case, run: str) -> dict[str, Function]:
    """cuDNN's LSTM in float16 with inputs as wide as the hidden size, and the matrix products of its input alone."""
    work = gpu_calls.cudnn(
        gpu_cases.Case("cudnn", case.cell, case.head_dim, case.heads, case.batch, STEPS, "fp16", run), "cuda"
    )
    assert work.input_products is not None
    return {"cudnn": work.call, "input": work.input_products}


def compared(party: Party, data: Data, run: str, other: Party | None = None) -> dict[str, Any]:
    """`difference`: from the other's values; forward, of h; with backward, of the gradients as parts of their largest.
    `from_float32`: of h from what float32 gives."""
    got = party.results(run)
    from_float32 = (got[0].float() - data.expected).abs().max().item() if run == "fw" else None
    difference = None
    if other is not None:
        pairs = [(a.float(), b.float()) for a, b in zip(got, other.results(run), strict=True)]
        # Python's max would pass over a NaN.
        apart = [(a - b).abs().max() / (1.0 if run == "fw" else b.abs().max()) for a, b in pairs]
        difference = torch.stack(apart).max().item()
    return {"difference": difference, "from_float32": from_float32}


def in_turn(functions: dict[str, Function], quick: bool) -> dict[str, dict[str, float]]:
    """Medians of each function in milliseconds, over rounds in which all are measured one after the other: `ms` back to
    back, `call_ms` one call at a time."""
    repeats = 5 if quick else 15
    times: dict[str, list[tuple[float, float | None]]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            times[name].append(gpu_ms(function, repeats, 10))
    return {
        name: {
            "ms": statistics.median(queued for _, queued in found if queued is not None),
            "call_ms": statistics.median(call for call, _ in found),
        }
        for name, found in times.items()
    }


def said(error: BaseException) -> str:
    """The line of an error that says most: a compiler's first, else the first, and that of what caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = next((line for line in lines if "error:" in line), None)
    if first is None and error.__cause__ is not None:
        first = f"{lines[0]} {said(error.__cause__)}"
    return (first or lines[0])[:400]


def main(words: Sequence[str]) -> int:
    """Prepare, wait, measure. 1 where the peer cannot run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**told: Any) -> None:
        print(json.dumps(told), file=answers, flush=True)

    begin = time.monotonic()
    case = case_named(words[0])
    try:
        find(Path(words[1]) if len(words) > 1 and words[1] != "--quick" else None)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        work = Work(case)
    except Exception as error:
        # The case's row tells it, and the log in full.
        answer(error=said(error))
        raise
    answer(ready=time.monotonic() - begin)
    if sys.stdin.readline():
        answer(rows=work.rows("--quick" in words))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
