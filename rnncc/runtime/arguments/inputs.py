"""Checks the arguments of a layer's `forward`, and brings them into one form. Messages follow torch.nn.LSTM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..spec import CellSpec, InputSpec, Sizes
from .lengths import padded
from .tensors import check_kind, check_memory, in_dtype, is_batched, under_autocast

StatesLike = Tensor | Sequence[Tensor] | None
# [T, B], or [T] where the input is unbatched; not 0 (True) where a batch entry starts anew.
Reset = Tensor | Sequence[Sequence[bool]] | Sequence[bool] | None
Lengths = Tensor | Sequence[int] | None


# Floating-point numbers that autocast takes for each other.
_CAST = (torch.float32, torch.bfloat16, torch.float16)


def cast_state(state: Tensor, dtype: torch.dtype, x: Tensor) -> Tensor:
    """A state of hx in the dtype that the loop carries. As in torch.nn, raises RuntimeError where the state has neither
    that dtype nor the input's. Under autocast any dtype but float64 will do."""
    if state.dtype != x.dtype and not (under_autocast(x) and state.dtype in _CAST and dtype in _CAST):
        raise RuntimeError(
            f"Input and hidden tensors are not the same dtype, found input tensor with {x.dtype} and hidden tensor "
            f"with {state.dtype}" + (f"; with state_dtype, {dtype} goes too" if dtype != x.dtype else "")
        )
    check_memory(state)
    return in_dtype(state, dtype)


class Form(NamedTuple):
    """How the tensors of a call lie. Ours are [T, B, width].

    dims         the number of dimensions of an input
    batched      there is a batch dimension
    batch_first  it is the first one
    time         there is a time dimension; a single step has none
    entries      packed: the number of batch entries, which no tensor of rows tells; else None
    """

    dims: int = 3
    batched: bool = True
    batch_first: bool = False
    time: bool = True
    entries: int | None = None

    def take(self, value: Tensor) -> Tensor:
        """A tensor of the call as [T, B, …]."""
        if not self.time:
            value = value.unsqueeze(0)
        if not self.batched:
            return value.unsqueeze(1)
        return value.transpose(0, 1) if self.batch_first else value

    def give(self, value: Tensor) -> Tensor:
        """The reverse, of [T, B, width]."""
        if not self.time:
            value = value[0]
        if not self.batched:
            return value.squeeze(-2)
        return value.transpose(0, 1) if self.batch_first else value


# The form of tensors that lie as ours do.
OURS = Form()


def check_input(cell: CellSpec, x: object) -> None:
    """Raises TypeError for a first input that is no tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{cell.name}: input should be a tensor, got: {type(x).__name__}; torch.as_tensor makes one")


def read_form(
    cell: CellSpec, x: Tensor, *, batch_first: bool = False, time: bool = True, entries: int | None = None
) -> Form:
    """How a call's tensors lie, by its first input. Raises ValueError where that has other dimensions than inputs have,
    TypeError for a tensor that is not dense."""
    check_kind(x, cell.name)
    most, dims = 3 if time else 2, x.dim()
    if dims not in (most - 1, most):
        raise ValueError(f"{cell.name}: Expected input to be {most - 1}D or {most}D, got {dims}D instead")
    return Form(dims, dims == most, batch_first, time, entries)


def read_inputs(
    cell: CellSpec,
    sizes: Sizes,
    x: Tensor,
    extra: Mapping[str, Tensor | None],
    form: Form,
    weight_dtype: torch.dtype | None,
) -> dict[str, Tensor]:
    """Check all inputs and bring them into the form [T, B, width]; by name, x first. An input per sequence is
    [1, B, width]. One that was left out is [1, 1, width].

    Raises ValueError and RuntimeError as torch.nn.LSTM does, TypeError for missing or unknown inputs, and for tensors
    that are not of floating-point numbers.
    """
    first, *others = cell.inputs
    if extra:
        _check_names(cell, extra)

    _check_dtype(cell, x, weight_dtype)

    def shaped(value: Tensor, name: str, width: int) -> Tensor:
        if value.dim() != form.dims:
            wanted = f"{form.dims}D like the input"
            raise ValueError(f"{cell.name}: Expected {name} to be {wanted}, got {value.dim()}D instead")
        if value.shape[-1] != width:
            if name == "input":
                raise RuntimeError(
                    f"input.size(-1) must be equal to input_size. Expected {width}, got {value.shape[-1]}"
                )
            raise RuntimeError(f"{name}.size(-1) must be {width}, got {value.shape[-1]}")
        return form.take(value)

    inputs = {first.name: shaped(x, "input", first.width(sizes))}
    leading = inputs[first.name].shape[:2]
    for item in others:
        width, given = item.width(sizes), extra.get(item.name)
        if given is None and item.default is not None:
            inputs[item.name] = x.new_full((1, 1, width), item.default)
            continue
        batch = leading[1] if form.entries is None else form.entries
        shape = (*((batch,) if form.batched else ()), *item.sides(sizes))
        if given is None:
            like = f"like the first input [.., {width}]"
            wanted = f"one tensor for all steps, {list(shape)}" if item.per_sequence else f"a tensor {like}"
            raise TypeError(f"{cell.name} needs the input {item.name}=, {wanted}")
        value = _like_input(cell, given, item.name, x)
        if item.per_sequence:
            inputs[item.name] = _per_sequence(cell, item, value, shape).reshape(1, batch if form.batched else 1, width)
            continue
        value = shaped(value, item.name, width)
        if value.shape[:2] != leading:
            raise RuntimeError(
                f"{item.name} must have the input's steps and batch {tuple(leading)}, got {tuple(value.shape[:2])}"
            )
        inputs[item.name] = value
    return inputs


def _check_dtype(cell: CellSpec, x: Tensor, weight_dtype: torch.dtype | None) -> None:
    """Raises TypeError for a first input that is not of floating-point numbers, ValueError where it has not the dtype
    of the parameters."""
    if not x.is_floating_point():
        dtype = weight_dtype or torch.get_default_dtype()
        hint = "" if x.is_complex() else f": input.to({dtype}) for numbers, nn.Embedding for classes and tokens"
        raise TypeError(f"{cell.name} takes floating-point input, got {x.dtype}{hint}")
    if weight_dtype is not None and x.dtype != weight_dtype and not under_autocast(x):
        raise ValueError(
            f"RNN input dtype ({x.dtype}) does not match weight dtype ({weight_dtype}). "
            f"Convert input: input.to({weight_dtype}), or convert model: model.to({x.dtype})"
        )


def _like_input(cell: CellSpec, given: object, name: str, x: Tensor) -> Tensor:
    """A further input, which has the first one's kind, device and dtype; under autocast any dtype of 32 or 16 bits will
    do. Raises TypeError, ValueError, RuntimeError as for the first one."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{cell.name}: {name} should be a tensor, got: {type(given).__name__}")
    check_kind(given, f"{cell.name} ({name})")
    if not given.is_floating_point():
        raise TypeError(f"{cell.name} takes floating-point {name}, got {given.dtype}: {name}.to({x.dtype})")
    if given.device != x.device:
        raise RuntimeError(
            f"Input and {name} are not at the same device, found input at {x.device} and {name} at {given.device}"
        )
    if given.dtype != x.dtype and not (under_autocast(x) and given.dtype in _CAST and x.dtype in _CAST):
        raise ValueError(
            f"{cell.name}: {name}'s dtype ({given.dtype}) does not match the input's ({x.dtype}). "
            f"Convert it: {name}.to({x.dtype})"
        )
    return in_dtype(given, x.dtype)


def _per_sequence(cell: CellSpec, item: InputSpec, given: Tensor, wanted: tuple[int, ...]) -> Tensor:
    """An input per sequence, which has this shape. Raises ValueError where it has another."""
    if tuple(given.shape) != wanted:
        raise ValueError(
            f"{cell.name}: {item.name} is given per sequence: expected {list(wanted)}, got {list(given.shape)}"
        )
    return given


def _check_names(cell: CellSpec, extra: Mapping[str, object]) -> None:
    names = [item.name for item in cell.inputs[1:]]
    for name in extra:
        if name not in names:
            raise TypeError(f"{cell.name} has no input {name!r}" + (f"; it has {', '.join(names)}" if names else ""))


def read_marks(
    cell: CellSpec, inputs: dict[str, Tensor], lengths: Lengths, reset: Reset, form: Form
) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
    """The inputs without what the caller's padding holds, `lengths` [B] of int64 and `reset` [T, B] of bool. Each of
    the two may be None. Raises as `read_lengths` and `read_reset` do."""
    if lengths is None and reset is None:
        return inputs, None, None
    first = next(iter(inputs.values()))
    steps, batch = first.shape[:2]
    at_steps = [item.name for item in cell.inputs if not item.per_sequence]
    ends = read_lengths(lengths, steps, batch, first.device)
    if ends is not None:
        check_memory(*inputs.values())
        for name in at_steps:
            if inputs[name].shape[:2] == first.shape[:2]:
                inputs[name] = padded(inputs[name], ends)
    return inputs, ends, read_reset(reset, steps, batch, first.device, form)


def read_lengths(lengths: Lengths, steps: int, batch: int, device: torch.device) -> Tensor | None:
    """`lengths` as [B] of int64, on `device`. Raises TypeError where they are no integers, RuntimeError for another
    number of them or a meta tensor, ValueError for one outside of 0 … `steps`."""
    if lengths is None:
        return None
    try:
        # A list becomes a tensor of the host's, whatever the default device is.
        tensor = lengths if isinstance(lengths, Tensor) else torch.as_tensor(lengths, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"lengths must be integers, got {type(lengths).__name__}: {error}") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"lengths must be integers, got {tensor.dtype}")
    if tensor.is_meta and device.type != "meta":
        raise RuntimeError(f"Input and lengths are not at the same device, found input at {device} and lengths at meta")
    check_memory(tensor)
    tensor = in_dtype(tensor, torch.int64).reshape(-1)
    if tensor.shape[0] != batch:
        raise RuntimeError(f"lengths must have one number per batch entry: expected {batch}, got {tensor.shape[0]}")
    # Values on a GPU are not checked, since the host would wait for the GPU. A tensor that vmap batches has no single
    # value.
    known = not torch.compiler.is_compiling() and not tensor.is_cuda and not is_batched(tensor)
    looked_at = known and batch
    if looked_at and (int(tensor.min()) < 0 or int(tensor.max()) > steps):
        raise ValueError(f"lengths must lie between 0 and the number of steps, {steps}")
    return tensor if tensor.device == device else tensor.to(device=device, non_blocking=True)


def read_reset(reset: Reset, steps: int, batch: int, device: torch.device, form: Form = OURS) -> Tensor | None:
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
    wanted = ((batch, steps) if form.batch_first else (steps, batch)) if form.batched else (steps,)
    if tuple(reset.shape) != wanted:
        raise RuntimeError(f"reset must have the input's steps and batch {wanted}, got {tuple(reset.shape)}")
    return form.take(reset) != 0


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
    cell: CellSpec, sizes: Sequence[Sizes], hx: StatesLike, batch: int, form: Form, return_delays: bool
) -> list[dict[str, Tensor]] | None:
    """Split hx into a dict for each layer and direction: the states [B, width] by name. None where hx was not given.
    Each tensor of hx is [num_layers * directions, B, width], or [B, width] for a single step; a matrix has
    (num_heads, rows, columns) in place of the width.

    Raises TypeError for another structure than the cell's states, RuntimeError for a wrong shape.
    """
    if hx is None:
        return None
    wanted = cell.carried(return_delays)
    given = (hx,) if isinstance(hx, Tensor) else hx
    tensors = isinstance(given, tuple | list) and all(isinstance(state, Tensor) for state in given)
    if not tensors or len(given) != len(wanted):
        names = ", ".join(cell.phrase(state) for state in wanted)
        structure = "a tensor" if len(wanted) == 1 else f"a tuple of {len(wanted)} tensors"
        raise TypeError(f"{cell.name}: hx must be {structure}, for {names}; got {described(hx)}{_result_hint(hx)}")
    found: list[dict[str, Tensor]] = [{} for _ in sizes]
    dims, single = form.dims, not form.time
    for i, (state, tensor) in enumerate(zip(wanted, given, strict=True)):
        shape = state.shape(sizes[0])
        if tensor.dim() != (wanted_dims := dims - 1 + len(shape)):
            kind, also = f"{'batched' if form.batched else 'unbatched'} {dims}-D", "also " if len(shape) == 1 else ""
            raise RuntimeError(f"For {kind} input, hx should {also}be {wanted_dims}-D but got {tensor.dim()}-D tensor")
        if not form.batched:
            tensor = tensor.unsqueeze(-1 - len(shape))
        expected = (batch, *shape) if single else (len(sizes), batch, *shape)
        if tensor.shape != expected:
            what = "hidden" if len(wanted) == 1 else f"hidden[{i}]"
            raise RuntimeError(f"Expected {what} size {expected}, got {list(tensor.shape)}")
        tensor = state.flat(tensor)
        # With one layer and direction, `squeeze` is a view whose gradient is a view as well.
        each = (tensor,) if single else (tensor.squeeze(0),) if len(sizes) == 1 else tensor.unbind()
        for own, value in zip(found, each, strict=True):
            own[state.name] = value
    return found
