"""What a step must provide, while it is described: its inputs, its equations, and which values outlive it."""

from __future__ import annotations

from collections.abc import Mapping

from rnncc.ir.cell import Node, Pointwise, Value
from rnncc.ir.dim import Dim
from rnncc.ir.expr import Const, Expr, Ref
from rnncc.ir.step import Edge, Final, Input, Matrix, Outer, Place, Sum, WeightShape, Zero
from rnncc.language.diagnostics import InternalError
from rnncc.stages.lower.shape import is_narrow


class Needs:
    """Read by `staged`. Fields that Step has mean the same there.

    nodes      the loop's body in dependence order; copies are appended
    inputs     what no stage makes
    matrices   those that a step may multiply by
    outputs    the tensors of each value
    outlasting values that a stage must store although no stage reads them
    lasting    values that must stay readable until the end of a block of steps
    """

    def __init__(self, values: Mapping[str, Value], constants: tuple[str, ...], *, masked: bool) -> None:
        self.constants, self.masked = constants, masked
        self.nodes: list[Node] = []
        self.inputs: dict[str, Input] = {}
        self.matrices: dict[str, Matrix] = {}
        self.outputs: dict[str, list[Place]] = {}
        self.outlasting: dict[str, None] = {}
        self.lasting: dict[str, None] = {}
        self.finals: list[Final] = []
        self.outers: list[Outer] = []
        self.sums: list[Sum] = []
        self.zeros: list[Zero] = []
        self.weights: list[WeightShape] = []
        self.widths = {name: value.width for name, value in values.items()}

    def input(self, each: Input) -> None:
        """Adds or replaces what is read from the call's tensors."""
        self.inputs[each.name] = each
        self.widths[each.name] = each.width

    def made(self, name: str, width: Dim) -> str:
        """The name under which a stage makes `name` at this width: itself, or a copy."""
        if name not in self.inputs and name not in self.constants and self.widths[name] == width:
            self.outlasting[name] = None
            return name
        return self._copy(f"{name}__copy", Ref(name), width)

    def zero(self, name: str, width: Dim) -> str:
        """A zero that a stage makes."""
        return self._copy(name, Const(0.0), width)

    def output(self, name: str, width: Dim, place: Place) -> None:
        """A tensor that takes the value at every step."""
        self.outputs.setdefault(self.made(name, width), []).append(place)

    def kept(self, name: str, width: Dim) -> str:
        """The name under which a value can be read until the end of its block of steps."""
        each = self.inputs.get(name)
        if each is None or each.width != width or (isinstance(each, Edge) and not each.ahead):
            name = self.made(name, width)
        self.lasting[name] = None
        return name

    def wider(self, width: Dim, name: str) -> Dim:
        """Which is wider, a width or a value's."""
        own = self.widths[name]
        return width if is_narrow(own) and not is_narrow(width) else own

    def _copy(self, name: str, expr: Expr, width: Dim) -> str:
        known = self.widths.get(name)
        if known is None:
            self.widths[name] = width
            self.nodes.append(Pointwise(name, expr))
        elif known != width:
            raise InternalError(f"{name} is needed at two widths")
        self.outlasting[name] = None
        return name
