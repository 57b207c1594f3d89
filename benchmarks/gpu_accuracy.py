"""Accuracy beside cuDNN's: the relative error of the output and of every gradient over 1024 steps, against cuDNN in
float64 on the same rounded inputs and weights; medians of seeds. Ours may be at most 1.1 times as large.

    python benchmarks/gpu_accuracy.py [--hidden 256,768] [--batch 16] [--out FILE]

`layer`: the input's product is each one's own. `loop`: the input matrix of cuDNN is the identity, so that both get
pre-activations without an error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from gpu_calls import DTYPES, PEERS, Packages
from gpu_cases import CLASSES, GATES, both
from measure import environment, write
from torch import Tensor, nn

from rnncc.verify import relative_error

STEPS, SEEDS, MOST = 1024, 5, 1.1
PARTS = ("layer", "loop")
Results = dict[str, Tensor]


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

    def torch_nn(self, dtype: torch.dtype) -> Results:
        """By torch.nn's layer, which is cuDNN's on a GPU."""
        layer = PEERS[self.cell](self.x.shape[-1], self.hidden, device=self.x.device, dtype=dtype)
        values = {"bias_hh": torch.zeros_like(layer.bias_hh_l0)} | self.parameters
        if "bR" in values:
            values["bias_hh"][2 * self.hidden :] = values.pop("bR")
        self._fill(layer, values)
        found = self._layer(layer, dtype)
        second = found.pop("d_bias_hh")
        return found | ({"d_bR": second[2 * self.hidden :]} if "bR" in self.parameters else {})

    def ours(self, module: ModuleType) -> Results:
        """By our layer, or by our op on pre-activations."""
        if self.part == "layer":
            layer_class = getattr(module, CLASSES[self.cell])
            layer = layer_class(self.x.shape[-1], self.hidden, device=self.x.device, dtype=self.x.dtype)
            self._fill(layer, self.parameters)
            return self._layer(layer, self.x.dtype)
        x, *states = self._leaves(self.x.dtype)
        weights = {name: self.parameters[name] for name in ("weight_hh", "bR") if name in self.parameters}
        leaves = [weight.clone().requires_grad_() for weight in weights.values()]
        y, _ = getattr(module, self.cell)([x], leaves, states)
        return self._results(y, x, states, dict(zip(weights, leaves, strict=True)))

    def _leaves(self, dtype: torch.dtype) -> list[Tensor]:
        return [tensor.to(dtype, copy=True).requires_grad_() for tensor in (self.x, *self.states)]

    @staticmethod
    def _fill(layer: nn.Module, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                getattr(layer, f"{name}_l0").copy_(value)

    def _layer(self, layer: nn.Module, dtype: torch.dtype) -> Results:
        x, *states = self._leaves(dtype)
        y, _ = layer(x, tuple(s[None] for s in states) if len(states) > 1 else states[0][None])
        return self._results(y, x, states, {n.removesuffix("_l0"): p for n, p in layer.named_parameters()})

    def _results(self, y: Tensor, x: Tensor, states: Sequence[Tensor], weights: dict[str, Any]) -> Results:
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


def lines(errors: dict[str, tuple[float, float]]) -> list[str]:
    """A line a quantity: our error, cuDNN's, and how many times as large ours is."""
    return [
        f"  {name:10} {ours:.2e} {peer:.2e} {ours / peer:5.2f}{'' if ours <= MOST * peer else '  MISS'}"
        for name, (ours, peer) in errors.items()
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Compare, print, write JSON. 1 where ours is too large somewhere, or nothing can be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="256,768")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(words)
    if not torch.cuda.is_available():
        print("gpu_accuracy: there is no CUDA device", file=sys.stderr)
        return 1
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = [(hidden, dtype) for hidden in map(int, arguments.hidden.split(",")) for dtype in DTYPES]
        who = {
            (cell, *size): "alternating" if size[1] == "fp32" else "rnncc" for cell in ("lstm", "gru") for size in sizes
        }
        cases = {
            (cell, hidden, dtype): next(both(name, cell, hidden, 1, arguments.batch, STEPS, dtype))
            for (cell, hidden, dtype), name in who.items()
        }
        packages = Packages(Path(folder), list(cases.values()))
        for (cell, hidden, dtype), case in cases.items():
            for part in PARTS:

                def make(
                    seed: int, cell: str = cell, hidden: int = hidden, dtype: str = dtype, part: str = part
                ) -> Sample:
                    return draw(cell, hidden, arguments.batch, DTYPES[dtype], part, seed, "cuda")

                errors = compare(make, packages(case), DTYPES[dtype])
                print(f"{cell} {hidden} {dtype} {part}: ours, cuDNN's, ratio", *lines(errors), sep="\n", flush=True)
                rows += [
                    {
                        "cell": cell,
                        "hidden": hidden,
                        "dtype": dtype,
                        "part": part,
                        "of": name,
                        "ours": ours,
                        "cudnn": peer,
                    }
                    for name, (ours, peer) in errors.items()
                ]
    if arguments.out:
        write(arguments.out, rows, environment())
    return 0 if all(row["ours"] <= MOST * row["cudnn"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
