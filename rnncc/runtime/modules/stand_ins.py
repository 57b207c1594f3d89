"""Calls of a layer or single step with a stand-in for a tensor: a proxy of torch.fx, or a DTensor."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy, Tracer
from torch.utils import _pytree as pytree


def call_stand_in(
    module: nn.Module, input: Any, hx: Any, keywords: Mapping[str, Any], *, batch_first: bool = False, time: bool = True
) -> tuple[Any, ...] | None:
    """Make the call where one of its tensors is a proxy, or its input is a DTensor, and return its result in a tuple of
    one; else return None. With `time` False the module makes a single step.

    Raises TypeError or ValueError where such a call is not possible.
    """
    # The keywords of a module that torch.fx traces itself are a proxy, too.
    proxy = input if isinstance(input, Proxy) else find_proxy(hx, *keywords.values())
    if proxy is not None:
        return (_record(module, proxy.tracer, input, hx, keywords),)
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and isinstance(input, tensors.DTensor):
        batched = input.dim() == 2 + time
        batch = None if not batched else int(time and not batch_first)
        return (_run_sharded(module, input, hx, keywords, batch, int(time)),)
    return None


def find_proxy(*given: Any) -> Proxy | None:
    """A proxy among the arguments of a call, or among the states of an hx."""
    for value in given:
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, Proxy):
                return each
    return None


def _record(module: nn.Module, tracer: Any, input: Any, hx: Any, keywords: Mapping[str, Any]) -> Any:
    """A node that calls the module, as torch.fx makes one of torch.nn's own layers."""
    name = type(module).__name__
    path = tracer.path_of_module(module) if isinstance(tracer, Tracer) else ""
    if not path:
        raise TypeError(f"torch.fx cannot look into {name}: trace a module that holds it, where it is one node")
    given = {key: value for key, value in keywords.items() if value is not None}
    return tracer.create_proxy("call_module", path, (input,) if hx is None else (input, hx), given)


def _run_sharded(
    module: nn.Module, x: Any, hx: Any, keywords: Mapping[str, Any], batch: int | None, state_batch: int
) -> Any:
    """Run this rank's part of the batch with all of the parameters, without communication. The gradients of parameters
    must then be summed over ranks, so they are `Partial`. `batch` and `state_batch` are the batch dimensions of inputs
    and of states; `batch` is None where the input has none."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    name, mesh = type(module).__name__, x.device_mesh
    for placement in x.placements:
        if not isinstance(placement, Replicate) and (batch is None or placement != Shard(batch)):
            wanted = "Replicate()" if batch is None else f"Shard({batch}), the batch, or Replicate()"
            raise ValueError(
                f"{name} takes a DTensor placed as {wanted}, got {placement}: call redistribute() on it first"
            )
    sharded = [not isinstance(placement, Replicate) for placement in x.placements]

    def placed(dim: int) -> list[Any]:
        return [Shard(dim) if split else Replicate() for split in sharded]

    def own(value: Any, what: str, dim: int) -> Any:
        if value is None:
            return None
        if not isinstance(value, DTensor) or value.device_mesh != mesh:
            raise TypeError(f"{name}: the input is a DTensor, so {what} must be one of the same mesh")
        return value.redistribute(mesh, placed(dim)).to_local()

    if keywords.get("offsets") is not None or keywords.get("max_length") is not None:
        raise TypeError(f"{name}: a DTensor cannot hold packed sequences: give lengths=")
    parameters: dict[str, Tensor] = {}
    for key, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor) or parameter.device_mesh != mesh:
            raise TypeError(
                f"{name}: the input is a DTensor, so {key} must be one of the same mesh: call "
                "torch.distributed.tensor.distribute_module(layer, mesh)"
            )
        if not all(isinstance(placement, Replicate) for placement in parameter.placements):
            raise ValueError(f"{name} takes replicated parameters, but {key} is placed as {parameter.placements}")
        parameters[key] = parameter.to_local(grad_placements=[Partial() if split else Replicate() for split in sharded])
    # Masks and the cell's own buffers, which distribute_module replicates, too.
    parameters |= {key: buffer.to_local() for key, buffer in module.named_buffers() if isinstance(buffer, DTensor)}
    states = pytree.tree_map(lambda state: own(state, "hx", state_batch), hx)
    # Lengths and inputs per sequence have no time dimension.
    by_entry = {"lengths", *module.spec.per_sequence}  # type: ignore[union-attr, misc]
    given = {key: own(value, key, 0 if key in by_entry else batch or 0) for key, value in keywords.items()}
    result = torch.func.functional_call(module, parameters, (x.to_local(), states), given)

    def give(value: Tensor, dim: int) -> Any:
        shape = list(value.shape)
        if batch is not None:
            shape[dim] = x.shape[batch]
        whole, value = torch.empty(shape, device="meta"), value.contiguous()
        return DTensor.from_local(value, mesh, placed(dim), run_check=False, shape=whole.shape, stride=whole.stride())

    # The output, the states, and sequences with the output's shape. In a single step all have the same batch dimension.
    parts = result if isinstance(result, tuple) else (result,)
    dims = (batch or 0, state_batch, batch or 0)
    made = tuple(pytree.tree_map(lambda v, d=dim: give(v, d), part) for part, dim in zip(parts, dims, strict=False))
    return made if isinstance(result, tuple) else made[0]
