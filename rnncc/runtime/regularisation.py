"""Zoneout and variational recurrent dropout: which program a layer runs, and the masks that it draws for a call.

Masks come from torch's generator of their device: a seed replays them, and so does checkpointing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .packing import Packing
from .sizes import check_probability
from .spec import CellSpec, Regularisation, Sizes

Zoneout = Mapping[str, float] | None


def check_zoneout(cell: CellSpec, zoneout: Any) -> dict[str, float]:
    """The probability by state. Raises TypeError, ValueError."""
    if zoneout is None:
        return {}
    if not isinstance(zoneout, Mapping):
        raise TypeError(f"zoneout should be a dict of probabilities by state, got: {zoneout!r}")
    known = [state.name for state in cell.visible_states()]
    for name, value in zoneout.items():
        if name not in known:
            raise ValueError(f"zoneout: {cell.name} has no state {name!r}; its states are {', '.join(known)}")
        check_probability(f"zoneout[{name!r}]", value)
    return {name: float(zoneout[name]) for name in known if name in zoneout}


def wanted_regularisation(cell: CellSpec, zoneout: Any, recurrent_dropout: Any) -> Regularisation:
    """What the program must have for these probabilities. `recurrent_dropout` None: whether it has that does not
    matter. Raises TypeError, ValueError."""
    if recurrent_dropout is None:
        dropout = cell.regularisation.recurrent_dropout
    else:
        check_probability("recurrent_dropout", recurrent_dropout)
        dropout = recurrent_dropout > 0
    return Regularisation(tuple(check_zoneout(cell, zoneout)), dropout)


def draw_masks(
    cell: CellSpec,
    sizes: Sizes,
    x: Tensor,
    columns: int,
    zoneout: Mapping[str, float],
    recurrent_dropout: float,
    *,
    training: bool,
    packing: Packing | None = None,
) -> dict[str, Tensor]:
    """One direction's masks, which broadcast to `x` [T, B, width] (packed: [total, 1, width]).

    Zoneout (0 for a state that is not named): 1 where a unit keeps its value, drawn for each step; without training the
    probability itself. Recurrent dropout: 0 or 1/(1 - p), drawn once for all steps; without training, or with p 0, 1.
    """
    masks = {}
    for mask in cell.masks:
        width = mask.width(sizes)
        if mask.drawn == "zoneout":
            p = zoneout.get(mask.of, 0.0)
            shape = (*x.shape[:2], width) if training else (1, 1, width)
            value = x.new_empty(shape).bernoulli_(p) if training else x.new_full(shape, p)
        elif not training or not recurrent_dropout:
            value = x.new_ones((1, 1, width))
        else:
            keep = 1 - recurrent_dropout
            value = x.new_empty((1, columns, width)).bernoulli_(keep).mul_(1 / keep if keep else 0.0)
            if packing is not None:
                value = value[0].index_select(0, packing.places()[1]).unsqueeze(1)
        masks[mask.name] = value
    return masks
