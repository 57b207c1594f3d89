"""Layers and single steps whose packed weights are kept between calls: `freeze`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import package
from .whole import WHOLE_DTYPES, Layout, WholeOps


class Frozen:
    """The packed weights of a layer, and the signs that they are still those of its parameters: the same objects, at
    the same place in memory, which no operation of torch's has written into."""

    def __init__(self, layout: Layout, ops: WholeOps, tensors: Sequence[Tensor]) -> None:
        """`tensors`: the parameters, in the layout's order."""
        self._places = sorted({place for place, members in layout.members if members})
        self._parameters = [tensors[place] for place in self._places]
        self._signs = [(tensor._version, tensor.data_ptr()) for tensor in self._parameters]
        with torch.no_grad():
            self._packed = [
                ops.pack(tensors[place].detach(), members) if members else tensors[place].new_empty(0)
                for place, members in layout.members
            ]

    def packed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The packed weights for a call with `tensors`, x and then the parameters; none where these have changed."""
        for place, parameter, sign in zip(self._places, self._parameters, self._signs, strict=True):
            tensor = tensors[1 + place]
            if tensor is not parameter or (tensor._version, tensor.data_ptr()) != sign:
                return ()
        return self._packed


class Freezable(nn.Module):
    """The part of layers and single steps that has to do with `freeze`."""

    # What the op of a whole layer is told of this one; None where there is no such op.
    _whole: Layout | None = None
    # The packed weights of a frozen layer.
    _frozen: Frozen | None = None

    def freeze(self) -> Any:
        """Keep the weights packed between calls, for decoding with few steps a call on the CPU. Returns the module.

        Calls without gradients then read the packed weights, where one op makes the call (whole.py); for other calls
        nothing changes. `unfreeze`, `train()`, `load_state_dict` and what goes through every parameter (`to`, `half`)
        undo it. Parameters that are replaced, or written into by operations that count versions, are seen at the next
        call, which reads them as they are until `freeze` is called again. Nothing sees what is written past the
        counters: through `.data` or NumPy, or by another process into shared memory.

        Raises RuntimeError while the module trains, and for parameters that were made in inference_mode."""
        if self.training:
            raise RuntimeError(f"{type(self).__name__}.freeze is for inference: call eval() first")
        self._frozen = None
        layout, (kernels, _) = self._whole, package.kernels()
        if layout is None or kernels is None:
            return self
        found = [self._parameters.get(name) for name in layout.names]
        tensors = [t for t in found if type(t) is nn.Parameter and t.is_cpu and t.dtype in WHOLE_DTYPES]
        if len(tensors) < len(found):
            return self
        if any(tensor.is_inference() for tensor in tensors):
            raise RuntimeError("freeze: parameters that were made in inference_mode count no versions")
        self._frozen = Frozen(layout, kernels.whole[layout.segment], tensors)
        return self

    def unfreeze(self) -> Any:
        """Undo `freeze`. Returns the module."""
        self._frozen = None
        return self

    def train(self, mode: bool = True) -> Any:
        """See torch.nn.Module. Training undoes `freeze`."""
        if mode:
            self._frozen = None
        return super().train(mode)

    def _apply(self, *arguments: Any, **keywords: Any) -> Any:
        self._frozen = None
        return super()._apply(*arguments, **keywords)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        self._frozen = None
        super()._load_from_state_dict(*arguments, **keywords)
