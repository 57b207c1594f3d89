"""What fused kernels are planned for: sizes and a dtype. They run any batch and any sequence length, which are known at
run time only."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("fp32", "bf16", "fp16")
INDEX_DTYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}  # as files of kernels and their index have them


@dataclass(frozen=True, slots=True)
class Problem:
    """`heads` heads with `head_dim` each, with streams and weights of one of DTYPES. `batch` is the batch to be
    quickest at; other batches work, too. `directions`: the most directions of a layer that a launch runs. A kernel has
    the loop once for each, so that one for a single direction is compiled in half the time."""

    head_dim: int
    heads: int
    dtype: str
    batch: int = 16
    directions: int = 2

    @property
    def hidden(self) -> int:
        """The hidden size: the units of all heads."""
        return self.head_dim * self.heads

    @property
    def is_float(self) -> bool:
        """Whether elements are float32."""
        return self.dtype == "fp32"

    @property
    def element_bytes(self) -> int:
        """Bytes per element."""
        return 4 if self.is_float else 2
