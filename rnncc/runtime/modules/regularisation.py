"""Zoneout and variational recurrent dropout: which program a layer runs, and the masks that it draws for a call.

Masks come from torch's generator of their device: a seed replays them, and so does checkpointing.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn

from ..arguments.arguments import held, read_probability
from ..arguments.packing import Packing
from ..spec import CellSpec, Regularisation, Sizes

Zoneout = Mapping[str, float] | float | None


def check_zoneout(cell: CellSpec, zoneout: Any) -> dict[str, float]:
    """The probability by state. A number is that of every state; in a program with zoneout, of every state that has
    it. 0 is no zoneout, as None is. Raises TypeError, ValueError."""
    if zoneout is None:
        return {}
    known = [state.name for state in cell.visible_states()]
    zoneout = held("zoneout", zoneout)
    if isinstance(zoneout, Real):
        probability = read_probability("zoneout", zoneout)
        return dict.fromkeys(cell.regularisation.zoneout or known, probability) if probability else {}
    if not isinstance(zoneout, Mapping):
        raise TypeError(f"zoneout should be a probability, or a dict of probabilities by state, got: {zoneout!r}")
    probabilities = {}
    for name, value in zoneout.items():
        if name not in known:
            raise ValueError(f"zoneout: {cell.name} has no state {name!r}; its states are {', '.join(known)}")
        probabilities[name] = read_probability(f"zoneout[{name!r}]", value)
    return {name: probabilities[name] for name in known if name in probabilities}


def wanted_regularisation(cell: CellSpec, zoneout: Any, recurrent_dropout: Any) -> Regularisation:
    """What the program must have for these probabilities. `recurrent_dropout` None: whether it has that does not
    matter. Raises TypeError, ValueError."""
    if recurrent_dropout is None:
        dropout = cell.regularisation.recurrent_dropout
    else:
        dropout = read_probability("recurrent_dropout", recurrent_dropout) > 0
    return Regularisation(tuple(check_zoneout(cell, zoneout)), dropout)


class Regularised(nn.Module):
    """The part of layers and single steps that has to do with zoneout and recurrent dropout."""

    spec: ClassVar[CellSpec]
    _zoneout: dict[str, float]
    _recurrent_dropout: float

    def _regularise(self, zoneout: Any, recurrent_dropout: float | None) -> None:
        """Take the probabilities. Raises TypeError, ValueError."""
        cell = self.spec
        if wanted_regularisation(cell, zoneout, recurrent_dropout) != cell.regularisation:
            # `__new__` never saw it: a subclass of the user's passed it on to __init__.
            raise ValueError(
                "zoneout and recurrent_dropout mean another program than this class was built with: a class derived "
                f"from {cell.name} cannot add them"
            )
        if recurrent_dropout and not self._drops():
            raise ValueError(f"recurrent_dropout: no matrix product of {cell.name} reads an earlier value of a state")
        self._zoneout, self._recurrent_dropout = check_zoneout(cell, zoneout), float(recurrent_dropout or 0)

    def _drops(self) -> bool:
        return any(mask.drawn == "recurrent_dropout" for mask in self.spec.masks)

    @property
    def zoneout(self) -> Mapping[str, float]:
        """The probability by state, read-only. To be set to others, or to a number for every state: a state that is
        left out, or None, has 0. Raises ValueError for a state that the module was made without zoneout of."""
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
        p = read_probability("recurrent_dropout", value)
        if p and not self._drops():
            raise ValueError(
                f"this {type(self).__name__} was made without recurrent dropout, which is another program: give "
                "recurrent_dropout= to its constructor"
            )
        self._recurrent_dropout = p

    def _draw_masks(self, sizes: Sizes, x: Tensor, packing: Packing | None = None) -> dict[str, Tensor]:
        """One direction's masks, which broadcast to `x` [T, B, width] (packed: [total, 1, width]).

        Zoneout (0 for a state that is not named): 1 where a unit keeps its value, drawn for each step; without training
        the probability itself. Recurrent dropout: 0 or 1/(1 - p), drawn once for all steps; without training, or with
        p 0, 1.
        """
        masks = {}
        for mask in self.spec.masks:
            width = mask.width(sizes)
            if mask.drawn == "zoneout":
                p = self._zoneout.get(mask.of, 0.0)
                shape = (*x.shape[:2], width) if self.training else (1, 1, width)
                value = x.new_empty(shape).bernoulli_(p) if self.training else x.new_full(shape, p)
            elif not self.training or not self._recurrent_dropout:
                value = x.new_ones((1, 1, width))
            else:
                keep = 1 - self._recurrent_dropout
                batch = x.shape[1] if packing is None else packing.batch
                value = x.new_empty((1, batch, width)).bernoulli_(keep).mul_(1 / keep if keep else 0.0)
                if packing is not None:
                    value = value[0].index_select(0, packing.places()[1]).unsqueeze(1)
            masks[mask.name] = value
        return masks
