"""The functional op: a cell's loops alone, on pre-activations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import Proxy

from . import package
from .choice import kernels_of_call
from .directions import LayerCall, handed
from .inputs import Lengths, Reset, read_lengths, read_reset
from .lengths import active_steps, padded
from .packed import read_packed
from .parameters import shape_of
from .rows import beside
from .sizes import check_backend, check_clip, check_constant, check_flags, check_given_size, check_heads
from .spec import CellSpec, ParameterSpec, SegmentSpec, Sizes, StateSpec, StreamSpec, Width
from .tensors import check_memory, refuse_kind, under_autocast

Tensors = Tensor | Sequence[Tensor]
# What the op takes a tensor for; or words for it.
_Given = StreamSpec | ParameterSpec | StateSpec | str
# Two sets of sizes: a width that equals a size in both is that size.
_PROBES = ({"I": 7, "H": 11, "num_heads": 1}, {"I": 13, "H": 17, "num_heads": 1})


def run_function(
    cell: CellSpec,
    streams: Tensors,
    weights: Tensors,
    states: Tensors | None = None,
    *,
    hidden_size: int | None = None,
    input_size: int | None = None,
    lengths: Lengths = None,
    reset: Reset = None,
    offsets: Tensor | None = None,
    max_length: int | None = None,
    reverse: bool = False,
    num_heads: int = 1,
    return_delays: bool = False,
    return_sequences_of: Sequence[str] = (),
    recompute: bool = False,
    recurrent_gradient_clip: float | None = None,
    backend: str | None = None,
    constants: Mapping[str, float] | None = None,
    **dims: int,
) -> tuple[Tensor, Tensor | tuple[Tensor, ...]] | tuple[Tensor, Tensor | tuple[Tensor, ...], dict[str, Tensor]]:
    """The cell's loops without what surrounds them: y, last = f(streams, weights, states).

    streams  one tensor [T, B, Σwidth] per stream, in the order of the layer's `explain()`; gates lie in text order. A
             stream that several loops read is given once. Sequences that a loop reads from an earlier loop are not
             given. With offsets each stream is [total, Σwidth]
    weights  the layer's parameters that the loops read at every step, in the order of `explain()`. Where a loop reads a
             function of a parameter, the op computes it
    states   one tensor [B, width] per state; None stands for the declared initial values (a learned one must be given).
             With return_delays, older values of states follow, as in hx
    lengths, reset, offsets, max_length: as the layer's. With one of the first three, learned initial values are further
             weights, and come last. No state passes between a step that is reset and the one before it, in either
             direction
    return_sequences_of: names of states; a dict of their values at all steps, [T, B, width] each, is a third result
    recompute: the forward keeps only states, and the backward computes the rest again
    recurrent_gradient_clip: a bound, element by element, on the gradient that matrix products give to earlier values
             of states; 0 cuts it
    hidden_size: where it is not given, the width of the first of `states` whose width is H
    input_size: where it is not given, the width of the first stream whose width is I, if any
    constants: values of the cell's constants by name; dims are further keywords

    Returns the output [T, B, width] and the final state [B, width], or a tuple of them where there are several. With
    offsets, all sequences are [total, width]. Raises NotImplementedError for a cell with work between or after its
    loops, which needs more than streams; ValueError for wrong counts, shapes and heads; TypeError for an unknown
    keyword or constant, for what is no tensor of floating-point numbers, and for mixed dtypes."""
    if problem := _work_outside(cell):
        raise NotImplementedError(problem)
    returned = cell.returnable(return_sequences_of)
    for name in dims:
        if all(name != size.name for size in cell.sizes):
            raise TypeError(f"{cell.name} got an unexpected keyword argument {name!r}")
    check_backend(backend)
    check_flags(reverse=reverse, return_delays=return_delays, recompute=recompute)
    numbers = _constants(cell, constants or {})
    masked = lengths is not None or reset is not None or offsets is not None
    stream_specs, weight_specs = taken_streams(cell), taken_weights(cell, masked)
    given_streams = _counted(cell, "streams", streams, stream_specs or ("any, for T and B",))
    given_weights = _counted(cell, "weights", weights, weight_specs)
    carried = tuple(state for state in cell.carried(return_delays) if state not in cell.input_delays)
    given_states = None
    if states is not None:
        given_states = _counted(cell, "states", states, carried)
    packed = None
    if offsets is not None:
        others = {f"stream {index}": stream for index, stream in enumerate(given_streams) if index}
        packed = read_packed(cell, given_streams[0], lengths, offsets, max_length)
        start, others, reset = packed.take_all(given_streams[0], others, reset)
        given_streams = [start, *others.values()]
    elif max_length is not None:
        raise ValueError("max_length goes with offsets")
    first = given_streams[0]
    refuse_kind(first, f"{cell.name}'s functional op")
    if first.dim() != 3:
        raise ValueError(f"{cell.name}: streams must be [T, B, width], got {list(first.shape)}")
    # Packed rows are [total, 1, width]: each row is a step of some batch entry.
    steps, rows = first.shape[:2]
    batch = rows if packed is None else packed.batch
    given_sizes = {"hidden_size": hidden_size, "input_size": input_size, **dims}
    sizes = _sizes(cell, stream_specs, given_streams, given_states, given_sizes, num_heads)
    for stream, tensor in zip(stream_specs, given_streams, strict=len(stream_specs) > 0):
        given, wanted_rows = (tensor, (steps, rows)) if packed is None else (tensor.squeeze(1), (steps,))
        _check_shape(cell, stream, given, (*wanted_rows, stream.width(sizes)))
    for weight, tensor in zip(weight_specs, given_weights, strict=True):
        _check_shape(cell, weight, tensor, shape_of(weight, sizes))
    for state, tensor in zip(carried, given_states or (), strict=given_states is not None):
        _check_shape(cell, state, tensor, (batch, state.width(sizes)))
    _check_dtypes(cell, given_streams, given_weights, given_states or ())
    kernels, missing = package.kernels()
    chosen = kernels_of_call(cell, kernels, first, backend, missing)
    if masked or chosen is None or cell.computes_weights:
        # torch's own operators read these tensors before the op can check them.
        check_memory(*given_streams, *given_weights, *(given_states or ()))
    ends = read_lengths(lengths, steps, batch, first.device)
    per_step = read_reset(reset, steps, rows, first.device)
    if ends is not None:
        given_streams = [padded(stream, ends) for stream in given_streams]
    values: dict[str, Tensor] = {cell.inputs[0].name: given_streams[0]}
    parameters = {weight.attribute: tensor for weight, tensor in zip(weight_specs, given_weights, strict=True)}
    if packed is not None and given_states is not None:
        given_states = [packed.sort(state) for state in given_states]
    named = {state.name: tensor for state, tensor in zip(carried, given_states or (), strict=False)}
    initial = _initial(cell, named, sizes, given_streams[0], batch)
    check_clip(recurrent_gradient_clip)
    cell.derive(values, parameters, numbers, sizes)
    call = LayerCall(
        cell, chosen, numbers, ends, per_step, None if packed is None else packed.packing, recompute,
        recurrent_gradient_clip,
    )  # fmt: skip
    finals: dict[str, Tensor] = {}
    fresh = iter(given_streams)
    for segment in cell.segments:
        wanted = segment.wanted((cell.output, *returned))
        read = []
        for stream in segment.streams:
            if stream in stream_specs:
                read.append(next(fresh))
                widths = [member.width(sizes) for member in stream.members]
                values |= zip(
                    (member.name for member in stream.members), torch.split(read[-1], widths, -1), strict=True
                )
            else:
                read.append(beside([values[member.name] for member in stream.members]))
        weights = [weight.tensor(parameters, values) for weight in call.loop_of(segment).weights]
        tensors = (read or given_streams[:1], weights, [initial[state.name] for state in segment.states])
        sequences, last = call.run_loop(segment, sizes, tensors, [int(reverse)], wanted)
        made = zip((segment.sequences[i].name for i in wanted), sequences, strict=True)
        values |= {name: handed(cell, name, sequence, ends) for name, sequence in made}
        finals |= {state.name: final for state, final in zip(segment.states, last, strict=True)}
    if ends is not None:
        active = active_steps(steps, ends).unsqueeze(-1)
        values |= {name: torch.where(active, values[name], 0) for name in (cell.output, *returned)}
    if packed is not None:
        values |= {name: packed.give_rows(values[name]) for name in dict.fromkeys((cell.output, *returned))}
        finals = {name: packed.unsort(final) for name, final in finals.items()}
    result = tuple(finals[state.name] for state in carried)
    final = result[0] if len(result) == 1 else result
    if returned:
        return values[cell.output], final, {name: values[name] for name in returned}
    return values[cell.output], final


def document(cell: CellSpec) -> str:
    """The docstring of a cell's functional op."""
    taken = describe(cell)
    says = f"It takes {taken}." if not _work_outside(cell) else f"There is {taken}."
    return f"The functional op of {cell.name}. {says}\n\n{inspect.cleandoc(run_function.__doc__ or '')}\n"


def describe(cell: CellSpec, sizes: Sizes | None = None) -> str:
    """The streams and weights that the functional op takes, or why there is no op. With `sizes`, streams have
    shapes."""
    if problem := _work_outside(cell):
        return f"none: {problem}"
    streams = [_phrase(s) if sizes is None else f"{_phrase(s)} [T, B, {s.width(sizes)}]" for s in taken_streams(cell)]
    weights = [_phrase(parameter) for parameter in taken_weights(cell, False)]
    return f"streams {', '.join(streams) or 'any, for T and B'}; weights {', '.join(weights) or 'none'}"


def _phrase(given: StreamSpec | ParameterSpec | str) -> str:
    """The words for a stream, with its gates where there are several (`W (i, f)`), or for a parameter, with its
    attribute (`R (weight_hh)`)."""
    if isinstance(given, str):
        return given
    if isinstance(given, ParameterSpec):
        return given.name if given.name == given.attribute else f"{given.name} ({given.attribute})"
    gates = [member.name.split("__")[0] for member in given.members]
    return given.name if len(gates) == 1 else f"{given.name} ({', '.join(gates)})"


def _work_outside(cell: CellSpec) -> str:
    """Why streams and the loops' weights are not enough to compute the output; else ""."""
    for index, segment in enumerate(cell.segments):
        for stream in segment.streams:
            if stream.finished and not stream.is_sequence:
                return (
                    f"{cell.name} computes the stream {stream.name} of its loop {index} ({_names(segment)}) from "
                    f"{', '.join(stream.finished)} of an earlier loop, by parameters that no loop reads; use the "
                    f"layer {cell.name}"
                )
    if not any(sequence.name == cell.output for segment in cell.segments for sequence in segment.sequences):
        return (
            f"{cell.name} computes its output {cell.output} after its loops, over all steps; use the layer {cell.name}"
        )
    return ""


def _names(segment: SegmentSpec) -> str:
    return ", ".join(state.name for state in segment.states if state.delay_of is None)


def taken_streams(cell: CellSpec) -> tuple[StreamSpec, ...]:
    """The streams that the caller gives: not those whose members are all in earlier streams or are sequences of earlier
    loops."""
    known: set[str] = set()
    given = []
    for segment in cell.segments:
        for stream in segment.streams:
            members = {member.name for member in stream.members}
            if not members <= known:
                given.append(stream)
                known |= members
        known |= {sequence.name for sequence in segment.sequences}
    return tuple(given)


def taken_weights(cell: CellSpec, masked: bool) -> tuple[ParameterSpec, ...]:
    """The parameters that the loops read, or read functions of, each once. Learned initial values follow where the
    loops are `masked` (have lengths, resets or offsets)."""
    loops = [segment.plain for segment in cell.segments]
    loops += [segment.masked for segment in cell.segments if masked]
    weights = [weight for loop in loops for weight in loop.weights]
    # A weight that is made of numbers alone has no parameter.
    read = [name for weight in weights for name in (weight.attribute, *weight.made_of) if name]
    by_attribute = {parameter.attribute: parameter for parameter in cell.parameters}
    return tuple(by_attribute[attribute] for attribute in dict.fromkeys(read))


def _constants(cell: CellSpec, given: Mapping[str, float]) -> dict[str, float]:
    """The constants that do not shape the program, by name. Raises TypeError, ValueError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"constants should be a dict of numbers by name, got: {type(given).__name__}")
    known = {constant.name: constant.value for constant in cell.constants}
    numbers = {constant.name: float(constant.value) for constant in cell.constants if not constant.shaping}
    for name, value in given.items():
        if name not in known:
            own = ", ".join(known) or "none"
            raise TypeError(f"{cell.name} has no constant {name!r}; its own: {own}")
        if name in numbers:
            numbers[name] = check_constant(name, value)
        elif value != known[name]:
            raise ValueError(
                f"{name}={value!r} is another program than this op was built with ({name}={known[name]!r}): "
                f"load the cell with {name}={value!r}"
            )
    return numbers


def _counted(cell: CellSpec, what: str, given: Tensors | Proxy, wanted: Sequence[_Given]) -> list[Tensor]:
    if isinstance(given, Proxy):
        raise TypeError(f"{cell.name}: torch.fx cannot look into the functional op: use torch.fx.wrap, or the layer")
    if given is None or isinstance(given, Mapping | str | int | float):
        raise TypeError(f"{cell.name}: {what} should be a tensor or several, got: {type(given).__name__}")
    tensors = [given] if isinstance(given, Tensor) else list(given)
    if wrong := [type(item).__name__ for item in tensors if not isinstance(item, Tensor)]:
        raise TypeError(f"{cell.name}: {what} should be tensors, got: {wrong[0]}")
    if len(tensors) != len(wanted):
        names = ", ".join(cell.phrase(item) if isinstance(item, StateSpec) else _phrase(item) for item in wanted)
        raise ValueError(f"{cell.name} takes {len(wanted)} {what} ({names}), got {len(tensors)}")
    return tensors


def _check_shape(
    cell: CellSpec, item: StreamSpec | ParameterSpec | StateSpec, tensor: Tensor, wanted: tuple[int, ...]
) -> None:
    # A transposed matrix has as many elements as the right one, so kernels could not notice it.
    if tuple(tensor.shape) != wanted:
        what = {StreamSpec: "stream", ParameterSpec: "weight", StateSpec: "state"}[type(item)]
        name = cell.phrase(item) if isinstance(item, StateSpec) else item.name
        raise ValueError(f"{cell.name}: the {what} {name} must be {list(wanted)}, got {list(tensor.shape)}")


def _check_dtypes(
    cell: CellSpec, streams: Sequence[Tensor], weights: Sequence[Tensor], states: Sequence[Tensor]
) -> None:
    first = streams[0]
    if not first.is_floating_point():
        raise TypeError(f"{cell.name} takes floating-point streams, got {first.dtype}")
    for state in states:
        # A state may have more or fewer bits than streams, which is what `state_dtype` gives a layer.
        if not state.is_floating_point() or (state.dtype == torch.float64) != (first.dtype == torch.float64):
            raise TypeError(f"{cell.name}: a state is {state.dtype}, but the first stream is {first.dtype}")
    if under_autocast(first):
        return
    for what, tensors in (("stream", streams), ("weight", weights)):
        for tensor in tensors:
            if tensor.dtype != first.dtype:
                raise TypeError(f"{cell.name}: a {what} is {tensor.dtype}, but the first stream is {first.dtype}")


def _sizes(
    cell: CellSpec,
    stream_specs: Sequence[StreamSpec],
    streams: Sequence[Tensor],
    states: Sequence[Tensor] | None,
    given: Mapping[str, int | None],
    num_heads: int,
) -> dict[str, int]:
    """All sizes by name, from those that were given and the shapes of tensors. Raises TypeError, ValueError."""
    check_given_size("num_heads", num_heads)
    for name, value in given.items():
        if value is not None:
            check_given_size(name, value)
    hidden_size, input_size = given["hidden_size"], given["input_size"]
    if hidden_size is None:
        if states is None:
            raise ValueError(f"{cell.name}: give states or hidden_size")
        hidden_size = next(
            (tensor.shape[-1] for state, tensor in zip(cell.visible_states(), states, strict=False)
             if _is_size(state.width, "H")), None,
        )  # fmt: skip
        if hidden_size is None:
            raise ValueError(f"{cell.name}: give hidden_size")
    if input_size is None:
        input_size = next(
            (tensor.shape[-1] for stream, tensor in zip(stream_specs, streams, strict=False)
             if _is_size(stream.width, "I")), 0,
        )  # fmt: skip
    sizes = {"I": input_size, "H": hidden_size, "num_heads": num_heads}
    for size in cell.sizes:
        value = given.get(size.name, size.default)
        if value is None and size.solved is not None:
            value = size.solved(sizes)
        if value is None:
            raise ValueError(f"{cell.name} needs the size {size.name}=")
        sizes[size.name] = value
    check_heads(cell, sizes)
    return sizes


def _is_size(width: Width, name: str) -> bool:
    """Whether a width is the size `name` itself ("I" or "H")."""
    try:
        return all(width(probe) == probe[name] for probe in _PROBES)
    except KeyError:
        return False


def _initial(cell: CellSpec, given: Mapping[str, Tensor], sizes: Sizes, first: Tensor, batch: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for state in cell.states:
        if state.name in given:
            found[state.name] = given[state.name]
        elif state.delay_of is not None:
            found[state.name] = found[state.delay_of]
        elif state.initial is None:
            raise ValueError(f"{cell.name}: the initial value of {state.name} is learned; give states")
        else:
            found[state.name] = first.new_full((batch, state.width(sizes)), state.initial)
    return found
