"""What an equation's target is: what the text declares, or what its value says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rnncc.analysis.widths import is_narrow
from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, ONE
from rnncc.ir.term import Equation, Val, names
from rnncc.ir.typed import Shape
from rnncc.stages.check.agree import Agreement
from rnncc.stages.check.grids import Grids
from rnncc.stages.check.solver import is_unknown


class Targets:
    """The shapes of targets. `bases`: `n` for the instance n_1; `scalars`: the names of single numbers; `input_dims` as
    in a typed cell."""

    def __init__(
        self,
        agreement: Agreement,
        grids: Grids,
        bases: Mapping[str, str],
        scalars: Collection[str],
        input_dims: frozenset[str],
    ) -> None:
        self.agreement, self.grids, self.bases = agreement, grids, bases
        self.scalars, self.input_dims = scalars, input_dims

    def declaration(self, equation: Equation, shape: Shape) -> str:
        """How a target is declared whose value has several numbers of each head; nothing for any other."""
        width, base = self.agreement.solver.resolve(shape.width), self.bases[equation.target]
        if dims.split_multiple(width)[1] == HEADS:
            kind = "state" if base in self.agreement.symbols.states else "local"
            return f"write '{kind} {base}: {dims.show(width)}', which is the width of its value"
        return ""

    def undeclared(self, equation: Equation, shape: Shape) -> Shape:
        """The shape of a target whose width nothing declares: H, or one number (per head) where its value is that.
        Scalars alone, which are no vectors, spread over H elements."""
        width = self.agreement.solver.resolve(shape.width)
        if width == ONE and all(name in self.scalars for name in names(equation.term)):
            return Shape(HIDDEN_SIZE)
        if not is_narrow(width):
            # What nothing says, and what the sizes of inputs alone say, is as wide as a state. A number says itself.
            sizes = dims.names(width)
            says = not is_unknown(width) and (not sizes or not sizes <= self.input_dims)
            return Shape(width if says else HIDDEN_SIZE)
        self.agreement.narrow[equation.target] = equation
        return Shape(width)

    def declared(self, equation: Equation) -> Shape | None:
        """What a `local` says of a target."""
        found = self.agreement.symbols.locals.get(self.bases[equation.target])
        return found.shape if found is not None and found.width is not None else None

    def matrix(self, equation: Equation, shape: Shape, declared: Shape | None) -> Shape:
        """The shape of a target whose value is a matrix."""
        term = equation.term
        state = equation.target in self.agreement.symbols.states
        if declared is not None and declared.is_matrix:
            self.grids.same(declared, shape, term, f"'{equation.written}' and its value are")
            return declared
        if shape.kind == "changing":
            if declared is None:
                return shape
            kind = "state" if state else "local"
            wrong = self.grids.unexpected(equation.written, kind, term, shape)
            return declared if state else self.agreement.unknown(wrong)
        if state or isinstance(term, Val) or shape.kind == "diag":
            what = "a state is a vector" if state else "it must stand before '@'"
            message = f"the value of '{equation.written}' is a matrix: {what}"
            self.agreement.report.error("RNN211", message, term.span, help="write 'W@x' for a product")
            return declared or Shape(HIDDEN_SIZE)
        return shape
