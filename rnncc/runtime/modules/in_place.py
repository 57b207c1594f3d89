"""A single step that writes its new states into the tensors that it was given: `cell(x, hx, inplace=True)`.

Where one op computes the step on a CPU (whole.py), that op writes there. Any other step is computed as ever, and its
states are then copied: `copy_` tells compilers and traces that the tensors changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..arguments.arguments import read_flag
from ..arguments.inputs import StatesLike, described
from .stand_ins import call_stand_in, find_proxy


def step_in_place(module: Any, input: Tensor, hx: StatesLike, extra: Mapping[str, Tensor], inplace: Any) -> Any:
    """What `module(input, hx, **extra)` returns, with the tensors of hx in place of new ones where `inplace` is true.

    Raises TypeError, ValueError for an hx that cannot be written to, and for an `inplace` that is no bool; RuntimeError
    where autograd records the call or a transform of torch.func is active.
    """
    # Where torch.fx traces a step itself, which it cannot, all arguments are proxies.
    if find_proxy(inplace) is not None:
        return call_stand_in(module, input, hx, extra, time=False)
    if not read_flag("inplace", inplace):
        return module.forward(input, hx, **extra)
    if hx is not None and module._whole is not None and type(input) is Tensor:
        made = module._run_whole(input, hx, extra, True)
        if made is not None:
            return _given_back(module, made, hx)
    if find_proxy(input, hx, *extra.values()) is not None:
        found = call_stand_in(module, input, hx, {**extra, "inplace": True}, time=False)
        assert found is not None
        return found[0]
    cell = module.spec
    targets = _targets(cell.name, hx)
    _check_nothing_is_recorded(module, (input, *targets, *extra.values()))
    result = module.forward(input, hx, **extra)
    is_alone = cell.output == cell.carried(True)[0].name
    states = result if is_alone else result[1]
    values = (states,) if isinstance(states, Tensor) else states
    for state, target, value in zip(cell.carried(True), targets, values, strict=True):
        if target.dtype != value.dtype:
            raise TypeError(
                f"{cell.name}: with inplace=True the state {state.name} must have the dtype {value.dtype} of its new "
                f"value, got {target.dtype}"
            )
    for target, value in zip(targets, _apart(values, targets), strict=True):
        target.copy_(value)
    written = targets[0] if isinstance(states, Tensor) else targets
    return written if is_alone else (result[0], written)


def _given_back(module: Any, made: Sequence[Tensor], hx: Any) -> Any:
    """What a step returns whose op wrote into hx. Autograd learns that these tensors changed."""
    targets = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    increment_version(targets)
    written = targets if len(targets) > 1 else targets[0]
    return (made[0], written) if module._whole.returns_output else written


def _targets(name: str, hx: StatesLike) -> tuple[Tensor, ...]:
    """The tensors of hx. Raises TypeError, ValueError where one cannot be written to, or another is written to with
    it."""
    if hx is None:
        raise ValueError(f"{name}: inplace=True writes into hx, so hx must be given")
    targets = (hx,) if isinstance(hx, Tensor) else hx
    if not isinstance(targets, tuple | list) or not all(isinstance(target, Tensor) for target in targets):
        raise TypeError(f"{name}: inplace=True writes into the tensors of hx, got {described(hx)}")
    # Tensors of compilers and exporters have types of their own, and no addresses.
    is_eager = not torch.compiler.is_compiling()
    for target in targets:
        if is_eager and type(target) is not Tensor:
            raise TypeError(f"{name}: inplace=True writes into plain tensors, got hx of type {type(target).__name__}")
        if not target.is_contiguous():
            raise ValueError(f"{name}: inplace=True writes into contiguous tensors: give hx.contiguous()")
    has_addresses = is_eager and not any(target.is_meta for target in targets)
    places = sorted((target.data_ptr(), target.nbytes) for target in targets) if has_addresses else []
    shared = any(start + length > following for (start, length), (following, _) in pairwise(places))
    if shared or len(set(map(id, targets))) < len(targets):
        raise ValueError(f"{name}: inplace=True writes every state into memory of its own, but tensors of hx share it")
    return tuple(targets)


def _check_nothing_is_recorded(module: Any, tensors: tuple[Any, ...]) -> None:
    """Raises RuntimeError where somebody would need the old states, or could not see that they changed."""
    name = module.spec.name
    if torch.is_grad_enabled() and any(
        isinstance(each, Tensor) and each.requires_grad for each in chain(tensors, module.parameters())
    ):
        raise RuntimeError(
            f"{name}: with inplace=True the old states are lost, which a backward would need: call the step under "
            "torch.no_grad(), or without inplace"
        )
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise RuntimeError(f"{name}: a transform of torch.func takes no inplace=True: call the step without it")


def _apart(values: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> list[Tensor]:
    """The values, none in memory of a target: the eager loop may return an old state, or a view of it, as a new one."""
    if torch.compiler.is_compiling():
        return [value.clone() for value in values]
    memory = {target.untyped_storage().data_ptr() for target in targets}
    return [value.clone() if value.untyped_storage().data_ptr() in memory else value for value in values]
