"""What layers and single-step cells share: sizes, constants, parameters and buffers, initial states."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import package
from ..arguments.arguments import held, read_number, read_probability, read_shaping, read_size, unexpected
from ..arguments.inputs import cast_state
from ..arguments.tensors import autocast_dtype, in_dtype
from ..kernels import fused
from ..kernels.choice import choose_kernels, kernels_of_call
from ..kernels.kernels import Kernels
from ..ops.segment_ops import saved_bytes
from ..pickling import LayerType
from ..spec import CellSpec, ParameterSpec, Sizes
from . import function
from .frozen import Freezable
from .options import Configured, Options
from .parameters import gate_view, held_by, initialise, members_of, ordered, rescale, rewrite, shape_of
from .regularisation import Regularised, wanted_regularisation
from .sizes import resolve_sizes
from .sparsify import sparsify
from .state_dicts import StateDicts
from .whole import Layout, layout_of, run_whole


def document_delays(cell: CellSpec, when: str) -> list[str]:
    """Lines of a docstring on what delays add to the states, none for a cell without."""
    if not cell.delays():
        return []
    names = ", ".join(cell.phrase(state) for state in cell.delays())
    return [
        f"{when}, hx and the final states end with the older values that the cell",
        f"reads, {names} (t: the last step).",
    ]


def dtype_of(parameters: Mapping[str, Tensor]) -> torch.dtype | None:
    """The parameters' dtype; None for a cell without parameters, which takes its inputs' dtype."""
    for tensor in parameters.values():
        return tensor.dtype
    return None


class RecurrentModule(Configured, Freezable, StateDicts, Regularised, metaclass=LayerType):
    """Holds the parameters `<attribute><suffix>` of a cell. A layer has a set for each layer and direction: `_l0`,
    `_l0_reverse`. A single step has one, whose suffix is ""."""

    # What `recurrent_dropout` is where it is not given; None: none, by whichever program the class was built with.
    _no_dropout: ClassVar[float | None] = 0.0

    input_size: int
    hidden_size: int
    num_heads: int
    state_dtype: torch.dtype | None
    backend: str | None
    recurrent_gradient_clip: float | None
    # Options of layers; a single step has none of them.
    bidirectional: bool = False
    reverse: bool = False
    recompute: bool | None = None
    # `__init__` of layers or of single steps, whatever a class of the user's has.
    _constructor: ClassVar[Callable[..., None]]
    # Inputs of layers have steps; those of a single step have not.
    _has_time: ClassVar[bool] = True

    # Shapes by attribute, an entry for each layer and direction.
    _shapes: list[dict[str, tuple[int, ...]]]

    def __new__(cls, *arguments: Any, **keywords: Any) -> RecurrentModule:
        """A constant that shapes the program, given another value than this class was built with, and regularisation
        within the steps mean another program: the result is then an instance of the class of that program."""
        if not arguments and not keywords:  # a copy, whose state comes later
            return super().__new__(cls)
        dropout = keywords.get("recurrent_dropout", cls._no_dropout)
        if "recurrent_dropout" in keywords:
            dropout = read_probability("recurrent_dropout", dropout)
        regularisation = wanted_regularisation(cls.spec, keywords.get("zoneout"), dropout)
        constants = {
            constant.name: value
            for constant in cls.spec.constants
            if constant.shaping
            and (value := held(constant.name, keywords.get(constant.name, constant.value))) != constant.value
        }
        is_own = not constants and regularisation == cls.spec.regularisation
        if is_own or "spec" not in cls.__dict__:
            return super().__new__(cls)
        other = getattr(package.specialise(cls.spec, constants, regularisation), cls.__name__)
        made: RecurrentModule = other(*arguments, **keywords)
        return made

    def _configure(self, given: Options, keywords: dict[str, Any]) -> None:
        """Take the options, and sort the keywords into constants and dims. Raises TypeError, ValueError."""
        cell = self.spec
        self.input_size, self.hidden_size, self.num_heads = given.input_size, given.hidden_size, given.num_heads
        self.bias, self.state_dtype, self.backend = given.bias, given.state_dtype, given.backend
        self.recurrent_gradient_clip = given.recurrent_gradient_clip
        self._regularise(given.zoneout, given.recurrent_dropout)
        self.constants, self.dims = {}, {}
        for constant in cell.constants:
            value = keywords.pop(constant.name, constant.value)
            if not constant.shaping:
                self.constants[constant.name] = read_number(constant.name, value)
            elif (value := read_shaping(constant.name, value, constant.value)) != constant.value:
                # `__new__` never saw it: a subclass of the user's passed it on to __init__.
                raise ValueError(
                    f"{constant.name}={value!r} is another program than this class was built with "
                    f"({constant.name}={constant.value!r}); derive from a module loaded with {constant.name}={value!r}"
                )
        own_sizes = [size.name for size in cell.sizes if size.is_keyword]
        for size in own_sizes:
            value = keywords.pop(size, None)
            self.dims[size] = None if value is None else read_size(size, value)
        if keywords:
            *arguments, _ = inspect.signature(self._constructor).parameters
            own = [*(constant.name for constant in cell.constants), *own_sizes]
            raise unexpected(type(self).__name__, next(iter(keywords)), [*arguments, *own])

    def _sizes_for(self, input_size: int) -> dict[str, int]:
        return resolve_sizes(self.spec, input_size, self.hidden_size, self.num_heads, self.dims)

    def _measured(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The suffix and the sizes of each layer and direction, by the constructor's arguments. Raises TypeError,
        ValueError for sizes that do not fit the cell."""
        raise NotImplementedError

    def _take_sizes(self, measured: Iterable[tuple[str, dict[str, int]]]) -> None:
        self._suffixes, self._sizes, self._shapes = [], [], []
        for suffix, sizes in measured:
            self._suffixes.append(suffix)
            self._sizes.append(sizes)
            self._shapes.append({each.attribute: shape_of(each, sizes) for each in self.spec.parameters})

    def _make_parameters(self, sizes: dict[str, int], suffix: str, factory: Mapping[str, Any]) -> None:
        """Make the parameters and buffers of one layer and direction."""
        for parameter in ordered(self.spec, bias=self.bias):
            tensor = torch.empty(shape_of(parameter, sizes), **factory)
            if parameter.trained:
                self.register_parameter(parameter.attribute + suffix, nn.Parameter(tensor))
            else:
                self.register_buffer(parameter.attribute + suffix, tensor)
        self._make_masks(sizes, suffix)

    def _layout(self) -> Layout | None:
        """What the op of a whole layer is told of this module; None where it has several layers or directions, or runs
        backwards."""
        if len(self._sizes) != 1 or self.reverse:
            return None
        shapes = {p.attribute: self._shapes[0][p.attribute] for p in self.spec.parameters if self.bias or not p.is_bias}
        return layout_of(self.spec, self._sizes[0], shapes, self._suffixes[0], time=self._has_time)

    def _run_whole(
        self, x: Tensor, hx: Any, further: Mapping[str, Tensor], in_place: bool = False
    ) -> Sequence[Tensor] | None:
        """A call of one layer and direction, or of a single step, by one op; None where it must go the long way."""
        if self._whole is None:
            return None
        kernels, _ = package.kernels()
        return None if kernels is None else run_whole(self, kernels, x, hx, further, in_place)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._restore()

    def _restore(self) -> None:
        """Compute anew what follows from a state. Kernels read memory by the sizes, and a file of unknown origin may
        have anything in their place. Raises TypeError, ValueError for a state that no layer had."""
        if "spec" in vars(self):
            raise ValueError(f"the spec of a {type(self).__name__} is its class's")
        self._check_options()
        self._check_numbers()
        self.zoneout, self.recurrent_dropout = self._zoneout, self._recurrent_dropout
        # No more than there are: a number in a file may be large.
        measured = list(islice(self._measured(), len(self._suffixes) + 1))
        if [suffix for suffix, _ in measured] != self._suffixes:
            raise ValueError(f"{type(self).__name__}: the state is of another number of layers and directions")
        self._take_sizes(measured)
        self._tell_denser()
        # A copy has parameters of its own, and may be of another class.
        self._whole, self._frozen = self._layout(), None

    def _check_numbers(self) -> None:
        """Check the constants and dims that a state has set. Raises TypeError, ValueError."""
        cell = self.spec
        constants = {constant.name for constant in cell.constants if not constant.shaping}
        dims = {size.name for size in cell.sizes if size.is_keyword}
        if set(self.constants) != constants or set(self.dims) != dims:
            raise ValueError(f"{type(self).__name__}: the state is of other constants or dims")
        self.constants = {name: read_number(name, value) for name, value in self.constants.items()}
        self.dims = {name: None if size is None else read_size(name, size) for name, size in self.dims.items()}

    def reset_parameters(self) -> None:
        """Give every parameter and buffer a new initial value."""
        self._rewrite(initialise)
        self._reset_masks()
        self._rewrite(rescale, "spectral")

    def _rewrite(self, write: Callable[[ParameterSpec, Sizes, Tensor], None], initialiser: str = "") -> None:
        """Let `write` change every parameter and buffer, or those that have a gate with this initialiser."""
        for sizes, suffix in zip(self._sizes, self._suffixes, strict=True):
            for parameter in ordered(self.spec, bias=self.bias):
                if not initialiser or any(member.initialiser == initialiser for member in parameter.members):
                    name = parameter.attribute + suffix
                    rewrite(self, name, self._stored(name), partial(write, parameter, sizes))

    def _stored(self, name: str) -> Tensor:
        """A parameter or buffer; where torch.nn.utils.prune makes it anew in each call, what it makes it of."""
        original = self._parameters.get(f"{name}_orig")
        return getattr(self, name) if original is None else original

    def _parameters_of(self, place: int, like: Tensor) -> dict[str, Tensor]:
        """The cell's parameters and buffers by attribute. Biases that bias=False removed are zeros."""
        found: dict[str, Tensor] = {}
        suffix, shapes = self._suffixes[place], self._shapes[place]
        for parameter in self.spec.parameters:
            attribute = parameter.attribute
            if parameter.is_bias and not self.bias:
                found[attribute] = like.new_zeros(shapes[attribute])
                continue
            tensor = self._value_of(parameter, suffix)
            # Kernels could not tell: a transposed matrix has as many elements as the right one.
            if tensor.shape != (wanted := shapes[attribute]):
                raise RuntimeError(
                    f"{self.spec.name}: {attribute + suffix} must be {list(wanted)}, got {list(tensor.shape)}"
                )
            found[attribute] = tensor if parameter.trained else tensor.detach()
        return found

    def _initial_states(
        self,
        given: Mapping[str, Tensor] | None,
        sizes: Sizes,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        batch: int,
        made: dict[tuple[int, str], Tensor],
    ) -> dict[str, Tensor]:
        """Every state's value before the first step, [B, width], delay states' too. `made`: constants by width, dtype
        and value (as text, which tells -0.0 from 0.0), one for all states, layers and directions of a call."""
        wanted = self.state_dtype
        if wanted is not None and (wanted == torch.float64) != (x.dtype == torch.float64):
            raise TypeError(
                f"state_dtype={wanted} does not go with an input of {x.dtype}: steps are computed in "
                f"{'float64' if x.dtype == torch.float64 else 'float32'}"
            )
        states: dict[str, Tensor] = {}
        for state in (*self.spec.states, *self.spec.value_delays):
            dtype = wanted or state.dtype(x.dtype)
            if given is not None and state.name in given:
                value = given[state.name]
                states[state.name] = value if value.dtype == dtype else cast_state(value, dtype, x)
            elif state.delay_of in states:
                # Before the start, a state has its initial value for all time.
                states[state.name] = states[state.delay_of]
            elif state.initial is None:
                learned = parameters[f"{state.name}0"].flatten()
                states[state.name] = in_dtype(learned, dtype).expand(batch, state.width(sizes))
            else:
                start = f"diagonal {state.initial_text}" if state.diagonal else state.initial_text
                key = (state.width(sizes), f"{start} {dtype}")
                if key not in made:
                    made[key] = state.start(x, batch, sizes, dtype)
                states[state.name] = made[key]
        return states

    def _gate_parameters(self, place: int, *, grad: bool) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        sizes, suffix = self._sizes[place], self._suffixes[place]
        for parameter in ordered(self.spec, bias=self.bias):
            own = held_by(self, parameter.attribute + suffix)
            tensor = own.grad if grad else own
            for name, rows in self._gates(parameter, tensor, sizes):
                found[name] = rows  # type: ignore[assignment]
        return found

    def _gates(self, parameter: ParameterSpec, tensor: Tensor | None, sizes: Sizes) -> list[tuple[str, Tensor | None]]:
        if tensor is None:
            return [(member.name, None) for member in parameter.members]
        return [
            (member.name, gate_view(parameter, member, rows, sizes))
            for member, rows in members_of(parameter, tensor, sizes)
        ]

    def sparsify(self, *groups: str) -> Any:
        """The layer (or single step) of the same cell in which the matrices of these groups (`R`, `W`) have masks, and
        kernels leave out their zeros where that is faster.

        A mask is that of torch.nn.utils.prune, or the layer's own, or both; where there is neither, elements that are
        zero are left out. The cell is planned for the density of the densest of a group's masks (`mask(density=0.11)`,
        two digits, rounded up), and built now where it is not in the cache. For a layer that has masks this plans anew.

        The result takes over the Parameter objects, as nn.Module.to and prune.remove do, and everything else that the
        layer has: optimisers go on with them. Go on with the result alone.

        Raises TypeError for classes derived from the cell's; ValueError for groups that are no matrices, for values
        that are not here (the meta device, shards), and where rnncc is not installed; RnnccError where the build fails.
        """
        return sparsify(self, groups)

    def _choose(self, x: Tensor) -> tuple[Kernels | None, str]:
        kernels, missing = package.kernels()
        return choose_kernels(kernels, x, self.backend, missing)

    def _kernels_of_call(self, x: Tensor) -> Kernels | None:
        kernels, missing = package.kernels()
        return kernels_of_call(self.spec, kernels, x, self.backend, missing)

    def _in_use(self) -> tuple[str, tuple[str, ...], str]:
        """What runs calls on tensors of the parameters' dtype and device: `cpu`, `cuda` or `fallback`, which is eager
        torch; on a GPU the kernels of each loop; and why."""
        tensor = self._example()
        kernels, why = self._choose(tensor)
        if kernels is None or not tensor.is_cuda:
            return "fallback" if kernels is None else "cpu", (), why
        like, directions = self._streams_like(tensor), 2 if self.bidirectional else 1
        loops = (fused.kernels_of(self.spec, each, self._sizes[0], directions, like) for each in self.spec.segments)
        return "cuda", tuple(loops), why

    def _example(self) -> Tensor:
        return next(chain(self.parameters(), self.buffers()), torch.empty(0))

    @staticmethod
    def _streams_like(tensor: Tensor) -> Tensor:
        """An empty tensor of the dtype and on the device of streams, where `tensor` is a parameter."""
        return tensor.new_empty(0, dtype=autocast_dtype(tensor, "cuda" if tensor.is_cuda else "cpu"))

    def explain(self, batch_size: int | None = None) -> str:
        """Which path runs for inputs of the parameters' dtype (or autocast's, where it is on) and device, and why; what
        the functional op takes; what each loop reads, and its class. With a `batch_size`, on a GPU: which of the
        kernels that there are run such a batch."""
        if batch_size is not None:
            batch_size = read_size("batch_size", batch_size)
        cell, sizes = self.spec, self._sizes[0]
        tensor = self._example()
        kernels, why = self._choose(tensor)
        like = self._streams_like(tensor)
        device = "GPU" if tensor.is_cuda else "CPU"
        path = f"{device} kernels" if kernels is not None else "the eager fallback (backend='reference')"
        lines = [f"{cell.name}: {path}: {why}"]
        if self.recompute and kernels is None:
            lines.append("  recompute: no effect, eager torch keeps what it wants")
        if self.recurrent_gradient_clip is not None and not any(segment.clips for segment in cell.segments):
            lines.append("  recurrent_gradient_clip: no effect, no matrix product reads an earlier value of a state")
        lines.append(f"  functional op: {function.describe(cell, sizes)}")
        lines += self._describe_masks()
        for segment in cell.segments:
            streams = ", ".join(
                f"{stream.name} [T, B, {stream.width(sizes)}]{', the same at all steps' if stream.per_sequence else ''}"
                for stream in segment.streams
            )
            weights = ", ".join(
                f"{weight.name} ({weight.attribute or 'of ' + (', '.join(weight.made_of) or 'numbers')})"
                for weight in segment.plain.weights
            )
            lines.append(f"  {segment.name}: streams {streams or 'none'}; weights {weights or 'none'}")
            if kernels is not None and tensor.is_cuda:
                directions = 2 if self.bidirectional else 1
                first, *rest = fused.describe(cell, segment, sizes, directions, like, batch_size)
                lines += [f"  {segment.name}: {first}", *(f"    {line}" for line in rest)]
            if kernels is not None:
                saved = [saved_bytes(segment, sizes, like, recompute=mode) for mode in (False, True)]
                again = "" if self.recompute is None else f", {saved[1]} with recompute"
                lines.append(f"    each step of a batch entry keeps {saved[0]} bytes for the backward{again}")
        lines += [
            f"  {states}: {kind}{f' ({form})' if form else ''}: {reason}" for states, kind, form, reason in cell.classes
        ]
        return "\n".join(lines)

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks first. Raises TypeError."""
        name = type(self).__name__
        raise TypeError(
            f"torch.jit.script cannot read {name}: use torch.export, or put what torch.jit.trace makes of the layer in "
            "its place"
        )

    def __getstate__(self) -> dict[str, Any]:
        """What pickle keeps, beside the class."""
        return self._contents()

    def _contents(self) -> dict[str, Any]:
        """What a copy begins with. (torch's parametrizations have a `__getstate__` of their own, which refuses.)"""
        computed = ("_whole", "_frozen", "_sizes", "_shapes")
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    def __deepcopy__(self, memo: dict[int, Any]) -> RecurrentModule:
        """A copy of the same class, without going through its text again."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self._contents(), memo))
        return made
