"""Trains a character model with an LSTM, prunes the LSTM's recurrent matrix while training goes on, and compares it
with the same model left dense: its loss on held-out text, and the time of a training step.

    python benchmarks/sparse_training.py [--hidden N] [--density D] [--seeds N] [--steps N] [--shard I/N] [--out FILE] …
    python benchmarks/sparse_training.py --show FILE

The model is an embedding, an LSTM of rnncc and a linear layer. On a GPU it computes in bfloat16 under autocast, and its
parameters are float32. For each seed:

1. The model trains for a first part of the steps (--dense).
2. It goes on twice, from the same parameters, with the same batches and learning rates: once as it is, and once under
   torch.nn.utils.prune. There, every EVERY steps, the smallest elements of R leave. The share of zeros follows Zhu &
   Gupta, "To prune, or not to prune" (2017, equation 1), until D of the elements are left.
3. From another part of the steps on (--pruned), the layer is the one with a mask that `layer.sparsify("R")` makes. It
   trains for the rest of the steps.

In the end both models have taken the same number of steps. Losses are in nats a character, times in milliseconds a
step: of whole steps of the last part, with the optimiser's work. On an H100 a seed takes five minutes, with what is
compiled at first use; --shard 2/3 is the second of three seeds.

The text is the standard library of the Python that runs this: its *.py files sorted by name, without tests and
site-packages, about 12 million characters. Every tenth file is for validation.
"""

from __future__ import annotations

import argparse
import copy
import math
import re
import statistics
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gpu_run import Results, in_time, parser_of, part, read_or_measure
from measure import environment
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

import rnncc

DEFAULTS: dict[str, int | float] = {
    "hidden": 2048, "density": 0.1, "seeds": 3, "steps": 24000, "batch": 64, "length": 128, "lr": 1e-3,
    "validation": 1 << 18, "dense": 0.25, "pruned": 0.75,
}  # fmt: skip
EMBEDDING = 64
WARMUP = 0.05  # the part in which the learning rate grows
EVERY = 10  # steps between two masks
# The first steps are not timed: they may compile kernels.
UNTIMED = 10
VALIDATION_CHUNK = 512  # steps of time
KERNELS = re.compile(r"a batch of \d+: (.*)")


class Text:
    """The text as indices of characters on a device: `train` and `validation` [characters]."""

    def __init__(self, device: torch.device) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
        files = [path for path in sorted(library.rglob("*.py")) if not skipped & set(path.relative_to(library).parts)]
        texts = [path.read_bytes().decode("ascii", "replace").replace("\ufffd", "?") for path in files]
        held_out = texts[9::10]
        parts = ["".join(text for i, text in enumerate(texts) if i % 10 != 9), "".join(held_out)]
        self.characters = sorted(set("".join(parts)))
        index = torch.zeros(128, dtype=torch.int64)
        index[[ord(character) for character in self.characters]] = torch.arange(len(self.characters))
        self.train, self.validation = (
            index[torch.frombuffer(bytearray(part.encode("ascii")), dtype=torch.uint8).long()].to(device)
            for part in parts
        )


class Model(nn.Module):
    """Maps indices of characters [T, B], and the state before them, to logits [T, B, characters] and the state after
    them."""

    def __init__(self, characters: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, EMBEDDING)
        self.recurrent: Any = rnncc.load("lstm").LSTM(EMBEDDING, hidden)
        self.predict = nn.Linear(hidden, characters)

    def forward(self, indices: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        x = self.embed(indices)
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            output, state = self.recurrent(x, state)
            return self.predict(output).float(), state


@dataclass
class Run:
    """A model in training. `starts` [steps, batch]: where the pieces of the text begin that each step takes."""

    model: Model
    optimiser: torch.optim.Optimizer
    starts: Tensor
    options: argparse.Namespace
    done: int = 0

    def fork(self) -> Run:
        """A copy, which goes on from here by itself."""
        model, optimiser = copy.deepcopy((self.model, self.optimiser))
        return replace(self, model=model, optimiser=optimiser)

    def rate(self) -> float:
        """The learning rate of the next step: linear to its maximum, then half a cosine to a hundredth of it."""
        progress = (self.done + 1) / len(self.starts)
        if progress < WARMUP:
            return float(self.options.lr * progress / WARMUP)
        half = math.pi * (progress - WARMUP) / (1 - WARMUP)
        return float(self.options.lr * (0.01 + 0.99 * (1 + math.cos(half)) / 2))

    def step(self, text: Text) -> None:
        """One step of the optimiser."""
        places = torch.arange(self.options.length + 1, device=self.starts.device)
        pieces = text.train[self.starts[self.done] + places[:, None]]
        logits, _ = self.model(pieces[:-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), pieces[1:].flatten())
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        self.optimiser.step()
        self.done += 1

    def train(self, text: Text, until: int) -> float:
        """Train until so many steps are done. Returns milliseconds a step."""
        begin, timed_from = seconds(), min(self.done + UNTIMED, until - 1)
        while self.done < until:
            if self.done == timed_from:
                begin = seconds()
            self.step(text)
        return (seconds() - begin) * 1e3 / (until - timed_from)

    def train_and_prune(self, text: Text, until: int) -> None:
        """The same, while R loses elements until it has the density that was asked for. The layer is then one with a
        mask."""
        layer, first, last = self.model.recurrent, self.done, self.options.density
        prune.identity(layer, "weight_hh_l0")  # type: ignore[no-untyped-call]
        while self.done < until:
            if (until - self.done) % EVERY == 0 or self.done == until - 1:
                progress = (self.done + 1 - first) / (until - first)
                layer.weight_hh_l0_mask.copy_(largest(layer.weight_hh_l0_orig, density(progress, last)))
            self.step(text)
        self.model.recurrent = layer.sparsify("R")


def density(progress: float, last: float) -> float:
    """The share of elements that are kept, at a progress from 0 to 1 (Zhu & Gupta 2017, equation 1)."""
    return last + (1 - last) * (1 - progress) ** 3


def largest(weight: Tensor, density: float) -> Tensor:
    """The mask of the elements of a matrix that are largest: round(density * elements) of them."""
    kept = weight.detach().abs().flatten().topk(round(density * weight.numel()), sorted=False).indices
    mask = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    mask[kept] = True
    return mask.view_as(weight)


def seconds() -> float:
    """A clock, read when the GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def validation_nats(model: Model, text: Text, options: argparse.Namespace) -> float:
    """The loss on the held-out text, cut into as many columns as a batch has, in nats a character."""
    count = min(len(text.validation), options.validation)
    columns = text.validation[: count // options.batch * options.batch].view(options.batch, -1).t()
    state, total = None, 0.0
    for first in range(0, len(columns) - 1, VALIDATION_CHUNK):
        pieces = columns[first : first + VALIDATION_CHUNK + 1]
        logits, state = model(pieces[:-1], state)
        total += functional.cross_entropy(logits.flatten(0, 1), pieces[1:].flatten(), reduction="sum").item()
    return float(total / (columns.numel() - options.batch))


def measure(seed: int, text: Text, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a seed."""
    torch.manual_seed(seed)
    device = text.train.device
    begin = seconds()
    model = Model(len(text.characters), options.hidden).to(device)
    model.recurrent.backend = device.type  # it raises where its kernels cannot run
    starts = torch.randint(len(text.train) - options.length, (options.steps, options.batch)).to(device)
    dense = Run(model, torch.optim.Adam(model.parameters(), fused=True), starts, options)
    trunk, pruned = (round(part * options.steps) for part in (options.dense, options.pruned))
    dense.train(text, trunk)
    sparse = dense.fork()
    dense.train(text, pruned)
    sparse.train_and_prune(text, pruned)
    row = {"seed": seed, "H": options.hidden, "B": options.batch, "T": options.length, "steps": options.steps}
    row |= {"lr": options.lr, "characters": len(text.train), "dense": options.dense, "pruned": options.pruned}
    for name, run in (("dense", dense), ("sparse", sparse)):
        row[f"{name}_nats_when_pruned"] = validation_nats(run.model, text, options)
        row[f"{name}_ms"] = run.train(text, options.steps)
        row[f"{name}_nats"] = validation_nats(run.model, text, options)
    layer = sparse.model.recurrent
    row["density"] = layer.weight_hh_mask_l0.float().mean().item()
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        row["kernels"] = KERNELS.findall(layer.explain(options.batch))
    return row | {"seconds": seconds() - begin}


def is_alike(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether a row is of a run with these options."""
    asked = {"H": options.hidden, "B": options.batch, "T": options.length}
    asked |= {name: getattr(options, name) for name in ("steps", "lr", "dense", "pruned")}
    return all(row[name] == value for name, value in asked.items()) and abs(row["density"] - options.density) < 1e-3


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of a table: a seed each, and the mean of the seeds that were trained as the last row's."""
    lines = ["steps x batch  seed  dense nats  sparse nats  difference  dense ms  sparse ms  kept"]
    for row in rows:
        difference = row["sparse_nats"] - row["dense_nats"]
        about = f"{row['steps']:7} x {row['B']:3}  {row['seed']:4}"
        nats = f"{row['dense_nats']:10.4f}  {row['sparse_nats']:11.4f}  {difference:+10.4f}"
        times = f"{row['dense_ms']:8.2f}  {row['sparse_ms']:9.2f}"
        lines.append(f"{about}  {nats}  {times}  {row['density']:.2%}")
    alike = [row for row in rows if (row["steps"], row["B"]) == (rows[-1]["steps"], rows[-1]["B"])]
    mean = statistics.mean(row["sparse_nats"] - row["dense_nats"] for row in alike)
    return [*lines, f"the pruned models lose {mean:+.4f} nats a character in the mean of {len(alike)} seeds"]


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    parser = parser_of(__doc__, Path("sparse_training.json"))
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default {default}")
    options = parser.parse_args(words)

    def measure_seeds(results: Results) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        text = Text(device)
        print(f"text: {len(text.train):,} characters to train on, {len(text.validation):,} to validate with")
        done = {row["seed"] for row in results.rows if is_alike(row, options)}
        for seed in in_time([seed for seed in seeds if seed not in done], options.minutes):
            results.add(measure(seed, text, options))
            print(table(results.rows)[-2], flush=True)

    try:
        seeds = part(range(options.seeds), options.shard)
        rows, _ = read_or_measure(options, measure_seeds, lambda: environment(options.commit))
    except (OSError, ValueError) as error:
        print(f"sparse_training: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
