"""`layer.sparsify("R")`: what becomes of a layer, and of the parameters that it hands over."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from .. import package
from ..spec import ParameterSpec
from .parameters import ordered
from .sparsity import SparseWeights, density_of, mask_name

# The least density that a cell says: a mask may leave nothing at all.
_LEAST = 0.001


def sparsify(module: SparseWeights, groups: tuple[str, ...]) -> Any:
    """See `RecurrentModule.sparsify`."""
    made_as: Any = next(base for base in type(module).__mro__ if "spec" in vars(base))
    own = made_as.__name__
    if type(module) is not made_as:
        raise TypeError(
            f"sparsify: {type(module).__name__} derives from {own}, and the result would not; give a {own}, before "
            "fully_shard and parametrizations"
        )
    wanted = _parameters(module, groups)
    masks = {
        parameter.name: {suffix: _mask(module, parameter, suffix) for suffix in module._suffixes}
        for parameter in wanted
    }
    densities = {
        parameter.name: planned(
            max(
                density_of(parameter, masks[parameter.name][suffix], sizes)
                for suffix, sizes in zip(module._suffixes, module._sizes, strict=True)
            )
        )
        for parameter in wanted
    }
    sparse = getattr(package.masked(module.spec, densities), own)
    names = [parameter.attribute + suffix for parameter in wanted for suffix in module._suffixes]
    made = sparse.__new__(sparse)
    made.__setstate__(_state(module, sparse, names))
    made._sizes = [{**sizes, made.spec.denser: 0} for sizes in made._sizes]
    made._is_denser, made._looked_at, made._told_denser = {}, {}, False
    for parameter in wanted:
        for suffix, mask in masks[parameter.name].items():
            made.register_buffer(mask_name(parameter, suffix), mask)
    hooks: Iterable[Any] = made._load_state_dict_pre_hooks.values()
    for hook in hooks:
        if hook.with_module:
            hook.module = weakref.ref(made)
    made._zero_masked()
    return made


def planned(density: float) -> float:
    """The density that a cell says for a mask of that density: two digits, so that masks which differ by an element or
    two share a build. It may be one per cent too low, since kernels have room for that; otherwise it is rounded up."""
    enough = max(density / 1.01, _LEAST)
    unit = 10.0 ** (math.floor(math.log10(enough)) - 1)
    return min(float(f"{math.ceil(enough / unit - 1e-9) * unit:.2g}"), 1.0)


def _parameters(module: SparseWeights, groups: tuple[str, ...]) -> list[ParameterSpec]:
    """The parameters of these groups. Raises TypeError, ValueError."""
    if not groups or not all(isinstance(name, str) for name in groups):
        raise TypeError(f"sparsify takes names of groups, as sparsify('R'), got: {groups!r}")
    # What the compiler names are the factors of a group of low rank.
    matrices = {p.name: p for p in ordered(module.spec, bias=True) if p.columns is not None and "__" not in p.name}
    for name in groups:
        if any(size.name == f"{name}__rank" for size in module.spec.sizes):
            raise ValueError(f"sparsify: {name} of {module.spec.name} is of low rank, and takes no mask")
        if name not in matrices:
            known = f"it has {', '.join(matrices)}" if matrices else "it has none that can take a mask"
            raise ValueError(f"sparsify: {module.spec.name} has no matrices {name!r}; {known}")
    return [matrices[name] for name in dict.fromkeys(groups)]


def _mask(module: SparseWeights, parameter: ParameterSpec, suffix: str) -> Tensor:
    """The mask of a parameter: that of torch.nn.utils.prune, its own, or what both keep. A parameter with neither keeps
    its elements that are not zero. Raises ValueError."""
    name = parameter.attribute + suffix
    found = (module._parameters if parameter.trained else module._buffers).get(name)
    pruning = module._buffers.get(f"{name}_mask") if f"{name}_orig" in module._parameters else None
    if found is None and pruning is None:
        raise ValueError(f"sparsify: {name} is computed from other parameters; make it a parameter again")
    kept = [mask != 0 for mask in (pruning,) if mask is not None]
    if parameter.sparsity is not None:
        kept.append(getattr(module, mask_name(parameter, suffix)))
    elif found is not None:
        kept.append(found.detach() != 0)
    mask = kept[0] if len(kept) == 1 else kept[0] & kept[1]
    if type(mask) is not Tensor or mask.is_meta:
        raise ValueError(
            f"sparsify: {name} has no values in this process (the meta device, fully_shard): sparsify first"
        )
    return mask.clone()


def _state(module: nn.Module, made_as: Any, names: list[str]) -> dict[str, Any]:
    """The contents of the layer to be made: those of `module`, with the pruning of these parameters undone. Parameters
    are the same objects, in the order in which a new layer has them."""
    state = dict(vars(module))
    state.pop("_compiled_call_impl", None)  # `module.compile()` made it: it calls `module`
    parameters, buffers = dict(module._parameters), dict(module._buffers)
    for name in names:
        if f"{name}_orig" in parameters:
            parameters[name] = parameters.pop(f"{name}_orig")
            del buffers[f"{name}_mask"]
            state.pop(name, None)  # `prune` keeps the product of both as an attribute
    own = ordered(made_as.spec, bias=state["bias"])
    order = [parameter.attribute + suffix for suffix in state["_suffixes"] for parameter in own]
    rank = {name: i for i, name in enumerate(order)}
    state["_parameters"] = dict(sorted(parameters.items(), key=lambda item: rank.get(item[0], len(rank))))
    state["_buffers"], state["_modules"] = buffers, dict(module._modules)
    state["_non_persistent_buffers_set"] = set(module._non_persistent_buffers_set)
    hooks = module._forward_pre_hooks
    kept = {key: hook for key, hook in hooks.items() if getattr(hook, "_tensor_name", None) not in names}
    if len(kept) < len(hooks):
        # Where no hook goes, both layers share the dictionary, so that handles of hooks can still remove them.
        state["_forward_pre_hooks"] = type(hooks)(kept)
    return state
