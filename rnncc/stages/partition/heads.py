"""Finds which matrices are block-diagonal with several heads, and which constraints N heads put on sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.analysis.norms import NORMS
from rnncc.analysis.widths import is_of_inputs, reduced
from rnncc.ir import dim as dims
from rnncc.ir.cell import Constraint, Contraction, Pointwise, RowOp, operands
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, ONE, Dim
from rnncc.ir.expr import Apply, references
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import DENSE, BlockDiagonal, Dense, Structure, diagonal_blocks
from rnncc.language.report import Report
from rnncc.language.source import NOWHERE, Span
from rnncc.stages.partition.flat import FlatCell
from rnncc.stages.partition.place import Placed

# Operators that work on the units of one head at a time.
_HEADWISE_OPERATORS = NORMS | {
    RowOperator.SUM,
    RowOperator.MEAN,
    RowOperator.MAX,
    RowOperator.CUMSUM,
    RowOperator.ROLL,
    RowOperator.SHIFT,
    RowOperator.ARANGE,
}
_BLOCK_PER_HEAD = BlockDiagonal(HEADS)


@dataclass(frozen=True, slots=True)
class Heads:
    """The result of `heads`.

    structures   of every matrix that is not dense, by name
    constraints  on sizes: what `num_heads` (or a number of blocks) must divide
    single       why the cell can have one head only, or ""
    """

    structures: dict[str, Structure]
    constraints: tuple[Constraint, ...]
    single: str


class _Heads:
    def __init__(self, flat: FlatCell, placed: Placed, report: Report) -> None:
        self.typed, self.report = flat.typed, report
        self.nodes, self.shapes, self.last_segment = flat.nodes, flat.shapes, placed.last_segment
        self.group_of = {member.name: member.group for member in flat.typed.members}
        self.of_w = {member.name for member in flat.typed.members if member.written == "W"}
        self.structures: dict[str, Structure] = {}
        self.constraints: dict[tuple[Dim, Dim], Constraint] = {}
        self.single = ""
        self.input_dims = flat.typed.input_dims
        # For each computed matrix: itself, and the matrices that it is computed from.
        self.computed = {name: self.made_of(name) for name in self.nodes if self.shapes[name].kind == "matrix"}

    def run(self) -> Heads:
        self.declared_structures()
        for given in self.typed.inputs:
            if given.grid is not None:
                self.couple(f"all heads would share the matrix '{given.name}'", given.span)
        self.divides("", HIDDEN_SIZE, NOWHERE)
        for state in self.typed.states:
            if state.grid is None:
                self.divides(state.name, state.width, state.span)
        for name, node in self.nodes.items():
            if isinstance(node, Contraction):
                self.contraction(node)
            elif isinstance(node, RowOp):
                self.row(node)
            width, grid = self.shapes[name].width, self.shapes[name].grid
            if isinstance(node, Pointwise) and isinstance(node.expr, Apply) and node.expr.operator == "entries":
                (matrix,) = references(node.expr)
                self.block(self.made_of(matrix), matrix, matrix, node.span)
                self.block_for_block(self.made_of(matrix), node.span)
            if grid is not None:
                self.divides(name, grid.rows, node.span)
                self.divides(name, grid.columns, node.span)
                continue
            if isinstance(node, Pointwise) and not self.depends_on_state(name):
                self.of_inputs(node, width)
            # A single number is not divided among heads, unless a product makes it.
            in_layout = width != HEADS and (width != ONE or isinstance(node, Contraction))
            if self.depends_on_state(name) and in_layout:
                self.divides(name, width, node.span)
        self.spread()
        self.numbers_of_heads()
        return Heads(self.structures, tuple(self.constraints.values()), self.single)

    def depends_on_state(self, name: str) -> bool:
        return self.last_segment.get(name, -1) >= 0

    def declared_structures(self) -> None:
        of_groups = {group.name: group.type for group in self.typed.groups}
        types = {param.name: param.type for param in self.typed.params}
        types |= {name: of_groups[group] for name, group in self.group_of.items()}
        for name, type_ in types.items():
            match type_.structure:
                case Dense():
                    continue
                case BlockDiagonal(blocks):
                    self.structures[name] = type_.structure
                    for side in (self.shapes[name].width, self.shapes[name].columns or ONE):
                        self.constrain(dims.split_multiple(side)[1], blocks, type_.span)
                case _:
                    assert_never(type_.structure)
        for name, parts in self.computed.items():
            read = [part for part in parts if part not in self.nodes]
            found = {part: self.structures.get(part, DENSE) for part in read}
            if len(set(found.values())) > 1:
                texts = ", ".join(f"'{part}' has {dims.show(diagonal_blocks(each))}" for part, each in found.items())
                message = f"matrices of different numbers of blocks are computed with: {texts}"
                self.report.error("RNN214", message, self.nodes[name].span, "blocks differ")
            elif read:
                for part in parts:
                    # Or made of vectors alone, as `diag(v)` is.
                    if part in self.nodes:
                        self.computed_structure(part, found[read[0]])

    def computed_structure(self, name: str, structure: Structure) -> None:
        """The structure of a matrix that is computed from matrices of this one."""
        match structure:
            case Dense():
                return
            case BlockDiagonal():
                self.structures[name] = structure  # sums, products and transposes have the same blocks
            case _:
                assert_never(structure)

    def contraction(self, node: Contraction) -> None:
        if not self.depends_on_state(node.operand):
            return
        parts = self.made_of(node.matrix)
        dense = [part for part in parts if self.is_from_group_w(part)]
        if dense:
            self.couple(f"{dense[0]} multiplies a value that depends on a state", node.span)
            return
        self.block(parts, node.target, node.operand, node.span)

    def block(self, matrices: list[str], target: str, operand: str, span: Span) -> None:
        """Give each matrix one block per head. `target` and `operand` are, in messages, the names of the values that
        have the matrix's rows and columns."""
        for name in matrices:
            shape = self.shapes[name]
            structure = self.structures.get(name, DENSE)
            match structure:
                case Dense():
                    self.structures[name] = _BLOCK_PER_HEAD
                    self.divides(target, shape.width, span)
                    self.divides(operand, shape.columns or ONE, span)
                case BlockDiagonal(blocks):
                    if blocks != HEADS:
                        self.constrain(blocks, HEADS, span)
                case _:
                    assert_never(structure)

    def block_for_block(self, matrices: list[str], span: Span) -> None:
        """Demand that declared blocks are those of heads, which a matrix that changes has."""
        for name in matrices:
            match self.structures.get(name, DENSE):
                case BlockDiagonal(blocks) if blocks != HEADS:
                    self.constrain(HEADS, blocks, span)
                case _:
                    pass

    def spread(self) -> None:
        """A matrix that is computed from one with blocks has the same blocks, whatever it multiplies. So have the other
        matrices that it is computed from."""
        count = -1
        while count != len(self.structures):
            count = len(self.structures)
            for name, parts in self.computed.items():
                if any(self.structures.get(part) == _BLOCK_PER_HEAD for part in parts):
                    for part in filter(self.is_from_group_w, parts):
                        self.couple(f"{part} is joined with a matrix that has a block a head", self.nodes[name].span)
                    self.block(parts, name, name, self.nodes[name].span)

    def numbers_of_heads(self) -> None:
        """One number per head meets matrices that have as many blocks, or a multiple."""
        for name in self.computed:
            node = self.nodes[name]
            assert isinstance(node, Pointwise)
            if all(self.shapes[read].width != HEADS for read in references(node.expr)):
                continue
            structure = self.structures.get(name, DENSE)
            match structure:
                case Dense():
                    self.couple("one number a head meets a matrix that has no heads", node.span)
                case BlockDiagonal(blocks):
                    if blocks != HEADS:
                        self.constrain(blocks, HEADS, node.span)
                case _:
                    assert_never(structure)

    def is_from_group_w(self, name: str) -> bool:
        """Whether a matrix is a member of the group W. These never get a block per head."""
        return name in self.of_w

    def made_of(self, matrix: str) -> list[str]:
        """The matrix, and every matrix that it is computed from, directly or not."""
        found = [matrix]
        for name in found:
            node = self.nodes.get(name)
            if isinstance(node, Pointwise) and self.shapes[name].kind == "matrix":
                found += [read for read in dict.fromkeys(references(node.expr)) if read not in found]
        return [name for name in found if self.shapes[name].kind == "matrix"]

    def row(self, node: RowOp) -> None:
        """Constraints of a function across units. `split` and `concat` can cut and join values by heads only where all
        widths are multiples of one size."""
        width = self.shapes[node.operands[0]].width
        if node.grid is not None:
            vectors = (name for name in (node.target, *node.operands) if self.shapes[name].grid is None)
            if any(is_of_inputs(self.shapes[name].width, self.input_dims) for name in vectors):
                self.couple("a matrix that has heads meets an input, which has none", node.span)
            return
        if node.operator is RowOperator.PER_HEAD:
            if self.depends_on_state(node.target):
                message = "'heads' is not available on values that depend on a state"
                help = "such a value has heads already: 'local k: D*num_heads', 'k = R@h[t-1]'"
                self.report.error("RNN230", message, node.span, help=help)
            return
        if not self.depends_on_state(node.target) and reduced(width, self.input_dims) == ONE != width:
            self.couple("a function across units works on an input, which has no heads", node.span)
        elif node.operator in _HEADWISE_OPERATORS and width != ONE:
            # This holds also where the value depends on no state: it meets values that have heads.
            self.divides(node.operands[0], width, node.span)
        if node.operator not in (RowOperator.SLICE, RowOperator.CONCAT):
            return
        if not (self.depends_on_state(node.target) or self.depends_on_state(node.operands[0])):
            return
        bases = {dims.split_multiple(self.shapes[name].width)[1] for name in (node.target, *operands(node))}
        if node.operator is RowOperator.SLICE:
            whole = self.shapes[node.operands[0]].width
            rest = dims.subtract(whole, self.shapes[node.target].width)
            bases |= {dims.split_multiple(rest)[1]} if rest.terms else set()
        if len(bases) > 1:
            self.couple("values of different widths are packed into one", node.span)

    def of_inputs(self, node: Pointwise, width: Dim) -> None:
        """A value of the width of an input has no heads, so it cannot take one number per head."""
        if is_of_inputs(width, self.input_dims) and any(self.shapes[n].width == HEADS for n in references(node.expr)):
            self.couple("one number a head meets an input, which has no heads", node.span)

    def couple(self, why: str, span: Span) -> None:
        self.single = self.single or f"{why} (line {self.report.line(span)})"

    def divides(self, name: str, width: Dim, span: Span) -> None:
        """Demand that heads divide the value `name`, of this width."""
        if width == ONE:
            # The text before `__` is the user's name of the equation.
            self.couple(f"'{name.partition('__')[0]}' is one number, which heads cannot divide", span)
        elif (base := dims.split_multiple(width)[1]) != HEADS:
            self.constrain(base, HEADS, span)

    def constrain(self, left: Dim, right: Dim, span: Span) -> None:
        line = "num_heads" if span == NOWHERE else f"line {self.report.line(span)}"
        self.constraints.setdefault((left, right), Constraint(left, right, line, True, span))


def heads(flat: FlatCell, placed: Placed, report: Report) -> Heads:
    """Find the structures of matrices and the constraints of heads. Reports RNN214 where an equation computes with
    matrices of different numbers of blocks."""
    return _Heads(flat, placed, report).run()
