"""Runs one layer, in one direction or both: what is computed over all steps, each loop, and what follows the loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..arguments.lengths import active_steps, cut_backwards, padded
from ..arguments.packing import Packing, is_shared, of_entries
from ..arguments.tensors import check_readable, in_dtype, in_shape, without_autocast
from ..eager.rows import concat, layer_norm, linear_onto, widen
from ..kernels.kernels import Kernels
from ..ops.call import LoopCall
from ..ops.head_norm import takes_head_norm
from ..ops.loop import Results, run_loop
from ..spec import CellSpec, LoopSpec, SegmentSpec, Sizes


class LayerCall(NamedTuple):
    """What all layers and directions of a call have in common.

    kernels         None: the eager fallback
    constants       the cell's, by name
    lengths, reset  [B] and [T, B] (packed: [total, 1]), or None
    packing         how rows lie where tensors are [total, 1, width] in place of [T, B, width]
    recompute       kernels keep only states for the backward
    recurrent_gradient_clip  a bound on the gradient that products give to earlier values of states
    weight_dropout  the probability with which elements of the loops' matrices are zeroed, once for all steps
    """

    cell: CellSpec
    kernels: Kernels | None
    constants: Mapping[str, float]
    lengths: Tensor | None = None
    reset: Tensor | None = None
    packing: Packing | None = None
    recompute: bool = False
    recurrent_gradient_clip: float | None = None
    weight_dropout: float = 0.0

    def loop_of(self, segment: SegmentSpec) -> LoopSpec:
        """The loop of a segment that runs."""
        return segment.loop_of(None if self.packing is None else self.packing.offsets, self.lengths, self.reset)

    def run_loop(
        self,
        segment: SegmentSpec,
        sizes: Sizes,
        tensors: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
        reverse: Sequence[int],
        sequences: Sequence[int],
    ) -> Results:
        """Run that loop. `tensors`: streams, weights and initial states, each those of the first direction and then
        those of the second; `reverse` has an entry for each direction; `sequences`, the indices of those to return."""
        packing = self.packing
        offsets, steps = (None, 0) if packing is None else (packing.offsets, packing.steps)
        call = LoopCall(
            *tensors, offsets, steps, self.lengths, self.reset,
            segment.numbers(self.constants, sizes, self.recurrent_gradient_clip), self.cell.sizes_in_order(sizes),
            sizes["num_heads"], reverse, sequences, False, self.recompute,
        )  # fmt: skip
        return run_loop(self.cell, segment, self.kernels, call)


class Direction(NamedTuple):
    """The tensors of one direction of a layer, by name. `states`: the initial values of every state and every delay,
    [B, width]. `masks`: those of zoneout and recurrent dropout, which broadcast to [T, B, width]. `computed`: what was
    computed of the parameters before, where that is kept."""

    parameters: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    reverse: bool
    masks: Mapping[str, Tensor]
    computed: Mapping[str, Tensor] | None = None


class Result(NamedTuple):
    """The results of one direction: the output [T, B, width], final states [B, width] by name, and the sequences that
    were asked for, [T, B, width] by name."""

    output: Tensor
    finals: dict[str, Tensor]
    sequences: dict[str, Tensor]


class Tools(NamedTuple):
    """One direction as it runs, with the functions that the generated code calls.

    shape_stream  any tensor [T, B, width], for T, B, dtype and device
    values        what is known so far, by name: [T, B, width], or what broadcasts to it. What is the same at all steps
                  is [1, B, width], also where the call's tensors are packed
    finals        gets the values of states and delays after the last step, [B, width] by name
    """

    call: LayerCall
    direction: Direction
    shape_stream: Tensor
    values: dict[str, Tensor]
    finals: dict[str, Tensor]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x weightᵀ + bias over the last dimension."""
        kernels = self.call.kernels
        if kernels is None or x.is_cuda:
            # On a GPU torch's own product is as fast as ours could be.
            return torch.nn.functional.linear(x, weight, bias)
        result: Tensor = kernels.run("linear", x, weight, bias)
        return result

    def linear_onto(self, onto: Tensor, x: Tensor, weight: Tensor, sign: int = 1) -> Tensor:
        """Adds x weightᵀ over the last dimension to `onto`, or subtracts it."""
        if self.call.kernels is None or x.is_cuda:
            return linear_onto(onto, x, weight, sign)
        product = self.linear(x, weight)
        return onto + product if sign > 0 else onto - product

    def layer_norm(
        self, value: Tensor, heads: int, k: int, epsilon: float, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """As rows.layer_norm, which takes five passes with several heads. The kernel of a GPU takes one."""
        kernels = self.call.kernels
        if kernels is None or not takes_head_norm(value, heads, k, (weight, bias), kernels.head_norm_units):
            return layer_norm(value, heads, k, epsilon, weight, bias)
        normalised: Tensor = kernels.run("head_norm", value, weight, bias, heads, k, epsilon)[0]
        return normalised

    def delay(self, name: str, value: Tensor) -> Tensor:
        """[T, B, width] one step later in processing order; zero at a reset, and before the start where no value was
        given."""
        start, restarts, value = self.direction.states[name], self._restarts(), self.whole(value)
        lengths, packing, reverse = self.call.lengths, self.call.packing, self.direction.reverse
        if packing is not None:
            delayed, final = packing.delay(value, in_dtype(start, value.dtype), reverse=reverse)
            self.finals[name] = in_dtype(final, start.dtype)
            return delayed if restarts is None else torch.where(restarts.unsqueeze(-1), 0, delayed)
        before = in_dtype(start, value.dtype).unsqueeze(0)
        if lengths is not None and reverse:
            # A reversed sequence starts at its last step. What lies behind that step is not its past.
            value = torch.where(active_steps(value.shape[0], lengths).unsqueeze(-1), value, before)
        chain = torch.cat((value, before) if reverse else (before, value))
        delayed = chain[1:] if reverse else chain[:-1]
        if restarts is not None:
            delayed = torch.where(restarts.unsqueeze(-1), 0, delayed)
        if lengths is None or reverse:
            final = chain[0 if reverse else -1]
        else:
            final = chain.gather(0, lengths.reshape(1, -1, 1).expand_as(before)).squeeze(0)
        self.finals[name] = in_dtype(final, start.dtype)
        return delayed

    def _restarts(self) -> Tensor | None:
        """Before which steps batch entries start anew, in this direction's order: bool, shaped as `reset`."""
        reset, packing = self.call.reset, self.call.packing
        if reset is None or not self.direction.reverse:
            return reset
        return cut_backwards(reset, self.call.lengths) if packing is None else packing.cut_backwards(reset)

    def stream(self, *members: tuple[Tensor | float, int]) -> Tensor:
        """Values side by side as one stream, which broadcasts to [T, B, Σwidth]."""
        like = self.shape_stream
        parts = [in_dtype(widen(value, width, like), like.dtype) for value, width in members]
        return parts[0] if len(parts) == 1 else concat(parts)

    def over_steps(self, value: Tensor) -> Tensor:
        """One value per sequence, [1, B, width], where values of all steps are computed with. It broadcasts to them;
        packed, it is copied to each row of its sequence, [total, 1, width]. What is one for all sequences stays."""
        packing = self.call.packing
        if packing is None or value.dim() < 3 or is_shared(value, 1):
            return value
        # The gradients of all rows of a sequence are added in float32: 16 bits would lose most of a long sum.
        exact = value[0].to(torch.promote_types(value.dtype, torch.float32))
        return of_entries(exact, 0, packing.places()[1]).to(value.dtype).unsqueeze(1)

    def whole(self, value: Tensor) -> Tensor:
        """What broadcasts to [T, B, width] (packed: [total, 1, width]) in that shape, without a copy."""
        return in_shape(value, (*self.shape_stream.shape[:2], value.shape[-1]))


def handed(cell: CellSpec, name: str, sequence: Tensor, lengths: Tensor | None) -> Tensor:
    """A sequence [T, B, width] for the code that reads it after the loop. Past its length a batch entry may hold a
    state that no step has made (m = -inf). That must not reach a gradient, so it is padded with the last value."""
    return sequence if lengths is None or name not in cell.handed_on else padded(sequence, lengths)


def run_directions(
    call: LayerCall,
    sizes: Sizes,
    inputs: Mapping[str, Tensor],
    directions: Sequence[Direction],
    sequences_of: Sequence[str] = (),
) -> list[Result]:
    """Run every direction of a layer, and return their results. `inputs` are [T, B, width] by name, or what broadcasts
    to it (inputs per sequence: [1, B, width], also packed), and begin with x; `sequences_of` names the sequences that
    results hold beside the output."""
    cell, kernels, lengths = call.cell, call.kernels, call.lengths
    first = next(iter(inputs.values()))
    # Ops check their tensors themselves. Tensors that torch's own operators read first are checked here; for the common
    # case one quick look at x is enough.
    if kernels is None or cell.computes_weights or (kernels is not kernels.dispatched and _is_gone(first)):
        for own in directions:
            check_readable(*inputs.values(), *own.parameters.values(), *own.states.values())
    reverse = [int(own.reverse) for own in directions]
    running = [Tools(call, own, first, {**inputs, **own.masks}, {}) for own in directions]
    with without_autocast(first):
        for tools in running:
            if tools.direction.computed is None:
                compute(cell, tools.values, tools.direction.parameters, call.constants, sizes)
            else:
                tools.values.update(tools.direction.computed)
    for segment in cell.segments:
        loop = call.loop_of(segment)
        streams: list[Tensor] = []
        weights: list[Tensor] = []
        initial: list[Tensor] = []
        for tools in running:
            parameters, values = tools.direction.parameters, tools.values
            streams += [tools.whole(v) for v in segment.batched(values, parameters, call.constants, sizes, tools)]
            weights += [weight.tensor(parameters, values) for weight in loop.weights]
            initial += [tools.direction.states[state.name] for state in segment.states]
        if call.weight_dropout:
            weights = [w if w.dim() < 2 else dropout(w, call.weight_dropout) for w in weights]
        wanted = segment.wanted(sequences_of)
        sequences, last = call.run_loop(segment, sizes, (streams, weights, initial), reverse, wanted)
        made, ended = iter(sequences), iter(last)
        for tools in running:
            for i in wanted:
                name = segment.sequences[i].name
                tools.values[name] = handed(cell, name, next(made), lengths)
            for state in segment.states:
                tools.finals[state.name] = next(ended)
    active = None if lengths is None else active_steps(first.shape[0], lengths).unsqueeze(-1)
    shape = (first.shape[0], first.shape[1], cell.output_width(sizes))
    results = []
    for tools in running:
        values = tools.values
        cell.epilogue(values, tools.direction.parameters, call.constants, sizes, tools)
        asked = {name: values[name] for name in (cell.output, *sequences_of)}
        if asked[cell.output].shape != shape:
            asked[cell.output] = tools.over_steps(asked[cell.output])
        if active is not None:
            asked = {name: torch.where(active, value, 0) for name, value in asked.items()}
        # FSDP2 would warn of an output that is a view of itself.
        output = in_shape(asked[cell.output], shape)
        # A sequence that has the output's name is a copy: who writes into one result does not mean the other.
        returned = {name: output.clone() if name == cell.output else asked[name] for name in sequences_of}
        results.append(Result(output, tools.finals, returned))
    return results


def compute(
    cell: CellSpec, values: dict[str, Tensor], parameters: Mapping[str, Tensor], constants: Mapping[str, float],
    sizes: Sizes,
) -> None:  # fmt: skip
    """Add to `values` what a direction computes of its parameters before its loops. They have the first input already,
    or any tensor of its dtype and device in its place."""
    cell.derive(values, parameters, constants, sizes)
    cell.prologue(values, parameters, constants, sizes)


def _is_gone(x: Tensor) -> bool:
    """Whether a plain tensor has no memory, or no elements."""
    return type(x) is Tensor and not x.data_ptr()
