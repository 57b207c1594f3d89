"""A program as operations on single units: the reading of fused loops.

A value of k*H units lies as [k, heads, head_dim], so unit u of a head has k numbers of it, its *parts*: `v__0of4`, ….
To cut a vector into parts, or to lay vectors side by side, moves nothing. A value with one number per head is a
*scalar*, which every unit has. So all that units need of each other are products and reductions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.ir.cell import RowOperator
from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.expr import Const, Expr, Ref, apply, references, substitute
from rnncc.ir.fused import HEAD_DIM, FusedReduction, FusedStatement, MatrixPart
from rnncc.ir.kernel import Matrix, Program, RowStage, Slot, TileStage, ViewSlot
from rnncc.ir.structure import diagonal_blocks
from rnncc.stages.lower.reading import Unfit

# The most tensors that a kernel reads, and that it writes: as many as a word has bits (call.cuh). A value has no more
# parts.
MOST_TENSORS = 63


@dataclass(frozen=True, slots=True)
class Product:
    """sum += matrix @ operand."""

    sum: str
    operand: str
    matrix: MatrixPart
    transposed: bool


Operation = FusedStatement | Product | FusedReduction


class Units:
    """The operations of a program, in order, and the parts of its values. All methods raise Unfit."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots: dict[str, Slot] = {slot.name: slot for slot in program.slots}
        self.matrices = {matrix.name: matrix for matrix in program.matrices}
        products = [stage for stage in program.stages if isinstance(stage, TileStage) and stage.products]
        if not products:
            raise Unfit("a step has no product")
        self.width = split_multiple(products[0].width)[1]
        self.blocks = products[0].blocks
        if self.blocks not in (ONE, HEADS):
            raise Unfit("a matrix has another number of blocks than heads")
        # Which operands each sum has taken.
        self.taken: set[tuple[str, str]] = set()
        # What later statements read in place of these names: values that have no slot, or that only move others.
        self.read_as: dict[str, tuple[Expr, ...]] = {}

    def count(self, width: Dim) -> int:
        """How many numbers a unit has of a value of that width; 0 for a scalar."""
        if width in (ONE, HEADS):
            return 0
        k, base = split_multiple(width)
        if base != self.width:
            raise Unfit("values of a step have several widths")
        if k > MOST_TENSORS:
            raise Unfit(f"a value has more than {MOST_TENSORS} times the units of a head")
        return k

    def parts(self, name: str) -> tuple[str, ...]:
        """The names of a value's parts: its own, where it has one or is a scalar."""
        return part_names(name, self.count(self.slots[name].width)) if name in self.slots else (name,)

    def values(self, name: str) -> tuple[Expr, ...]:
        """The parts of a value."""
        slot = self.slots.get(name)
        if name in self.read_as:
            return self.read_as[name]
        if isinstance(slot, ViewSlot):
            whole, first = self.values(slot.link), self.offset(slot.offset)
            return whole[first : first + max(1, self.count(slot.width))]
        return tuple(Ref(part) for part in self.parts(name))

    def offset(self, offset: Dim) -> int:
        """How many parts lie before an offset."""
        if not offset.terms:
            return 0
        k, base = split_multiple(offset)
        if base != self.width:
            raise Unfit("values of a step have several widths")
        return k

    def operations(self) -> Iterator[Operation]:
        """All operations."""
        for stage in self.program.stages:
            yield from self.of_row(stage) if isinstance(stage, RowStage) else self.of_tile(stage)

    def of_tile(self, stage: TileStage) -> Iterator[Operation]:
        count = self.count(stage.width)
        made: list[Operation] = []
        for product in stage.products:
            operands = self.named(product.operand)
            for offset, name in enumerate(product.matrices):
                matrix = self.matrices[name]
                if diagonal_blocks(matrix.structure) != stage.blocks or stage.blocks != self.blocks:
                    raise Unfit(f"{name} has blocks of its own")
                sums = part_names(stage.accumulators[product.first + offset], count)
                made += self.of_product(matrix, sums, operands, product.transposed)
        # Copies of operands come before all products of their sums.
        yield from sorted(made, key=lambda each: isinstance(each, Product))
        for statement in stage.statements:
            targets = part_names(statement.target, count)
            if statement.target not in self.slots:
                self.read_as[statement.target] = tuple(Ref(target) for target in targets)
            for part, target in enumerate(targets):
                yield FusedStatement(target, self.at(statement.expr, part, max(1, count)), statement.line)

    def of_product(
        self, matrix: Matrix, sums: tuple[str, ...], operands: tuple[str, ...], transposed: bool
    ) -> Iterator[Operation]:
        """Rows of a matrix have parts, columns have none."""
        rows, columns = (operands, sums) if transposed else (sums, operands)
        if len(columns) != 1 or matrix.parts != len(rows):
            raise Unfit(f"{matrix.name} has columns of several parts")
        if any(split_multiple(width)[1] != self.width for width in (matrix.rows, matrix.columns)):
            raise Unfit("values of a step have several widths")
        for part in range(len(rows)):
            target, operand = (sums[0], operands[part]) if transposed else (sums[part], operands[0])
            # R@h + U@h: a sum takes an operand once, so the second matrix takes a copy of it.
            while (target, operand) in self.taken:
                operand = f"{operand}__again"
                yield FusedStatement(operand, Ref(operand.removesuffix("__again")), 0)
            self.taken.add((target, operand))
            yield Product(target, operand, MatrixPart(matrix.name, part), transposed)

    def named(self, name: str) -> tuple[str, ...]:
        """The parts of a product's operand, which must be values."""
        found = []
        for value in self.values(name):
            if not isinstance(value, Ref):
                raise Unfit(f"the operand {name} is a number")
            found.append(value.name)
        return tuple(found)

    def at(self, expr: Expr, part: int, count: int) -> Expr:
        """An expression of one part of `count`."""
        found: dict[str, Expr] = {}
        for name in references(expr):
            values = self.values(name)
            if len(values) not in (1, count):
                raise Unfit("values of a step have several widths")
            found[name] = values[part if len(values) == count else 0]
        return substitute(expr, found)

    def of_row(self, stage: RowStage) -> Iterator[Operation]:
        operator, target = stage.operator, stage.target
        given = [self.values(name) for name in stage.operands]
        wide = self.slots[stage.operands[0]].width
        match operator:
            case RowOperator.SUM | RowOperator.MEAN | RowOperator.MAX:
                if self.count(wide) == 0 or self.slots[target].width != HEADS:
                    raise Unfit(f"a step takes the {operator.value} over all heads")
                sources = self.named(stage.operands[0])
                whole = f"{target}__whole" if operator is RowOperator.MEAN else target
                yield FusedReduction(whole, operator is RowOperator.MAX, sources)
                if operator is RowOperator.MEAN:
                    yield FusedStatement(target, apply("div", Ref(whole), elements_per_head(len(sources))), 0)
            case RowOperator.SPREAD:
                count = self.count(self.slots[target].width)
                if wide != HEADS:
                    raise Unfit("a step spreads a value over all heads")
                for part in self.parts(target):
                    yield FusedStatement(part, apply("div", given[0][0], elements_per_head(count)), 0)
            case RowOperator.SLICE:
                first = self.offset(stage.offset)
                self.read_as[target] = given[0][first : first + max(1, self.count(self.slots[target].width))]
            case RowOperator.CONCAT:
                self.read_as[target] = tuple(value for values in given for value in values)
            case RowOperator.PAD:
                first, count = self.offset(stage.offset), self.count(self.slots[target].width)
                zeros = (Const(0.0),) * count
                self.read_as[target] = (*zeros[:first], *given[0], *zeros[first + len(given[0]) :])
            case _:
                raise Unfit(f"a step takes the {operator.value} of a row")
        # The target may be stored, so it is a value of its own too.
        if target in self.read_as:
            for part, value in zip(self.parts(target), self.read_as[target], strict=True):
                yield FusedStatement(part, value, 0)


def part_names(name: str, count: int) -> tuple[str, ...]:
    """The names of `count` parts of a value; its own name where it has one, or is a scalar."""
    return (name,) if count < 2 else tuple(f"{name}__{part}of{count}" for part in range(count))


def elements_per_head(count: int) -> Expr:
    """How many elements of a value of `count` parts a head has."""
    return Ref(HEAD_DIM) if count < 2 else apply("mul", Const(float(count)), Ref(HEAD_DIM))
