"""The functional op: a cell's loops alone, on pre-activations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import package
from ..arguments.arguments import read_backend, read_clip, read_flag
from ..arguments.inputs import Lengths, Reset, read_lengths, read_reset
from ..arguments.lengths import active_steps, padded
from ..arguments.tensors import check_readable, without_autocast
from ..eager.rows import beside
from ..kernels.choice import kernels_of_call
from ..pickling import reduced
from ..spec import CellSpec, SegmentSpec, Sizes
from .directions import LayerCall, handed
from .function_inputs import (
    Given,
    Specs,
    Tensors,
    check_tensors,
    initial_states,
    phrase,
    read_constants,
    read_sizes,
    read_sizes_asked_for,
    read_tensors,
    specs_of,
)
from .packed import read_packed


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
             given. With offsets each stream is [total, Σwidth]. One that is the same at all steps may be expanded to
             that shape: it is read where it lies
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
    backend, recurrent_gradient_clip = read_backend(backend), read_clip(recurrent_gradient_clip)
    reverse, recompute = read_flag("reverse", reverse), read_flag("recompute", recompute)
    return_delays = read_flag("return_delays", return_delays)
    numbers = read_constants(cell, constants or {})
    wanted_sizes = read_sizes_asked_for(
        cell, {"hidden_size": hidden_size, "input_size": input_size, "num_heads": num_heads, **dims}
    )
    masked = lengths is not None or reset is not None or offsets is not None
    specs = specs_of(cell, masked=masked, return_delays=return_delays)
    given = read_tensors(specs, streams, weights, states)
    packed = None
    if offsets is not None:
        packed = read_packed(cell, given.streams[0], lengths, offsets, max_length)
        given, reset = given.pack(packed, reset)
    elif max_length is not None:
        raise ValueError("max_length goes with offsets")
    sizes = read_sizes(specs, given, wanted_sizes)
    check_tensors(specs, given, sizes, packed)
    kernels, missing = package.kernels()
    chosen = kernels_of_call(cell, kernels, given.streams[0], backend, missing)
    if masked or chosen is None or cell.computes_weights:
        # torch's own operators read these tensors before the op can check them.
        check_readable(*given.streams, *given.weights, *(given.states or ()))
    steps, rows = given.streams[0].shape[:2]
    ends = read_lengths(lengths, steps, rows, given.streams[0].device)
    marks = read_reset(reset, steps, rows, given.streams[0].device)
    if ends is not None:
        given = given._replace(streams=[padded(stream, ends) for stream in given.streams])
    call = LayerCall(
        cell, chosen, numbers, ends, marks, None if packed is None else packed.packing, recompute,
        recurrent_gradient_clip,
    )  # fmt: skip
    initial = initial_states(specs, given, sizes, packed)
    values, finals = _run_loops(call, specs, given, sizes, initial, _Asked(returned, reverse))
    if ends is not None:
        active = active_steps(steps, ends).unsqueeze(-1)
        values = {name: torch.where(active, value, 0) for name, value in values.items()}
    if packed is not None:
        values = {name: packed.give_rows(value) for name, value in values.items()}
        finals = {name: packed.unsort(final) for name, final in finals.items()}
    carried = tuple(state.shaped(finals[state.name], sizes) for state in specs.states)
    shaped = {state.name: state for state in specs.states if state.matrix is not None}
    values |= {name: state.shaped(values[name], sizes) for name, state in shaped.items() if name in values}
    final = carried[0] if len(carried) == 1 else carried
    if returned:
        output = values[cell.output]
        # As of a layer, the sequence of the output's name is a copy.
        return output, final, {name: output.clone() if name == cell.output else values[name] for name in returned}
    return values[cell.output], final


class _Asked(NamedTuple):
    """What a call asks of the loops: which sequences it returns beside the output, and their direction."""

    returned: Sequence[str]
    reverse: bool


def _run_loops(
    call: LayerCall, specs: Specs, given: Given, sizes: Sizes, initial: Mapping[str, Tensor], asked: _Asked
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run one loop after the other. Returns the sequences that were asked for, the output among them, and the final
    states; both by name."""
    cell = call.cell
    parameters = {
        weight.attribute: tensor if weight.trained else tensor.detach()
        for weight, tensor in zip(specs.weights, given.weights, strict=True)
    }
    values: dict[str, Tensor] = {cell.inputs[0].name: given.streams[0]}
    with without_autocast(given.streams[0]):
        cell.derive(values, parameters, call.constants, sizes)
    wanted_names = (cell.output, *asked.returned)
    finals: dict[str, Tensor] = {}
    fresh = iter(given.streams)
    for segment in cell.segments:
        wanted = segment.wanted(wanted_names)
        read = []
        for stream in segment.streams:
            if stream in specs.streams:
                read.append(next(fresh))
                widths = [member.width(sizes) for member in stream.members]
                names = [member.name for member in stream.members]
                values |= zip(names, torch.split(read[-1], widths, -1), strict=True)
            else:
                read.append(beside([values[member.name] for member in stream.members]))
        weights = [weight.tensor(parameters, values) for weight in call.loop_of(segment).weights]
        # A loop without streams takes any one, for T and B.
        tensors = (read or given.streams[:1], weights, [initial[state.name] for state in segment.states])
        sequences, last = call.run_loop(segment, sizes, tensors, [int(asked.reverse)], wanted)
        made = zip((segment.sequences[i].name for i in wanted), sequences, strict=True)
        values |= {name: handed(cell, name, sequence, call.lengths) for name, sequence in made}
        finals |= {state.name: final for state, final in zip(segment.states, last, strict=True)}
    return {name: values[name] for name in wanted_names}, finals


class FunctionalOp:
    """A cell's functional op, which is called as a function is. A function could not say how it is pickled."""

    def __init__(self, cell: CellSpec, module: str) -> None:
        self._cell = cell
        self.__module__, self.__name__ = module, cell.name.lower()
        self.__qualname__, self.__doc__ = self.__name__, document(cell)

    def __call__(self, streams: Tensors, weights: Tensors, states: Tensors | None = None, **options: Any) -> Any:
        return run_function(self._cell, streams, weights, states, **options)

    def __repr__(self) -> str:
        return f"<functional op {self.__module__}.{self.__name__}>"

    __reduce__ = reduced

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionalOp:
        return self


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
    specs = specs_of(cell, masked=False, return_delays=False)
    streams = [phrase(s) if sizes is None else f"{phrase(s)} [T, B, {s.width(sizes)}]" for s in specs.streams]
    weights = [phrase(parameter) for parameter in specs.weights]
    return f"streams {', '.join(streams) or 'any, for T and B'}; weights {', '.join(weights) or 'none'}"


def _work_outside(cell: CellSpec) -> str:
    """Why the op cannot compute the output from streams and the loops' weights alone; "" where it can."""
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
