"""The options of layers and single steps: attributes that are read in the same way by a constructor and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ..arguments.arguments import read_backend, read_clip, read_flag, read_int, read_probability, read_size
from ..spec import CellSpec
from .regularisation import Zoneout


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments that the constructors of layers and single steps share."""

    input_size: int
    hidden_size: int
    bias: bool
    num_heads: int
    state_dtype: torch.dtype | None
    backend: str | None
    recurrent_gradient_clip: float | None
    zoneout: Zoneout
    recurrent_dropout: float | None


class Configured(nn.Module):
    """A module whose options are checked whenever they are set. Those that parameters were made for cannot change."""

    spec: ClassVar[CellSpec]

    def __setattr__(self, name: str, value: Any) -> None:
        # A single step may have a parameter of that name.
        if name in _READERS and name not in self.__dict__.get("_parameters", ()):
            value = _READERS[name](self, name, value)
            before = self.__dict__.get(name, value)
            if name in _FIXED and value != before:
                raise AttributeError(
                    f"{name} of {type(self).__name__} is {before!r} since it was made, and cannot be {value!r}: make "
                    "another one"
                )
        # Not `super()`: where a layer is also an instance of torch.nn's, that is nn.RNNBase, whose method looks for
        # weights.
        nn.Module.__setattr__(self, name, value)

    def _check_options(self) -> None:
        """Check what a state has set. Raises TypeError, ValueError."""
        own = vars(self)
        own.update({name: read(self, name, own[name]) for name, read in _READERS.items() if name in own})


def _plain(read: Callable[[str, Any], Any]) -> Callable[[Configured, str, Any], Any]:
    return lambda module, name, value: read(name, value)


def _hidden_size(module: Configured, name: str, value: Any) -> int:
    if isinstance(value, tuple | list):
        raise TypeError(
            f"{name} should be of type int, got: {type(value).__name__}. All layers of a module have one size; for "
            f"several, stack modules: the first is {type(module).__name__}(input_size, {value[0] if value else '…'})"
        )
    return read_size(name, value)


def _state_dtype(module: Configured, name: str, value: Any) -> torch.dtype | None:
    if value is not None and (not isinstance(value, torch.dtype) or not value.is_floating_point):
        raise TypeError(f"{name} should be a floating-point torch.dtype or None, got: {value!r}")
    return value


def _weight_dropout(module: Configured, name: str, value: Any) -> float:
    p = read_probability(name, value)
    if p and not any(weight.is_matrix for weight in module.spec.loop_weights()):
        raise ValueError(f"{name}: the steps of {module.spec.name} multiply by no matrix")
    return p


_FIXED = frozenset(
    ("input_size", "hidden_size", "num_layers", "num_heads", "proj_size", "bias", "bidirectional", "reverse")
)  # fmt: skip
_FLAGS = (
    "bias", "batch_first", "bidirectional", "reverse", "return_delays", "return_all_layers", "recompute",
)  # fmt: skip
# How the options are read. Each raises TypeError or ValueError, and names the option.
_READERS: dict[str, Callable[[Any, str, Any], Any]] = {
    **dict.fromkeys(("input_size", "num_layers", "num_heads"), _plain(read_size)),
    **dict.fromkeys(_FLAGS, _plain(read_flag)),
    "hidden_size": _hidden_size,
    "proj_size": _plain(read_int),
    "dropout": _plain(read_probability),
    "weight_dropout": _weight_dropout,
    "state_dtype": _state_dtype,
    "backend": lambda module, name, value: read_backend(value),
    "recurrent_gradient_clip": lambda module, name, value: read_clip(value),
    "return_sequences_of": lambda module, name, value: module.spec.returnable(value),
}
