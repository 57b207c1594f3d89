"""What a program must provide: values with an address, where they go, how long they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rnncc.ir.cell import Node, Pointwise, Value
from rnncc.ir.dim import Dim
from rnncc.ir.expr import Const, Expr, Ref
from rnncc.ir.kernel import EdgeSlot, Matrix, Place, ReadSlot, VectorSlot
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import Source
from rnncc.stages.lower.shape import is_narrow

External = ReadSlot | EdgeSlot | VectorSlot


class Needs:
    """Collected while a program is described; read by `build_stages`.

    nodes         the loop's body in dependence order; copies are appended
    externals     slots that no stage writes
    destinations  of each stored value
    must_store    values that need an address although no stage reads them
    lasting       values that must stay readable until the end of a block of steps
    """

    def __init__(self, source: Source, values: Mapping[str, Value]) -> None:
        self.source = source
        self.nodes: list[Node] = []
        self.externals: dict[str, External] = {}
        self.matrices: dict[str, Matrix] = {}
        self.used_matrices: dict[str, None] = {}
        self.constants: dict[str, None] = {}
        self.destinations: dict[str, list[Place]] = {}
        self.must_store: dict[str, None] = {}
        self.lasting: dict[str, None] = {}
        self._widths = {name: value.width for name, value in values.items()}

    def width(self, name: str) -> Dim:
        """The width of a value."""
        return self._widths[name]

    def external(self, slot: External) -> None:
        """Adds or replaces a slot that is read from the call's tensors."""
        self.externals[slot.name] = slot
        self._widths[slot.name] = slot.width

    def stored(self, name: str, width: Dim) -> str:
        """The name under which `name` is stored by a stage at this width: itself, or a copy."""
        if name not in self.externals and name not in self.constants and self._widths[name] == width:
            self.must_store[name] = None
            return name
        return self._copy(f"{name}__copy", Ref(name), width)

    def copied(self, name: str, copy: str) -> Pointwise:
        """The statement that copies a value."""
        self._widths[copy] = self._widths[name]
        return Pointwise(copy, Ref(name))

    def zero(self, name: str, width: Dim) -> str:
        """A stored zero."""
        return self._copy(name, Const(0.0), width)

    def destination(self, name: str, width: Dim, place: Place) -> None:
        """A tensor that takes the value at every step."""
        self.destinations.setdefault(self.stored(name, width), []).append(place)

    def kept(self, name: str, width: Dim) -> str:
        """The name under which a value can be read until the end of its block of steps."""
        slot = self.externals.get(name)
        if slot is None or slot.width != width:
            name = self.stored(name, width)
        else:
            match slot:
                case ReadSlot():
                    self.external(replace(slot, kept=True))
                case EdgeSlot(ahead=True) | VectorSlot():
                    pass
                case EdgeSlot():
                    name = self.stored(name, width)
        self.lasting[name] = None
        return name

    def wider(self, width: Dim, name: str) -> Dim:
        """Which is wider, a width or a value's."""
        own = self._widths[name]
        return width if is_narrow(own) and not is_narrow(width) else own

    def use_matrix(self, name: str) -> None:
        """Notes that the program's tables need a matrix."""
        self.used_matrices[name] = None

    def _copy(self, name: str, expr: Expr, width: Dim) -> str:
        known = self._widths.get(name)
        if known is None:
            self._widths[name] = width
            self.nodes.append(Pointwise(name, expr))
        elif known != width:
            raise InternalError(f"{name} is needed at two widths")
        self.must_store[name] = None
        return name
