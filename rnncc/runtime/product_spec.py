"""What a generated module says about the product that makes all streams of a cell's only loop (spec.py)."""

from __future__ import annotations

from dataclasses import dataclass

from .parameter_spec import Width


@dataclass(frozen=True, slots=True)
class BiasSpec:
    """Rows of a vector parameter, from `row` on, that are added to the columns of the streams from `column` on."""

    attribute: str
    row: Width
    column: Width
    rows: Width


@dataclass(frozen=True, slots=True)
class ProductSpec:
    """What makes the streams of a cell's only loop, side by side: x weightᵀ and biases. `reads_streams`: the loop's
    backward reads them."""

    weight: str
    reads_streams: bool
    biases: tuple[BiasSpec, ...] = ()
