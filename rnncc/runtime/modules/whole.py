"""Runs a whole layer, or a single step, in one op: the product of its input and its loop, in one direction.

A call of one step or a few is as fast as what surrounds its arithmetic, on a GPU as fast as its host is. So such a call
makes one call of the op, which checks its tensors (templates/include/rnncc/torch/whole_op.h; whole_gpu.h on a GPU), and
where autograd records, one node. A single step of a cell that needs more than one product and one loop has an op that
computes all of it (SingleSpec), on a CPU and where autograd does not record. Whether a call can go this way is asked at
every call: nothing is kept between calls but the layer's `Layout`, which is numbers alone, and the packed weights of a
frozen layer (frozen.py). Every call that is not plain goes the long way through layer.py or cell.py, with the same
results: in transforms, traces and modes, with tensors of other kinds, dtypes or devices, and with arguments that the op
does not take. In bfloat16 a step on a CPU takes states of float32, as matrices are and as `state_dtype` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from ..arguments.tensors import is_batched
from ..kernels.kernels import Kernels
from ..ops.autograd import gradients_again
from ..ops.call import LoopCall
from ..ops.loop import run_eagerly
from ..spec import CellSpec, SegmentSpec, SingleSpec, Sizes, number_of
from .parameters import blocks_of
from .whole_states import flat_states, state_dtypes

_HELD = (Parameter, Tensor)  # what a module holds: a matrix that is not trained is a buffer
WHOLE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)  # on a CPU
RECORDED_DTYPES = WHOLE_DTYPES[:2]  # the same where autograd records: a backward reads more bits
_GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# x, the parameters and the states: the bits of an int64 tell the backward which of these need gradients.
_MOST_TENSORS = 62


class Layout:
    """What the op knows of a layer beforehand: not how tensors lie in memory, but what they are.

    names       the parameters, as the module has them (`weight_ih_l0`); the first is multiplied by the input
    attributes  the same, as the cell has them (`weight_ih`)
    segment     the name of the only loop
    states      how many states there are
    initials    their initial values where no hx is given
    needs_states
                whether hx must be given, because initial values are learned, or stand on a diagonal
    shapes      of one entry's value of each state that is a matrix, None for others
    has_matrices
                whether there is such a state
    returns_output
                whether what is returned begins with the output
    runs_everywhere
                whether the op runs where autograd records, and on GPUs
    made        the loop's weights that are functions of parameters, which the call computes
    further     the names of inputs beside x, which a single step's own op takes
    constants   the names of the constants that the loop reads
    sizes       the sizes, which are the values of some of these
    time        1 for a layer, whose tensors have the axis T; 0 for a single step
    members     (parameter, members) of the weight of the input and of each that the loop reads: a packed weight has so
                many members of the same width; 0: it cannot be packed
    facts       the arguments of the op that gives the layout its number
    number      the library's number for this layout, None before the first call
    """

    __slots__ = (
        "attributes",
        "constants",
        "facts",
        "further",
        "has_matrices",
        "initials",
        "made",
        "members",
        "names",
        "needs_states",
        "number",
        "returns_output",
        "runs_everywhere",
        "segment",
        "shapes",
        "sizes",
        "states",
        "time",
    )

    def __init__(
        self, cell: CellSpec, segment: SegmentSpec | SingleSpec, sizes: Sizes,
        shapes: Mapping[str, tuple[int, ...]], suffix: str, time: bool,
    ) -> None:  # fmt: skip
        product = segment.whole
        assert product is not None
        attributes = list(dict.fromkeys((product.weight, *shapes)))
        made = [weight for weight in segment.plain.weights if not weight.attribute]
        if isinstance(segment, SingleSpec):
            # Where states start is no matter of the op's: a step is given its states.
            read = {product.weight, *(weight.attribute for weight in segment.plain.weights)}
            read |= {attribute for weight in made for attribute in weight.made_of}
            attributes = [attribute for attribute in attributes if attribute in read]
        biases = [
            (attributes.index(bias.attribute), bias.row(sizes), bias.column(sizes), bias.rows(sizes))
            for bias in product.biases
            if bias.attribute in shapes
        ]
        self.made = tuple(weight.name for weight in made)
        weights = [
            attributes.index(weight.attribute) if weight.attribute else len(attributes) + self.made.index(weight.name)
            for weight in segment.plain.weights
        ]
        self.returns_output = time or cell.output != segment.states[0].name
        names = [sequence.name for sequence in segment.sequences]
        output = names.index(cell.output) if self.returns_output else -1
        self.shapes = [None if state.matrix is None else state.shape(sizes) for state in segment.states]
        self.has_matrices = any(self.shapes)
        self.further = segment.further if isinstance(segment, SingleSpec) else ()
        self.runs_everywhere = isinstance(segment, SegmentSpec) and (time or not self.returns_output)
        self.needs_states = any(state.initial is None or state.diagonal for state in segment.states)
        self.segment, self.time, self.states = segment.name, int(time), len(segment.states)
        self.attributes, self.names = tuple(attributes), tuple(attribute + suffix for attribute in attributes)
        self.initials, self.constants = [float(state.initial or 0) for state in segment.states], segment.constants
        self.sizes = sizes
        self.members = [(0, 1), *((i, _members(cell, attributes[i], sizes)) for i in weights if i < len(attributes))]
        dims = [n for attribute in attributes for n in (*shapes[attribute], -1)[:2]] + [-1, -1] * len(made)
        places = [n for bias in biases for n in bias]
        about = (sizes["num_heads"], time, output, product.reads_streams)
        self.facts = (*about, cell.sizes_in_order(sizes), dims, places, weights, self.initials)
        self.number: int | None = None


def _members(cell: CellSpec, attribute: str, sizes: Sizes) -> int:
    """How many members a packed weight of the loop has; 0 where it is not packed."""
    (parameter,) = (each for each in cell.parameters if each.attribute == attribute)
    widths = {member.width(sizes) for member in parameter.members}
    is_whole = parameter.columns is not None and blocks_of(parameter, sizes) == 1 and len(widths) == 1
    return len(parameter.members) if is_whole else 0


def layout_of(
    cell: CellSpec, sizes: Sizes, shapes: Mapping[str, tuple[int, ...]], suffix: str, *, time: bool
) -> Layout | None:
    """The layout of a layer (with `time`) or a single step that has parameters of these shapes; None where the op is
    not made for it."""
    segment: SegmentSpec | SingleSpec | None = None
    if not time and cell.single is not None and cell.single.takes(sizes):
        segment = cell.single
    if len(cell.segments) == 1 and cell.segments[0].whole is not None:
        segment = cell.segments[0]
    if segment is None or (time and any(state.initial is None for state in cell.states)):
        return None
    weights = segment.plain.weights
    if any(name not in shapes for each in weights for name in ([each.attribute] if each.attribute else each.made_of)):
        return None  # bias=False removed a bias that the loop reads
    if 1 + len(shapes) + len(cell.states) > _MOST_TENSORS:
        return None
    return Layout(cell, segment, sizes, shapes, suffix, time)


def is_watched() -> bool:
    """Whether somebody sees the operators of a call, or has them do something else: torch.func, modes, tracers, dual
    tensors."""
    c = torch._C
    return bool(
        c._are_functorch_transforms_active()
        or c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def run_whole(
    module: Any, kernels: Kernels, x: Tensor, hx: Any, further: Mapping[str, Tensor], in_place: bool
) -> Sequence[Tensor] | None:
    """The output, of a layer [T, B, width], of a single step [B, width] and only where it is not the first state; and
    the final states as hx has them. None where the call must go the long way. `x` is the layer's input as its caller
    gave it, or [B, I] for a single step; `further`: inputs beside it. With `in_place`, of a single step on a CPU, the
    states of hx get the new values, and views of them are returned."""
    if torch.compiler.is_compiling():
        return None
    layout: Layout = module._whole
    on_cpu, backend, wanted = x.is_cpu, module.backend, module.state_dtype
    # Whether states have more bits than x, as a single step on a CPU takes them.
    is_mixed = x.dtype == torch.bfloat16 and (layout.has_matrices or wanted == torch.float32)
    if (
        x.dtype not in (WHOLE_DTYPES if on_cpu else _GPU_DTYPES)
        or not (wanted is None or wanted == x.dtype or is_mixed)
        or (layout.has_matrices and x.dtype == torch.float16)
        or (is_mixed and (layout.time or not on_cpu or hx is None))
        or not (on_cpu or (layout.runs_everywhere and x.is_cuda and kernels.run_on_gpu(x.get_device())))
        or (backend is not None and backend != ("cpu" if on_cpu else "cuda"))
        or x.is_nested
        or torch._C._is_any_autocast_enabled()
        or is_watched()
        or module.recurrent_gradient_clip is not None
    ):
        return None
    tensors, held = [x], module._parameters
    for name in layout.names:
        parameter = held.get(name)
        if parameter is None:
            parameter = module._buffers.get(name)
        if type(parameter) not in _HELD:
            return None
        tensors.append(parameter)
    if len(further) != len(layout.further):
        return None
    if layout.made and not _add_made(module, layout, tensors):
        return None
    for name in layout.further:
        given = further.get(name)
        if type(given) is not Tensor:
            return None
        tensors.append(given)
    if hx is not None:
        states = flat_states(hx, layout.shapes, state_dtypes(x, wanted, layout.shapes), in_place)
        if states is None:
            return None
        tensors += states
    elif layout.needs_states or in_place:
        return None
    ops = kernels.whole[layout.segment]
    number = layout.number
    if number is None:
        number = layout.number = ops.number(torch.empty(0, device="cpu"), *layout.facts)
    if number < 0:
        return None
    if layout.time and module.batch_first and x.dim() == 3:
        tensors[0] = x.transpose(0, 1).contiguous()
    constants = [number_of(name, module.constants, layout.sizes) for name in layout.constants]
    if torch.is_grad_enabled():
        records = layout.runs_everywhere and not in_place and (not on_cpu or x.dtype in RECORDED_DTYPES)
        if any(tensor.requires_grad for tensor in tensors):
            return ops.record((layout, constants), *tensors) if records else None
    frozen = module._frozen
    packed = frozen.packed(tensors) if frozen is not None and on_cpu and not layout.made else ()
    made: list[Tensor] = ops.forward(tensors, packed, number, constants, False, in_place)
    if layout.has_matrices and made:
        first = len(made) - layout.states
        for i, shape in enumerate(layout.shapes):
            if shape is not None:
                made[first + i] = made[first + i].view(-1, *shape)
    return made or None


def _add_made(module: Any, layout: Layout, tensors: list[Tensor]) -> bool:
    """Append the functions of parameters that the loop reads, those of a frozen module as it keeps them. False where
    autograd would record them."""
    x, *parameters = tensors
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return False
    kept = module._kept_matrices()
    values: Mapping[str, Tensor]
    if kept is not None:
        (values,) = kept
    else:
        values = {module.spec.inputs[0].name: x}
        module.spec.derive(
            values, dict(zip(layout.attributes, parameters, strict=True)), module.constants, layout.sizes
        )
    tensors += [values[name].flatten() for name in layout.made]
    return True


class WholeOps:
    """The ops of a segment, and their autograd: `record((layout, constants), *tensors)` returns as `run_whole` does,
    and is one node. A single step's own op records nothing, and has None there."""

    def __init__(
        self,
        library: torch.library.Library | None,
        namespace: str,
        cell: CellSpec,
        segment: SegmentSpec | SingleSpec,
    ) -> None:
        space, name = getattr(torch.ops, namespace), f"{segment.name}_whole"
        self.forward = getattr(space, f"{name}_forward").default
        self.record: Any = None
        if isinstance(segment, SegmentSpec):
            self.record = _recorded(self.forward, getattr(space, f"{name}_backward").default, cell, segment)
        self.pack = space.pack.default
        # The number of a layout in this process, -1 where there are too many.
        self.number = getattr(space, f"{name}_layout").default
        if library is not None:
            implement: Callable[..., None] = library.impl
            # Calls are recorded here, so the dispatcher has nothing to do for autograd.
            for direction in ("forward", "backward") if self.record else ("forward",):
                implement(f"{name}_{direction}", torch.library.fallthrough_kernel, "Autograd")
            # What is dense has kernels of its own, on the CPU and, in packages with GPU kernels, on a GPU.
            implement(f"{name}_forward", _decline, "CompositeExplicitAutograd")
            # Compiled autograd traces the backward of a call that ran eagerly.
            if self.record:
                torch.library.register_fake(f"{namespace}::{name}_backward", _fake_backward, lib=library)


def _decline(
    tensors: Sequence[Tensor], packed: Sequence[Tensor], layout: int, constants: Sequence[float], training: bool,
    in_place: bool = False,
) -> list[Tensor]:  # fmt: skip
    """The forward of tensors elsewhere or of other kinds."""
    return []


def _fake_backward(
    tensors: Sequence[Tensor], came: int, needs: int, with_states: bool, layout: int, constants: Sequence[float]
) -> list[Tensor]:
    """Empty gradients of those tensors that need one."""
    given = tensors[came.bit_count() :]
    return [given[i].new_empty(given[i].shape) for i in range(needs.bit_length()) if needs >> i & 1]


def _recorded(forward_op: Any, backward_op: Any, cell: CellSpec, segment: SegmentSpec) -> Any:
    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, about: tuple[Layout, Sequence[float]], *tensors: Tensor) -> Any:
            layout, constants = about
            made = forward_op(tensors, (), layout.number, constants, True)
            if not made:
                return None
            returned = layout.time + layout.states
            if layout.time:
                ctx.save_for_backward(*tensors, *made[returned:], made[0])
            else:
                ctx.save_for_backward(*tensors, *made[returned:])
            ctx.set_materialize_grads(False)
            ctx.about = about
            return tuple(made[:returned])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            layout, constants = ctx.about
            saved, needed = ctx.saved_tensors, ctx.needs_input_grad
            came, bit, tensors = 0, 1, []
            for gradient in gradients:
                if gradient is not None:
                    came |= bit
                    tensors.append(gradient)
                bit += bit
            given = len(needed) - 1
            if torch.is_grad_enabled() or any(map(is_batched, tensors)):
                run = partial(_run_eagerly, cell, segment, ctx.about)
                return None, *gradients_again(run, saved[:given], gradients, needed[1:])
            needs, bit = 0, 1
            for need in needed[1:]:
                if need:
                    needs |= bit
                bit += bit
            made = backward_op([*tensors, *saved], came, needs, given > 1 + len(layout.names), layout.number, constants)
            if len(made) == given:
                return None, *made
            fresh = iter(made)
            return tuple([next(fresh) if need else None for need in needed])

    # Not Whole.apply: calls under functorch's transforms have gone the long way, and what that looks for takes as long
    # as a launch.
    return super(torch.autograd.Function, Whole).apply


def _run_eagerly(
    cell: CellSpec, segment: SegmentSpec, about: tuple[Layout, Sequence[float]], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """What the op returns, in torch's own operators."""
    layout, constants = about
    heads, _, output, _, in_order, *_ = layout.facts
    sizes = cell.sizes_by_name(in_order, heads)
    x, *rest = tensors
    held = dict(zip(layout.attributes, rest, strict=False))
    x = x if layout.time else x.unsqueeze(0)
    product = segment.whole
    assert product is not None
    weight, sum_of_biases = held[product.weight], None
    for bias in product.biases:
        if bias.attribute in held:
            row, rows, column = bias.row(sizes), bias.rows(sizes), bias.column(sizes)
            part = held[bias.attribute][row : row + rows]
            part = torch.nn.functional.pad(part, (column, weight.shape[0] - column - rows))
            sum_of_biases = part if sum_of_biases is None else sum_of_biases + part
    stream = torch.nn.functional.linear(x, weight, sum_of_biases)
    states = [state.squeeze(0) if layout.time else state for state in rest[len(held) :]]
    if not states:
        starts = zip(segment.states, layout.initials, strict=True)
        states = [x.new_full((x.shape[1], state.width(sizes)), initial) for state, initial in starts]
    call = LoopCall(
        list(torch.split(stream, [each.width(sizes) for each in segment.streams], -1)),
        [held[weight.attribute] for weight in segment.plain.weights], states, None, 0, None, None, constants,
        cell.sizes_in_order(sizes), heads, [0], [output] if layout.time else [],
    )  # fmt: skip
    sequences, finals = run_eagerly(cell, segment, call)
    return [*sequences, *(final.unsqueeze(0) if layout.time else final for final in finals)]
