"""What is asked of a tensor before torch's own operators or a kernel may read it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.masked import MaskedTensor
from torch.nn import Parameter


def under_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the tensor's device. torch raises for the meta device, which has none."""
    # `x.device.type` is slow.
    kind = "cpu" if x.is_cpu else "cuda" if x.is_cuda else x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def wide(x: Tensor) -> Tensor:
    """The tensor, in float32 where it has 16 bits."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which torch computes in the dtypes of its operands on the tensor's device."""
    return torch.autocast(x.device.type, enabled=False) if under_autocast(x) else nullcontext()


def is_batched(tensor: Tensor | None) -> bool:
    """Whether the tensor stands for many under vmap. autograd.functional.jacobian(vectorize=True) gives such
    gradients."""
    # Where torch compiles and vmap is active, the loop is torch's own operators anyway.
    if tensor is None or torch.compiler.is_compiling():
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor) and not functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)  # torch.func.grad wraps tensors
    return functorch.is_batchedtensor(tensor) or functorch.is_legacy_batchedtensor(tensor)


def distributed(tensor: object) -> Any:
    """The module torch.distributed.tensor where a tensor is a DTensor, else None. Nobody has one who has not imported
    it."""
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    return tensors if tensors is not None and isinstance(tensor, tensors.DTensor) else None


def under_trace() -> bool:
    """Whether torch.jit.trace is recording."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def is_symbol(size: object) -> bool:
    """Whether a size stands for any number, in a program that is being exported or traced."""
    return isinstance(size, SymInt) or (isinstance(size, Tensor) and under_trace())


def in_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype. Of a cast to the dtype that it has, torch.export would leave an operator behind that is no
    core one."""
    return value if value.dtype == dtype else value.to(dtype)


def in_shape(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What broadcasts to a shape, in that shape, without a copy. A trace expands in any case: the sizes of its example
    may be 1, and those of a later call more."""
    return value if value.shape == shape and not under_trace() else value.expand(shape)


def autocast_dtype(x: Tensor, device: str) -> torch.dtype:
    """The dtype in which a loop on that kind of device gets the tensor. Autocast casts floating dtypes except
    float64."""
    if torch.is_autocast_enabled(device) and x.is_floating_point() and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def check_memory(*tensors: Tensor | None) -> None:
    """Raises RuntimeError for a tensor whose storage was freed (`untyped_storage().resize_(0)`). Such a tensor keeps
    its sizes, so torch's own operators would read memory that is not there."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return
    for tensor in tensors:
        if tensor is None or type(tensor) not in (Tensor, Parameter) or not (tensor.is_cpu or tensor.is_cuda):
            continue
        if not tensor.untyped_storage().nbytes() and tensor.numel():
            raise RuntimeError(f"a tensor of shape {list(tensor.shape)} has no memory: its storage was freed")


def check_readable(*tensors: Tensor) -> None:
    """Raises RuntimeError for tensors of several devices, in the words of the ops, and where `check_memory` does."""
    for tensor in tensors:
        if tensor.device != tensors[0].device:
            raise RuntimeError(
                "Input, hidden and parameter tensors are not at the same device, found tensors at "
                f"{tensors[0].device} and {tensor.device}"
            )
    check_memory(*tensors)


def check_kind(x: Tensor, where: str) -> None:
    """Raises TypeError for a tensor that loops cannot read; the message says what to give instead. `where` names the
    cell."""
    # A nested tensor may be of either layout, a MaskedTensor is dense.
    if x.layout == torch.strided and not x.is_nested and type(x) is not MaskedTensor:
        return
    if x.is_nested:
        raise TypeError(
            f"{where} takes no nested tensor: call layer(x.values(), offsets=x.offsets(), max_length=longest) on the "
            "rows of a jagged one, and make one of the output by "
            "torch.nested.nested_tensor_from_jagged(output, x.offsets()); or give a PackedSequence"
        )
    if isinstance(x, MaskedTensor):
        raise TypeError(f"{where} takes no MaskedTensor: give its data, and lengths= for a mask of padding")
    raise TypeError(f"{where} takes dense tensors, got the layout {x.layout}: call x.to_dense()")
