"""One step of a cell, for decoding: torch.nn.LSTMCell's shapes and names, for any cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments.inputs import StatesLike, check_input, read_form, read_inputs, read_states
from ..spec import CellSpec
from .base import RecurrentModule, document_delays, dtype_of
from .directions import Direction, LayerCall, run_directions
from .in_place import step_in_place
from .options import Options
from .regularisation import Zoneout
from .stand_ins import call_stand_in, find_proxy


class RecurrentCell(RecurrentModule):
    """See `document`; the generated subclasses differ by `spec` alone."""

    _has_time = False

    # One build with recurrent dropout serves layers and single steps.
    _no_dropout = None

    @staticmethod
    def document(cell: CellSpec) -> str:
        """The docstring of a cell's single step."""
        states = ", ".join(cell.phrase(state) for state in cell.carried(True))
        result = states if len(cell.carried(True)) == 1 else f"({states})"
        if cell.output != cell.visible_states()[0].name:
            result = f"{cell.output}, {result}"
        lines = [
            f"One step of {cell.name}, used like torch.nn.LSTMCell: forward(input [B, I] or [I], hx=None)",
            f"returns {result}. With inplace=True the new states are written into the tensors of hx.",
            "Its parameters have the layer's names without `_l0`.",
            *document_delays(cell, "As in a layer with return_delays=True"),
        ]
        return "\n".join(lines)

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """As for layers. Raises TypeError for recurrent_dropout."""
        if "recurrent_dropout" in keywords:
            raise TypeError(f"{cls.__name__} takes no recurrent_dropout, whose mask is that of a whole sequence")
        return super().__new__(cls, *arguments, **keywords)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        num_heads: int = 1,
        state_dtype: torch.dtype | None = None,
        backend: str | None = None,
        return_delays: bool = True,
        recurrent_gradient_clip: float | None = None,
        zoneout: Zoneout = None,
        **constants_and_dims: Any,
    ) -> None:
        super().__init__()
        if self.spec.delays() and not return_delays:
            raise ValueError(
                f"{self.spec.name} reads values from more than one step ago, which a single step must hand on: "
                "return_delays=False would lose them"
            )
        self._configure(
            Options(
                input_size, hidden_size, bias, num_heads, state_dtype, backend, recurrent_gradient_clip, zoneout, None
            ),
            constants_and_dims,
        )
        factory = {"device": device, "dtype": dtype}
        self._take_sizes(self._measured())
        self._make_parameters(self._sizes[0], "", factory)
        self._mark_order(factory)
        self._whole = self._layout()
        self.reset_parameters()

    _constructor = __init__

    def _measured(self) -> Iterator[tuple[str, dict[str, int]]]:
        yield "", self._sizes_for(self.input_size)

    def forward(self, input: Tensor, hx: StatesLike = None, *, inplace: bool = False, **extra: Tensor) -> Any:
        """The new state, or a tuple of them; before them the output where it is not the first state. With `inplace` the
        new states are written into the tensors of hx, which are returned (in_place.py)."""
        if inplace is not False:
            return step_in_place(self, input, hx, extra, inplace)
        plain, layout = type(input) is Tensor, self._whole
        if plain and layout is not None and (made := self._run_whole(input, hx, extra)) is not None:
            last = made[len(made) - layout.states :]
            together = last[0] if len(last) == 1 else tuple(last)
            return (made[0], together) if layout.returns_output else together
        if not plain or find_proxy(hx, *extra.values()) is not None:
            found = call_stand_in(self, input, hx, extra, time=False)
            if found is not None:
                return found[0]
            if not plain:
                check_input(self.spec, input)
        cell, (sizes,) = self.spec, self._sizes
        parameters = self._parameters_of(0, input)
        form = read_form(cell, input, time=False)
        inputs = read_inputs(cell, sizes, input, extra, form, dtype_of(parameters))
        x = next(iter(inputs.values()))
        batch = x.shape[1]
        states = read_states(cell, self._sizes, hx, batch, form, True)
        initial = self._initial_states(states[0] if states else None, sizes, parameters, x, batch, {})
        call = LayerCall(
            cell, self._kernels_of_call(x), self.constants, recurrent_gradient_clip=self.recurrent_gradient_clip
        )
        kept = self._kept_matrices()
        own = Direction(parameters, initial, False, self._draw_masks(sizes, x), None if kept is None else kept[0])
        (result,) = run_directions(call, sizes, inputs, [own])
        carried, finals = cell.carried(True), result.finals
        new: Sequence[Tensor] = tuple(finals[state.name] for state in carried)
        if not form.batched:
            new = tuple(value.squeeze(0) for value in new)
        new = tuple(state.shaped(value, sizes) for state, value in zip(carried, new, strict=True))
        states_now = new[0] if len(new) == 1 else new
        return states_now if cell.output == carried[0].name else (form.give(result.output), states_now)

    def gate_parameters(self, *, grad: bool = False) -> dict[str, Tensor]:
        """Views of the parameters by their names in the language, as the layer's `gate_parameters`."""
        return self._gate_parameters(0, grad=grad)

    def extra_repr(self) -> str:
        """The arguments that are not their defaults."""
        text = f"{self.input_size}, {self.hidden_size}"
        if not self.bias:
            text += ", bias=False"
        if self.num_heads != 1:
            text += f", num_heads={self.num_heads}"
        if self.recurrent_gradient_clip is not None:
            text += f", recurrent_gradient_clip={self.recurrent_gradient_clip!r}"
        if self._zoneout:
            text += f", zoneout={self._zoneout!r}"
        return text
