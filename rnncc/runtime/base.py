"""What layers and single-step cells share: sizes, constants, parameters, initial states."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from . import function, fused, package, torch_names
from .inputs import autocast_dtype, cast_state
from .kernels import Kernels
from .ops import kept_bytes
from .parameters import gate_view, initialise, members_of, ordered, shape_of
from .regularisation import Zoneout, check_zoneout, wanted_regularisation
from .run import choose_kernels, kernels_of_call
from .sizes import (
    check_backend,
    check_clip,
    check_constant,
    check_flags,
    check_probability,
    check_size,
    resolve_sizes,
)
from .spec import CellSpec, ParameterSpec, Sizes


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
    return next((tensor.dtype for tensor in parameters.values()), None)


class RecurrentModule(nn.Module):
    """Holds the parameters `<attribute><suffix>` of a cell, one set a suffix: `_l0`, `_l0_reverse`; "" for a cell."""

    spec: ClassVar[CellSpec]
    # Where `load` made the class: (function that loads again, its arguments). Built packages pickle by module name.
    _origin: ClassVar[tuple[Any, tuple[Any, ...]] | None] = None

    # What `recurrent_dropout` is where it is not given; None: none, by whichever program the class was built with.
    _no_dropout: ClassVar[float | None] = 0.0

    input_size: int
    hidden_size: int
    num_heads: int
    bias: bool
    state_dtype: torch.dtype | None
    backend: str | None
    recurrent_gradient_clip: float | None
    _zoneout: dict[str, float]
    _recurrent_dropout: float
    constants: dict[str, float]
    dims: dict[str, int | None]
    # Options of layers; a single step has none of them.
    bidirectional: bool = False
    recompute: bool | None = None
    # One entry a layer and direction, direction-major as in torch.nn: l0, l0_reverse, l1, …; shapes by attribute.
    _suffixes: list[str]
    _sizes: list[dict[str, int]]
    _shapes: list[dict[str, tuple[int, ...]]]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # torch asks the class whether its state dicts have such an entry.
        if "spec" in vars(cls) and torch_names.state_order(cls.spec) is not None:
            cls.get_extra_state = cls._state_order  # type: ignore[assignment]
            cls.set_extra_state = cls._take_state_order  # type: ignore[assignment]

    def _state_order(self) -> Tensor | None:
        return torch_names.state_order(self.spec)

    def _take_state_order(self, state: Any) -> None:
        """Nothing to take: `_load_from_state_dict` has compared it."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> RecurrentModule:
        """A constant that shapes the program, given another value than this class was built with, and regularisation
        within the steps mean another program: the result is then an instance of the class of that program."""
        if not arguments and not keywords:  # a copy, whose state comes later
            return super().__new__(cls)
        dropout = keywords.get("recurrent_dropout", cls._no_dropout)
        if "recurrent_dropout" in keywords:
            check_probability("recurrent_dropout", dropout)
        regularisation = wanted_regularisation(cls.spec, keywords.get("zoneout"), dropout)
        constants = {
            constant.name: keywords[constant.name]
            for constant in cls.spec.constants
            if constant.shaping and keywords.get(constant.name, constant.value) != constant.value
        }
        is_own = not constants and regularisation == cls.spec.regularisation
        if is_own or "spec" not in cls.__dict__:
            return super().__new__(cls)
        other = getattr(package.specialise(cls.spec, constants, regularisation), cls.__name__)
        made: RecurrentModule = other(*arguments, **keywords)
        return made

    def _configure(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_heads: int,
        state_dtype: torch.dtype | None,
        backend: str | None,
        recurrent_gradient_clip: float | None,
        zoneout: Any,
        recurrent_dropout: float | None,
        keywords: dict[str, Any],
    ) -> None:
        """Sort the keywords into constants and dims. Raises TypeError, ValueError, NotImplementedError."""
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_heads", num_heads)):
            check_size(name, value)
        check_flags(bias=bias)
        if state_dtype is not None and (not isinstance(state_dtype, torch.dtype) or not state_dtype.is_floating_point):
            raise TypeError(f"state_dtype should be a floating-point torch.dtype or None, got: {state_dtype!r}")
        check_backend(backend)
        check_clip(recurrent_gradient_clip)
        self.recurrent_gradient_clip = recurrent_gradient_clip
        cell = self.spec
        self._zoneout, self._recurrent_dropout = check_zoneout(cell, zoneout), float(recurrent_dropout or 0)
        if wanted_regularisation(cell, zoneout, recurrent_dropout) != cell.regularisation:
            # `__new__` never saw it: a subclass of the user's passed it on to __init__.
            raise ValueError(
                "zoneout and recurrent_dropout mean another program than this class was built with: a class derived "
                f"from {cell.name} cannot add them"
            )
        if recurrent_dropout and not any(mask.drawn == "recurrent_dropout" for mask in cell.masks):
            raise ValueError(f"recurrent_dropout: no matrix product of {cell.name} reads an earlier value of a state")
        self.input_size, self.hidden_size, self.num_heads, self.bias = input_size, hidden_size, num_heads, bias
        self.state_dtype, self.backend = state_dtype, backend
        self.constants, self.dims = {}, {}
        self._suffixes, self._sizes, self._shapes = [], [], []
        for constant in cell.constants:
            value = keywords.pop(constant.name, constant.value)
            if not constant.shaping:
                self.constants[constant.name] = check_constant(constant.name, value)
            elif value != constant.value:
                # `__new__` never saw it: a subclass of the user's passed it on to __init__.
                raise ValueError(
                    f"{constant.name}={value!r} is another program than this class was built with "
                    f"({constant.name}={constant.value!r}); derive from a module loaded with {constant.name}={value!r}"
                )
        for size in cell.sizes:
            self.dims[size.name] = keywords.pop(size.name, None)
        if keywords:
            known = [constant.name for constant in cell.constants] + [size.name for size in cell.sizes]
            raise TypeError(
                f"{type(self).__name__} got an unexpected keyword argument {next(iter(keywords))!r}"
                + (f"; its own are {', '.join(known)}" if known else "")
            )

    @property
    def zoneout(self) -> Mapping[str, float]:
        """The probability by state, read-only. To be set to others: a state that is left out, or None, has 0. Raises
        ValueError for a state that the module was made without zoneout of."""
        return MappingProxyType(self._zoneout)

    @zoneout.setter
    def zoneout(self, value: Zoneout) -> None:
        given = check_zoneout(self.spec, value)
        built = {mask.of for mask in self.spec.masks if mask.drawn == "zoneout"}
        if missing := [name for name, p in given.items() if p and name not in built]:
            raise ValueError(
                f"this {type(self).__name__} was made without zoneout of {', '.join(missing)}, which is another "
                "program: give zoneout= to its constructor"
            )
        self._zoneout = {name: p for name, p in given.items() if name in built}

    @property
    def recurrent_dropout(self) -> float:
        """The probability. To be set to another; raises ValueError where the module was made without."""
        return self._recurrent_dropout

    @recurrent_dropout.setter
    def recurrent_dropout(self, value: float) -> None:
        check_probability("recurrent_dropout", value)
        if value and not any(mask.drawn == "recurrent_dropout" for mask in self.spec.masks):
            raise ValueError(
                f"this {type(self).__name__} was made without recurrent dropout, which is another program: give "
                "recurrent_dropout= to its constructor"
            )
        self._recurrent_dropout = float(value)

    def _sizes_for(self, input_size: int) -> dict[str, int]:
        return resolve_sizes(self.spec, input_size, self.hidden_size, self.num_heads, self.dims)

    def _make_parameters(self, sizes: dict[str, int], suffix: str, factory: Mapping[str, Any]) -> None:
        """Those of one more layer and direction."""
        for parameter in ordered(self.spec, bias=self.bias):
            tensor = nn.Parameter(torch.empty(shape_of(parameter, sizes), **factory))
            self.register_parameter(parameter.attribute + suffix, tensor)
        self._suffixes.append(suffix)
        self._sizes.append(sizes)
        self._shapes.append({parameter.attribute: shape_of(parameter, sizes) for parameter in self.spec.parameters})

    def reset_parameters(self) -> None:
        """Give every parameter a new initial value."""
        for sizes, suffix in zip(self._sizes, self._suffixes, strict=True):
            for parameter in ordered(self.spec, bias=self.bias):
                initialise(parameter, getattr(self, parameter.attribute + suffix), sizes)

    def _parameters_of(self, place: int, like: Tensor) -> dict[str, Tensor]:
        """The cell's parameters by attribute. Biases that bias=False removed are zeros."""
        found: dict[str, Tensor] = {}
        suffix, shapes = self._suffixes[place], self._shapes[place]
        for parameter in self.spec.parameters:
            attribute = parameter.attribute
            if parameter.is_bias and not self.bias:
                found[attribute] = like.new_zeros(shapes[attribute])
                continue
            tensor = getattr(self, attribute + suffix)
            # Kernels could not tell: a transposed matrix has as many elements as the right one.
            if tensor.shape != (wanted := shapes[attribute]):
                raise RuntimeError(
                    f"{self.spec.name}: {attribute + suffix} must be {list(wanted)}, got {list(tensor.shape)}"
                )
            found[attribute] = tensor
        return found

    def _initial_states(
        self,
        given: Mapping[str, Tensor] | None,
        sizes: Sizes,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        columns: int,
        made: dict[tuple[int, float], Tensor],
    ) -> dict[str, Tensor]:
        """Every state's value before the first step, [B, width], delay states' too. `made`: constants by width and
        value, one for all states, layers and directions of a call."""
        dtype = self.state_dtype or x.dtype
        if (dtype == torch.float64) != (x.dtype == torch.float64):
            raise TypeError(
                f"state_dtype={dtype} does not go with an input of {x.dtype}: steps are computed in "
                f"{'float64' if x.dtype == torch.float64 else 'float32'}"
            )
        states: dict[str, Tensor] = {}
        for state in (*self.spec.states, *self.spec.input_delays):
            if given is not None and state.name in given:
                value = given[state.name]
                states[state.name] = value if value.dtype == dtype else cast_state(value, dtype, x)
            elif state.delay_of in states:
                # Before the start, a state has its initial value for all time.
                states[state.name] = states[state.delay_of]
            elif state.initial is None:
                start = parameters[f"{state.name}0"]
                states[state.name] = start.to(dtype).expand(columns, state.width(sizes))
            else:
                key = (state.width(sizes), state.initial)
                if key not in made:
                    made[key] = x.new_full((columns, key[0]), state.initial, dtype=dtype)
                states[state.name] = made[key]
        return states

    def _gate_parameters(self, place: int, *, grad: bool) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        sizes, suffix = self._sizes[place], self._suffixes[place]
        for parameter in ordered(self.spec, bias=self.bias):
            tensor = getattr(self, parameter.attribute + suffix)
            if grad:
                tensor = tensor.grad
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

    def _choose(self, x: Tensor) -> tuple[Kernels | None, str]:
        kernels, missing = package.kernels()
        return choose_kernels(kernels, x, self.backend, missing)

    def _kernels_of_call(self, x: Tensor) -> Kernels | None:
        kernels, missing = package.kernels()
        return kernels_of_call(self.spec, kernels, x, self.backend, missing)

    def explain(self, batch_size: int | None = None) -> str:
        """Which path runs for inputs of the parameters' dtype (or autocast's, where it is on) and device, and why; what
        the functional op takes; what each loop reads, and its class. With a `batch_size`, on a GPU: which of the
        kernels that there are run such a batch."""
        if batch_size is not None:
            check_size("batch_size", batch_size)
        cell, sizes = self.spec, self._sizes[0]
        tensor = next(self.parameters(), torch.empty(0))
        kernels, why = self._choose(tensor)
        like = tensor.new_empty(0, dtype=autocast_dtype(tensor, "cuda" if tensor.is_cuda else "cpu"))
        device = "GPU" if tensor.is_cuda else "CPU"
        path = f"{device} kernels" if kernels is not None else "the reference (eager torch)"
        lines = [f"{cell.name}: {path}: {why}"]
        if self.recompute and kernels is None:
            lines.append("  recompute: no effect, eager torch keeps what it wants")
        if self.recurrent_gradient_clip is not None and not any(segment.clips for segment in cell.segments):
            lines.append("  recurrent_gradient_clip: no effect, no matrix product reads an earlier value of a state")
        lines.append(f"  functional op: {function.describe(cell, sizes)}")
        for segment in cell.segments:
            streams = ", ".join(f"{stream.name} [T, B, {stream.width(sizes)}]" for stream in segment.streams)
            weights = ", ".join(
                f"{weight.name} ({weight.attribute or 'of ' + (', '.join(weight.made_of) or 'numbers')})"
                for weight in segment.plain.weights
            )
            lines.append(f"  {segment.name}: streams {streams or 'none'}; weights {weights or 'none'}")
            if kernels is not None and tensor.is_cuda:
                directions = 2 if self.bidirectional else 1
                first, *rest = fused.describe(
                    cell, segment, sizes, directions, like.dtype, like.get_device(), batch_size
                )
                lines += [f"  {segment.name}: {first}", *(f"    {line}" for line in rest)]
            if kernels is not None:
                kept = [kept_bytes(segment, sizes, like, recompute=mode) for mode in (False, True)]
                again = "" if self.recompute is None else f", {kept[1]} with recompute"
                lines.append(f"    a step of a column keeps {kept[0]} bytes for the backward{again}")
        lines += [
            f"  {states}: {kind}{f' ({form})' if form else ''}: {reason}" for states, kind, form, reason in cell.classes
        ]
        return "\n".join(lines)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # A hook would do as well, but pickling a layer would then name the module that this package was loaded as.
        torch_names.mark_state_dict(self, destination, prefix)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        if problem := self._check_state_dict(state_dict, prefix, local_metadata):
            error_messages = rest[3]
            error_messages.append(problem)
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _check_state_dict(self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any]) -> str:
        """What is wrong with a dictionary, or "". What is not ours is brought into our form, in place."""
        return torch_names.check_order(self, state_dict, prefix, local_metadata)[0]

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks first. Raises TypeError."""
        name = type(self).__name__
        raise TypeError(
            f"torch.jit.script cannot read {name}: use torch.export, or put what torch.jit.trace makes of the layer in "
            "its place"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A class that the user derived stands in a module of the user's, and pickles by its name there.
        origin = type(self).__dict__.get("_origin")
        if origin is None:
            return super().__reduce_ex__(protocol)
        again, arguments = origin
        return again, (*arguments, type(self).__name__), self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> RecurrentModule:
        """A copy of the same class, without going through its text again."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]
        return made
