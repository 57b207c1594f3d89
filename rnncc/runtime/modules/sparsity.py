"""Sparse weights: matrices with a mask beside them. What the mask leaves out is never read and has no gradient.

The matrix of a sparse `R` is the parameter `weight_hh_l0`, as dense as any, and the mask is the boolean buffer
`weight_hh_mask_l0`. So optimisers, state_dicts, DDP and FSDP treat them as they treat any module's.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..arguments.tensors import check_memory, distributed
from ..settings import warns_of_slow_paths
from ..spec import CellSpec, ParameterSpec, Sizes
from .parameters import blocks_of, gate_view, members_of, ordered

# A mask that is denser than the cell says by this factor is clearly denser: GPUs run dense kernels.
_CLEARLY = 1.1


class SparseWeights(nn.Module):
    """The part of layers and single steps that has to do with masks."""

    spec: ClassVar[CellSpec]
    bias: bool
    _buffers: dict[str, Tensor | None]
    _suffixes: list[str]
    _sizes: list[dict[str, int]]
    _shapes: list[dict[str, tuple[int, ...]]]
    _parameters: dict[str, nn.Parameter | None]
    # Whether this layer warned of a mask that is clearly denser than the cell says.
    _told_denser: bool = False
    # By parameter's name and suffix: whether a mask was clearly denser when last looked at, and its marks then.
    _is_denser: dict[tuple[str, str], bool]
    _looked_at: dict[tuple[str, str], tuple[int, ...]]

    def _make_masks(self, sizes: Sizes, suffix: str) -> None:
        """Make the masks of one more layer and direction, with every element."""
        for parameter in self._sparse():
            check_sparsity(self.spec, parameter, sizes)
            tensor = getattr(self, parameter.attribute + suffix)
            mask = torch.ones_like(tensor, dtype=torch.bool, requires_grad=False)
            self.register_buffer(mask_name(parameter, suffix), mask)

    def _reset_masks(self) -> None:
        """Draw those masks that are drawn, and give the others every element. What a mask leaves out becomes zero."""
        self._is_denser, self._looked_at = {}, {}
        for parameter, sizes, suffix in self._places():
            mask = self._mask(parameter, suffix)
            assert parameter.sparsity is not None
            if parameter.sparsity.drawn:
                draw(parameter, mask, sizes)
            else:
                mask.fill_(True)
            is_denser = not parameter.sparsity.drawn and most_density(parameter, sizes) < 1
            self._note_density(parameter, suffix, is_denser)
        self._zero_masked()

    @torch.no_grad()
    def _zero_masked(self) -> None:
        """Set to zero what masks leave out: in tensors, and in this process's part of DTensors. Tensors of other kinds
        keep it, since nothing reads it."""
        for parameter, _, suffix in self._places():
            name, mask = parameter.attribute + suffix, self._mask(parameter, suffix)
            tensor: Any
            # Where torch.nn.utils.prune makes the matrix anew in each call, what it makes it of.
            for tensor in (getattr(self, name), self._parameters.get(f"{name}_orig")):
                if type(tensor) in (Tensor, nn.Parameter):
                    check_memory(tensor)
                    tensor.masked_fill_(~mask, 0)
                elif tensor is not None and (own := shard_of(tensor, mask)) is not None:
                    tensor.to_local().masked_fill_(~own, 0)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """See torch.nn.Module. Raises ValueError where torch.nn.utils.prune would put its mask in the place of a single
        step's own, which has the name that prune takes."""
        is_mask = name in self._buffers and name in {mask_name(parameter, of) for parameter, _, of in self._places()}
        if is_mask and isinstance(tensor, Tensor) and tensor.dtype != torch.bool:
            raise ValueError(
                f"{self.spec.name}: {name} is a mask and must be torch.bool, got: {_said_of(tensor)}. "
                "torch.nn.utils.prune cannot prune this matrix of a single step: prune the layer's, or call set_mask"
            )
        super().register_buffer(name, tensor, persistent)

    def _own_mask(self, parameter: ParameterSpec, suffix: str) -> Tensor:
        """A mask as it is registered. Raises RuntimeError where something else was put in its place."""
        name, shape = mask_name(parameter, suffix), self._shapes[self._suffixes.index(suffix)][parameter.attribute]
        mask = getattr(self, name)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != shape:
            raise RuntimeError(f"{self.spec.name}: {name} must be torch.bool {list(shape)}, got: {_said_of(mask)}")
        check_memory(mask)
        return mask

    def _mask(self, parameter: ParameterSpec, suffix: str) -> Tensor:
        """A mask, as a tensor of this process: where it is a DTensor, the local part."""
        mask: Any = self._own_mask(parameter, suffix)
        return mask if distributed(mask) is None else mask.to_local()  # type: ignore[no-any-return]

    def _value_of(self, parameter: ParameterSpec, suffix: str) -> Tensor:
        """A parameter as equations read it: with zeros where its mask says so."""
        tensor: Tensor = getattr(self, parameter.attribute + suffix)
        if parameter.sparsity is None:
            return tensor
        check_memory(tensor)
        return torch.where(self._own_mask(parameter, suffix), tensor, 0)

    def set_mask(self, name: str, mask: Tensor, layer: int = 0, *, reverse: bool = False) -> None:
        """Take another mask for a sparse group (`R`), or for one of its matrices (`R_i`), of one layer and direction.

        `mask` is boolean and has the shape of the parameter, or of the matrix in `gate_parameters()`. What it leaves
        out becomes zero, and what comes back begins at zero. The next call reads the new mask, and so does a program
        that torch.compile has made before. Optimisers keep their state. Warns, once in a layer's life, where a mask is
        clearly denser than the cell says; to know that, the host waits for the mask's device. Raises ValueError.
        """
        suffix, sizes = self._place(layer, reverse)
        # By name: the part of our mask that it stands for, and the parameter.
        kept: dict[str, tuple[Tensor, ParameterSpec]] = {}
        for parameter in self._sparse():
            whole = self._mask(parameter, suffix)
            kept[parameter.name] = whole, parameter
            for member, rows in members_of(parameter, whole, sizes):
                kept[member.name] = gate_view(parameter, member, rows, sizes), parameter
        if name not in kept:
            known = f"the sparse weights are {', '.join(kept)}" if kept else "none of its weights is sparse"
            raise ValueError(f"set_mask: {self.spec.name} has no sparse weights {name!r}; {known}")
        place, parameter = kept[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != place.shape:
            raise ValueError(
                f"set_mask: the mask of {name} must be torch.bool {list(place.shape)}, got: {_said_of(mask)}"
            )
        given = mask.clone()  # it may be a view of the mask that it replaces
        self._zero_masked()  # an optimiser with momentum may have moved what comes back now
        place.copy_(given)
        self._zero_masked()
        self._look_at_density(parameter, suffix, sizes, mask)

    def _look_at_masks(self) -> None:
        """Look at the density of masks that were changed since the last look: by `set_mask`, in place, or by
        torch.nn.utils.prune. Where nothing has changed, the host does not wait. A compiled call keeps the kernels that
        it was compiled with."""
        if not self.spec.denser or torch.compiler.is_compiling():
            return
        for parameter, sizes, suffix in self._places():
            now = self._marks_of(parameter, suffix)
            if now and now != self._looked_at.get((parameter.name, suffix)):
                self._look_at_density(parameter, suffix, sizes)

    def _look_at_density(
        self, parameter: ParameterSpec, suffix: str, sizes: Sizes, given: Tensor | None = None
    ) -> None:
        """See whether a mask is clearly denser than the cell says. Then dense kernels run, and there is a warning, once
        in a layer's life. `given` is the part of the mask that a caller has just set: then the warning waits until such
        a part is too dense by itself. Callers set gate after gate, and the gates to come still have every element."""
        most = most_density(parameter, sizes)
        if most >= 1 or not self._marks_of(parameter, suffix):
            return
        whole = functools.reduce(torch.logical_and, self._masks_of(parameter, suffix))
        share = density_of(parameter, whole, sizes)
        self._note_density(parameter, suffix, share > most)
        if share <= most or self._told_denser or not warns_of_slow_paths():
            return
        if given is not None and int(given.sum()) <= most * given.numel():
            return
        self._told_denser = True
        assert parameter.sparsity is not None
        warnings.warn(
            f"{self.spec.name}: the mask of {parameter.attribute + suffix} has {share:.1%} of the elements, and the "
            f"cell plans for {parameter.sparsity.density:.1%}: GPUs run dense kernels, which may be many times slower. "
            f"layer.sparsify({parameter.name!r}) makes a layer that is planned for its masks, and so does another "
            "density in the cell's text (RNNCC_LOG=error hides this)",
            stacklevel=3,
        )

    def _note_density(self, parameter: ParameterSpec, suffix: str, is_denser: bool) -> None:
        """Note whether a mask is clearly denser than the cell says. Later calls choose kernels by that."""
        self._looked_at[parameter.name, suffix] = self._marks_of(parameter, suffix)
        self._is_denser[parameter.name, suffix] = is_denser
        self._tell_denser()

    def _tell_denser(self) -> None:
        """Say in the sizes, which the ops are given, whether masks are clearly denser."""
        if not self._is_denser:
            return
        # The directions of a layer run together, so one mask counts for both.
        for sizes, own in zip(self._sizes, self._suffixes, strict=True):
            pair = {own.removesuffix("_reverse"), own.removesuffix("_reverse") + "_reverse"}
            sizes[self.spec.denser] = int(any(found for (_, of), found in self._is_denser.items() if of in pair))

    def _masks_of(self, parameter: ParameterSpec, suffix: str) -> list[Tensor]:
        """The masks that a parameter has together: its own, and that of torch.nn.utils.prune."""
        pruning = self._buffers.get(f"{parameter.attribute}{suffix}_mask")
        return [self._mask(parameter, suffix), *([] if pruning is None else [pruning])]

    def _marks_of(self, parameter: ParameterSpec, suffix: str) -> tuple[int, ...]:
        """Numbers that change when a mask does; none where the host cannot read it."""
        masks = self._masks_of(parameter, suffix)
        if not all(map(_can_be_read, masks)):
            return ()
        return tuple(n for mask in masks for n in (mask.data_ptr(), -1 if mask.is_inference() else mask._version))

    def gate_masks(self, layer: int = 0, *, reverse: bool = False) -> dict[str, Tensor]:
        """The masks of one layer's sparse matrices, by the names and in the shapes of `gate_parameters()`."""
        suffix, sizes = self._place(layer, reverse)
        found: dict[str, Tensor] = {}
        for parameter in self._sparse():
            for member, rows in members_of(parameter, self._mask(parameter, suffix), sizes):
                found[member.name] = gate_view(parameter, member, rows, sizes)
        return found

    def _take_masks(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Bring what pruned and dense layers save into our form, in place. `weight_hh_l0_orig` and `weight_hh_l0_mask`
        of torch.nn.utils.prune become the parameter and its mask. Without a mask, elements that are not zero exist."""
        for parameter, _, suffix in self._places():
            name, mask = prefix + parameter.attribute + suffix, prefix + mask_name(parameter, suffix)
            pruned = f"{name}_orig" in state_dict and f"{name}_mask" in state_dict
            if pruned and not hasattr(self, f"{parameter.attribute}{suffix}_orig"):
                kept = state_dict.pop(f"{name}_mask")
                state_dict[name] = state_dict.pop(f"{name}_orig") * kept
                state_dict.setdefault(mask, kept != 0)
            if mask not in state_dict and isinstance(state_dict.get(name), Tensor):
                state_dict[mask] = state_dict[name] != 0
            kept = state_dict.get(mask)
            if isinstance(kept, Tensor) and kept.dtype != torch.bool:
                state_dict[mask] = kept != 0  # `assign=True` would take it as it is

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        self._take_masks(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        self._zero_masked()
        for parameter, sizes, suffix in self._places():
            self._look_at_density(parameter, suffix, sizes)

    def _describe_masks(self) -> Iterator[str]:
        """The lines of `explain` about masks."""
        for parameter in self._sparse():
            mask = self._mask(parameter, self._suffixes[0])
            assert parameter.sparsity is not None
            share = "" if mask.is_meta or not mask.numel() else f", {mask.float().mean().item():.1%} of the elements"
            density = parameter.sparsity.density
            yield f"  {parameter.attribute}: sparse{share}" + (f", planned for {density:.1%}" if density < 1 else "")

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


def _said_of(mask: object) -> str:
    return f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)


def mask_name(parameter: ParameterSpec, suffix: str) -> str:
    """`weight_hh_mask_l0` of `weight_hh_l0`."""
    return f"{parameter.attribute}_mask{suffix}"


def _can_be_read(mask: Tensor) -> bool:
    """Whether a mask has values that the host may wait for. Under torch.func's transforms it may stand for many, and
    the eager fallback runs."""
    if torch._C._are_functorch_transforms_active():
        return False
    captured = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    return type(mask) is Tensor and not (mask.is_meta or captured or torch.compiler.is_compiling())


def shard_of(tensor: Any, mask: Tensor) -> Tensor | None:
    """The part of a mask that goes with this process's part of a DTensor, without communication. None for other kinds
    of tensors, and for placements other than Replicate and Shard."""
    tensors = distributed(tensor)
    if tensors is None or not all(type(p) in (tensors.Replicate, tensors.Shard) for p in tensor.placements):
        return None
    mesh = tensor.device_mesh
    whole = tensors.DTensor.from_local(mask, mesh, [tensors.Replicate()] * mesh.ndim, run_check=False)
    found: Tensor = whole.redistribute(mesh, tensor.placements).to_local()
    return found


def check_sparsity(cell: CellSpec, parameter: ParameterSpec, sizes: Sizes) -> None:
    """Raise ValueError where blocks do not divide a matrix, or where a drawn mask would leave nothing of a row."""
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
    if sparsity.drawn and kept_per_row(parameter, columns) < 1:
        raise ValueError(
            f"{cell.name}: a density of {sparsity.density:g} leaves nothing of a row of {columns} elements"
        )


def density_of(parameter: ParameterSpec, mask: Tensor, sizes: Sizes) -> float:
    """The share of the elements that a mask keeps, in the head that has most. It counts all gates together, since a
    kernel divides the elements of all gates among its threads. Waits for the mask's device."""
    heads = blocks_of(parameter, sizes)
    kept = torch.stack(
        [rows.reshape(member.k, heads, -1).sum((0, 2)) for member, rows in members_of(parameter, mask, sizes)]
    )
    return float(kept.sum(0).max()) * heads / max(mask.numel(), 1)


def most_density(parameter: ParameterSpec, sizes: Sizes) -> float:
    """The density beyond which a mask is clearly denser than the cell says: a tenth more, or what rows have that are
    rounded up to whole elements (or blocks)."""
    sparsity = parameter.sparsity
    assert sparsity is not None and parameter.columns is not None
    columns = parameter.columns(sizes) // blocks_of(parameter, sizes)
    in_blocks = columns / sparsity.block
    return max(_CLEARLY * sparsity.density, math.ceil(sparsity.density * in_blocks) / in_blocks)


def kept_per_row(parameter: ParameterSpec, columns: int) -> int:
    """How many elements (or blocks) of a row of a head's matrix a drawn mask keeps."""
    assert parameter.sparsity is not None
    return round(parameter.sparsity.density * columns / parameter.sparsity.block)


@torch.no_grad()
def draw(parameter: ParameterSpec, mask: Tensor, sizes: Sizes) -> None:
    """Draw a mask: in each row of each gate and head, as many elements (or blocks) as the density says."""
    assert parameter.sparsity is not None
    size, columns = parameter.sparsity.block, mask.shape[1]
    # Blocks divide each gate's rows in each head.
    scores = torch.rand(mask.shape[0] // size, columns // size, dtype=torch.float32, device=mask.device)
    chosen = scores.topk(kept_per_row(parameter, columns), dim=1).indices
    drawn = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
    mask.copy_(drawn.repeat_interleave(size, 0).repeat_interleave(size, 1))
