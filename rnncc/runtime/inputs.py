"""Checks the arguments of a layer's `forward`, and brings them into one form. Messages follow torch.nn.LSTM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.masked import MaskedTensor
from torch.nn import Parameter

from .spec import CellSpec, Sizes

StatesLike = Tensor | Sequence[Tensor] | None
# [T, B], or [T] where the input is unbatched; not 0 (True) where a column starts anew.
Reset = Tensor | Sequence[Sequence[bool]] | Sequence[bool] | None


def active_steps(steps: int, lengths: Tensor) -> Tensor:
    """[T, B]: True where the step belongs to the column."""
    return torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths


def cut_backwards(reset: Tensor, lengths: Tensor | None) -> Tensor:
    """`reset` [T, B] for a loop that runs backwards: the result says before which steps, in that loop's order, a column
    starts anew. A reset at step t cuts between t - 1 and t in either direction, so here it starts step t - 1 anew."""
    cut = torch.cat((reset[1:], torch.zeros_like(reset[:1])))
    return cut if lengths is None else cut & active_steps(reset.shape[0], lengths - 1)


def under_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the tensor's device. torch raises for the meta device, which has none."""
    # `x.device.type` is slow.
    kind = "cpu" if x.is_cpu else "cuda" if x.is_cuda else x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


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


def under_trace() -> bool:
    """Whether torch.jit.trace is recording."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


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


def cast_state(state: Tensor, dtype: torch.dtype, x: Tensor) -> Tensor:
    """A state of hx in the dtype that the loop carries. As in torch.nn, raises RuntimeError where the state has neither
    that dtype nor the input's. Under autocast any dtype but float64 will do."""
    cast = (torch.float32, torch.bfloat16, torch.float16)
    if state.dtype != x.dtype and not (under_autocast(x) and state.dtype in cast and dtype in cast):
        raise RuntimeError(
            f"Input and hidden tensors are not the same dtype, found input tensor with {x.dtype} and hidden tensor "
            f"with {state.dtype}" + (f"; with state_dtype, {dtype} goes too" if dtype != x.dtype else "")
        )
    check_memory(state)
    return state.to(dtype)


def refuse_kind(x: Tensor, where: str) -> None:
    """Raises TypeError for a tensor that loops cannot read; the message says what to give instead. `where` names the
    cell."""
    if x.is_nested:
        raise TypeError(
            f"{where} takes no nested tensor: call layer(x.values(), offsets=x.offsets(), max_length=longest) on the "
            "rows of a jagged one, and make one of the output by "
            "torch.nested.nested_tensor_from_jagged(output, x.offsets()); or give a PackedSequence"
        )
    if isinstance(x, MaskedTensor):
        raise TypeError(f"{where} takes no MaskedTensor: give its data, and lengths= for a mask of padding")
    if x.layout != torch.strided:
        raise TypeError(f"{where} takes dense tensors, got the layout {x.layout}: call x.to_dense()")


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs [T, B, width] by name (x first), lengths [B] (int64) or None, reset [T, B] (bool) or None. `batched` is
    False where the caller's input had no batch."""

    inputs: dict[str, Tensor]
    lengths: Tensor | None
    reset: Tensor | None
    batched: bool


def read_inputs(
    cell: CellSpec,
    sizes: Sizes,
    x: Tensor,
    extra: Mapping[str, Tensor | None],
    lengths: Tensor | Sequence[int] | None,
    reset: Reset,
    *,
    batch_first: bool,
    weight_dtype: torch.dtype | None,
    time: bool = True,
) -> Given:
    """Check all inputs and bring them into the form [T, B, width]. With `time` False, x is one step: [B, width] or
    [width].

    Raises ValueError and RuntimeError as torch.nn.LSTM does, TypeError for missing or unknown inputs, and for tensors
    that are not dense, or not of floating-point numbers.
    """
    most = 3 if time else 2
    # A nested tensor may be of either layout, a MaskedTensor is dense.
    if x.layout != torch.strided or x.is_nested or type(x) is MaskedTensor:
        refuse_kind(x, cell.name)
    dims = x.dim()
    if dims not in (most - 1, most):
        raise ValueError(f"{cell.name}: Expected input to be {most - 1}D or {most}D, got {dims}D instead")
    batched = dims == most
    first, *others = cell.inputs
    if extra:
        _check_names(cell, extra)

    def shaped(value: Tensor, name: str, width: int) -> Tensor:
        if value.dim() != dims:
            raise ValueError(f"{cell.name}: Expected {name} to be {dims}D like the input, got {value.dim()}D instead")
        if value.shape[-1] != width:
            if name == "input":
                raise RuntimeError(
                    f"input.size(-1) must be equal to input_size. Expected {width}, got {value.shape[-1]}"
                )
            raise RuntimeError(f"{name}.size(-1) must be {width}, got {value.shape[-1]}")
        if not time:
            value = value.unsqueeze(0)
        if not batched:
            return value.unsqueeze(1)
        return value.transpose(0, 1) if batch_first else value

    if weight_dtype is not None and x.dtype != weight_dtype and not under_autocast(x):
        raise ValueError(
            f"RNN input dtype ({x.dtype}) does not match weight dtype ({weight_dtype}). "
            f"Convert input: input.to({weight_dtype}), or convert model: model.to({x.dtype})"
        )
    if not x.is_floating_point():
        raise TypeError(f"{cell.name} takes floating-point input, got {x.dtype}")
    inputs = {first.name: shaped(x, "input", first.width(sizes))}
    leading = inputs[first.name].shape[:2]
    for item in others:
        width, given = item.width(sizes), extra.get(item.name)
        if given is None and item.default is not None:
            inputs[item.name] = x.new_full((), item.default).expand(*leading, width)
            continue
        if given is None:
            raise TypeError(f"{cell.name} needs the input {item.name}=, a tensor like the first input [.., {width}]")
        value = shaped(given, item.name, width).to(x.dtype)
        if value.shape[:2] != leading:
            raise RuntimeError(
                f"{item.name} must have the input's steps and batch {tuple(leading)}, got {tuple(value.shape[:2])}"
            )
        inputs[item.name] = value
    if lengths is None and reset is None:
        return Given(inputs, None, None, batched)
    steps, columns = leading
    per_column = read_lengths(lengths, steps, columns, x.device)
    if per_column is not None:
        check_memory(*inputs.values())
        inputs = {name: padded(value, per_column) for name, value in inputs.items()}
    per_step = read_reset(reset, steps, columns, x.device, batched=batched, batch_first=batch_first)
    return Given(inputs, per_column, per_step, batched)


def _check_names(cell: CellSpec, extra: Mapping[str, object]) -> None:
    names = [item.name for item in cell.inputs[1:]]
    for name in extra:
        if name not in names:
            raise TypeError(f"{cell.name} has no input {name!r}" + (f"; it has {', '.join(names)}" if names else ""))


def padded(value: Tensor, lengths: Tensor) -> Tensor:
    """`value` [T, B, width] with each column's last value past its length; ones where the length is 0.

    The caller's padding may be any value, and a function of it may be infinite or NaN (log(0)). Its gradient would then
    be NaN even where the cotangent is 0."""
    if not value.shape[0]:
        return value
    last = (lengths - 1).clamp(min=0).reshape(1, -1, 1).expand(1, *value.shape[1:])
    repeated = torch.where((lengths > 0).unsqueeze(-1), value.detach().gather(0, last), 1)
    return torch.where(active_steps(value.shape[0], lengths).unsqueeze(-1), value, repeated)


def read_lengths(
    lengths: Tensor | Sequence[int] | None, steps: int, columns: int, device: torch.device
) -> Tensor | None:
    """`lengths` as [B] of int64, on `device`. Raises TypeError where they are no integers, RuntimeError for another
    number of them or a meta tensor, ValueError for one outside of 0 … `steps`."""
    if lengths is None:
        return None
    try:
        tensor = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"lengths must be integers, got {type(lengths).__name__}: {error}") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"lengths must be integers, got {tensor.dtype}")
    if tensor.is_meta and device.type != "meta":
        raise RuntimeError(f"Input and lengths are not at the same device, found input at {device} and lengths at meta")
    check_memory(tensor)
    tensor = tensor.to(dtype=torch.int64).reshape(-1)
    if tensor.shape[0] != columns:
        raise RuntimeError(f"lengths must have one entry a column: expected {columns}, got {tensor.shape[0]}")
    # Values on a GPU are not checked, since the host would wait for the GPU. A tensor that vmap batches has no single
    # value.
    known = not torch.compiler.is_compiling() and not tensor.is_cuda and not is_batched(tensor)
    looked_at = known and columns
    if looked_at and (int(tensor.min()) < 0 or int(tensor.max()) > steps):
        raise ValueError(f"lengths must lie between 0 and the number of steps, {steps}")
    return tensor.to(device=device, non_blocking=True)


def read_reset(
    reset: Reset, steps: int, columns: int, device: torch.device, *, batched: bool = True, batch_first: bool = False
) -> Tensor | None:
    """`reset` as [T, B] of bool. Raises TypeError for what is no tensor or lists of real numbers, RuntimeError for
    another shape or device.

    Lists are copied from the host at every call. The host does not wait for a GPU, but a CUDA graph cannot capture such
    a copy."""
    if reset is None:
        return None
    if not isinstance(reset, Tensor):
        try:
            reset = torch.as_tensor(reset, device="cpu").to(device, non_blocking=True)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"reset must be a tensor [T, B] or nested lists of bool, got {type(reset).__name__}: {error}"
            ) from error
    if reset.is_complex():
        raise TypeError(f"reset must be bool or real numbers, got {reset.dtype}")
    if reset.device != device:
        raise RuntimeError(
            f"Input and reset are not at the same device, found input at {device} and reset at {reset.device}"
        )
    check_memory(reset)
    wanted = ((columns, steps) if batch_first else (steps, columns)) if batched else (steps,)
    if tuple(reset.shape) != wanted:
        raise RuntimeError(f"reset must have the input's steps and batch {wanted}, got {tuple(reset.shape)}")
    if not batched:
        reset = reset.unsqueeze(1)
    elif batch_first:
        reset = reset.transpose(0, 1)
    return reset != 0


def described(hx: object) -> str:
    """Words for the structure of a wrong hx."""
    if isinstance(hx, Tensor):
        return "a tensor"
    if not isinstance(hx, tuple | list):
        return "None" if hx is None else f"an object of type {type(hx).__name__}"
    kind = f"a {'tuple' if isinstance(hx, tuple) else 'list'} of {len(hx)}"
    if hx and all(isinstance(item, Tensor) for item in hx):
        return f"{kind} tensor{'s' if len(hx) > 1 else ''}"
    return f"{kind}: {', '.join(described(item) for item in hx[:4])}{', …' if len(hx) > 4 else ''}" if hx else kind


def _result_hint(hx: object) -> str:
    """A hint for the likeliest mistake: the whole result of a call in place of its states. Else ""."""
    pair = isinstance(hx, tuple) and len(hx) == 2 and isinstance(hx[0], Tensor) and isinstance(hx[1], tuple)
    return ". A call returns (output, states): pass the states alone" if pair else ""


def read_states(
    cell: CellSpec,
    sizes: Sequence[Sizes],
    hx: StatesLike,
    columns: int,
    *,
    batched: bool,
    return_delays: bool,
    single: bool = False,
) -> list[dict[str, Tensor]] | None:
    """Split hx into a dict for each layer and direction: the states [B, width] by name. None where hx was not given.
    Each tensor of hx is [num_layers * directions, B, width], or [B, width] where `single`.

    Raises TypeError for another structure than the cell's states, RuntimeError for a wrong shape.
    """
    if hx is None:
        return None
    wanted = cell.carried(return_delays)
    given = (hx,) if isinstance(hx, Tensor) else hx
    tensors = isinstance(given, tuple | list) and all(isinstance(state, Tensor) for state in given)
    if not tensors or len(given) != len(wanted):
        names = ", ".join(cell.phrase(state) for state in wanted)
        form = "a tensor" if len(wanted) == 1 else f"a tuple of {len(wanted)} tensors"
        raise TypeError(f"{cell.name}: hx must be {form}, for {names}; got {described(hx)}{_result_hint(hx)}")
    found: list[dict[str, Tensor]] = [{} for _ in sizes]
    dims = 1 + batched + (not single)
    for i, (state, tensor) in enumerate(zip(wanted, given, strict=True)):
        if tensor.dim() != dims:
            kind = f"{'batched' if batched else 'unbatched'} {2 + batched - single}-D"
            raise RuntimeError(f"For {kind} input, hx should also be {dims}-D but got {tensor.dim()}-D tensor")
        if not batched:
            tensor = tensor.unsqueeze(-2)
        expected = (columns, state.width(sizes[0])) if single else (len(sizes), columns, state.width(sizes[0]))
        if tensor.shape != expected:
            what = "hidden" if len(wanted) == 1 else f"hidden[{i}]"
            raise RuntimeError(f"Expected {what} size {expected}, got {list(tensor.shape)}")
        # With one layer and direction, `squeeze` is a view whose gradient is a view as well.
        each = (tensor,) if single else (tensor.squeeze(0),) if len(sizes) == 1 else tensor.unbind()
        for own, value in zip(found, each, strict=True):
            own[state.name] = value
    return found
