"""Makes rnncc's layers and single steps instances of torch.nn's classes, for code that asks `isinstance(module,
nn.LSTM)` or reads private attributes such as `_flat_weights`."""

from __future__ import annotations

import sys
import types
from typing import Any

from torch import Tensor, nn

from rnncc.runtime.pickling import Origin, origin_of
from rnncc.stages.load import allow

# A module of torch.nn's that rnncc has a layer or a single step for, and the classes of these.
Module = nn.RNNBase | nn.RNNCellBase
STEPS: tuple[type[nn.RNNCellBase], ...] = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
KINDS: tuple[type[Module], ...] = (nn.LSTM, nn.GRU, nn.RNN, *STEPS)


class Instance:
    """What an instance of two classes has of neither."""

    def __setstate__(self: Any, state: Any) -> None:
        nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self._restore()

    def _apply(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self._frozen = None
        return nn.Module._apply(self, *arguments, **keywords)  # type: ignore[no-untyped-call]

    def sparsify(self, *groups: str) -> Any:
        """As a layer's, which this is: the result is an instance of the same class of torch.nn's."""
        origin = origin_of(type(self))
        if origin is None:  # the class derives from one that was made here
            return super().sparsify(*groups)  # type: ignore[misc]
        layer_class, kind = origin[1]
        layer = layer_class.__new__(layer_class)
        vars(layer).update(vars(self))
        return instance_of(layer.sparsify(*groups), kind)


class LayerInstance(Instance):
    """The private attributes of nn.RNNBase about weights. Each is computed from the parameters at every access, so it
    is never out of date."""

    _suffixes: list[str]
    bias: bool
    proj_size: int

    @property
    def _all_weights(self) -> list[list[str]]:
        names = ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ())]
        names += ["weight_hr"] if self.proj_size else []
        return [[name + suffix for name in names] for suffix in self._suffixes]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def _weights_have_changed(self) -> bool:
        return False

    # nn.RNNBase overrides this method of nn.Module to update the attributes above. Here nothing needs an update.
    # (`__setattr__` and what stands in Instance are such methods, too.)
    _replicate_for_data_parallel = nn.Module._replicate_for_data_parallel


# The made classes, by rnncc's class and torch.nn's (or the one derived from torch.nn's).
_CLASSES: dict[tuple[Any, Any], Any] = {}


def is_ours(module: object) -> bool:
    """Whether it is an instance made here."""
    return isinstance(module, Instance)


def instance_of(layer: nn.Module, kind: type[Module]) -> nn.Module:
    """A new object with the layer's contents that is also an instance of `kind`. The old layer must not be used any
    more."""
    made = instance_class(type(layer), kind)
    instance: nn.Module = made.__new__(made)
    # Another `__class__` of the same object would not do: a derived class may have another object layout.
    vars(instance).update(vars(layer))
    return instance


def instance_class(layer_class: Any, kind: Any) -> Any:
    """A class that derives from rnncc's layer class and from `kind`, which is torch.nn's class or one derived from it.
    The derived class keeps its methods, and their `super()` calls reach rnncc's layer. Raises TypeError for
    other classes."""
    if not (isinstance(layer_class, type) and issubclass(layer_class, nn.Module) and hasattr(layer_class, "spec")):
        raise TypeError(f"layer_class must be a class of rnncc's layers, not {layer_class!r}")
    if not (isinstance(kind, type) and issubclass(kind, KINDS)):
        raise TypeError(f"kind must be a recurrent class of torch.nn, or one derived from it, not {kind!r}")
    if (layer_class, kind) in _CLASSES:
        return _CLASSES[layer_class, kind]
    base = next(own for own in KINDS if issubclass(kind, own))
    # torch's list of classes that are safe to load goes by module and qualified name, so each class needs its own.
    name = f"{layer_class.__name__}.{kind.__module__}.{kind.__qualname__}".replace(".", "/")
    origin: Origin = (pickled_class, (layer_class, kind))

    def fill(namespace: dict[str, Any]) -> None:
        names = {"__module__": layer_class.__module__, "__qualname__": name}
        namespace |= {**names, "__doc__": layer_class.__doc__, "_origin": origin}

    own = Instance if base in STEPS else LayerInstance
    made = types.new_class(layer_class.__name__, (own, layer_class, base), exec_body=fill)
    if kind is not base:
        made = types.new_class(kind.__name__, (kind, made), exec_body=fill)
    # cloudpickle takes along what it does not find in the class's module, in place of its origin.
    setattr(sys.modules[layer_class.__module__], name, made)
    _CLASSES[layer_class, kind] = made
    return made


def pickled_class(layer_class: Any, kind: Any) -> Any:
    """`instance_class` as pickles call it: torch.load may make instances of the class."""
    made = instance_class(layer_class, kind)
    allow(made)
    return made
