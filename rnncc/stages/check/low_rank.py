"""Groups of low rank: after `weights R: lowrank(64)` a matrix of R is the product of two factors, U V, and `R@v` is a
product with V and then one with U. Nothing after `resolve` knows the group; it sees the groups of the factors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rnncc.ir.cell import Initialiser
from rnncc.ir.dim import HEADS, Dim, multiply, named, rank_of
from rnncc.ir.typed import ParameterType


@dataclass(frozen=True, slots=True)
class LowRank:
    """What `lowrank(k)` makes of a group. `size` names the width between the factors, `rank` says what it is: k, or k
    per head."""

    size: str
    rank: Dim
    left: str
    right: str
    types: tuple[ParameterType, ParameterType]


def low_rank(group: str, type_: ParameterType) -> LowRank:
    """The factors of a group whose type has a rank. W multiplies inputs, which have no heads; a factor of another group
    has a block per head."""
    assert type_.rank is not None
    size = rank_of(group)
    rank = type_.rank if group == "W" else multiply(type_.rank, HEADS)
    plain = replace(type_, rank=None)
    left = replace(plain, columns=named(size), initialiser=Initialiser("left_factor"))
    right = replace(plain, width=named(size), initialiser=Initialiser("right_factor"))
    return LowRank(size, rank, f"{group}__u", f"{group}__v", (left, right))
