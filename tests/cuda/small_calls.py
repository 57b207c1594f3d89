"""Small calls of the LSTM by every family of kernels, for a tool that watches them:

    python -m tests.cuda.small_calls FOLDER

FOLDER holds (or gets) the package with fused kernels. Prints a line for every call that was right.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tests.cuda.harness import DEVICE, DTYPES, FUSED, Packages, draw

ALTERNATING = ((40, "bf16"), (40, "fp32"))
# gather and scatter in one block and in clusters, grid, the same of float32, and alternating in two dtypes.
CASES = ((64, ""), (256, ""), (768, ""), (192, ""), (512, ""), *ALTERNATING)


def main() -> None:
    """Forward, backward and inference, plain and masked; of both directions at once. Every result is finite, or this is
    no small call."""
    packages = Packages(Path(sys.argv[1]))
    masks: dict[str, Any] = {
        "lengths": torch.tensor([3, 1, 2, 0, 3], device=DEVICE),
        "reset": torch.tensor([[0, 1, 0, 1, 0]] * 3, dtype=torch.bool, device=DEVICE),
    }
    for units, dtype in CASES:
        chosen = DTYPES[dtype or dict(FUSED["lstm"])[units]]
        for given in ({}, masks):
            found = draw(packages("lstm"), "lstm", units, 1, 5, 3, chosen, **given).run()
            assert all(value.isfinite().all() for value in found.values())
            print(f"{units} units, {chosen}, {'masked' if given else 'plain'}: ok", flush=True)
    for units, dtype in ALTERNATING:
        layer = packages("lstm").LSTM(4, units, bidirectional=True, device=DEVICE, dtype=DTYPES[dtype])
        y = layer(torch.randn(3, 5, 4, device=DEVICE, dtype=DTYPES[dtype]), lengths=masks["lengths"])[0]
        gradients = torch.autograd.grad(y.sum(), list(layer.parameters()))
        assert all(value.isfinite().all() for value in (y, *gradients))
        print(f"{units} units, {dtype}, both directions: ok", flush=True)


if __name__ == "__main__":
    main()
