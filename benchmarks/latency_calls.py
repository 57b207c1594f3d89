"""The calls that latency.py times. As a program it makes those of another rnncc, in a process of its own.

    PYTHONPATH=CHECKOUT python benchmarks/latency_calls.py DEVICE THREADS

The program reads lines. One with a case as JSON makes its call, and is answered by `ready`; an empty one runs it, and
is answered by the seconds that it took. It imports nothing of rnncc but what users import, so it takes any version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from measure import keep_freed_memory
from torch import Tensor, nn

import rnncc

Function = Callable[[], object]
# How often a call is made before it is timed.
WARM_CALLS = 2
# Our file and class, torch.nn's layer and single step.
CELLS: dict[str, tuple[str, str, Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "lstm": ("lstm", "LSTM", nn.LSTM, nn.LSTMCell),
    "gru": ("nn_gru", "nn_GRU", nn.GRU, nn.GRUCell),
    "rnn": ("nn_rnn", "nn_RNN", nn.RNN, nn.RNNCell),
}
Mode = Literal["eager", "compiled", "graph"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `steps`: None for a single step."""

    cell: str
    steps: int | None
    batch: int
    size: int
    train: bool
    mode: Mode

    def words(self) -> tuple[str, ...]:
        """What the row is, one word a kind."""
        kind = "cell" if self.steps is None else f"T{self.steps}"
        return self.cell, kind, f"B{self.batch}", f"H{self.size}", "train" if self.train else "infer", self.mode


def modules(case: Case, device: str) -> dict[str, nn.Module]:
    """Ours and torch.nn's, with the same parameters where their names are the same."""
    torch.manual_seed(0)
    file, name, layer, cell = CELLS[case.cell]
    single = case.steps is None
    ours = getattr(rnncc.load(file), f"{name}Cell" if single else name)
    theirs = cell if single else layer
    return {
        "rnncc": ours(case.size, case.size, device=device, backend=device),
        "nn": theirs(case.size, case.size, device=device),
    }


def runner(case: Case, module: nn.Module, device: str) -> Function:
    """The call that is timed; on a GPU, until its result is there."""
    run: Callable[..., Any] = torch.compile(module, dynamic=True) if case.mode == "compiled" else module
    lead = () if case.steps is None else (case.steps,)
    x = torch.randn(*lead, case.batch, case.size, device=device)
    state = torch.zeros(*(() if case.steps is None else (1,)), case.batch, case.size, device=device)
    hx = (state, state.clone()) if case.cell == "lstm" else state
    parameters = list(module.parameters())

    def output() -> Tensor:
        made = run(x, hx)
        return made[0] if isinstance(made, tuple) else made  # type: ignore[no-any-return]

    def train() -> None:
        torch.autograd.grad(output().sum(), parameters)

    @torch.inference_mode()
    def infer() -> None:
        output()

    call: Function = train if case.train else infer
    if case.mode == "graph":
        call = captured(call)
    if device != "cuda":
        return call

    def waited() -> None:
        call()
        torch.cuda.synchronize()

    return waited


def captured(call: Function) -> Function:
    """The call as a CUDA graph."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


class Beside:
    """Another checkout of rnncc, in a process of its own."""

    def __init__(self, checkout: Path, device: str, threads: int) -> None:
        found = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout), os.environ.get("PYTHONPATH", "")))}
        command = [sys.executable, __file__, device, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found)

    def take(self, case: Case) -> None:
        """Makes the call of a case. Raises RuntimeError where the process ends."""
        self._ask(json.dumps(asdict(case)))

    def seconds(self) -> float:
        """Runs the call once. Raises RuntimeError where the process ends."""
        return float(self._ask(""))

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"the rnncc beside ours ended with code {self.process.wait()}")
        return answer


def answer(device: str, threads: int) -> None:
    """The program."""
    keep_freed_memory()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if threads:
        torch.set_num_threads(threads)
    # What rnncc prints goes where errors go.
    answers, sys.stdout = sys.stdout, sys.stderr
    call: Function | None = None
    for line in sys.stdin:
        if line.strip():
            case = Case(**json.loads(line))
            call = runner(case, modules(case, device)["rnncc"], device)
            for _ in range(WARM_CALLS):
                call()
            print("ready", file=answers, flush=True)
        else:
            assert call is not None
            begin = time.perf_counter()
            call()
            print(time.perf_counter() - begin, file=answers, flush=True)


if __name__ == "__main__":
    answer(sys.argv[1], int(sys.argv[2]))
