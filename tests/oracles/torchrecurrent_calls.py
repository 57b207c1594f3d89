"""How a torchrecurrent cell is called with our parameters in the place of its own, step by step.

Where it has two biases that only ever stand as a sum, ours is its `bias_ih` and its `bias_hh` is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchrecurrent as tr
from torch import Tensor, nn
from torch.func import functional_call

from .base import Forward, Sequences, Tensors

# One step: (module call, x, states) -> (output, states)
Call = Callable[..., Any]
Step = Callable[[Call, Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


class ExactHardsigmoid(nn.Module):
    """torch's hardsigmoid, with its gradient 1/6 in full: torch's own backward multiplies by a float32 sixth."""

    def forward(self, v: Tensor) -> Tensor:
        return nn.functional.relu6(v + 3) / 6


def one(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """A cell whose only state is its output."""
    (name,) = states
    value = call(x, states[name])
    assert isinstance(value, Tensor)
    return value, {name: value}


def two(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """A cell with two states, the first of which is its output."""
    values = call(x, tuple(states.values()))
    return values[0], dict(zip(states, values, strict=True))


def janet(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Its c is its h."""
    h, c = call(x, (states["h"], states["h"]))
    assert torch.equal(h, c)
    return h, {"h": h}


def intersection(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    y, h = call(x, states["h"])
    return y, {"h": h}


def mclstm(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    h, (v, c) = call(x, (states["v"], states["c"]))
    return h, {"v": v, "c": c}


def cell(
    make: Callable[..., nn.Module],
    packing: dict[str, str],
    step: Step = one,
    /,
    *,
    fixed: dict[str, float] | None = None,
    **options: object,
) -> Forward:
    """`packing` says which of our parameters make each of theirs, in order; `0` is a chunk of zeros, and what is not
    named is zero. `fixed` are their trained scalars that are constants of ours."""

    def forward(parameters: Tensors, inputs: Tensors, given: Tensors) -> Sequences:
        x = inputs["x"]
        hidden = next(value.shape[0] for name, value in parameters.items() if name.startswith("W_"))
        module = make(x.shape[-1], hidden, dtype=x.dtype, **options)
        weights = {}
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            members = packing.get(name, "0").split()
            rows = value.shape[0] if value.dim() else 1
            zero = torch.zeros(rows // len(members), *value.shape[1:], dtype=x.dtype)
            joined = torch.cat([zero if member == "0" else parameters[member] for member in members])
            weights[name] = joined.reshape(value.shape)
        for name, number in (fixed or {}).items():
            weights[name] = torch.tensor(number, dtype=x.dtype)
        current = dict(given)
        outputs = []
        for column in x:
            output, current = step(lambda *a: functional_call(module, weights, a), column, current)
            outputs.append(output)
        return Sequences(torch.stack(outputs), current)

    return forward


def typed(make: Callable[..., nn.Module], packing: dict[str, str], state: str) -> Forward:
    """The strongly typed cells, whose second state is the input before."""
    previous = {"x": torch.zeros(())}

    def step(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        values = call(x, (states[state], previous["x"]))
        previous["x"] = x
        output, last = values[0], values[1]
        new = last[0] if isinstance(last, tuple) else output
        return output, {state: new}

    inner = cell(make, packing, step)

    def forward(parameters: Tensors, inputs: Tensors, given: Tensors) -> Sequences:
        previous["x"] = torch.zeros_like(inputs["x"][0])
        return inner(parameters, inputs, given)

    return forward


def delayed(packing: dict[str, str], delay: int) -> Forward:
    """tauGRU's cell takes the delayed state as an argument; before the start it is the initial state."""
    history: list[Tensor] = []

    def step(call: Call, x: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        history.append(states["h"])
        value = call(x, states["h"], history[max(0, len(history) - 1 - delay)])
        assert isinstance(value, Tensor)
        return value, {"h": value}

    inner = cell(tr.tauGRUCell, packing, step)

    def forward(parameters: Tensors, inputs: Tensors, given: Tensors) -> Sequences:
        history.clear()
        return inner(parameters, inputs, given)

    return forward


def packed(gates: str, recurrent: str | None = None, biased: str | None = None) -> dict[str, str]:
    """W of `gates`, R of `recurrent` (default: the same), b of `biased` (default: `gates`), in their order."""

    def members(group: str, names: str) -> str:
        return " ".join("0" if name == "0" else f"{group}_{name}" for name in names.split())

    return {
        "weight_ih": members("W", gates),
        "weight_hh": members("R", gates if recurrent is None else recurrent),
        "bias_ih": members("b", gates if biased is None else biased),
    }
