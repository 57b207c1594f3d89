"""Names of a cell as its picture shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import assert_never

from rnncc.ir.term import (
    Argument,
    Bad,
    Equation,
    Eye,
    Filled,
    Num,
    OfMatrix,
    Op,
    PerHead,
    Product,
    Row,
    Share,
    Surrogate,
    Term,
    Transposed,
    Unflatten,
    Val,
)
from rnncc.ir.typed import GroupMember, Typed
from rnncc.language.functions import REDUCTIONS
from rnncc.show.draw.labels import name_label, plain
from rnncc.show.draw.terms import term_label

# An earlier value: x__1, h__1, h__delay2__1.
PAST = re.compile(r"(?P<base>\w+?)__(?:delay(?P<delay>\d+)__)?(?P<step>\d+)")


class NameLabels:
    """The labels of a cell's values and parameters."""

    def __init__(self, cell: Typed) -> None:
        self.cell = cell

    @cached_property
    def equations(self) -> Mapping[str, Equation]:
        """By their targets."""
        return {equation.target: equation for equation in self.cell.equations}

    @cached_property
    def members(self) -> Mapping[str, GroupMember]:
        """Parameters of groups by their names."""
        return {member.name: member for member in self.cell.members}

    def is_matrix(self, term: Term) -> bool:
        """Whether a term is a matrix of any kind."""
        match term:
            case Val(name):
                return self.cell.shapes[name].is_matrix
            case Op(_, arguments):
                return any(map(self.is_matrix, arguments))
            case Product(_, operand):
                return isinstance(operand, Transposed) or self.is_matrix(operand)
            case OfMatrix("diag", operand):
                return not self.is_matrix(operand)
            case OfMatrix(function, operand, axis):
                return self.is_matrix(operand) and function != "norm" and not (axis and function in REDUCTIONS)
            case Surrogate(_, operand):
                return self.is_matrix(operand)
            case Transposed() | Eye() | Unflatten():
                return True
            case Num() | Argument() | Row() | Share() | Filled() | PerHead() | Bad():
                return False
            case _:
                assert_never(term)

    def value(self, name: str) -> str:
        """A name as a picture shows it. Inputs and states have a time; what is between them has none."""
        past = PAST.fullmatch(name)
        base = past["base"] if past else name
        target = self.equations.get(base)
        round_ = ""
        if target is not None and "[" in target.written and not target.written.endswith("[t]"):
            base, _, index = target.written.rstrip("]").partition("[")
            round_ = f"({index})"
        if past:
            return name_label(base, f"t−{int(past['delay'] or 0) + int(past['step'])}", above=round_)
        timed = {state.name for state in self.cell.states} | {
            given.name for given in self.cell.inputs if not given.per_sequence
        }
        return name_label(base, "t") if name in timed else name_label(base, above=round_)

    def text(self, term: Term, known: Mapping[Term, str] | None = None) -> str:
        """The label of a term: values by their names, parameters of groups by those of their gates."""

        def shown(part: Term) -> str | None:
            return known[part] if known and part in known else self.shown(part)

        return term_label(term, shown)

    def shown(self, part: Term) -> str | None:
        """The label of a value or of a parameter: `g_{f}` is that of the gate f."""
        if not isinstance(part, Val):
            return None
        member = self.members.get(part.name)
        if member is None:
            return self.value(part.name)
        group = self._group(member)
        if len({other.target for other in self.members.values() if other.written == member.written}) == 1:
            return group
        target, _, round_ = self.equations[member.target].written.rstrip("]").partition("[")
        below = plain(name_label(target)).replace("_", "").replace(",", "")
        base, above = ("b", "R") if member.written == "bR" else (member.written, "")
        above += f"({round_})" if round_ not in ("", "t") else ""
        return name_label(base, below, above=above)

    def by_group(self, part: Term) -> str | None:
        """The same in a block of products, which has many gates."""
        member = self.members.get(part.name) if isinstance(part, Val) else None
        return self.shown(part) if member is None else self._group(member)

    def _group(self, member: GroupMember) -> str:
        return "b^{R}" if member.written == "bR" else name_label(member.written)
