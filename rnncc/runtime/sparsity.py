"""Sparse weights: matrices with a mask beside them. What the mask leaves out is never read and has no gradient.

The matrix of a sparse `R` is the parameter `weight_hh_l0`, as dense as any, and the mask is the boolean buffer
`weight_hh_mask_l0`. So optimisers, state_dicts, DDP and FSDP treat them as they treat any module's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .parameters import blocks_of, gate_view, head_view, members_of, ordered
from .spec import CellSpec, ParameterSpec, Sizes


class SparseWeights(nn.Module):
    """The part of layers and single steps that has to do with masks."""

    spec: ClassVar[CellSpec]
    bias: bool
    _suffixes: list[str]
    _sizes: list[dict[str, int]]

    def _make_masks(self, sizes: Sizes, suffix: str) -> None:
        """Make the masks of one more layer and direction, with every element."""
        for parameter in self._sparse():
            check_density(self.spec, parameter, sizes)
            tensor = getattr(self, parameter.attribute + suffix)
            mask = torch.ones_like(tensor, dtype=torch.bool, requires_grad=False)
            self.register_buffer(mask_name(parameter, suffix), mask)

    def _reset_masks(self) -> None:
        """Draw the masks that are drawn; the others have every element again. What a mask leaves out becomes zero."""
        for parameter, sizes, suffix in self._places():
            mask = getattr(self, mask_name(parameter, suffix))
            assert parameter.sparsity is not None
            if parameter.sparsity.drawn:
                draw(parameter, mask, sizes)
            else:
                mask.fill_(True)
        self._zero_masked()

    @torch.no_grad()
    def _zero_masked(self) -> None:
        """Set to zero what masks leave out. Parameters that are spread over devices keep it; nothing reads it."""
        for parameter, _, suffix in self._places():
            tensor, mask = getattr(self, parameter.attribute + suffix), getattr(self, mask_name(parameter, suffix))
            if type(tensor) in (Tensor, nn.Parameter):
                tensor.masked_fill_(~mask, 0)

    def _value_of(self, parameter: ParameterSpec, suffix: str) -> Tensor:
        """A parameter as equations read it: with zeros where its mask says so."""
        tensor: Tensor = getattr(self, parameter.attribute + suffix)
        if parameter.sparsity is None:
            return tensor
        return torch.where(getattr(self, mask_name(parameter, suffix)), tensor, 0)

    def set_mask(self, name: str, mask: Tensor, layer: int = 0, *, reverse: bool = False) -> None:
        """Take another mask for a sparse group (`R`), or for one of its matrices (`R_i`), of one layer and direction.

        `mask` is boolean and has the shape of the parameter, or of the matrix in `gate_parameters()`. What it leaves
        out becomes zero. The next call reads the new mask, and so does a program that torch.compile has made before.
        Optimisers keep their state. Raises ValueError.
        """
        suffix, sizes = self._place(layer, reverse)
        # Where a mask is kept, and the shape that the caller's has.
        kept: dict[str, tuple[Tensor, torch.Size]] = {}
        for parameter in self._sparse():
            whole = getattr(self, mask_name(parameter, suffix))
            kept[parameter.name] = whole, whole.shape
            for member, rows in members_of(parameter, whole, sizes):
                own = rows if parameter.blocks is None else head_view(parameter, member, rows, sizes)
                kept[member.name] = own, gate_view(parameter, member, rows, sizes).shape
        if name not in kept:
            known = f"the sparse weights are {', '.join(kept)}" if kept else "none of its weights is sparse"
            raise ValueError(f"set_mask: {self.spec.name} has no sparse weights {name!r}; {known}")
        place, shape = kept[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != shape:
            given = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise ValueError(f"set_mask: the mask of {name} must be torch.bool {list(shape)}, got: {given}")
        place.copy_(mask.reshape(place.shape))
        self._zero_masked()

    def gate_masks(self, layer: int = 0, *, reverse: bool = False) -> dict[str, Tensor]:
        """The masks of one layer's sparse matrices, by the names and in the shapes of `gate_parameters()`."""
        suffix, sizes = self._place(layer, reverse)
        found: dict[str, Tensor] = {}
        for parameter in self._sparse():
            for member, rows in members_of(parameter, getattr(self, mask_name(parameter, suffix)), sizes):
                found[member.name] = gate_view(parameter, member, rows, sizes)
        return found

    def _take_masks(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Bring what pruning and dense layers save into our form, in place: `weight_hh_l0_orig` and `weight_hh_l0_mask`
        of torch.nn.utils.prune become the parameter and its mask; without a mask, elements that are not zero exist."""
        for parameter, _, suffix in self._places():
            name, mask = prefix + parameter.attribute + suffix, prefix + mask_name(parameter, suffix)
            if f"{name}_orig" in state_dict and not hasattr(self, f"{parameter.attribute}{suffix}_orig"):
                kept = state_dict.pop(f"{name}_mask")
                state_dict[name] = state_dict.pop(f"{name}_orig") * kept
                state_dict.setdefault(mask, kept != 0)
            if mask not in state_dict and isinstance(state_dict.get(name), Tensor):
                state_dict[mask] = state_dict[name] != 0

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        self._take_masks(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        self._zero_masked()

    def _describe_masks(self) -> Iterator[str]:
        """Lines of `explain`."""
        for parameter in self._sparse():
            mask = getattr(self, mask_name(parameter, self._suffixes[0]))
            share = "" if mask.is_meta or not mask.numel() else f", {mask.float().mean().item():.1%} of the elements"
            yield f"  {parameter.attribute}: sparse{share}; kernels multiply by its zeros, too"

    def _sparse(self) -> list[ParameterSpec]:
        return [parameter for parameter in ordered(self.spec, bias=True) if parameter.sparsity is not None]

    def _places(self) -> Iterator[tuple[ParameterSpec, dict[str, int], str]]:
        for sizes, suffix in zip(self._sizes, self._suffixes, strict=True):
            for parameter in self._sparse():
                yield parameter, sizes, suffix

    def _place(self, layer: int, reverse: bool) -> tuple[str, dict[str, int]]:
        """The suffix and the sizes of a layer and direction. Raises ValueError."""
        names = {f"_l{layer}_reverse"} if reverse else {f"_l{layer}", ""}
        for suffix, sizes in zip(self._suffixes, self._sizes, strict=True):
            if suffix in names:
                return suffix, sizes
        raise ValueError(f"there is no layer {layer}{' in the reverse direction' if reverse else ''}")


def mask_name(parameter: ParameterSpec, suffix: str) -> str:
    """`weight_hh_mask_l0` of `weight_hh_l0`."""
    return f"{parameter.attribute}_mask{suffix}"


def check_density(cell: CellSpec, parameter: ParameterSpec, sizes: Sizes) -> None:
    """Raises ValueError where blocks do not divide a matrix, or where a density leaves nothing of a row."""
    sparsity = parameter.sparsity
    assert sparsity is not None and parameter.columns is not None
    blocks = blocks_of(parameter, sizes)
    columns = parameter.columns(sizes) // blocks
    for member in parameter.members:
        rows = member.width(sizes) // (blocks * (member.k if blocks > 1 else 1))
        if rows % sparsity.block or columns % sparsity.block:
            raise ValueError(
                f"{cell.name}: {member.name} is {rows} x {columns} in each head, which blocks of {sparsity.block} do "
                "not divide"
            )
    if kept_of(parameter, columns) < 1:
        raise ValueError(
            f"{cell.name}: a density of {sparsity.density:g} leaves nothing of a row of {columns} elements"
        )


def kept_of(parameter: ParameterSpec, columns: int) -> int:
    """How many elements (or blocks) of a row of a head's matrix a density keeps."""
    assert parameter.sparsity is not None
    return round(parameter.sparsity.density * columns / parameter.sparsity.block)


@torch.no_grad()
def draw(parameter: ParameterSpec, mask: Tensor, sizes: Sizes) -> None:
    """Draw a mask: in each row of each gate and head, as many elements (or blocks) as the density says."""
    assert parameter.sparsity is not None
    size, columns = parameter.sparsity.block, mask.shape[1]
    # Blocks divide each gate's rows in each head.
    scores = torch.rand(mask.shape[0] // size, columns // size, device=mask.device)
    chosen = scores.topk(kept_of(parameter, columns), dim=1).indices
    drawn = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
    mask.copy_(drawn.repeat_interleave(size, 0).repeat_interleave(size, 1))
