"""The cotangents of a step's values, and the nodes that make them.

Each value collects what the nodes that read it give to its cotangent, until it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rnncc.ir.cell import Node, Placement, Pointwise, Role, RowOp, Value
from rnncc.ir.dim import HEADS, ONE, Dim, Grid, add, constant
from rnncc.ir.expr import Apply, Expr, Ref, apply, references
from rnncc.ir.row_operator import RowOperator
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE, Span
from rnncc.stages.differentiate.normalise import NARROW

# Terms of a sum in one equation, as many as a chain of the text may have (rnncc/stages/parse/lexer.py). Equations that
# share a parameter give it a term each, and there may be a thousand of them: too deep for what walks expressions.
LONGEST_SUM = 100


@dataclass(frozen=True, slots=True)
class Slice:
    """The cotangent of a slice of a value, which starts at `offset`."""

    offset: Dim
    width: Dim
    cotangent: str


@dataclass(slots=True)
class _Collected:
    """What has been given to one cotangent: expressions by their width, and slices."""

    terms: list[tuple[Expr, Dim]] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    span: Span = NOWHERE


class Cotangents:
    """What has been made and collected so far. `nodes` and `new` (their values) grow."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)
        self.new: list[Value] = []
        self.nodes: list[Node] = []
        self._collected: dict[str, _Collected] = {}

    # Making nodes.

    def value(self, wish: str, width: Dim, span: Span, grid: Grid | None = None) -> str:
        name, number = wish, 2
        while name in self.values:
            name, number = f"{wish}_{number}", number + 1
        self.values[name] = Value(name, Role.NODE, Placement.S, width, span=span, grid=grid)
        self.new.append(self.values[name])
        return name

    def pointwise(self, wish: str, width: Dim, expr: Expr, span: Span) -> str:
        name = self.value(wish, width, span, self._grid_of(expr, width))
        self.nodes.append(Pointwise(name, expr, span))
        return name

    def _grid_of(self, expr: Expr, width: Dim) -> Grid | None:
        """The shape of the matrix that an expression is, if it is one."""
        grids = (self.values[name].grid for name in references(expr) if name in self.values)
        return next((grid for grid in grids if grid is not None and grid.width == width), None)

    def row(self, width: Dim, node: RowOp) -> str:
        """Add the node. Where the name of its target is taken, it gets another."""
        name = self.value(node.target, width, node.span, self._grid_made_by(node))
        self.nodes.append(replace(node, target=name))
        return name

    def _grid_made_by(self, node: RowOp) -> Grid | None:
        """The shape of the matrix that an operator makes, if it makes one."""
        if node.grid is None or not node.makes_matrix:
            return None
        match node.operator:
            case RowOperator.TRANSPOSE:
                return node.grid.transposed
            case RowOperator.MATMUL:
                return Grid(node.grid.rows, self.columns_of(node.operands[1]))
            case _:
                return node.grid

    def columns_of(self, name: str) -> Dim:
        """The columns of a matrix that changes."""
        grid = self.values[name].grid
        if grid is None:
            raise InternalError(f"{name} is no matrix")
        return grid.columns

    # Collecting cotangents.

    def collect(self, name: str, span: Span) -> _Collected:
        collected = self._collected.setdefault(name, _Collected())
        collected.span = span
        return collected

    def give(self, name: str, expr: Expr, width: Dim, span: Span) -> None:
        self.collect(name, span).terms.append((expr, width))

    def complete(self, name: str, span: Span | None, narrow: bool = True) -> str | None:
        """The cotangent of a value as a name; None where nothing reached it.

        Where the value is one number for many units, what came per unit is summed over the units; not so with
        `narrow` False (a weight) if everything came in one width.
        """
        collected = self._collected.pop(name, None)
        if collected is None:
            return None
        span = collected.span if span is None else span
        width = self.values[name].width
        if not narrow and len(widths := {found for _, found in collected.terms}) == 1 and width in NARROW:
            width = widths.pop()
        terms = [expr for expr, found in collected.terms if not _is_wider(found, width)]
        for wide in dict.fromkeys(found for _, found in collected.terms if _is_wider(found, width)):
            wish = f"d_{name}__units"
            parts = self._sum(wish, wide, [expr for expr, found in collected.terms if found == wide], span)
            whole = parts.name if isinstance(parts, Ref) else self.pointwise(wish, wide, parts, span)
            terms.append(Ref(self.row(width, RowOp(f"d_{name}__sum", RowOperator.SUM, (whole,), span=span))))
        terms += [Ref(part) for part in self._unslice(name, collected.slices, span)]
        total = self._sum(f"d_{name}", width, terms, span)
        if isinstance(total, Ref) and self.values[total.name].width == width:
            return total.name
        return self.pointwise(f"d_{name}", width, total, span)

    def _sum(self, wish: str, width: Dim, terms: list[Expr], span: Span) -> Expr:
        """The terms added up in order, negated ones subtracted. A long sum goes on from a named part of it."""
        first = next((position for position, term in enumerate(terms) if not _is_negative(term)), 0)
        result = terms[first]
        for number, term in enumerate((*terms[:first], *terms[first + 1 :]), start=1):
            if number % LONGEST_SUM == 0:
                result = Ref(self.pointwise(f"{wish}__part", width, result, span))
            match term:
                case Apply("neg", (inner,)):
                    result = apply("sub", result, inner)
                case _:
                    result = apply("add", result, term)
        return result

    def _unslice(self, name: str, slices: list[Slice], span: Span) -> list[str]:
        """The cotangents of slices as cotangents of the whole: laid side by side if they tile it, else padded."""
        whole = self.values[name].width
        starts = {piece.offset: piece for piece in slices}
        tiles: list[Slice] = []
        end = constant(0)
        while end in starts and len(tiles) < len(slices):
            tiles.append(starts[end])
            end = add(end, starts[end].width)
        if slices and len(tiles) == len(slices) and end == whole:
            row = tuple(piece.cotangent for piece in tiles)
            return [self.row(whole, RowOp(f"d_{name}__tiles", RowOperator.CONCAT, row, span=span))]
        padded = f"d_{name}__padded"
        return [
            self.row(whole, RowOp(padded, RowOperator.PAD, (piece.cotangent,), piece.offset, span=span))
            for piece in slices
        ]


def _is_wider(found: Dim, width: Dim) -> bool:
    """Whether a term has more units than the value it is for."""
    return found != width and (width == ONE or (width == HEADS and found != ONE))


def _is_negative(term: Expr) -> bool:
    return isinstance(term, Apply) and term.operator == "neg"
