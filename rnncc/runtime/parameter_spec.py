"""What a generated module says about the parameters of its cell (spec.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Sizes = Mapping[str, int]
Width = Callable[[Sizes], int]


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One gate's rows of a packed parameter, in the layout [k, blocks, width/(k*blocks)]. `initialiser` as in
    `rnncc.ir.cell.Initialiser`."""

    name: str
    width: Width
    k: int = 1
    initialiser: str = "default"
    values: tuple[float, ...] = ()
    formula: tuple[Any, ...] = ()  # see modules/formulas.py


@dataclass(frozen=True, slots=True)
class SparsitySpec:
    """A mask beside a matrix, as in `rnncc.ir.structure.Sparsity`."""

    density: float
    block: int = 1
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One tensor per layer and direction: a vector [Σwidth], or a matrix [Σwidth, columns / blocks]. It is a parameter
    of the module where it is `trained`, else a buffer. `matrix`: as of the state that starts with it, for a tensor
    [num_heads, rows, columns] of blocks."""

    name: str
    attribute: str
    members: tuple[MemberSpec, ...]
    columns: Width | None = None
    blocks: Width | None = None
    is_bias: bool = False
    sparsity: SparsitySpec | None = None
    trained: bool = True
    matrix: tuple[Width, Width] | None = None
