"""Measures a training step of a whole language model on a GPU, with and without torch.compile.

    python benchmarks/gpu_model.py [--quick] [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_model.py --show FILE

The model has 12 layers of width 768. Each has a sequence mixer and an MLP of width 3072, both with a norm before and a
residual around them. Tokens are bytes, the dtype is bfloat16, the optimiser AdamW. One step trains on a batch of 16
sequences of 1024 tokens. The mixers are attention, sLSTM and LSTM of 12 heads with head_dim 64, minGRU, and cuDNN's
LSTM through torch.nn (float16, one head).

Every case runs in a process of its own, in one of three ways: `uncompiled`; `compiled`, by torch.compile from the first
step on, as a user's program does; `warmed`, where one uncompiled step runs before torch.compile. `compiled` must not be
slower than `warmed`: the first call must prepare the same kernels under torch.compile. `step_ms` is the median time of
a step between CUDA events, in milliseconds. `first_s` is the time of the first step, in seconds, with all compilation.
`fused` counts the launches of fused kernels per step, `alternating` those of the kernels for every size.

WORDS, separated by commas, choose mixers and ways. A run that is started again goes on where it stopped.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from torch import Tensor, nn
from torch.nn import functional

import rnncc

LAYERS, WIDTH, HEADS, BATCH, STEPS, TOKENS = 12, 768, 12, 16, 1024, 256
MIXERS = ("attention", "slstm", "lstm", "mingru", "cudnn")
WAYS = ("uncompiled", "compiled", "warmed")
QUICK_MIXERS = ("slstm",)


class Attention(nn.Module):
    """Applies causal self-attention of HEADS heads to x [T, B, WIDTH]; returns [T, B, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        steps, batch, _ = x.shape
        parts = self.qkv(x).view(steps, batch, 3, HEADS, WIDTH // HEADS).permute(2, 1, 3, 0, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(mixed.permute(2, 0, 1, 3).reshape(steps, batch, WIDTH))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Runs a recurrent layer over x [T, B, WIDTH], in `dtype` if given, else in the model's; returns x's shape and
    dtype."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if self.dtype is None else x.to(self.dtype))[0].to(x.dtype)  # type: ignore[no-any-return]

    def keep_dtype(self) -> None:
        """Give the layer its own dtype back after the whole model was converted."""
        if self.dtype is not None:
            self.to(self.dtype)


def mixer(name: str) -> nn.Module:
    """A mixer of MIXERS."""
    if name == "attention":
        return Attention()
    if name == "cudnn":
        return Recurrent(nn.LSTM(WIDTH, WIDTH), torch.float16)
    if name == "mingru":
        return Recurrent(rnncc.load("mingru").minGRU(WIDTH, WIDTH))
    cells = rnncc.load(name)
    return Recurrent((cells.sLSTM if name == "slstm" else cells.LSTM)(WIDTH, WIDTH, num_heads=HEADS))


class Block(nn.Module):
    """One layer of the model: mixer and MLP."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixer = mixer(name)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


class Model(nn.Module):
    """A language model. It maps tokens [T, B] to the mean loss of predicting each token from those before it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block(name) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embedding(tokens)))
        logits = self.head(x[:-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[1:].flatten())


def measure(name: str, way: str, quick: bool) -> dict[str, Any]:
    """A case's row, measured in this process."""
    torch.manual_seed(0)
    model = Model(name).to("cuda", torch.bfloat16)
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.keep_dtype()
            if name != "cudnn":  # it raises where its kernels cannot run
                layer: Any = module.layer
                layer.backend = "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(TOKENS, (STEPS, BATCH), device="cuda")

    def step(run: Callable[[Tensor], Tensor]) -> None:
        run(tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    if way == "warmed":
        step(model)
    run: Any = model if way == "uncompiled" else torch.compile(model, fullgraph=name != "cudnn")
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step(run)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    for _ in range(3):
        step(run)
    times = []
    for _ in range(10 if quick else 30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        step(run)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    took = statistics.median(times)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(run)
        torch.cuda.synchronize()
    launches = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    ours = [launch for launch in launches if launch.startswith((f"{name}_0_forward", f"{name}_0_backward"))]
    alternating = sum(launch in (f"{name}_0_forward", f"{name}_0_backward") for launch in ours)
    return {
        "mixer": name,
        "way": way,
        "step_ms": took,
        "tokens_per_s": BATCH * STEPS / took * 1e3,
        "first_s": first,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "fused": len(ours) - alternating,
        "alternating": alternating,
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a table of measured rows: one line per mixer and way, and the ratio of compiled to warmed."""
    lines = [f"{'mixer':10} {'way':11} {'step':>9} {'tokens/s':>10} {'first':>8} {'memory':>9}  fused, alternating"]
    for row in sorted(rows, key=lambda row: (MIXERS.index(row["mixer"]), WAYS.index(row["way"]))):
        if "error" in row:
            lines.append(f"{row['mixer']:10} {row['way']:11} {row['error']}")
            continue
        lines.append(
            f"{row['mixer']:10} {row['way']:11} {row['step_ms']:6.1f} ms {row['tokens_per_s']:10.0f} "
            f"{row['first_s']:6.1f} s {row['peak_gib']:5.1f} GiB  {row['fused']}, {row['alternating']}"
        )
    steps = {(row["mixer"], row["way"]): row.get("step_ms") for row in rows}
    for name in MIXERS:
        compiled, warmed = steps.get((name, "compiled")), steps.get((name, "warmed"))
        if compiled and warmed:
            lines.append(f"{name}: compiled / warmed {compiled / warmed:.3f}")
    return lines


def in_a_process(name: str, way: str, quick: bool) -> dict[str, Any]:
    """The row of a case, measured in a fresh process."""
    command = [sys.executable, __file__, "--case", name, way, *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return {"mixer": name, "way": way, "error": said[-1] if said else f"exit {done.returncode}"}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    slow = [line for line in done.stderr.splitlines() if "RNNCC_LOG" in line]
    return row | ({"warned": slow} if slow else {})


def select(words: Sequence[str], quick: bool) -> list[tuple[str, str]]:
    """The cases that the words choose. Raises ValueError for a word that chooses nothing."""
    if unknown := sorted({*words} - {*MIXERS, *WAYS}):
        raise ValueError(f"unknown: {', '.join(unknown)}; mixers are {', '.join(MIXERS)}, ways {', '.join(WAYS)}")
    mixers = [name for name in MIXERS if name in words] or list(QUICK_MIXERS if quick else MIXERS)
    ways = [way for way in WAYS if way in words] or list(WAYS)
    return [(name, way) for name in mixers for way in ways if name != "cudnn" or way == "uncompiled"]


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    parser = parser_of(__doc__, Path("gpu_model.json"))
    parser.add_argument("--case", nargs=2, metavar=("MIXER", "WAY"), help="measure one case in this process")
    arguments = parser.parse_args(words)
    if arguments.case:
        name, way = arguments.case
        print(json.dumps(measure(name, way, arguments.quick)))
        return 0

    def measure_cases(results: Results) -> None:
        known = {(row["mixer"], row["way"]) for row in results.rows}
        for case in in_time([case for case in cases if case not in known], arguments.minutes):
            results.add(in_a_process(*case, arguments.quick))
            print(table(results.rows[-1:])[1], flush=True)

    try:
        cases = part(select(words_of(arguments), arguments.quick), arguments.shard)
        rows, _ = read_or_measure(arguments, measure_cases)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"gpu_model: {error}", file=sys.stderr)
        return 1
    print("\n".join(table([row for row in rows if (row["mixer"], row["way"]) in cases])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
