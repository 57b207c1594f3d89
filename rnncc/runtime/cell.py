"""One step of a cell, for decoding: torch.nn.LSTMCell's shapes and names, for any cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import RecurrentModule, document_delays, dtype_of
from .elsewhere import call_elsewhere
from .inputs import StatesLike, read_inputs, read_states
from .regularisation import Zoneout, draw_masks
from .run import Direction, run_directions
from .spec import CellSpec


class RecurrentCell(RecurrentModule):
    """See `document`; the generated subclasses differ by `spec` alone."""

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
            f"returns {result}.",
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
            input_size, hidden_size, bias, num_heads, state_dtype, backend, recurrent_gradient_clip, zoneout, None,
            constants_and_dims,
        )  # fmt: skip
        self._make_parameters(self._sizes_for(input_size), "", {"device": device, "dtype": dtype})
        self.reset_parameters()

    def forward(self, input: Tensor, hx: StatesLike = None, **extra: Tensor) -> Any:
        """The new state, or a tuple of them; before them the output where it is not the first state."""
        if type(input) is not Tensor:
            found = call_elsewhere(self, input, hx, extra, time=False)
            if found is not None:
                return found[0]
        cell, (sizes,) = self.spec, self._sizes
        parameters = self._parameters_of(0, input)
        given = read_inputs(
            cell, sizes, input, extra, None, None,
            batch_first=False, weight_dtype=dtype_of(parameters), time=False,
        )  # fmt: skip
        x = next(iter(given.inputs.values()))
        columns = x.shape[1]
        states = read_states(
            cell, self._sizes, hx, columns, batched=given.batched, return_delays=True, single=True
        )  # fmt: skip
        initial = self._initial_states(states[0] if states else None, sizes, parameters, x, columns, {})
        masks = draw_masks(cell, sizes, x, columns, self._zoneout, 0.0, training=self.training)
        kernels = self._kernels_of_call(x)
        (result,) = run_directions(
            cell, kernels, given.inputs, [Direction(parameters, initial, masks=masks)], self.constants, sizes,
            recurrent_gradient_clip=self.recurrent_gradient_clip,
        )  # fmt: skip
        carried, finals = cell.carried(True), result.finals
        new: Sequence[Tensor] = tuple(finals[state.name] for state in carried)
        if not given.batched:
            new = tuple(value.squeeze(0) for value in new)
        states_now = new[0] if len(new) == 1 else new
        if cell.output == carried[0].name:
            return states_now
        output = result.output[0]
        return output if given.batched else output.squeeze(0), states_now

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
