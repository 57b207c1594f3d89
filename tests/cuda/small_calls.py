"""Small calls of every family of kernels, for a tool that watches them:

    python -m tests.cuda.small_calls dense FOLDER
    python -m tests.cuda.small_calls scan

FOLDER holds (or gets) the LSTM's package with fused kernels, and holds those of build_stepwise. Prints a line for every
call that was right.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pack_sequence

from tests.cuda.harness import DEVICE, DTYPES, FUSED, Packages, add_kernels, draw
from tests.cuda.kernels import plan
from tests.cuda.scans import draw_scan
from tests.cuda.shapes import compiled, stepwise_kernels
from tests.cuda.test_newton import iterating

ALTERNATING = ((40, "bf16"), (40, "fp32"))
# gather and scatter in one CTA and in clusters, grid, the same in float32, and alternating in two dtypes.
CASES = ((64, ""), (256, ""), (768, ""), (192, ""), (512, ""), *ALTERNATING)
# Single steps: batch, input size, hidden size, dtype; the last one has sizes that are not multiples of four.
SINGLE = ((1, 64, 64, "fp32"), (17, 32, 40, "bf16"), (5, 7, 9, "fp16"))
# One launch per step. The package has no kernels for these; for each there is a folder of kernels in FOLDER.
STEPWISE = ((72, "bf16"), (80, "fp32"))


# Steps, batch entries and units: vectorised, tall and narrow forms of a scan, coupled states, a walk, and Newton's
# iterations, of more than one tile where tiles are shared.
SCANS = (
    ("mingru", 40, 3, 8192, False), ("mingru", 700, 1, 64, False), ("mingru", 70, 2, 61, False),
    ("lru", 300, 1, 64, False), ("indrnn", 300, 1, 64, False), ("paragru", 700, 1, 64, True),
)  # fmt: skip


def masks_of(steps: int, batch: int) -> dict[str, Any]:
    """A batch entry of no steps (the fourth), full ones, and others; resets in every second batch entry."""
    lengths = torch.tensor([3, 1, 2, 0, 3])[:batch] * steps // 3
    reset = torch.tensor([[0, 1, 0, 1, 0][:batch]] * steps, dtype=torch.bool)
    return {"lengths": lengths.to(DEVICE), "reset": reset.to(DEVICE)}


def build_stepwise(folder: Path) -> None:
    """The kernels of STEPWISE, in folders of a folder. Raises CalledProcessError."""
    for head_dim, dtype in STEPWISE:
        compiled(plan("lstm"), stepwise_kernels(plan("lstm"), head_dim, dtype), folder / f"stepwise_{head_dim}")


def dense(folder: Path) -> None:
    """Forward, backward and inference, plain and masked; of both directions at once, and of a PackedSequence."""
    packages = Packages(folder)
    masks = masks_of(3, 5)
    for head_dim, _ in STEPWISE:
        assert add_kernels(packages("lstm"), folder / f"stepwise_{head_dim}" / "cuda") > 0
    for head_dim, dtype in (*CASES, *STEPWISE):
        chosen = DTYPES[dtype or dict(FUSED["lstm"])[head_dim]]
        for given in ({}, masks):
            found = draw(packages("lstm"), "lstm", head_dim, 1, 5, 3, chosen, **given).run()
            assert all(value.isfinite().all() for value in found.values())
            print(f"{head_dim}, {chosen}, {'masked' if given else 'plain'}: ok", flush=True)
    for batch, inputs, hidden, dtype in SINGLE:
        step = packages("lstm").LSTMCell(inputs, hidden, device=DEVICE, dtype=DTYPES[dtype])
        x = torch.randn(batch, inputs, device=DEVICE, dtype=DTYPES[dtype], requires_grad=True)
        h, c = step(x, step(x))
        assert all(g.isfinite().all() for g in torch.autograd.grad(h.sum() + c.sum(), [x, *step.parameters()]))
        print(f"{batch}x{inputs}x{hidden}, {dtype}, single steps: ok", flush=True)
    for head_dim, dtype in ALTERNATING:
        layer = packages("lstm").LSTM(4, head_dim, bidirectional=True, device=DEVICE, dtype=DTYPES[dtype])
        y = layer(torch.randn(3, 5, 4, device=DEVICE, dtype=DTYPES[dtype]), lengths=masks["lengths"])[0]
        sequences = [torch.randn(length, 4, device=DEVICE, dtype=DTYPES[dtype]) for length in (1, 3, 2)]
        packed = layer(pack_sequence(sequences, enforce_sorted=False))[0].data
        gradients = torch.autograd.grad(y.sum() + packed.square().sum(), list(layer.parameters()))
        assert all(value.isfinite().all() for value in (y, packed, *gradients))
        print(f"{head_dim}, {dtype}, both directions: ok", flush=True)


def scan() -> None:
    """The same of loops without products."""
    for name, steps, batch, head_dim, newton in SCANS:
        for given in ({}, masks_of(steps, batch)):
            call = draw_scan(name, steps, batch, head_dim, torch.float32, **given)
            found = (iterating(call, name) if newton else call).run()
            assert all(value.isfinite().all() for value in found.values())
            kind = f"{'newton' if newton else 'scan'}, {'masked' if given else 'plain'}"
            print(f"{name} of {steps}x{batch}x{head_dim}, {kind}: ok", flush=True)


def main() -> None:
    """Every result is finite, or this is no small call."""
    match sys.argv[1:]:
        case ["dense", folder]:
            dense(Path(folder))
        case ["scan"]:
            scan()
        case given:
            raise SystemExit(f"dense FOLDER, or scan, not {given}")


if __name__ == "__main__":
    main()
