"""Functions of vectors: copies for each head, what fills the places of units that leave, lengths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS
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
from rnncc.ir.typed import Shape
from rnncc.language.report import Reported
from rnncc.stages.check.agree import Agreement
from rnncc.stages.check.solver import is_unknown


class Vectors:
    """The shapes of these functions. `taken`: functions of matrices whose operands are vectors."""

    def __init__(self, agreement: Agreement) -> None:
        self.agreement, self.solver, self.report = agreement, agreement.solver, agreement.report
        self.taken: set[OfMatrix] = set()

    def per_head(self, term: PerHead, shape: Shape) -> Shape:
        """The shape of `heads(v, g)`."""
        if shape.reported:
            return self.agreement.unknown(shape.reported)
        text, width = self.report.text(term.operand.span), self.solver.resolve(shape.width)
        if shape.is_matrix:
            message = "'heads' works on vectors; this is a matrix"
            return self.agreement.unknown(self.report.error("RNN211", message, term.operand.span, "a matrix"))
        if is_unknown(width):
            message = f"'heads' must know how wide '{text}' is"
            help = "declare its width, 'param v: vector(D)' or 'local v: D'"
            return self.agreement.unknown(self.report.error("RNN204", message, term.operand.span, help=help))
        why = self.agreement.why(term.span)
        self.solver.divides(HEADS, term.groups, term.span, why)
        own = dims.floor_divide(width, term.groups)
        if dims.multiply(own, term.groups) != width:
            self.solver.divides(width, term.groups, term.span, why)
        if "num_heads" in dims.names(own):
            message = f"'heads' takes a value without heads; '{text}' has the width {dims.show(width)}"
            return self.agreement.unknown(self.report.error("RNN204", message, term.operand.span, "has heads"))
        return Shape(dims.multiply(own, HEADS))

    def wrong_fill(self, fill: Term, *, is_number: bool) -> Reported | None:
        """An error where the fill is no number."""
        if is_number or isinstance(fill, Bad):
            return fill.reported if isinstance(fill, Bad) else None
        message = "the fill of 'roll' is a number"
        help = "write 'fill=0', and add what else comes in"
        return self.report.error("RNN204", message, fill.span, "no number", help)

    def of_vectors(self, equations: Iterable[Equation]) -> tuple[Equation, ...]:
        """The equations, where `norm` and `normalize` of vectors are functions across units."""
        return tuple(replace(each, term=self._of_vectors(each.term)) for each in equations)

    def _of_vectors(self, term: Term) -> Term:
        own = self._of_vectors
        match term:
            case Num() | Val() | Argument() | Eye() | Filled() | Bad():
                return term
            case OfMatrix(function, operand, _, span) if term in self.taken:
                return Row(function, (own(operand),), span=span)
            case OfMatrix(_, operand) | Surrogate(_, operand) | PerHead(operand) | Share(operand) | Unflatten(operand):
                return replace(term, operand=own(operand))
            case Op(_, arguments) | Row(_, arguments):
                return replace(term, arguments=tuple(map(own, arguments)))
            case Product(matrix, operand):
                return replace(term, matrix=own(matrix), operand=own(operand))
            case Transposed(matrix):
                return replace(term, matrix=own(matrix))
            case _:
                assert_never(term)
