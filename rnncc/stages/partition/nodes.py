"""The nodes that `flatten` makes: each value is defined once, and equal expressions share one."""

from __future__ import annotations

from rnncc.ir.cell import Node, Pointwise
from rnncc.ir.dim import Grid
from rnncc.ir.expr import Const, Expr, Ref
from rnncc.ir.typed import Shape, Typed
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE, Span
from rnncc.stages.partition.flat import Numbered, width_of


class Nodes:
    """The nodes made so far by name, in order, and the shapes of all values. `target` is the equation at hand, after
    which temporaries are called, and `span` its place."""

    def __init__(self, typed: Typed) -> None:
        self.input_dims = typed.input_dims
        self.shapes: dict[str, Shape] = {name: shape.laid_out for name, shape in typed.shapes.items()}
        self.made: dict[str, Node] = {}
        self.target, self.span = "", NOWHERE
        self._states = {state.name for state in typed.states}
        self._temporaries: dict[tuple[Expr, Grid | None], str] = {}
        self._constants: dict[tuple[float, Shape], str] = {}
        self._numbered = Numbered()

    def define(self, node: Node) -> None:
        """Enter the node of a value whose shape is known."""
        if node.target in self.made:
            raise InternalError(f"{node.target} is defined twice")
        self.made[node.target] = node

    def temporary(self, node: Node, shape: Shape) -> str:
        """Enter a temporary's node under its own name."""
        self.shapes[node.target] = shape
        self.define(node)
        return node.target

    def name(self, suffix: str = "") -> str:
        """A name for a temporary of this equation: `i__R`, else `i__R_0`; without a suffix `i__0`."""
        name = f"{self.target}__{suffix}"
        if suffix and name not in self.shapes:
            return name
        stem = f"{name}_" if suffix else name
        return self._numbered.name(stem, self.shapes, but_one=not suffix and self.target in self._states)

    def constant(self, value: float, shape: Shape) -> str:
        """The name of a value that is the same number everywhere."""
        if (value, shape) not in self._constants:
            self._constants[value, shape] = self.temporary(Pointwise(self.name(), Const(value), self.span), shape)
        return self._constants[value, shape]

    def named(self, expr: Expr, shape: Shape | None = None, span: Span | None = None) -> str:
        """The name of an expression's value: one temporary for all equal ones. `shape` is that of a matrix; a vector's
        follows from the expression."""
        grid = shape.grid if shape else None
        if isinstance(expr, Ref) and grid in (None, self.shapes[expr.name].grid):
            return expr.name
        if (expr, grid) not in self._temporaries:
            shape = shape or Shape(width_of(expr, self.shapes, self.input_dims))
            self._temporaries[expr, grid] = self.temporary(Pointwise(self.name(), expr, span or self.span), shape)
        return self._temporaries[expr, grid]
