"""Layers and single steps that keep between calls what they make of their weights: `freeze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import package
from ..arguments.tensors import without_autocast
from ..spec import CellSpec
from .directions import compute
from .whole import Layout, WholeOps, is_watched

_PACKED_DTYPES = (torch.float32, torch.float64)


class Frozen:
    """What was made of parameters, and the signs that these are as they were: the same objects, at the same place in
    memory, which no operation of torch's has written into."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._signs = [(tensor._version, tensor.data_ptr()) for tensor in parameters]
        # While their memory is held, other data of theirs has another place.
        self._memory = [tensor.detach() for tensor in parameters]

    def holds_for(self, tensors: Sequence[Tensor | None]) -> bool:
        """Whether these are the parameters, and are as they were."""
        for tensor, parameter, sign in zip(tensors, self._parameters, self._signs, strict=True):
            if tensor is not parameter or (tensor._version, tensor.data_ptr()) != sign:
                return False
        return True

    def packed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The packed weights for a call with `tensors`, x and then the parameters; none where these have changed."""
        return ()


class PackedWeights(Frozen):
    """The packed weights of a layer whose calls one op makes."""

    def __init__(self, layout: Layout, ops: WholeOps, tensors: Sequence[Tensor]) -> None:
        """`tensors`: the parameters, in the layout's order."""
        self._places = sorted({place for place, members in layout.members if members})
        super().__init__([tensors[place] for place in self._places])
        with torch.no_grad():
            self._packed = [
                ops.pack(tensors[place].detach(), members) if members else tensors[place].new_empty(0)
                for place, members in layout.members
            ]

    def packed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """See Frozen."""
        return self._packed if self.holds_for([tensors[1 + place] for place in self._places]) else ()


class Matrices(Frozen):
    """What each layer and direction computes of its parameters before its loops, such as the exponential of a matrix.
    `names`: of the parameters and buffers of the module that this depends on; `values`: what was computed, by name."""

    def __init__(
        self, names: Sequence[str], tensors: Sequence[Tensor], constants: Mapping[str, float],
        values: Sequence[Mapping[str, Tensor]],
    ) -> None:  # fmt: skip
        super().__init__(tensors)
        self._names, self._constants, self._values = names, dict(constants), values

    def values_of(self, module: Freezable) -> Sequence[Mapping[str, Tensor]] | None:
        """The same for a call without gradients; None where anything has changed."""
        same = module.constants == self._constants and self.holds_for(_held(module, self._names))
        return self._values if same else None


class Freezable(nn.Module):
    """The part of layers and single steps that has to do with `freeze`."""

    # What the op of a whole layer is told of this one; None where there is no such op.
    _whole: Layout | None = None
    # What a frozen module keeps.
    _frozen: Frozen | None = None
    spec: ClassVar[CellSpec]
    bias: bool
    constants: dict[str, float]
    _suffixes: list[str]
    _sizes: list[dict[str, int]]

    def freeze(self) -> Any:
        """Keep between calls what is made of the weights: functions of matrices, such as the exponential, and for
        decoding with few steps a call on the CPU packed weights. Returns the module.

        Calls without gradients then read the functions of matrices, or where one op makes the call (whole.py) the
        packed weights; for other calls nothing changes. `unfreeze`, `train()`, `load_state_dict` and what goes through
        every parameter (`to`, `half`) undo it. Parameters that are replaced, or written into by operations that count
        versions, are seen at the next call, which reads them as they are until `freeze` is called again. Nothing sees
        what is written past the counters: through `.data` or NumPy, by a fused optimiser, or by another process into
        shared memory.

        Raises RuntimeError while the module trains, and for parameters that were made in inference_mode."""
        if self.training:
            raise RuntimeError(f"{type(self).__name__}.freeze is for inference: call eval() first")
        self._frozen = None if is_watched() else self._packed_weights() or self._matrices()
        return self

    def _packed_weights(self) -> PackedWeights | None:
        layout, (kernels, _) = self._whole, package.kernels()
        if layout is None or kernels is None or layout.made:
            return None
        found = [self._parameters.get(name) for name in layout.names]
        tensors = [t for t in found if type(t) is nn.Parameter and t.is_cpu and t.dtype in _PACKED_DTYPES]
        if len(tensors) < len(found):
            return None
        _check_versions(tensors)
        return PackedWeights(layout, kernels.whole[layout.segment], tensors)

    def _matrices(self) -> Matrices | None:
        # What something else computes at each call, such as a parametrization, is none of these.
        names = [
            parameter.attribute + suffix
            for suffix in self._suffixes for parameter in self.spec.parameters if self.bias or not parameter.is_bias
        ]  # fmt: skip
        names += [name for name in self._buffers if name not in names]
        tensors = [each for each in _held(self, names) if each is not None and type(each) in (nn.Parameter, Tensor)]
        if not tensors or len(tensors) < len(names):
            return None
        first, found = self.spec.inputs[0].name, []
        with torch.no_grad(), without_autocast(tensors[0]):
            for place, sizes in enumerate(self._sizes):
                values = {first: tensors[0]}
                compute(self.spec, values, self._parameters_of(place, tensors[0]), self.constants, sizes)
                found.append({name: value for name, value in values.items() if name != first})
        if not any(found):
            return None
        _check_versions(tensors)
        return Matrices(names, tensors, self.constants, found)

    def _parameters_of(self, place: int, like: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def _kept_matrices(self) -> Sequence[Mapping[str, Tensor]] | None:
        """What a frozen module has computed of its parameters, for each layer and direction; None where the call must
        compute it."""
        frozen = self._frozen
        if not isinstance(frozen, Matrices) or torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched():
            return None
        return frozen.values_of(self)

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


def _held(module: nn.Module, names: Sequence[str]) -> list[Tensor | None]:
    """The parameters and buffers of these names, each None where the module has none itself."""
    parameters, buffers = module._parameters, module._buffers
    return [parameters[name] if name in parameters else buffers.get(name) for name in names]


def _check_versions(tensors: Sequence[Tensor]) -> None:
    if any(tensor.is_inference() for tensor in tensors):
        raise RuntimeError("freeze: parameters that were made in inference_mode count no versions")
