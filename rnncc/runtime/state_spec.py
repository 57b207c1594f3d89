"""What a generated module says about a state of its cell."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .parameter_spec import Sizes, Width


@dataclass(frozen=True, slots=True)
class StateSpec:
    """`initial` is None where it is learned (parameter `<name>0`). A hidden delay state has `delay_of`: what it
    keeps one step longer, a state or (in `CellSpec.value_delays`) an input or another value. `initial_text` is
    `initial` as text, which tells -0.0 from 0.0; torch.compile cannot make it of a number. `matrix`: the rows and the
    columns of all heads' blocks together, where the state is a matrix. Within a call it is [..., width], its callers
    have it as [..., *shape]. `diagonal`: `initial` stands on the diagonal of each block, and zeros beside it."""

    name: str
    width: Width
    initial: float | None = 0.0
    delay_of: str | None = None
    matrix: tuple[Width, Width] | None = None
    diagonal: bool = False
    initial_text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "initial_text", repr(self.initial))

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape of one entry's value: (width,), or (num_heads, rows, columns) of the blocks of a matrix."""
        if self.matrix is None:
            return (self.width(sizes),)
        heads = sizes["num_heads"]
        return (heads, *(side(sizes) // heads for side in self.matrix))

    def dtype(self, of_inputs: torch.dtype) -> torch.dtype:
        """The dtype in which the state is carried and returned where a layer names none. A matrix sums up what all
        steps wrote into it, and 16 bits would lose most of that at every call of one step."""
        return of_inputs if self.matrix is None else torch.promote_types(of_inputs, torch.float32)

    def start(self, like: Tensor, batch: int, sizes: Sizes, dtype: torch.dtype | None = None) -> Tensor:
        """The declared initial value of a state that has one, [batch, width]; of the dtype of `like` where none is
        named."""
        assert self.initial is not None
        if not self.diagonal:
            return like.new_full((batch, self.width(sizes)), self.initial, dtype=dtype)
        heads, rows, _ = self.shape(sizes)
        block = torch.diag_embed(like.new_full((heads, rows), self.initial, dtype=dtype))
        return block.flatten().expand(batch, self.width(sizes))

    def flat(self, value: Tensor) -> Tensor:
        """[..., *shape] as [..., width]."""
        return value if self.matrix is None else value.flatten(-3)

    def shaped(self, value: Tensor, sizes: Sizes) -> Tensor:
        """[..., width] as [..., *shape]."""
        return value if self.matrix is None else value.reshape(*value.shape[:-1], *self.shape(sizes))
