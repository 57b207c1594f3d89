"""The layer that every cell becomes: torch.nn.LSTM's constructor, shapes and names, for any cell."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..arguments.inputs import (
    Form,
    Lengths,
    Reset,
    StatesLike,
    check_input,
    read_form,
    read_inputs,
    read_marks,
    read_states,
)
from ..eager.rows import beside
from ..spec import CellSpec, InputSpec, StateSpec
from . import state_dicts
from .base import RecurrentModule, document_delays, dtype_of
from .directions import Direction, LayerCall, Result, run_directions
from .options import Options
from .packed import Packed, read_packed
from .regularisation import Zoneout
from .stand_ins import call_stand_in, find_proxy


class _Marks(NamedTuple):
    """What a call says of its sequences, as the caller gave it."""

    lengths: Lengths
    reset: Reset
    offsets: Tensor | None
    max_length: int | None


class _Given(NamedTuple):
    """What a call was given, in our form.

    parameters, states   for each layer and direction, by name; `states` [B, width] is None where hx was not given
    inputs               by name, x first: [T, B, width], or [total, 1, width]; [1, B, width] of what is the same at all
                         steps
    lengths, reset       [B] and [T, B] (packed: [total, 1]), or None
    """

    parameters: list[dict[str, Tensor]]
    inputs: dict[str, Tensor]
    states: list[dict[str, Tensor]] | None
    batch: int
    lengths: Tensor | None
    reset: Tensor | None
    form: Form
    packed: Packed | None

    def give(self, sequence: Tensor) -> Any:
        """A sequence in the caller's form."""
        return self.form.give(sequence) if self.packed is None else self.packed.give(sequence)

    def give_state(self, state: Tensor) -> Tensor:
        """The final states [num_layers * directions, B, width] of a name, in the caller's form."""
        if self.packed is not None:
            return self.packed.unsort(state)
        return state if self.form.batched else state.squeeze(1)


class RecurrentLayer(RecurrentModule):
    """See `document`; the generated subclasses differ by `spec` alone."""

    recompute: bool

    @staticmethod
    def document(cell: CellSpec) -> str:
        """The docstring of a cell's layer."""
        own = [f"{size.name}: a size" for size in cell.sizes if size.is_keyword]
        own += [f"{constant.name}: default {constant.value!r}" for constant in cell.constants]
        defaults = {i.name: f" ({i.default:g} where left out)" for i in cell.inputs if i.default is not None}
        extra = [f"{item.name}= {item.shape}{defaults.get(item.name, '')}" for item in cell.inputs[1:]]
        names = [f"{state.name}_n" for state in cell.visible_states()]
        states = names[0] if len(names) == 1 else f"({', '.join(names)})"
        lines = [
            f"Layers of {cell.name} cells, used like torch.nn.LSTM.",
            "",
            "Arguments: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,",
            "bidirectional=False, proj_size=0, device=None, dtype=None; as keywords num_heads=1, state_dtype=None",
            "(of final states; default the input's, of matrices >=float32), backend=None ('cpu', 'cuda', 'reference'),",
            "return_delays=False, recompute=False (for the backward, keep states alone and compute the rest again),",
            "recurrent_gradient_clip=None (a bound on what matrix products hand back to h[t-1]; 0 cuts it),",
            "zoneout=None ({'h': 0.1}: with which probability a unit of a state keeps its value; the mean in eval; a",
            "number is that of every state),",
            "recurrent_dropout=0.0 (of earlier values of states that products read: one mask a sequence),",
            "weight_dropout=0.0 (of the matrices that steps multiply by, in training, once per call),",
            f"return_sequences_of=() (of {', '.join(cell.returnables())}: a dict of them is a third result),",
            "return_all_layers=False (of each, a tuple with one of every layer),",
            "reverse=False (one direction that begins at the last step)" + ("," if own else "."),
            *([f"{'; '.join(own)}."] if own else []),
            "",
            f"forward(input, hx=None, *, lengths=None, reset=None, offsets=None, max_length=None"
            f"{''.join(', ' + e for e in extra)})",
            f"returns output [T, B, directions * width] and {states},",
            "each [num_layers * directions, B, width]. lengths [B]: steps past an entry's length change nothing and",
            "give zeros. reset [T, B]: where it is not 0, the entry starts anew, and neither values nor gradients pass",
            "between that step and the one before. With a PackedSequence the output is one too. An input",
            "[total, width] with offsets [B + 1] has the sequences one after the other, none longer than max_length.",
            *document_delays(cell, "With return_delays=True"),
        ]
        return "\n".join(lines)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        num_heads: int = 1,
        state_dtype: torch.dtype | None = None,
        backend: str | None = None,
        return_delays: bool = False,
        recompute: bool = False,
        recurrent_gradient_clip: float | None = None,
        return_sequences_of: Sequence[str] = (),
        return_all_layers: bool = False,
        weight_dropout: float = 0.0,
        zoneout: Zoneout = None,
        recurrent_dropout: float = 0.0,
        reverse: bool = False,
        **constants_and_dims: Any,
    ) -> None:
        super().__init__()
        self._configure(
            Options(
                input_size, hidden_size, bias, num_heads, state_dtype, backend, recurrent_gradient_clip, zoneout,
                recurrent_dropout,
            ),
            constants_and_dims,
        )  # fmt: skip
        self.num_layers, self.batch_first, self.dropout = num_layers, batch_first, dropout
        self.bidirectional, self.reverse, self.proj_size = bidirectional, reverse, proj_size
        self.return_delays, self.recompute, self.weight_dropout = return_delays, recompute, weight_dropout
        self.return_sequences_of, self.return_all_layers = return_sequences_of, return_all_layers
        if self.reverse and self.bidirectional:
            raise ValueError("reverse=True is for one direction: a bidirectional layer has both")
        if self.return_all_layers and not self.return_sequences_of:
            raise ValueError("return_all_layers=True goes with return_sequences_of=, which says of what")
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=2,
            )
        self._set_projection(self.proj_size)
        factory = {"device": device, "dtype": dtype}
        self._take_sizes(self._measured())
        for sizes, suffix in zip(self._sizes, self._suffixes, strict=True):
            self._make_parameters(sizes, suffix, factory)
        carried: dict[str, StateSpec | InputSpec] = {
            f"the state {self.spec.phrase(state)}": state for state in self.spec.carried(self.return_delays)
        }
        for what, item in (carried | {f"the input {item.name}": item for item in self.spec.inputs[1:]}).items():
            widths = [item.width(sizes) for sizes in self._sizes]
            if len(set(widths)) > 1:
                raise ValueError(f"{what} would have different widths in different layers: {widths}")
        self._mark_order(factory)
        self._whole = self._layout()
        self.reset_parameters()

    _constructor = __init__

    def _measured(self) -> Iterator[tuple[str, dict[str, int]]]:
        directions = 2 if self.bidirectional else 1
        width = self.input_size
        for layer in range(self.num_layers):
            sizes = self._sizes_for(width)
            for suffix in (f"_l{layer}", f"_l{layer}_reverse")[:directions]:
                yield suffix, sizes
            width = self.spec.output_width(sizes) * directions

    def _set_projection(self, proj_size: int) -> None:
        if not proj_size:
            return
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if "P" not in self.dims:
            raise ValueError(f"{self.spec.name} has no projection (no `dim P`); LSTMP is the LSTM with one")
        if proj_size >= self.hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        self.dims["P"] = proj_size

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: StatesLike = None,
        *,
        lengths: Lengths = None,
        reset: Reset = None,
        offsets: Tensor | None = None,
        max_length: int | None = None,
        **extra: Tensor,
    ) -> Any:
        """The output and the final states, and the sequences of `return_sequences_of`; see the class."""
        marks = _Marks(lengths, reset, offsets, max_length)
        # Not `marks == ...`: torch.compile of torch 2.11 compares no tensor with None.
        unmarked = lengths is None and reset is None and offsets is None and max_length is None
        if type(input) is Tensor and unmarked and not extra and (made := self._run_plain(input, hx)) is not None:
            return made
        other = type(input) is not Tensor and not isinstance(input, PackedSequence)
        if other or find_proxy(hx, *marks, *extra.values()) is not None:
            found = call_stand_in(self, input, hx, marks._asdict() | extra, batch_first=self.batch_first)
            if found is not None:
                return found[0]
            if other:
                check_input(self.spec, input)
        self._look_at_masks()
        given = self._read(input, hx, marks, extra)
        stack, finals = self._run(given)
        output = given.give(beside([result.output for result in stack[-1]]))
        carried = self.spec.carried(self.return_delays)
        # A stack is no view, also where it has one element: torch.nn's final states may be detached in place.
        stacked = tuple(
            state.shaped(given.give_state(torch.stack(finals[state.name])), self._sizes[0]) for state in carried
        )
        last = stacked[0] if len(stacked) == 1 else stacked
        if not self.return_sequences_of:
            return output, last
        sequences: dict[str, Any] = {}
        for name in self.return_sequences_of:
            layers = [self._sequence(name, given, results) for results in stack]
            sequences[name] = tuple(layers) if self.return_all_layers else layers[0]
        return output, last, sequences

    def _sequence(self, name: str, given: _Given, results: Sequence[Result]) -> Tensor:
        """The values of all steps, the directions' side by side. The blocks of a matrix lie along its first axis."""
        whole: Tensor = given.give(beside([own.sequences[name] for own in results]))
        state = next((each for each in self.spec.visible_states() if each.name == name), None)
        if state is None or state.matrix is None:
            return whole
        _, *block = state.shape(self._sizes[0])
        return whole.reshape(*whole.shape[:-1], -1, *block)

    def _run_plain(self, input: Tensor, hx: StatesLike) -> Any:
        """The result of a call by one op (whole.py), or None where the call must go the long way."""
        if self.recompute or self.return_sequences_of or self.weight_dropout:
            return None
        made = self._run_whole(input, hx, {})
        if made is None:
            return None
        output, *finals = made
        return output.transpose(0, 1) if self.batch_first else output, finals[0] if len(finals) == 1 else tuple(finals)

    def _read(
        self, input: Tensor | PackedSequence, hx: StatesLike, marks: _Marks, extra: Mapping[str, Tensor]
    ) -> _Given:
        """Check what a call was given, and bring it into our form. Raises as inputs.py and packed.py do."""
        cell, packed = self.spec, None
        lengths, reset, offsets, max_length = marks
        if isinstance(input, PackedSequence) or offsets is not None:
            kernels = self._choose(input.data)[0] if isinstance(input, PackedSequence) else None
            packed = read_packed(cell, input, lengths, offsets, max_length, kernels)
            input, extra, reset = packed.take_all(input, extra, reset, cell.per_sequence)
        elif max_length is not None:
            raise ValueError("max_length goes with offsets")
        parameters = [self._parameters_of(place, input) for place in range(len(self._sizes))]
        form = read_form(
            cell,
            input,
            batch_first=self.batch_first and packed is None,
            entries=None if packed is None else packed.batch,
        )
        inputs = read_inputs(cell, self._sizes[0], input, extra, form, dtype_of(parameters[0]))
        inputs, lengths, reset = read_marks(cell, inputs, lengths, reset, form)
        batch = next(iter(inputs.values())).shape[1] if packed is None else packed.batch
        states = read_states(cell, self._sizes, hx, batch, form, self.return_delays)
        if packed is not None:
            inputs |= {name: packed.sort(inputs[name], 1) for name in cell.per_sequence}
            if states is not None:
                states = [{name: packed.sort(state) for name, state in own.items()} for own in states]
        return _Given(parameters, inputs, states, batch, lengths, reset, form, packed)

    def _run(self, given: _Given) -> tuple[list[list[Result]], dict[str, list[Tensor]]]:
        """Run the stack. Returns the results of the directions of the layers that are asked for, of the last one at
        least, and by name the final states of every layer and direction."""
        cell, inputs = self.spec, given.inputs
        x = next(iter(inputs.values()))
        packing = None if given.packed is None else given.packed.packing
        call = LayerCall(
            cell, self._kernels_of_call(x), self.constants, given.lengths, given.reset, packing, self.recompute,
            self.recurrent_gradient_clip, self.weight_dropout if self.training else 0.0,
        )  # fmt: skip
        directions = 2 if self.bidirectional else 1
        finals: dict[str, list[Tensor]] = {state.name: [] for state in cell.carried(True)}
        constant: dict[tuple[int, str], Tensor] = {}
        layer_input, stack, kept = x, [], self._kept_matrices()
        for layer in range(self.num_layers):
            first = layer * directions
            sizes = self._sizes[first]
            both = []
            for place in range(first, first + directions):
                parameters, states = given.parameters[place], None if given.states is None else given.states[place]
                initial = self._initial_states(states, sizes, parameters, x, given.batch, constant)
                backwards = self.reverse or place > first
                masks, computed = self._draw_masks(sizes, x, packing), None if kept is None else kept[place]
                both.append(Direction(parameters, initial, backwards, masks, computed))
            is_last = layer + 1 == self.num_layers
            is_returned = is_last or self.return_all_layers
            results = run_directions(
                call, sizes, {**inputs, cell.inputs[0].name: layer_input}, both,
                self.return_sequences_of if is_returned else (),
            )  # fmt: skip
            if is_returned:
                stack.append(results)
            for result in results:
                for name, final in result.finals.items():
                    finals[name].append(final)
            if not is_last:
                layer_input = beside([result.output for result in results])
                if self.dropout:
                    layer_input = nn.functional.dropout(layer_input, self.dropout, self.training)
        return stack, finals

    def gate_parameters(self, layer: int = 0, *, reverse: bool = False, grad: bool = False) -> dict[str, Tensor]:
        """Views of one layer's parameters and buffers by their names in the language: vectors [width], scalars [1],
        matrices [out, in]. Those with N heads or blocks are [N, out/N, in/N], and [k, N, out/(k*N), in/N] where the
        gate is k sections wide (`local v: 2*H`). In that order the rows of all groups lie. With `grad`, the same views
        of the gradients, None where absent.

        Raises ValueError for a layer that is not there, and RuntimeError for a parameter that has no views: one that
        torch.nn.utils.parametrize or prune computes, or that is divided among processes."""
        if not 0 <= layer < self.num_layers or (reverse and not self.bidirectional):
            raise ValueError(f"there is no layer {layer}{' in the reverse direction' if reverse else ''}")
        place = layer * (2 if self.bidirectional else 1) + int(reverse)
        return self._gate_parameters(place, grad=grad)

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction."""
        return [
            [tensor for name, tensor in self.named_parameters(recurse=False) if state_dicts.suffix_of(name) == suffix]
            for suffix in self._suffixes
        ]

    def flatten_parameters(self) -> None:
        """Nothing to do: parameters are used where they are."""

    def extra_repr(self) -> str:
        """The arguments that are not their defaults."""
        text = f"{self.input_size}, {self.hidden_size}"
        defaults: Mapping[str, Any] = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0,
            "bidirectional": False, "num_heads": 1, "state_dtype": None, "backend": None,
            "return_delays": False, "recompute": False, "recurrent_gradient_clip": None,
            "return_sequences_of": (), "return_all_layers": False, "weight_dropout": 0.0, "recurrent_dropout": 0.0,
            "reverse": False,
        }  # fmt: skip
        for name, default in defaults.items():
            value = getattr(self, name)
            if value != default:
                text += f", {name}={value!r}"
        if self._zoneout:
            text += f", zoneout={self._zoneout!r}"
        for constant in self.spec.constants:
            if not constant.shaping and self.constants[constant.name] != constant.value:
                text += f", {constant.name}={self.constants[constant.name]!r}"
        for name, size in self.dims.items():
            if size is not None and not (name == "P" and self.proj_size):
                text += f", {name}={size}"
        return text

    def to_torch(self) -> dict[str, Tensor]:
        """The parameters under torch.nn's names (`bias_hh_*` among them), for nn.LSTM, nn.GRU or nn.RNN to load."""
        return state_dicts.to_torch(self)

    @classmethod
    def from_torch(cls, module: nn.RNNBase, **options: Any) -> RecurrentLayer:
        """A layer with the shape and the values of an nn.LSTM, nn.GRU or nn.RNN. Raises ValueError where the cell is
        not that of the module: where it gives other results for the same parameters."""
        weight: Any = module.weight_hh_l0  # no Parameter where it is pruned
        layer = cls(
            module.input_size, module.hidden_size, module.num_layers, module.bias, module.batch_first, module.dropout,
            module.bidirectional, module.proj_size, device=weight.device, dtype=weight.dtype, **options,
        )  # fmt: skip
        if problem := state_dicts.difference(layer, module.mode):
            raise ValueError(problem)
        layer.load_state_dict(module.state_dict())
        return layer

    def _check_state_dict(self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any]) -> str:
        return state_dicts.translate(self, state_dict, prefix, local_metadata)
