"""What kernels are planned for: sizes and dtype. Batch columns and steps are known at run time only."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("fp32", "bf16", "fp16")
INDEX_DTYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}  # as files of kernels and their index have them


@dataclass(frozen=True, slots=True)
class Problem:
    """`heads` heads of `units` units each, streams and weights of a dtype of `DTYPES`. `columns`: the batch columns to
    be quickest at; others work too."""

    units: int
    heads: int
    dtype: str
    columns: int = 16
