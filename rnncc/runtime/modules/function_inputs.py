"""What a call gives to the functional op: counted, named, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Proxy

from ..arguments.arguments import read_number, read_shaping, read_size, unexpected
from ..arguments.inputs import Reset
from ..arguments.tensors import check_kind, is_symbol, under_autocast
from ..spec import CellSpec, ParameterSpec, Sizes, StateSpec, StreamSpec, Width
from .packed import Packed
from .parameters import shape_of
from .sizes import check_heads, default_of

Tensors = Tensor | Sequence[Tensor]
# Says what a tensor is for: its spec, or words.
_Spec = StreamSpec | ParameterSpec | StateSpec | str
# The keywords of every cell's op, beside its sizes.
_OPTIONS = (
    "lengths", "reset", "offsets", "max_length", "reverse", "return_delays", "return_sequences_of", "recompute",
    "recurrent_gradient_clip", "backend", "constants",
)  # fmt: skip
# Two sets of sizes. A width that equals H (or I) in both sets is H (or I).
_PROBES = ({"I": 7, "H": 11, "num_heads": 1}, {"I": 13, "H": 17, "num_heads": 1})


class Specs(NamedTuple):
    """What the op of a cell takes: streams, weights and states, in its order."""

    cell: CellSpec
    streams: tuple[StreamSpec, ...]
    weights: tuple[ParameterSpec, ...]
    states: tuple[StateSpec, ...]


class Given(NamedTuple):
    """The tensors of a call, in the order of `Specs`. A cell without streams is given one tensor of any width, for T
    and B. `states` is None where the call gives none."""

    streams: list[Tensor]
    weights: list[Tensor]
    states: list[Tensor] | None

    def pack(self, packed: Packed, reset: Reset) -> tuple[Given, Tensor | None]:
        """The same call, its streams [total, 1, width] and `reset` [total, 1] in the order of `packed`."""
        first, *others = self.streams
        named = {f"stream {index}": stream for index, stream in enumerate(others, 1)}
        first, named, marks = packed.take_all(first, named, reset)
        return self._replace(streams=[first, *named.values()]), marks


def specs_of(cell: CellSpec, *, masked: bool, return_delays: bool) -> Specs:
    """What the op takes: `masked`, in a call with lengths, resets or offsets."""
    states = tuple(state for state in cell.carried(return_delays) if state not in cell.value_delays)
    return Specs(cell, taken_streams(cell), taken_weights(cell, masked), states)


def taken_streams(cell: CellSpec) -> tuple[StreamSpec, ...]:
    """The streams that the caller gives. It gives no stream whose members all come from earlier streams or from
    sequences of earlier loops."""
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


def phrase(given: StreamSpec | ParameterSpec | str) -> str:
    """The words for a stream, with its gates where there are several (`W (i, f)`), or for a parameter, with its
    attribute (`R (weight_hh)`)."""
    if isinstance(given, str):
        return given
    if isinstance(given, ParameterSpec):
        return given.name if given.name == given.attribute else f"{given.name} ({given.attribute})"
    gates = [member.name.split("__")[0] for member in given.members]
    return given.name if len(gates) == 1 else f"{given.name} ({', '.join(gates)})"


def read_tensors(specs: Specs, streams: Tensors, weights: Tensors, states: Tensors | None) -> Given:
    """The tensors of a call, as many as there should be. Raises TypeError, ValueError."""
    cell = specs.cell
    given_streams = _counted(cell, "streams", streams, specs.streams or ("any, for T and B",))
    given_weights = _counted(cell, "weights", weights, specs.weights)
    return Given(
        given_streams, given_weights, None if states is None else _counted(cell, "states", states, specs.states)
    )


def _counted(cell: CellSpec, what: str, given: Tensors | Proxy, wanted: Sequence[_Spec]) -> list[Tensor]:
    if isinstance(given, Proxy):
        raise TypeError(f"{cell.name}: torch.fx cannot look into the functional op: use torch.fx.wrap, or the layer")
    if given is None or isinstance(given, Mapping | str | int | float):
        raise TypeError(f"{cell.name}: {what} should be a tensor or several, got: {type(given).__name__}")
    tensors = [given] if isinstance(given, Tensor) else list(given)
    if wrong := [type(item).__name__ for item in tensors if not isinstance(item, Tensor)]:
        raise TypeError(f"{cell.name}: {what} should be tensors, got: {wrong[0]}")
    if len(tensors) != len(wanted):
        names = ", ".join(cell.phrase(item) if isinstance(item, StateSpec) else phrase(item) for item in wanted)
        raise ValueError(f"{cell.name} takes {len(wanted)} {what} ({names}), got {len(tensors)}")
    return tensors


def read_constants(cell: CellSpec, given: Mapping[str, float | str]) -> dict[str, float]:
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
            numbers[name] = read_number(name, value)
        elif read_shaping(name, value, known[name]) != known[name]:
            raise ValueError(
                f"{name}={value!r} is another program than this op was built with ({name}={known[name]!r}): "
                f"load the cell with {name}={value!r}"
            )
    return numbers


def read_sizes_asked_for(cell: CellSpec, asked: Mapping[str, int | None]) -> dict[str, int | None]:
    """The sizes that a call names. Raises TypeError for a keyword that is no size of the cell, and for a size that is
    no integer; ValueError for one below 1."""
    known = ["hidden_size", "input_size", "num_heads", *(size.name for size in cell.sizes if size.is_keyword)]
    sizes: dict[str, int | None] = {}
    for name, value in asked.items():
        if name not in known:
            raise unexpected(f"{cell.name}'s functional op", name, [*known, *_OPTIONS])
        is_left_out = value is None and name != "num_heads"
        sizes[name] = value if is_left_out or is_symbol(value) else read_size(name, value)
    return sizes


def read_sizes(specs: Specs, given: Given, asked: Mapping[str, int | None]) -> dict[str, int]:
    """All sizes by name, from those that the call asks for and the shapes of its tensors. Raises ValueError."""
    cell = specs.cell
    first = given.streams[0]
    check_kind(first, f"{cell.name}'s functional op")
    if first.dim() != 3:
        raise ValueError(f"{cell.name}: streams must be [T, B, width], got {list(first.shape)}")
    hidden_size, input_size = asked["hidden_size"], asked["input_size"]
    if hidden_size is None:
        if given.states is None:
            raise ValueError(f"{cell.name}: give states or hidden_size")
        hidden_size = next(
            (tensor.shape[-1] for state, tensor in zip(cell.visible_states(), given.states, strict=False)
             if _is_size(state.width, "H")), None,
        )  # fmt: skip
        if hidden_size is None:
            raise ValueError(f"{cell.name}: give hidden_size")
    if input_size is None:
        input_size = next(
            (tensor.shape[-1] for stream, tensor in zip(specs.streams, given.streams, strict=False)
             if _is_size(stream.width, "I")), None,
        )  # fmt: skip
    num_heads = asked["num_heads"]
    assert num_heads is not None
    sizes = {"H": hidden_size, "num_heads": num_heads} | ({} if input_size is None else {"I": input_size})
    for size in cell.sizes:
        value = asked.get(size.name)
        if value is None and size.default is not None:
            value = default_of(size, sizes, cell.name)
        if value is None and size.solved is not None:
            value = size.solved({"I": 0, **sizes})
        if value is None:
            raise ValueError(f"{cell.name} needs the size {size.name}=")
        sizes[size.name] = value
    sizes = {"I": 0, **sizes}  # where I is not known, no loop has a size that is made of it
    check_heads(cell, sizes)
    return sizes


def _is_size(width: Width, name: str) -> bool:
    """Whether a width is the size `name` itself ("I" or "H")."""
    try:
        return all(width(probe) == probe[name] for probe in _PROBES)
    except KeyError:
        return False


def check_tensors(specs: Specs, given: Given, sizes: Sizes, packed: Packed | None) -> None:
    """Raises ValueError for a tensor of a wrong shape, TypeError for a wrong dtype."""
    cell = specs.cell
    steps, rows = given.streams[0].shape[:2]
    for stream, tensor in zip(specs.streams, given.streams, strict=len(specs.streams) > 0):
        if packed is None:
            _check_shape(cell, stream, tensor, (steps, rows, stream.width(sizes)))
        else:
            _check_shape(cell, stream, tensor.squeeze(1), (steps, stream.width(sizes)))
    for weight, tensor in zip(specs.weights, given.weights, strict=True):
        _check_shape(cell, weight, tensor, shape_of(weight, sizes))
    batch = rows if packed is None else packed.batch
    for state, tensor in zip(specs.states, given.states or (), strict=given.states is not None):
        _check_shape(cell, state, tensor, (batch, *state.shape(sizes)))
    _check_dtypes(cell, given)


def _check_shape(
    cell: CellSpec, item: StreamSpec | ParameterSpec | StateSpec, tensor: Tensor, wanted: tuple[int, ...]
) -> None:
    # A transposed matrix has as many elements as the right one, so kernels could not notice it.
    if tuple(tensor.shape) != wanted:
        what = {StreamSpec: "stream", ParameterSpec: "weight", StateSpec: "state"}[type(item)]
        name = cell.phrase(item) if isinstance(item, StateSpec) else item.name
        raise ValueError(f"{cell.name}: the {what} {name} must be {list(wanted)}, got {list(tensor.shape)}")


def _check_dtypes(cell: CellSpec, given: Given) -> None:
    first = given.streams[0]
    if not first.is_floating_point():
        raise TypeError(f"{cell.name} takes floating-point streams, got {first.dtype}")
    for state in given.states or ():
        # A state may have more or fewer bits than streams, which is what `state_dtype` gives a layer.
        if not state.is_floating_point() or (state.dtype == torch.float64) != (first.dtype == torch.float64):
            raise TypeError(f"{cell.name}: a state is {state.dtype}, but the first stream is {first.dtype}")
    if under_autocast(first):
        return
    for what, tensors in (("stream", given.streams), ("weight", given.weights)):
        for tensor in tensors:
            if tensor.dtype != first.dtype:
                raise TypeError(f"{cell.name}: a {what} is {tensor.dtype}, but the first stream is {first.dtype}")


def initial_states(specs: Specs, given: Given, sizes: Sizes, packed: Packed | None) -> dict[str, Tensor]:
    """The initial values of every state and every delay, [B, width] by name, in the order of `packed`. Raises
    ValueError for a learned one that was not given."""
    cell, first = specs.cell, given.streams[0]
    named = {s.name: s.flat(tensor) for s, tensor in zip(specs.states, given.states or (), strict=False)}
    batch = first.shape[1]
    if packed is not None:
        batch, named = packed.batch, {name: packed.sort(state) for name, state in named.items()}
    found: dict[str, Tensor] = {}
    for state in cell.states:
        if state.name in named:
            found[state.name] = named[state.name]
        elif state.delay_of is not None:
            found[state.name] = found[state.delay_of]
        elif state.initial is None:
            raise ValueError(f"{cell.name}: the initial value of {state.name} is learned; give states")
        else:
            found[state.name] = state.start(first, batch, sizes, state.dtype(first.dtype))
    return found
