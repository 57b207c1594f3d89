"""The functional op: a cell's loop alone, on pre-activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import package
from .inputs import active_steps
from .parameters import shape_of
from .run import choose_kernels, run_segment
from .sizes import check_heads
from .spec import CellSpec, LoopSpec


def run_function(
    cell: CellSpec,
    streams: Tensor | Sequence[Tensor],
    weights: Tensor | Sequence[Tensor],
    states: Tensor | Sequence[Tensor] | None = None,
    *,
    hidden_size: int | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    num_heads: int = 1,
    backend: str | None = None,
    constants: Mapping[str, float] | None = None,
    **dims: int,
) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
    """The cell's loop without what surrounds it: y, last = f(streams, weights, states).

    streams  one tensor [T, B, Σwidth] a stream, in the order of the layer's `explain()`; gates lie in text order
    weights  what the loop reads at every step, packed as the layer's parameters, in the loop's order
    states   one tensor [B, width] a state; the declared initial values where None (a learned one must be given)
    hidden_size is taken from the first of `states` whose width is H, where it is not given.

    Returns the output [T, B, width] and the final state (a tuple where there are several). Raises NotImplementedError
    for a cell of several loops or with work after its loop, ValueError for wrong counts, shapes and heads,
    TypeError for an unknown keyword.
    """
    if len(cell.segments) != 1 or cell.output not in [s.name for s in cell.segments[0].sequences]:
        raise NotImplementedError(f"{cell.name} is more than one loop; use the layer {cell.name}")
    segment = cell.segments[0]
    known = {size.name for size in cell.sizes}
    for name in dims:
        if name not in known:
            raise TypeError(f"{cell.name} got an unexpected keyword argument {name!r}")
    given_streams = [streams] if isinstance(streams, Tensor) else list(streams)
    given_weights = [weights] if isinstance(weights, Tensor) else list(weights)
    masked = lengths is not None or reset is not None
    loop = segment.masked if masked else segment.plain
    for what, given, wanted in (
        ("streams", given_streams, max(1, len(segment.streams))),
        ("weights", given_weights, len(loop.weights)),
    ):
        if len(given) != wanted:
            names = [s.name for s in segment.streams] if what == "streams" else [w.name for w in loop.weights]
            raise ValueError(f"{cell.name} takes {wanted} {what} ({', '.join(names)}), got {len(given)}")
    first = given_streams[0]
    columns = first.shape[1]
    if lengths is not None:
        # As in a layer: whatever pads a column, NaN included, must not reach a gradient.
        active = active_steps(first.shape[0], lengths).unsqueeze(-1)
        given_streams = [torch.where(active, stream, 0) for stream in given_streams]
    given_states = None if states is None else [states] if isinstance(states, Tensor) else list(states)
    sizes = _sizes(cell, given_states, hidden_size, num_heads, dims)
    _check_weights(cell, loop, given_weights, sizes)
    initial = _initial(cell, given_states, sizes, first, columns)
    numbers = {c.name: float(c.value) for c in cell.constants if not c.shaping} | dict(constants or {})
    kernels, missing = package.kernels()
    chosen, _ = choose_kernels(kernels, first, backend, missing)
    wanted_index = [s.name for s in segment.sequences].index(cell.output)
    sequences, finals = run_segment(
        cell, segment, chosen, given_streams, given_weights, initial, lengths, reset,
        [numbers[name] for name in segment.constants], sizes, reverse, [wanted_index],
    )  # fmt: skip
    output = sequences[0]
    if lengths is not None:
        output = torch.where(active, output, 0)
    visible = [final for state, final in zip(segment.states, finals, strict=True) if state.delay_of is None]
    return output, visible[0] if len(visible) == 1 else tuple(visible)


def _check_weights(cell: CellSpec, loop: LoopSpec, weights: list[Tensor], sizes: Mapping[str, int]) -> None:
    # A transposed matrix has as many elements as the right one: kernels could not tell.
    parameters = {parameter.attribute: parameter for parameter in cell.parameters}
    for weight, tensor in zip(loop.weights, weights, strict=True):
        parameter = parameters.get(weight.attribute)
        if parameter is not None and tuple(tensor.shape) != shape_of(parameter, sizes):
            wanted = shape_of(parameter, sizes)
            raise ValueError(f"{cell.name}: weight {weight.name} must be {wanted}, got {tuple(tensor.shape)}")


def _sizes(
    cell: CellSpec, states: list[Tensor] | None, hidden_size: int | None, num_heads: int, dims: Mapping[str, int]
) -> dict[str, int]:
    if hidden_size is None:
        if states is None:
            raise ValueError(f"{cell.name}: give states or hidden_size")
        hidden_size = next(
            (tensor.shape[-1] for state, tensor in zip(cell.visible_states(), states, strict=False)
             if _is_hidden(state.width)), None,
        )  # fmt: skip
        if hidden_size is None:
            raise ValueError(f"{cell.name}: give hidden_size")
    sizes = {"I": 0, "H": hidden_size, "num_heads": num_heads}
    for size in cell.sizes:
        value = dims.get(size.name, size.default)
        if value is None and size.solved is not None:
            value = size.solved(sizes)
        if value is None:
            raise ValueError(f"{cell.name} needs the size {size.name}=")
        sizes[size.name] = value
    if num_heads <= 0:
        raise ValueError("num_heads must be greater than zero")
    check_heads(cell, sizes)
    return sizes


def _is_hidden(width: Any) -> bool:
    """Whether a width is H: it follows H and nothing else."""
    try:
        return bool(width({"H": 7, "num_heads": 1}) == 7 and width({"H": 11, "num_heads": 1}) == 11)
    except KeyError:
        return False


def _initial(
    cell: CellSpec, given: list[Tensor] | None, sizes: Mapping[str, int], first: Tensor, columns: int
) -> list[Tensor]:
    visible = cell.visible_states()
    if given is not None and len(given) != len(visible):
        raise ValueError(f"{cell.name} has {len(visible)} states, got {len(given)}")
    found: dict[str, Tensor] = {}
    fresh = iter(given or ())
    for state in cell.states:
        if state.delay_of is not None:
            found[state.name] = found[state.delay_of]
        elif given is not None:
            found[state.name] = next(fresh)
        elif state.initial is None:
            raise ValueError(f"{cell.name}: the initial value of {state.name} is learned; give states")
        else:
            found[state.name] = first.new_full((columns, state.width(sizes)), state.initial)
    return [found[state.name] for state in cell.segments[0].states]
