"""Two widths that must be one: the solver makes them equal, or the text is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rnncc.ir import dim as dims
from rnncc.ir.dim import INPUT_SIZE, Dim
from rnncc.ir.term import Equation, Op, Surrogate, Term, Val
from rnncc.ir.typed import Shape
from rnncc.language.diagnostics import Label
from rnncc.language.greek import in_ascii
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.solver import Solver, is_unknown


@dataclass(frozen=True, slots=True)
class Side:
    """One of two values that must be equally wide: where it stands, its name in messages, and the term that has the
    width, if one has."""

    width: Dim
    span: Span
    name: str
    term: Term | None = None


class Agreement:
    """Makes widths equal. `shapes` are those of the values known so far, `narrow` those of them whose width nothing
    declares."""

    def __init__(
        self,
        solver: Solver,
        shapes: Mapping[str, Shape],
        symbols: Symbols,
        report: Report,
        narrow: dict[str, Equation],
    ) -> None:
        self.solver, self.shapes, self.symbols, self.report, self.narrow = solver, shapes, symbols, report, narrow

    def unknown(self, reported: Reported) -> Shape:
        """The shape of what an error left behind. It fits everywhere."""
        return Shape(self.solver.fresh(), reported=reported)

    def why(self, span: Span) -> str:
        return f"line {self.report.line(span)}"

    def describe(self, term: Term) -> str:
        text = self.report.text(term.span)
        return f"'{text}'" if len(text) <= 30 else "this"

    def same(self, left: Side, right: Side, help: str = "") -> Reported | None:
        """Make both widths one; an error where they cannot be, with the usual help or another."""
        why = self.why(right.span) + self.wide_input(left, right)
        equal = self.solver.equal(left.width, right.width, right.span, why)
        return None if equal else self.mismatch(left, right, help)

    def wide_input(self, *sides: Side) -> str:
        """The rest of a `why` where an input beside x gives its width, that of x, perhaps by default alone."""
        waiting = [side.term for side in sides if side.term is not None]
        if not any(self.solver.resolve(side.width) == INPUT_SIZE for side in sides):
            return ""
        while waiting:
            match waiting.pop(0):
                case Op(_, arguments):
                    waiting += arguments
                case Surrogate(_, operand):
                    waiting.append(operand)
                case Val(name):
                    # mask__1 is mask[t-1].
                    base = name.partition("__")[0]
                    if (
                        base != self.symbols.first
                        and base in self.symbols.inputs
                        and self.shapes[name].width == INPUT_SIZE
                    ):
                        return f", where the input '{base}' has width input_size"
        return ""

    def mismatch(self, left: Side, right: Side, help: str = "") -> Reported:
        """Report that the widths differ."""
        resolved = [self.solver.resolve(side.width) for side in (left, right)]
        # An unknown has a number of its own, which says nothing to a reader.
        widths = [re.sub(r"\?\d+", "?", dims.show(width)) for width in resolved]
        if any(map(is_unknown, resolved)):
            message = "the widths in this equation contradict each other"
        else:
            # "The columns of R have".
            have = ("have" if side.name.startswith(("the columns", "the rows")) else "has" for side in (left, right))
            said = (
                f"{side.name} {verb} width {width}"
                for side, verb, width in zip((left, right), have, widths, strict=True)
            )
            message = f"width mismatch: {', '.join(said)}"
        notes = (Label(left.span, f"width {widths[0]}"), *self.origins(left.span), *self.origins(right.span))
        help = help or (
            "widths default to H; declare others with 'local v: 4*H' or 'state h: P', or multiply by a matrix of your "
            "own: 'weights M: matrix', 'M@v'"
        )
        return self.report.error("RNN214", message, right.span, f"width {widths[1]}", help, notes)

    def origins(self, span: Span) -> tuple[Label, ...]:
        """Where the width of a plain name was declared, or comes from."""
        name = in_ascii(self.report.source.text[span.start : span.end].partition("[")[0].strip())
        if name in self.narrow:
            return (Label(self.narrow[name].target_span, f"as wide as its value: 'local {name}: H' spreads it"),)
        declared = self.symbols.spans.get(name)
        if declared is None or declared == span:
            return ()
        return (Label(declared, f"'{name}' is declared here"),)
