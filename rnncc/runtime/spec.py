"""What a generated module says about its cell. Layers, ops and the eager fallback read nothing else.

A width is a function of the cell's sizes `n`: a mapping that holds I, H, num_heads and the declared dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from .parameter_spec import MemberSpec as MemberSpec
from .parameter_spec import ParameterSpec as ParameterSpec
from .parameter_spec import Sizes as Sizes
from .parameter_spec import SparsitySpec as SparsitySpec
from .parameter_spec import Width as Width
from .product_spec import BiasSpec as BiasSpec
from .product_spec import ProductSpec as ProductSpec
from .state_spec import StateSpec as StateSpec

# Steps from border to border; rnncc/torch/borders.h has the same number.
BORDER_STEPS = 32


# step(streams at t, previous states) -> (new states, values of the segment's sequences)
Step = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
# make_step(weights, constants, sizes) -> step
MakeStep = Callable[[Sequence[Tensor], Sequence[float], Sizes], Step]


# A constant of this ending is a size as a number: `H__size` (rnncc/ir/dim.py).
_SIZE = "__size"


def number_of(name: str, constants: Mapping[str, float], sizes: Sizes) -> float:
    """The value of a constant that a loop reads."""
    return float(sizes[name.removesuffix(_SIZE)] if name.endswith(_SIZE) else constants[name])


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A declared dim: a keyword of the constructor, or `solved` from the others. `default` is a function of I, H and
    num_heads. The compiler's own, as the rank of `lowrank(k)`, are no keywords."""

    name: str
    default: Width | None = None
    solved: Width | None = None

    @property
    def is_keyword(self) -> bool:
        """Whether a caller may give it."""
        return "__" not in self.name


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """`left == right`, or `left % right == 0` where `divides`; `why` is "line 7"."""

    left: Width
    right: Width
    left_text: str
    right_text: str
    why: str
    divides: bool = False


@dataclass(frozen=True, slots=True)
class ConstantSpec:
    """A constant of the text. `value`: its default. `shaping`: another value means another program, which is built for
    it; otherwise it is an argument of the loop."""

    name: str
    value: float | int | str
    shaping: bool = False


@dataclass(frozen=True, slots=True)
class InputSpec:
    """`default`: the number that a call without it stands for, or None where every call gives it. `per_sequence`: it
    is [B, width] in place of [T, B, width]. `matrix`: for callers it is [B, rows, columns]."""

    name: str
    width: Width
    default: float | None = None
    per_sequence: bool = False
    matrix: tuple[Width, Width] | None = None

    @property
    def shape(self) -> str:
        """The shape in which a call of a layer gives it, in words."""
        if self.matrix is not None:
            return "[B, rows, columns]"
        return "[B, width]" if self.per_sequence else "[T, B, width]"

    def sides(self, sizes: Sizes) -> tuple[int, ...]:
        """The dimensions of one entry's value: (width,), or (rows, columns) of a matrix."""
        return (self.width(sizes),) if self.matrix is None else tuple(side(sizes) for side in self.matrix)


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """An input that the layer draws for `zoneout` or `recurrent_dropout` (`drawn`) of the state `of`."""

    name: str
    width: Width
    drawn: str
    of: str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A sequence [T, B, width], or a saved tensor of the same shape."""

    name: str
    width: Width


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What a loop reads step by step, [T, B, Σwidth]: its members side by side. `finished`: the sequences of earlier
    loops that it is made of; `is_sequence` where it is the one named there as it stands. `per_sequence`: it is the same
    at all steps, and its stride over T may be 0."""

    name: str
    members: tuple[TensorSpec, ...]
    finished: tuple[str, ...] = ()
    is_sequence: bool = False
    per_sequence: bool = False

    def width(self, sizes: Sizes) -> int:
        """The members' widths together."""
        return sum(member.width(sizes) for member in self.members)


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """What a loop reads at every step: the parameter `attribute`, or (`attribute` "") the function `name` of the
    parameters `made_of`, which are attributes too. `is_matrix`: steps multiply by it."""

    name: str
    attribute: str = ""
    made_of: tuple[str, ...] = ()
    is_matrix: bool = False

    def tensor(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """A call's weight: one of its parameters by attribute, or of the values that `derive` made of them."""
        return parameters[self.attribute] if self.attribute else values[self.name]


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """The plain or the masked loop: its weights and what its training forward saves.

    For each saved tensor: `saved_sequence`, the sequence that holds the same values, or -1; `saved_state`, the state
    that it is the sequence of, or -1; `saved_rounded`, whether a GPU keeps it in the streams' dtype.
    """

    weights: tuple[WeightSpec, ...]
    saved: tuple[TensorSpec, ...] = ()
    saved_sequence: tuple[int, ...] = ()
    saved_state: tuple[int, ...] = ()
    saved_rounded: tuple[bool, ...] = ()

    def read_by_backward(self, recompute: bool) -> list[int]:
        """The indices of the saved tensors that the backward is given. With `recompute` these are states alone: it
        computes the others again."""
        return [i for i, state in enumerate(self.saved_state) if state >= 0 or not recompute]


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """One loop.

    `clips`    whether matrix products read earlier values of states: a bound on the gradient that they hand back may
               then follow the constants of a call
    `needed`   indices of the sequences that the output, later segments or the epilogue read
    `initials` what a reset restores, per state: a number, or (where `learned`) an index into `masked.weights`
    `batched`  batched(values, parameters, constants, sizes, tools): adds what is computed over all steps to `values`
               and returns the streams
    `whole`    how one product makes all streams, where nothing else is computed outside of the loop; the segment then
               has the ops of a whole layer
    `has_borders`
               a state is a matrix: a CPU keeps states at borders alone (`keeps_borders`)
    `fused_widths`
               the widths of what a fused step computes, where they are not that of the first state alone
    """

    name: str
    states: tuple[StateSpec, ...]
    streams: tuple[StreamSpec, ...]
    sequences: tuple[TensorSpec, ...]
    needed: tuple[int, ...]
    constants: tuple[str, ...]
    clips: bool
    initials: tuple[float | int, ...]
    learned: tuple[bool, ...]
    plain: LoopSpec
    masked: LoopSpec
    batched: Callable[..., list[Tensor]]
    make_step: MakeStep
    whole: ProductSpec | None = None
    has_borders: bool = False
    fused_widths: tuple[Width, ...] = ()

    def keeps_borders(self, first: Tensor) -> bool:
        """Whether a training call keeps states every BORDER_STEPS steps, and nothing else, for the backward. `first`:
        one of its streams."""
        return self.has_borders and first.device.type == "cpu"

    def fused_head_dims(self, sizes: Sizes) -> list[int]:
        """The head_dims of what a fused step computes. A kernel is made for the largest of them; DeviceRuns in
        `rnncc/cuda/run.h` has the same rule."""
        widths = self.fused_widths or (self.states[0].width,)
        return [width(sizes) // sizes["num_heads"] for width in widths]

    def loop_of(self, offsets: Tensor | None, lengths: Tensor | None, reset: Tensor | None) -> LoopSpec:
        """The loop that a call runs. On a GPU packed rows lie entry by entry, which the masked loop alone takes."""
        masked = lengths is not None or reset is not None or (offsets is not None and not offsets.is_cpu)
        return self.masked if masked else self.plain

    def wanted(self, names: Sequence[str]) -> list[int]:
        """Indices of the sequences that are needed anyway, and of those named."""
        if not names:
            return list(self.needed)
        return [i for i, sequence in enumerate(self.sequences) if i in self.needed or sequence.name in names]

    def numbers(self, constants: Mapping[str, float], sizes: Sizes, clip: float | None) -> list[float]:
        """What a call is given as its constants."""
        own = [number_of(name, constants, sizes) for name in self.constants]
        return own if clip is None or clip == math.inf or not self.clips else [*own, float(clip)]


@dataclass(frozen=True, slots=True)
class SingleSpec:
    """A cell's single step as one op, on CPUs and without gradients, where a layer needs more than one op. The fields
    mean what those of a SegmentSpec do. `divided`: widths that the heads must divide; with `one_head` there is one.
    `further`: the inputs beside x."""

    name: str
    states: tuple[StateSpec, ...]
    sequences: tuple[TensorSpec, ...]
    constants: tuple[str, ...]
    plain: LoopSpec
    whole: ProductSpec
    divided: tuple[Width, ...] = ()
    one_head: bool = False
    further: tuple[str, ...] = ()

    def takes(self, sizes: Sizes) -> bool:
        """Whether the op runs a cell of these sizes."""
        heads = sizes["num_heads"]
        return heads == 1 or not (self.one_head or any(width(sizes) % heads for width in self.divided))


@dataclass(frozen=True, slots=True)
class Regularisation:
    """What is compiled into the steps of a cell: zoneout of these states, and variational recurrent dropout."""

    zoneout: tuple[str, ...] = ()
    recurrent_dropout: bool = False


@dataclass(frozen=True, slots=True)
class CellSpec:
    """A cell. `derive`, `prologue` and `epilogue` work like `batched`: the first makes those functions of parameters
    that loops read, the second all others. `classes`, for `explain()`: (states, class, form, why).
    `value_delays`: what `x[t-1]`, `x[t-2]` and `u[t-1]` read, in this order; each keeps its `delay_of`. `denser`: the
    size of a cell with masks that is 1 where a layer's masks are denser than the cell says, else 0. `single`: where a
    single step has an op of its own."""

    name: str
    source_name: str
    sizes: tuple[SizeSpec, ...]
    constants: tuple[ConstantSpec, ...]
    inputs: tuple[InputSpec, ...]
    states: tuple[StateSpec, ...]
    parameters: tuple[ParameterSpec, ...]
    segments: tuple[SegmentSpec, ...]
    output: str
    output_width: Width
    constraints: tuple[ConstraintSpec, ...]
    derive: Callable[..., None]
    prologue: Callable[..., None]
    epilogue: Callable[..., None]
    classes: tuple[tuple[str, str, str, str], ...] = ()
    value_delays: tuple[StateSpec, ...] = ()
    masks: tuple[MaskSpec, ...] = ()
    regularisation: Regularisation = Regularisation()
    single_head_because: str = ""
    denser: str = ""
    single: SingleSpec | None = None
    # Without delays, and with them: calls ask for these again and again.
    _carried: tuple[tuple[StateSpec, ...], tuple[StateSpec, ...]] = field(init=False, repr=False)
    # Whether the prologue computes what loops read.
    computes_weights: bool = field(init=False, repr=False)
    # The sequences that later segments or the epilogue read.
    handed_on: frozenset[str] = field(init=False, repr=False)
    # The inputs that are [B, width].
    per_sequence: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        visible = tuple(state for state in self.states if state.delay_of is None)
        delays = tuple(state for state in self.states if state.delay_of is not None) + self.value_delays
        object.__setattr__(self, "_carried", (visible, visible + delays))
        object.__setattr__(self, "computes_weights", any(not weight.attribute for weight in self.loop_weights()))
        needed = {segment.sequences[i].name for segment in self.segments for i in segment.needed}
        streamed = {name for segment in self.segments for stream in segment.streams for name in stream.finished}
        # What is the output of a segment leaves the epilogue nothing to do.
        object.__setattr__(self, "handed_on", frozenset((needed - {self.output}) | streamed))
        object.__setattr__(self, "per_sequence", frozenset(item.name for item in self.inputs if item.per_sequence))

    def visible_states(self) -> tuple[StateSpec, ...]:
        """The states that the cell declares: what stands in hx and h_n."""
        return self._carried[0]

    def delays(self) -> tuple[StateSpec, ...]:
        """What `return_delays` adds to hx and h_n: older values of states, newest first, then of inputs and values."""
        return self._carried[1][len(self._carried[0]) :]

    def program(self) -> dict[str, Any]:
        """Which program of its text this is, as fields of rnncc's Request."""
        constants = {constant.name: constant.value for constant in self.constants if constant.shaping}
        return {"constants": constants, **asdict(self.regularisation)}

    def sizes_in_order(self, sizes: Sizes) -> list[int]:
        """The op's `sizes`: I, H, then the declared dims."""
        return [sizes["I"], sizes["H"], *(sizes[size.name] for size in self.sizes)]

    def sizes_by_name(self, in_order: Sequence[int], num_heads: int) -> dict[str, int]:
        """The sizes that the op takes as `sizes` and `num_heads`, by name."""
        names = ("I", "H", *(size.name for size in self.sizes))
        return dict(zip(names, in_order, strict=True)) | {"num_heads": num_heads}

    def returnables(self) -> tuple[str, ...]:
        """What `return_sequences_of` may name: states, what is computed after or handed on by a loop, the output."""
        names = [sequence.name for segment in self.segments for sequence in segment.sequences]
        return tuple(dict.fromkeys(name for name in (*names, self.output) if "__" not in name))

    def returnable(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names, checked. Raises TypeError, ValueError."""
        if isinstance(names, str) or not isinstance(names, (tuple, list)):
            raise TypeError(f"return_sequences_of should be a tuple of names, got: {names!r}")
        known = self.returnables()
        for name in names:
            if name not in known:
                raise ValueError(
                    f"return_sequences_of: {self.name} can return the sequences of {', '.join(known)}, not of {name!r}"
                )
        return tuple(dict.fromkeys(names))

    def loop_weights(self) -> tuple[WeightSpec, ...]:
        """What steps read, of all loops."""
        return tuple(weight for segment in self.segments for weight in segment.plain.weights)

    def carried(self, return_delays: bool) -> tuple[StateSpec, ...]:
        """What stands in hx and h_n."""
        # torch.compile of torch 2.11 takes no bool as an index.
        return self._carried[int(return_delays)]

    def phrase(self, state: StateSpec) -> str:
        """A carried value as the language writes it when the last step is t: `h`; `h[t-1]` and `x[t]` for delays."""
        if state.delay_of is None:
            return state.name
        kept = {other.name: other.delay_of for other in self.delays()}
        steps, root = 0, state.delay_of
        while kept.get(root) is not None:
            steps, root = steps + 1, str(kept[root])
        # A state's delay begins one step behind the state itself.
        back = steps + (state not in self.value_delays)
        return f"{root}[t-{back}]" if back else f"{root}[t]"
