"""Accuracy beside cuDNN's: the relative error of the output and of every gradient over 1024 steps, against cuDNN in
float64 on the same rounded inputs and weights; medians of seeds. Ours may be at most 1.1 times as large.

    python benchmarks/gpu_accuracy.py [--quick] [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_accuracy.py --show FILE

`layer`: the input's product is each one's own. `loop`: the input matrix of cuDNN is the identity, so that both get
pre-activations without an error.

WORDS, separated by commas, choose cells, dtypes and parts. A run that is started again goes on where it stopped.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from gpu_calls import DTYPES, PEERS, Packages
from gpu_cases import CLASSES, GATES, both, missing, read_case, row_of
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from torch import Tensor, nn

from rnncc.language.diagnostics import RnnccError
from rnncc.verify import relative_error

STEPS, BATCH, SEEDS, MOST = 1024, 16, 5, 1.1
CELLS, SIZES = ("lstm", "gru"), (256, 768)
PARTS = ("layer", "loop")
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared: a cell with a hidden size in a dtype, in one of PARTS. It has a row for each quantity."""

    cell: str
    hidden: int
    dtype: str
    part: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Random numbers in a dtype: x [T, B, I], states [B, H], the output's gradient, and parameters by the names of our
    layer, less the ending. The GRU has a second bias, `bR`, where it cannot be added to the first."""

    cell: str
    hidden: int
    part: str
    x: Tensor
    states: tuple[Tensor, ...]
    gradient: Tensor
    parameters: dict[str, Tensor]

    def torch_nn(self, dtype: torch.dtype) -> Tensors:
        """By torch.nn's layer, which is cuDNN's on a GPU."""
        layer = PEERS[self.cell](self.x.shape[-1], self.hidden, device=self.x.device, dtype=dtype)
        values = {"bias_hh": torch.zeros_like(layer.bias_hh_l0)} | self.parameters
        if "bR" in values:
            values["bias_hh"][2 * self.hidden :] = values.pop("bR")
        self._fill(layer, values)
        found = self._layer(layer, dtype)
        second = found.pop("d_bias_hh")
        return found | ({"d_bR": second[2 * self.hidden :]} if "bR" in self.parameters else {})

    def ours(self, module: ModuleType) -> Tensors:
        """By our layer, or by our op on pre-activations."""
        if self.part == "layer":
            layer_class = getattr(module, CLASSES[self.cell])
            layer = layer_class(
                self.x.shape[-1], self.hidden, device=self.x.device, dtype=self.x.dtype, backend=self.x.device.type
            )  # fmt: skip
            self._fill(layer, self.parameters)
            return self._layer(layer, self.x.dtype)
        x, *states = self._leaves(self.x.dtype)
        weights = {name: self.parameters[name] for name in ("weight_hh", "bR") if name in self.parameters}
        leaves = [weight.clone().requires_grad_() for weight in weights.values()]
        y, _ = getattr(module, self.cell)([x], leaves, states, backend=x.device.type)
        return self._results(y, x, states, dict(zip(weights, leaves, strict=True)))

    def _leaves(self, dtype: torch.dtype) -> list[Tensor]:
        return [tensor.to(dtype, copy=True).requires_grad_() for tensor in (self.x, *self.states)]

    @staticmethod
    def _fill(layer: nn.Module, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                getattr(layer, f"{name}_l0").copy_(value)

    def _layer(self, layer: nn.Module, dtype: torch.dtype) -> Tensors:
        x, *states = self._leaves(dtype)
        y, _ = layer(x, tuple(s[None] for s in states) if len(states) > 1 else states[0][None])
        return self._results(y, x, states, {n.removesuffix("_l0"): p for n, p in layer.named_parameters()})

    def _results(self, y: Tensor, x: Tensor, states: Sequence[Tensor], weights: dict[str, Any]) -> Tensors:
        leaves = {"x": x, **weights} | {f"{name}0": state for name, state in zip("hc", states, strict=False)}
        gradients = torch.autograd.grad(y, list(leaves.values()), self.gradient.to(y.dtype))
        return {"y": y.detach()} | {f"d_{name}": value for name, value in zip(leaves, gradients, strict=True)}


def draw(
    cell: str, hidden: int, batch: int, dtype: torch.dtype, part: str, seed: int, device: str, steps: int = STEPS
) -> Sample:
    """A sample: parameters as torch.nn starts them, normal inputs. With an input matrix of the identity, biases of the
    input are zero."""
    generator = torch.Generator(device).manual_seed(seed)
    gates = GATES[cell] * hidden

    def uniform(*shape: int) -> Tensor:
        values = torch.rand(*shape, generator=generator, device=device) * 2 - 1
        return values.div_(hidden**0.5).to(dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    parameters = {"weight_ih": uniform(gates, hidden), "weight_hh": uniform(gates, hidden), "bias_ih": uniform(gates)}
    if part == "loop":
        parameters |= {"weight_ih": torch.eye(gates, device=device, dtype=dtype), "bias_ih": parameters["bias_ih"] * 0}
    if cell == "gru":
        parameters["bR"] = uniform(hidden)
    states = tuple(0.1 * normal(batch, hidden) for _ in range(2 if cell == "lstm" else 1))
    inputs = parameters["weight_ih"].shape[1]
    return Sample(cell, hidden, part, normal(steps, batch, inputs), states, normal(steps, batch, hidden), parameters)


def compare(
    make: Callable[[int], Sample], module: ModuleType, dtype: torch.dtype, seeds: int = SEEDS
) -> dict[str, tuple[float, float]]:
    """(our error, cuDNN's error) by quantity: medians over the samples of the seeds."""
    errors: dict[str, tuple[list[float], list[float]]] = {}
    for seed in range(seeds):
        sample = make(seed)
        exact, peer, ours = sample.torch_nn(torch.float64), sample.torch_nn(dtype), sample.ours(module)
        for name in ours:
            both_errors = errors.setdefault(name, ([], []))
            for found, values in zip((ours, peer), both_errors, strict=True):
                values.append(relative_error(found[name], exact[name]))
    return {name: (statistics.median(mine), statistics.median(theirs)) for name, (mine, theirs) in errors.items()}


def rows_of(case: Case, errors: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """A row a quantity, of what `compare` gives."""
    return [row_of(case, of=name, ours=ours, cudnn=peer) for name, (ours, peer) in errors.items()]


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a quantity: our error, cuDNN's, and how many times as large ours is."""
    return [
        f"{row['cell']:5} {row['hidden']:4} {row['dtype']} {row['part']:5} {row['of']:10} {row['ours']:.2e} "
        f"{row['cudnn']:.2e} {row['ours'] / row['cudnn']:5.2f}{'' if fits(row) else '  MISS'}"
        for row in rows
    ]


def fits(row: dict[str, Any]) -> bool:
    """Whether our error is small enough."""
    return bool(row["ours"] <= MOST * row["cudnn"])


def select(words: Sequence[str], quick: bool) -> list[Case]:
    """The cases of the cells, dtypes and parts in `words`; where none of a kind is named, all of that kind. Raises
    ValueError for a word that means nothing."""
    if unknown := sorted({*words} - {*CELLS, *DTYPES, *PARTS}):
        raise ValueError(f"{', '.join(unknown)}: not one of {', '.join((*CELLS, *DTYPES, *PARTS))}")
    cells, dtypes, parts = ([word for word in kind if word in words] or list(kind) for kind in (CELLS, DTYPES, PARTS))
    return [Case(*case) for case in product(cells, SIZES[: 1 if quick else None], dtypes, parts)]


def run(cases: Sequence[Case], results: Results, minutes: float) -> None:
    """Compare what the file does not have yet. Raises RnnccError where something cannot be built."""
    left = missing(cases, results.rows)
    who = {case: "alternating" if case.dtype == "fp32" else "rnncc" for case in left}
    built = {case: next(both(who[case], case.cell, case.hidden, 1, BATCH, STEPS, case.dtype)) for case in left}
    with tempfile.TemporaryDirectory() as folder:
        packages = Packages(Path(folder), list(dict.fromkeys(built.values())))
        for case in in_time(left, minutes):

            def make(seed: int, case: Case = case) -> Sample:
                return draw(case.cell, case.hidden, BATCH, DTYPES[case.dtype], case.part, seed, "cuda")

            rows = rows_of(case, compare(make, packages(built[case]), DTYPES[case.dtype]))
            results.add(*rows)
            print("\n".join(lines(rows)), flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Compare or read, and print. 1 where our error is too large, or nothing can be measured."""
    arguments = parser_of(__doc__, Path("gpu_accuracy.json")).parse_args(words)

    def measure(results: Results) -> None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        run(cases, results, arguments.minutes)

    try:
        cases = part(select(words_of(arguments), arguments.quick), arguments.shard)
        rows, _ = read_or_measure(arguments, measure)
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_accuracy: {error}", file=sys.stderr)
        return 1
    rows = [row for row in rows if read_case(Case, row) in set(cases)]
    print("\n".join(lines(rows)))
    return 0 if all(map(fits, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
