"""torch.nn's recurrent modules within an existing model, replaced by rnncc's.

model = rnncc.compat.nn.replace(model)
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

import rnncc
from rnncc.compat.instances import KINDS, STEPS, Module, instance_of, is_ours
from rnncc.runtime.modules.cell import RecurrentCell
from rnncc.runtime.modules.layer import RecurrentLayer

# What nn.RNNBase keeps of its weights, beside the parameters.
_KEPT = frozenset({"_flat_weights", "_flat_weights_names", "_flat_weight_refs", "_all_weights"})

# What the layer has from the module, so that it is no option.
_OF_MODULE = frozenset(
    (
        "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size",
        "num_heads", "device", "dtype", "reverse",
    )
)  # fmt: skip
# Options that single steps have not.
_OF_LAYERS = frozenset(
    inspect.signature(RecurrentLayer.__init__).parameters.keys()
    - inspect.signature(RecurrentCell.__init__).parameters.keys()
)
Classes = type[Module] | Iterable[type[Module]]


@dataclass(frozen=True, slots=True)
class Found:
    """A recurrent module of a model: `names`, all of them where it is shared; `kind`, its class; `cell`, the class of a
    shipped cell that replaces it, or "" and `why_not`."""

    names: tuple[str, ...]
    kind: str
    cell: str
    why_not: str = ""

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.names)
        return f"{names}: {self.kind} -> {self.cell}" if self.cell else f"{names}: {self.kind} stays: {self.why_not}"


def survey(model: nn.Module, *, subclasses: Classes = (), as_nn: bool = False) -> tuple[Found, ...]:
    """Every nn.LSTM, nn.GRU and nn.RNN of a model, and every nn.LSTMCell, nn.GRUCell and nn.RNNCell (the model itself
    has the name ""), in the order of its modules, and what `replace` would do with it. Nothing changes. Raises
    TypeError for arguments of other kinds."""
    named = _classes(subclasses)
    return tuple(_found(module, names, named, as_nn) for module, names in _recurrent(model))


def replace(
    model: nn.Module,
    *,
    keep: Iterable[str] = (),
    subclasses: Classes = (),
    as_nn: bool = False,
    **options: Any,
) -> nn.Module:
    """Put rnncc's layer in the place of every nn.LSTM, nn.GRU and nn.RNN, and its single step in that of every
    nn.LSTMCell, nn.GRUCell and nn.RNNCell, in place, and return the model; a model that is itself such a module is
    returned anew.

    A layer takes over the Parameter objects under their names, so that optimisers, shared weights and state dicts of
    the model stay what they are; with them hooks, the training flag and attributes that were set on the module.

    Args:
        keep: names of modules that stay as they are.
        subclasses: classes derived from torch.nn's whose instances are to be replaced, too. One that has methods of
            its own needs `as_nn`.
        as_nn: the layers are instances of torch.nn's classes, `isinstance(layer, nn.LSTM)`, with `_flat_weights` and
            `_all_weights`. An instance of a derived class keeps its class's methods, whose `super().forward(...)` is
            then rnncc's.
        options: keywords of rnncc's layers (`recompute=True`, `state_dtype=…`, `recurrent_gradient_clip=…`), other than
            those that the module decides (sizes, dtype, device, heads). Single steps get those that they have.

    Raises:
        TypeError: for arguments of other kinds, and options that the module decides.
        ValueError: for modules that cannot be replaced, all of them, and for unknown names in `keep`; nothing has
            changed then.
    """
    if isinstance(keep, str):
        raise TypeError(f"keep should be several names, such as ({keep!r},), got a str")
    if given := sorted(_OF_MODULE.intersection(options)):
        raise TypeError(f"replace() takes no {', '.join(given)}: a layer has what its module has, and one head")
    named = _classes(subclasses)
    modules = list(_recurrent(model))
    kept = set(keep)
    unknown = kept - {name for _, names in modules for name in names}
    if unknown:
        raise ValueError(f"keep: the model has no recurrent module {', '.join(map(repr, sorted(unknown)))}")
    wanted = [
        (module, _found(module, names, named, as_nn)) for module, names in modules if not kept.intersection(names)
    ]
    problems = [str(found) for _, found in wanted if not found.cell]
    if problems:
        raise ValueError(
            "these modules cannot be replaced; name them in keep= to leave them as they are:\n  "
            + "\n  ".join(problems)
        )
    made = [(found, _layer(module, found.cell, as_nn, options)) for module, found in wanted]
    for found, layer in made:
        hooks: Iterable[Any] = layer._load_state_dict_pre_hooks.values()
        for hook in hooks:
            if hook.with_module:
                hook.module = weakref.ref(layer)
        for name in found.names:
            if not name:
                return layer
            parent, _, own = name.rpartition(".")
            model.get_submodule(parent)._modules[own] = layer
    return model


def _classes(given: Classes) -> tuple[type[Module], ...]:
    """`subclasses`, checked."""
    classes = (given,) if isinstance(given, type) else tuple(given)
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, KINDS):
            raise TypeError(
                f"subclasses should be classes derived from nn.LSTM, nn.GRU, nn.RNN or their cells, got: {one!r}"
            )
    return classes


def _recurrent(model: nn.Module) -> Iterator[tuple[Module, tuple[str, ...]]]:
    """Each recurrent module once, with all its names."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model should be an nn.Module, got: {model!r}")
    names: dict[Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, KINDS) and not is_ours(module):
            names.setdefault(module, []).append(name)
    yield from ((module, tuple(all_names)) for module, all_names in names.items())


def _found(module: Module, names: tuple[str, ...], subclasses: tuple[type[Module], ...], as_nn: bool) -> Found:
    kind = next(kind for kind in KINDS if isinstance(module, kind))
    own = type(module)
    called = f"nn.{own.__name__}" if own is kind else own.__name__
    why_not = _why_not(module, kind, subclasses, as_nn)
    return Found(names, called, "" if why_not else _cell(module, kind), why_not)


def _cell(module: Any, kind: type[Module]) -> str:
    """The class of the cell with nn's gates, two biases and all."""
    if kind in STEPS:
        relu = kind is nn.RNNCell and module.nonlinearity == "relu"
        return "nn_RNN_reluCell" if relu else f"nn_{kind.__name__}"
    if kind is nn.LSTM:
        return "nn_LSTMP" if module.proj_size else "nn_LSTM"
    if kind is nn.GRU:
        return "nn_GRU"
    return "nn_RNN" if module.mode == "RNN_TANH" else "nn_RNN_relu"


def _why_not(module: Module, kind: type[Module], subclasses: tuple[type[Module], ...], as_nn: bool) -> str:
    if parametrize.is_parametrized(module):
        return "its parameters are parametrized; replace first, and parametrize the layer"
    if type(module) is not kind:
        own = _own_methods(type(module), kind)
        keeps = f" and as_nn=True, which keeps {', '.join(own)}" if own else ""
        if not isinstance(module, subclasses):
            return f"it derives from nn.{kind.__name__}: give its class in subclasses={keeps}"
        if own and not as_nn:
            return f"it derives from nn.{kind.__name__}, and would lose {', '.join(own)}: as_nn=True keeps them"
    if "forward" in vars(module):
        return "its forward is another than its class's"
    extra = [*module._buffers, *module._modules]
    parameters = {name for name, parameter in module._parameters.items() if parameter is not None}
    extra += sorted(parameters ^ _weights(module))
    if extra:
        return f"its parameters, buffers and submodules are not its class's: {', '.join(extra)}"
    return ""


def _weights(module: Module) -> set[str]:
    """The names of the parameters that torch.nn gives such a module."""
    if isinstance(module, nn.RNNBase):
        return {name for names in module._all_weights for name in names}
    return {"weight_ih", "weight_hh"} | ({"bias_ih", "bias_hh"} if module.bias else set())


def _own_methods(own: type[Module], kind: type[Module]) -> list[str]:
    """What a class derived from torch.nn's, or the classes between, define beside a constructor."""
    between = own.__mro__[: own.__mro__.index(kind)]
    names = {name for base in between for name in vars(base)}
    kept = {"__call__", "__getattr__", "__setattr__", "__getstate__", "__setstate__"}
    return sorted(name for name in names if name in kept or not name.startswith(("__", "_abc_")))


def _layer(module: Any, made_as: str, as_nn: bool, options: dict[str, Any]) -> nn.Module:
    """The layer or single step in the place of a module."""
    cells = rnncc.load(made_as.removesuffix("Cell").lower())
    # On the meta device nothing is drawn for values that are replaced at once.
    given = {"bias": bool(module.bias), "device": "meta", **options}
    layer: Any
    if isinstance(module, STEPS):
        given = {name: value for name, value in given.items() if name not in _OF_LAYERS}
        layer = getattr(cells, made_as)(module.input_size, module.hidden_size, dtype=module.weight_ih.dtype, **given)
    else:
        layer = getattr(cells, made_as)(
            module.input_size, module.hidden_size, module.num_layers, batch_first=bool(module.batch_first),
            bidirectional=bool(module.bidirectional), proj_size=module.proj_size,
            dtype=module.get_parameter("weight_ih_l0").dtype, **given,
        )  # fmt: skip
        # Set afterwards: for one layer the constructor warns, as the module's own did.
        layer.dropout = float(module.dropout)
    for name, parameter in module._parameters.items():
        setattr(layer, name, parameter)
    for name, value in vars(module).items():
        # The dictionaries themselves, so that the handles of hooks go on to remove them.
        if "_hooks" in name or name == "_is_full_backward_hook" or (name not in _KEPT and name not in vars(layer)):
            vars(layer)[name] = value
    if as_nn:
        layer = instance_of(layer, type(module))
    made: nn.Module = layer.train(module.training)
    return made
