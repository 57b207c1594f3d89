"""The little of a package with the LSTM that first use reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from rnncc.runtime.kernels import first_use, fused

SIZES = {"H": 64, "num_heads": 1, "I": 8}
# As much of the LSTM's description as is read.
SEGMENT = SimpleNamespace(name="lstm_0", states=(SimpleNamespace(width=lambda sizes: sizes["H"]),))
CELL: Any = SimpleNamespace(name="LSTM", constants=(), sizes=(), segments=(SEGMENT,), program=dict)


H200 = fused.Gpu((9, 0), 132, 232_448)


def wanted(head_dim: int = 64, dtype: torch.dtype = torch.bfloat16, **changed: Any) -> fused.Wanted:
    given: dict[str, Any] = {"cell": CELL, "segment": "lstm_0", "heads": 1, "gpu": H200}
    return fused.Wanted(**{**given, "head_dim": head_dim, "dtype": dtype, **changed})


def settled(wanted: fused.Wanted) -> fused.Answer:
    """The answer that calls of each of the programs get."""
    parts = [replace(wanted, programs=(program,)) for program in wanted.programs]
    (answer,) = {first_use.settle(part, lambda: None) for part in parts}
    return answer
