"""Runs the directions of one layer: functions of parameters, each segment's batched part and loop, the epilogue."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import dropout

from .elementwise import in_forward_mode
from .inputs import active_steps, check_memory, cut_backwards, padded, under_autocast, under_trace
from .kernels import Kernels
from .loop import run_loops
from .ops import op_sizes
from .packing import Packing
from .rows import concat, widen
from .settings import warns_of_slow_paths
from .sizes import check_clip
from .spec import CellSpec, SegmentSpec, Sizes

KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that the generated batched code calls.

    shape_stream  any tensor [T, B, width], for T, B, dtype and device
    lengths       [B] or None; `reset` [T, B] or None
    delayed       the values of delays before the first step, [B, width] by name
    finals        gets their values after the last step, [B, width] by name
    """

    kernels: Kernels | None
    shape_stream: Tensor
    lengths: Tensor | None
    reset: Tensor | None
    reverse: bool
    delayed: Mapping[str, Tensor]
    finals: dict[str, Tensor]
    packing: Packing | None = None

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x weightᵀ + bias over the last dimension."""
        if self.kernels is None or x.is_cuda:
            # On a GPU torch's own product is as fast as ours could be.
            return torch.nn.functional.linear(x, weight, bias)
        result: Tensor = self.kernels.run("linear", x, weight, bias)
        return result

    def delay(self, name: str, value: Tensor) -> Tensor:
        """[T, B, width] one step later in processing order; zero at a reset, and before the start where no value was
        given."""
        start, restarts = self.delayed[name], self._restarts()
        if self.packing is not None:
            delayed, final = self.packing.delay(value, start.to(value), reverse=self.reverse)
            self.finals[name] = final.to(start)
            return delayed if restarts is None else torch.where(restarts.unsqueeze(-1), 0, delayed)
        before = start.to(value).unsqueeze(0)
        if self.lengths is not None and self.reverse:
            # A reversed column starts at its last step. What lies behind that step is not the column's past.
            value = torch.where(active_steps(value.shape[0], self.lengths).unsqueeze(-1), value, before)
        chain = torch.cat((value, before) if self.reverse else (before, value))
        delayed = chain[1:] if self.reverse else chain[:-1]
        if restarts is not None:
            delayed = torch.where(restarts.unsqueeze(-1), 0, delayed)
        if self.lengths is None or self.reverse:
            final = chain[0 if self.reverse else -1]
        else:
            final = chain.gather(0, self.lengths.reshape(1, -1, 1).expand_as(before)).squeeze(0)
        self.finals[name] = final.to(start)
        return delayed

    def _restarts(self) -> Tensor | None:
        """Before which steps columns start anew, in this direction's order: bool, shaped as `reset`."""
        if self.reset is None or not self.reverse:
            return self.reset
        if self.packing is not None:
            return self.packing.cut_backwards(self.reset)
        return cut_backwards(self.reset, self.lengths)

    def stream(self, *members: tuple[Tensor | float, int]) -> Tensor:
        """Values side by side as one stream [T, B, Σwidth]."""
        steps, columns = self.shape_stream.shape[:2]
        parts = []
        for value, width in members:
            wide = widen(value, width, self.shape_stream).to(self.shape_stream)
            parts.append(wide.expand(steps, columns, width))
        return parts[0] if len(parts) == 1 else concat(parts)


# Two reasons for the reference, which docs/torch.md names: no warning says them.
TRANSFORMS = "torch.func transforms run through the reference"
ONNX = "torch.onnx.export writes torch's own operators down"


def handed(cell: CellSpec, name: str, sequence: Tensor, lengths: Tensor | None) -> Tensor:
    """A sequence [T, B, width] for the code that reads it after the loop. Past its length a column may hold a state
    that no step has made (m = -inf). That must not reach a gradient, so it is padded with the last value."""
    return sequence if lengths is None or name not in cell.handed_on else padded(sequence, lengths)


def choose_kernels(kernels: Kernels | None, x: Tensor, backend: str | None, missing: str) -> tuple[Kernels | None, str]:
    """The kernels to use for this input, or None for the reference, and the reason. `missing` says why there are no
    kernels. Raises NotImplementedError for dual tensors where torch compiles, RuntimeError where `backend` cannot
    run."""
    transformed = torch._C._are_functorch_transforms_active()
    if in_forward_mode() and not transformed and _compiles():
        # Compiled code would lose tangents silently.
        raise NotImplementedError(
            "torch.compile does not hand on the tangents of dual tensors: use torch.func.jvp, or do not compile"
        )
    if backend == "reference":
        return None, "backend='reference' was asked for"
    recorded = torch.compiler.is_compiling() or under_trace()
    if recorded and torch.onnx.is_in_onnx_export():
        return None, ONNX
    if kernels is None:
        reason = missing
    elif not (x.is_cpu or x.is_cuda or x.is_meta):
        reason = f"this package has no kernels for the device {x.device.type}"
    elif x.is_cuda and not kernels.run_on_gpu(x.get_device()):
        reason = _no_architecture(kernels, x)
    elif x.dtype not in KERNEL_DTYPES or (x.is_cuda and x.dtype == torch.float64):
        reason = f"the kernels do not take {x.dtype} on {x.device.type}"
    elif backend is not None and x.device.type not in (backend, "meta"):
        reason = f"the input is on {x.device.type}"
    elif transformed:
        reason = TRANSFORMS
    else:
        if recorded or under_autocast(x):
            kernels = kernels.dispatched
        if x.is_cuda:
            return kernels, "one launch a loop"
        return kernels, "a kernel for the CPU takes every size and dtype here"
    if backend is not None:
        raise RuntimeError(f"backend={backend!r} cannot run: {reason}")
    return None, reason


# A call of fewer steps does not warn that it is slow.
_LONG_CALL_STEPS = 32
_TOLD: set[str] = set()


def kernels_of_call(
    cell: CellSpec, kernels: Kernels | None, x: Tensor, backend: str | None, missing: str
) -> Kernels | None:
    """As `choose_kernels`, for a call with the input `x` [T, B, width]. Warns once per cell and reason where a long
    call runs by the reference and nobody asked for that."""
    chosen, reason = choose_kernels(kernels, x, backend, missing)
    # A package without kernels warned when it was loaded, and the documents name the other reasons.
    silent = chosen is not None or kernels is None or backend == "reference" or reason in (TRANSFORMS, ONNX)
    if not silent and x.shape[0] >= _LONG_CALL_STEPS:
        _tell(f"{cell.name}: the reference (eager torch) runs, which is many times slower: {reason}")
    return chosen


def _tell(text: str) -> None:
    if text not in _TOLD and warns_of_slow_paths():
        _TOLD.add(text)
        warnings.warn(f"{text} (RNNCC_LOG=error hides this)", stacklevel=4)


# This is torch.compiler.assume_constant_result, which would import all of torch._dynamo: torch calls the function once,
# while it traces.
_tell._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _compiles() -> bool:
    """Whether torch.compile is active, also where it gave up this function and compiles those that it calls."""
    return torch.compiler.is_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def _no_architecture(kernels: Kernels, x: Tensor) -> str:
    major, minor = torch.cuda.get_device_capability(x.device)
    built = ", ".join(kernels.architectures) or "the CPU alone"
    return (
        f"this package was built for {built}, and this GPU is sm_{major}{minor}; where nvcc is found, "
        f"`rnncc build --target sm_{major}{minor}` and rnncc.load make one for it"
    )


@dataclass(frozen=True, slots=True)
class Direction:
    """The tensors of one direction of a layer, by name. `states`: the initial values of every state and every delay,
    [B, width]. `masks`: those of zoneout and recurrent dropout, which broadcast to [T, B, width]."""

    parameters: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    reverse: bool = False
    masks: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one direction: the output [T, B, width], final states [B, width] by name, and the sequences that
    were asked for, [T, B, width] by name."""

    output: Tensor
    finals: dict[str, Tensor]
    sequences: dict[str, Tensor]


def run_directions(
    cell: CellSpec,
    kernels: Kernels | None,
    inputs: Mapping[str, Tensor],
    directions: Sequence[Direction],
    constants: Mapping[str, float],
    sizes: Sizes,
    *,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    recompute: bool = False,
    recurrent_gradient_clip: float | None = None,
    packing: Packing | None = None,
    sequences_of: Sequence[str] = (),
    weight_dropout: float = 0.0,
) -> list[Result]:
    """Run every direction, and return their results.

    `inputs` are [T, B, width] by name and begin with x; `lengths` are [B], `reset` [T, B]. With a `packing`, inputs and
    outputs are [total, 1, width], and `reset` [total, 1]. `recompute`: kernels keep only states for the backward.
    `recurrent_gradient_clip`: a bound on the gradient that products give to earlier values of states. `weight_dropout`:
    the probability with which elements of the loops' matrices are zeroed, once for all steps.
    """
    check_clip(recurrent_gradient_clip)  # it is an attribute of the layer, which may have changed
    first = next(iter(inputs.values()))
    # Ops check their tensors themselves. Tensors that torch's own operators read first are checked here; for the common
    # case one quick look at x is enough.
    if kernels is None or cell.computes_weights or (kernels is not kernels.dispatched and _is_gone(first)):
        for own in directions:
            check_memory(*inputs.values(), *own.parameters.values(), *own.states.values())
    # A GPU runs packed tensors by the masked loops.
    packed = packing is not None and kernels is not None and first.is_cuda
    masked = lengths is not None or reset is not None or packed
    reverse = [int(own.reverse) for own in directions]
    all_finals: list[dict[str, Tensor]] = [{} for _ in directions]
    all_values: list[dict[str, Tensor]] = [{**inputs, **own.masks} for own in directions]
    all_tools = [
        Tools(kernels, first, lengths, reset, own.reverse, own.states, finals, packing)
        for own, finals in zip(directions, all_finals, strict=True)
    ]
    for own, values in zip(directions, all_values, strict=True):
        cell.derive(values, own.parameters, constants, sizes)
        cell.prologue(values, own.parameters, constants, sizes)
    for segment in cell.segments:
        loop = segment.masked if masked else segment.plain
        streams: list[Tensor] = []
        weights: list[Tensor] = []
        initial: list[Tensor] = []
        for own, values, tools in zip(directions, all_values, all_tools, strict=True):
            streams += segment.batched(values, own.parameters, constants, sizes, tools)
            weights += [weight.tensor(own.parameters, values) for weight in loop.weights]
            initial += [own.states[state.name] for state in segment.states]
        if weight_dropout:
            weights = [w if w.dim() < 2 else dropout(w, weight_dropout) for w in weights]
        numbers = segment.numbers(constants, recurrent_gradient_clip)
        wanted = segment.wanted(sequences_of)
        sequences, last = run_segment(
            cell, segment, kernels, streams, weights, initial, lengths, reset, numbers, sizes, reverse, wanted,
            recompute, packing,
        )  # fmt: skip
        made, ended = iter(sequences), iter(last)
        for values, finals in zip(all_values, all_finals, strict=True):
            for i in wanted:
                name = segment.sequences[i].name
                values[name] = handed(cell, name, next(made), lengths)
            for state in segment.states:
                finals[state.name] = next(ended)
    active = None if lengths is None else active_steps(first.shape[0], lengths).unsqueeze(-1)
    shape = (first.shape[0], first.shape[1], cell.output_width(sizes))
    results = []
    for own, values, tools in zip(directions, all_values, all_tools, strict=True):
        cell.epilogue(values, own.parameters, constants, sizes, tools)
        asked = {name: values[name] for name in (cell.output, *sequences_of)}
        if active is not None:
            asked = {name: torch.where(active, value, 0) for name, value in asked.items()}
        # FSDP2 would warn of an output that is a view of itself.
        output = asked[cell.output]
        output = output if output.shape == shape else output.expand(shape)
        results.append(Result(output, tools.finals, {name: asked[name] for name in sequences_of}))
    return results


def _is_gone(x: Tensor) -> bool:
    """Whether a plain tensor has no memory, or no elements."""
    return type(x) is Tensor and not x.data_ptr()


def run_segment(
    cell: CellSpec,
    segment: SegmentSpec,
    kernels: Kernels | None,
    streams: Sequence[Tensor],
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    constants: Sequence[float],
    sizes: Sizes,
    reverse: Sequence[int],
    wanted: Sequence[int],
    recompute: bool,
    packing: Packing | None = None,
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Run one loop, by its op or by the reference. Returns the sequences `wanted` (by index) [T, B, width], and the
    final states [B, width]. Lists of tensors hold those of the first direction and then those of the second, as the op
    takes them; `reverse` has an entry per direction. With a `packing`, streams and sequences are [total, 1, width]."""
    if kernels is None:
        return run_loops(segment, streams, weights, states, lengths, reset, constants, sizes, reverse, wanted, packing)
    asked = wanted
    if torch.compiler.is_compiling():
        # AOTInductor passes an empty list as None. So a weight without elements stands for no weights, and sequence 0
        # for none.
        weights, asked = weights or [streams[0].new_empty(0) for _ in reverse], wanted or [0]
    offsets, steps = (None, 0) if packing is None else (packing.offsets, packing.steps)
    sequences, finals, _ = kernels.run(
        segment.name, streams, weights, states, offsets, steps, lengths, reset, None, constants,
        op_sizes(cell, sizes), sizes["num_heads"], reverse, asked, False, recompute,
    )  # fmt: skip
    return sequences if wanted else [], finals
