"""Cells of one state for code that hands on an LSTM's two, (h, c)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rnncc.runtime.arguments.inputs import described


class TwoStates(nn.Module):
    """Makes a layer of one state fit where code expects an nn.LSTM: hx and the final states are (h, c). h is the
    layer's state, [num_layers * directions, B, width]. c is not used, and comes back as it was given (zeros without
    hx). Other attributes (`hidden_size`, `num_layers`) are the layer's. The names of its parameters begin with
    `layer.`.

    Raises TypeError where `layer` is no layer of rnncc, ValueError where it has several states or returns sequences of
    states.
    """

    layer: nn.Module

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        name = type(layer).__name__
        if not hasattr(layer, "spec") or not hasattr(layer, "num_layers"):
            raise TypeError(f"TwoStates is for rnncc's layers, not for {name}")
        own: Any = layer
        states = [own.spec.phrase(state) for state in own.spec.carried(own.return_delays)]
        if len(states) != 1:
            raise ValueError(f"{name} has the states {', '.join(states)}: TwoStates is for layers of one")
        if own.return_sequences_of:
            raise ValueError(f"{name} returns sequences of states, which an nn.LSTM does not")
        self.layer = layer

    def forward(self, input: Any, hx: tuple[Tensor, Tensor] | None = None, **options: Any) -> Any:
        """Returns (output, (h_n, c)). `options` are keywords of the layer's call. Raises TypeError where hx is not
        (h, c)."""
        # What torch.fx traces has no structure yet.
        several = isinstance(hx, tuple | list)
        if isinstance(hx, Tensor) or (several and [state is None for state in hx or ()] != [False, False]):
            raise TypeError(f"TwoStates: hx must be a tuple of 2 tensors, (h, c); got {described(hx)}")
        output, h = self.layer(input, None if hx is None else hx[0], **options)
        return output, (h, torch.zeros_like(h) if hx is None else hx[1])

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Copy and pickle ask for private names, which the layer must not answer for this object.
            if name.startswith("_"):
                raise
            return getattr(super().__getattr__("layer"), name)
