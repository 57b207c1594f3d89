"""A step as operations on single units: the reading of fused loops.

A unit has one or more *parts* of a value, or shares a *scalar* with all units of its head (operations.py). To cut a
vector into parts, or to lay vectors of one width side by side, moves nothing. So all that units need of each other are
products and reductions.

A step may have values of several widths: a state of H units, and another one of P. Equations are of one width each, and
products lead from one width to another.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial, reduce
from itertools import cycle
from typing import assert_never

from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.expr import Const, Expr, Ref, apply, references, substitute
from rnncc.ir.fused import FusedReduction, MatrixPart, ReductionKind, head_dim_name
from rnncc.ir.lowered import Unfit
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.step import Matrix, MatrixStage, Product, RowStage, Statement, Step, TileStage
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.diagnostics import InternalError
from rnncc.stages.lower.operations import (
    NO_PLAIN_SUM,
    OVER_ALL_HEADS,
    LateSum,
    LateSums,
    Operation,
    PartProduct,
    elements_per_head,
    late_names,
    part_names,
)
from rnncc.stages.lower.rules import rule_of

_CHANGES = "a step has a matrix that changes with the step"
_SEVERAL_WIDTHS = "values of several widths are put together, or a value is cut into such: use values of one width"

# The most tensors that a kernel reads, and that it writes: as many as a word has bits (call.cuh). A value has no more
# parts.
MOST_TENSORS = 63
MOST_WIDTHS = 4


class Units:
    """The operations of a step, in order, and the parts of its values. All methods raise Unfit.

    one_head   the cell has one head only: a value with one number for all heads is a scalar too
    widths     what is divided into parts: H for a value of 4*H units. The first is that of the first product, where
               there is one
    blocks     the blocks that every matrix has
    vectors    the vectors that are a matrix of one row or one column, by name
    late       the sums over all heads
    """

    def __init__(self, step: Step, *, one_head: bool) -> None:
        self.step, self.one_head = step, one_head
        self.matrices = {matrix.name: matrix for matrix in step.matrices}
        products = [stage for stage in step.tiles if stage.products]
        wide = [*(stage.width for stage in products[:1]), *(step.widths[name] for name in step.in_memory())]
        wide += [step.widths[name] for stage in step.tiles for name in stage.accumulators]
        wide += [width for matrix in step.matrices for width in (matrix.rows, matrix.columns)]
        self.widths = tuple(dict.fromkeys(split_multiple(width)[1] for width in wide if width not in (ONE, HEADS)))
        if len(self.widths) > MOST_WIDTHS:
            raise Unfit(f"a step has values of more than {MOST_WIDTHS} widths: give some of them the same width")
        self.blocks = self.blocks_of(products[0].blocks) if products else HEADS
        if self.blocks not in (ONE, HEADS):
            raise Unfit(_other_blocks(products[0].products[0].matrices[0]))
        # The means that come with the sum of the squares of deviations from them.
        of_squares = (RowOperator.SQUARES, RowOperator.VARIANCE)
        rows = (stage for stage in step.stages if isinstance(stage, RowStage))
        self.means = {stage.operands[1] for stage in rows if stage.operator in of_squares}
        self.vectors: dict[str, MatrixPart] = {}
        self.late = LateSums()
        # Which operands each sum has taken, and the copies of operands.
        self.taken: set[tuple[str, str]] = set()
        self.copies: set[str] = set()
        # What later statements read in place of these names: values that only move others.
        self.read_as: dict[str, tuple[Expr, ...]] = {}

    def blocks_of(self, blocks: Dim) -> Dim:
        """The number of blocks of a matrix, which may be the number of heads in two ways."""
        return HEADS if self.one_head and blocks == ONE else blocks

    def is_per_head(self, width: Dim) -> bool:
        """Whether each head has one number of a value of that width."""
        return width == HEADS or (self.one_head and width == ONE)

    def count(self, width: Dim) -> int:
        """How many numbers a unit has of a value of that width; 0 for a scalar."""
        if width in (ONE, HEADS):
            return 0
        k, base = split_multiple(width)
        if base == HEADS:
            raise Unfit("a value has several numbers per head: make each number a value of its own")
        if k > MOST_TENSORS:
            raise Unfit(f"a value is more than {MOST_TENSORS} times as wide as a state: make it several values")
        return k

    def number(self, width: Dim) -> int:
        """Which of the widths a value has; 0 for a scalar."""
        return 0 if width in (ONE, HEADS) else self.widths.index(split_multiple(width)[1])

    def scalars(self) -> frozenset[str]:
        """The names that stand for one number per head, but for those that operations make."""
        narrow = (name for name, width in self.step.widths.items() if width in (ONE, HEADS))
        head_dims = map(head_dim_name, range(len(self.widths)))
        return frozenset((*narrow, *self.step.constants, *head_dims))

    def outlive(self) -> frozenset[str]:
        """The names of values that go to tensors, to the products after the loop or to the next step."""
        links = {edge.link for edge, _ in self.step.carried}
        found: set[str] = set()
        for name in self.step.stored:
            if name in self.late:
                found.update(late_names(name, len(self.late[name].parts)))
            elif name in links or self.step.places(name):
                found.update(self.parts(name))
        return frozenset(found)

    def parts(self, name: str) -> tuple[str, ...]:
        """The names of a value's parts: its own, where it has one or is a scalar."""
        return part_names(name, self.count(self.step.widths[name])) if name in self.step.widths else (name,)

    def values(self, name: str) -> tuple[Expr, ...]:
        """The parts of a value."""
        if name in self.late:
            raise Unfit(OVER_ALL_HEADS)
        if name in self.read_as:
            return self.read_as[name]
        if view := self.step.views.get(name):
            width = self.step.widths[name]
            whole, first = self.values(view.operands[0]), self.offset(view.offset, width)
            return whole[first : first + max(1, self.count(width))]
        return tuple(Ref(part) for part in self.parts(name))

    def offset(self, offset: Dim, width: Dim) -> int:
        """How many parts of a value of that width lie before an offset."""
        if not offset.terms:
            return 0
        k, base = split_multiple(offset)
        if base != split_multiple(width)[1]:
            raise Unfit(_SEVERAL_WIDTHS)
        return k

    def operations(self) -> Iterator[Operation]:
        """All operations."""
        for stage in self.step.stages:
            match stage:
                case RowStage():
                    yield from self.of_row(stage)
                case TileStage():
                    yield from self.of_tile(stage)
                case MatrixStage():
                    raise Unfit(_CHANGES)
                case _:
                    assert_never(stage)

    def of_tile(self, stage: TileStage) -> Iterator[Operation]:
        count = self.count(stage.width)
        made: list[Operation] = []
        added: dict[str, list[tuple[Expr, ...]]] = {}  # what each accumulator is the sum of
        for product in stage.products:
            for offset, name in enumerate(product.matrices):
                matrix, accumulator = self.matrices[name], stage.accumulators[product.first + offset]
                if ONE in (matrix.rows, matrix.columns):
                    operations, terms = self.of_vector(matrix, f"{accumulator}__of_{name}", product)
                    made += operations
                    added.setdefault(accumulator, []).append(terms)
                    continue
                if HEADS in (matrix.rows, matrix.columns):
                    raise Unfit(f"{name} has one row or column per head: make it a vector, and its product a sum")
                if {self.blocks_of(diagonal_blocks(matrix.structure)), self.blocks_of(stage.blocks)} != {self.blocks}:
                    raise Unfit(_other_blocks(name))
                sums = part_names(accumulator, count)
                if (own := tuple(map(Ref, sums))) not in added.setdefault(accumulator, []):
                    added[accumulator].append(own)
                named, operands = self.named(product.operand, f"{accumulator}__of_{name}")
                made += [*named, *self.of_product(matrix, sums, operands, product.transposed)]
        # Copies of operands come before all products of their sums.
        yield from sorted(made, key=lambda each: isinstance(each, PartProduct))
        for accumulator, summed in added.items():
            self.read_as[accumulator] = tuple(
                reduce(partial(apply, "add"), of_part) for of_part in zip(*summed, strict=True)
            )
        for statement in stage.statements:
            if self.late.reads(statement.expr):
                yield from self.of_late_sum(statement.target, self.late.of(statement.expr))
                continue
            for part, target in enumerate(part_names(statement.target, count)):
                yield Statement(target, self.at(statement.expr, part, max(1, count)), statement.line)

    def of_product(
        self, matrix: Matrix, sums: tuple[str, ...], operands: tuple[str, ...], transposed: bool
    ) -> Iterator[Operation]:
        """Rows of a matrix have parts, columns have none."""
        rows, columns = (operands, sums) if transposed else (sums, operands)
        if len(columns) != 1 or matrix.parts != len(rows):
            raise Unfit(
                f"{matrix.name} multiplies a value that is several times as wide as a state: give each part of the "
                "value a matrix of its own"
            )
        wide, taken = self.number(matrix.rows), self.number(matrix.columns)
        if transposed:
            wide, taken = taken, wide
        for part in range(len(rows)):
            target, operand = (sums[0], operands[part]) if transposed else (sums[part], operands[0])
            operand = yield from self.taken_once(target, operand)
            yield PartProduct(target, operand, MatrixPart(matrix.name, part), transposed, wide, taken)

    def taken_once(self, target: str, operand: str) -> Generator[Statement, None, str]:
        """The name by which a sum takes an operand. R@h + U@h takes h once, and a copy of it for the second matrix."""
        while (target, operand) in self.taken:
            copied, operand = operand, f"{operand}__again"
            if operand not in self.copies:
                self.copies.add(operand)
                yield Statement(operand, Ref(copied), 0)
        self.taken.add((target, operand))
        return operand

    def of_vector(self, matrix: Matrix, target: str, product: Product) -> tuple[list[Operation], tuple[Expr, ...]]:
        """A matrix of one row or one column is a vector. To multiply it is a sum over the units, or elementwise: the
        operations, and what they make."""
        wide = matrix.columns if matrix.rows == ONE else matrix.rows
        if wide == ONE:
            raise Unfit(f"{matrix.name} is a matrix of one element: declare it a scalar")
        if not self.one_head:
            raise Unfit(OVER_ALL_HEADS)
        vectors = part_names(f"{matrix.name}__vector", self.count(wide))
        self.vectors |= {name: MatrixPart(matrix.name, part) for part, name in enumerate(vectors)}
        given = cycle(self.values(product.operand))
        terms = tuple(apply("mul", Ref(vector), value) for vector, value in zip(vectors, given, strict=False))
        if (matrix.rows == ONE) == product.transposed:
            return [], terms
        sources = part_names(f"{target}__terms", len(terms))
        made: list[Operation] = [Statement(source, term, 0) for source, term in zip(sources, terms, strict=True)]
        return [*made, FusedReduction((target,), ReductionKind.SUM, sources, self.number(wide))], (Ref(target),)

    def named(self, name: str, target: str) -> tuple[list[Operation], tuple[str, ...]]:
        """The parts of a value that a product or a reduction takes for `target`, by name. What has no name yet gets
        one: the operations do that."""
        made: list[Operation] = []
        found: list[str] = []
        for part, value in enumerate(self.values(name)):
            found.append(value.name if isinstance(value, Ref) else f"{name}__{part}_of_{target}")
            if not isinstance(value, Ref):
                made.append(Statement(found[-1], value, 0))
        return made, tuple(found)

    def at(self, expr: Expr, part: int, count: int) -> Expr:
        """What an expression is for one part of `count`."""
        found: dict[str, Expr] = {}
        for name in references(expr):
            values = self.values(name)
            if len(values) not in (1, count):
                raise Unfit(_SEVERAL_WIDTHS)
            found[name] = values[part if len(values) == count else 0]
        return substitute(expr, found)

    def of_row(self, stage: RowStage) -> Iterator[Operation]:
        operator, target = stage.operator, stage.target
        if stage.grid is not None:
            raise Unfit(_CHANGES)
        given = [self.values(name) for name in stage.operands]
        wide = self.step.widths[stage.operands[0]]
        match operator:
            case RowOperator.SUM | RowOperator.MEAN | RowOperator.MAX:
                if self.is_per_head(wide) and self.is_per_head(self.step.widths[target]):
                    yield Statement(target, given[0][0], 0)  # the head has no other number
                    return
                is_late = operator is RowOperator.SUM and self.step.widths[target] == ONE and not self.one_head
                if is_late and not self.count(wide):
                    raise Unfit(NO_PLAIN_SUM)
                if not self.count(wide) or not (is_late or self.is_per_head(self.step.widths[target])):
                    raise Unfit(OVER_ALL_HEADS)
                if is_late:
                    yield from self.of_late_sum(target, LateSum(given[0], stage.operands[0]))
                    return
                made, sources = self.named(stage.operands[0], target)
                yield from made
                if operator is RowOperator.MEAN and target in self.means:
                    results = (target, _squares_from(target))
                    yield FusedReduction(results, ReductionKind.MOMENTS, sources, self.number(wide))
                    return
                whole = f"{target}__whole" if operator is RowOperator.MEAN else target
                kind = ReductionKind.LARGEST if operator is RowOperator.MAX else ReductionKind.SUM
                yield FusedReduction((whole,), kind, sources, self.number(wide))
                if operator is RowOperator.MEAN:
                    yield Statement(target, apply("div", Ref(whole), self.elements(wide)), 0)
            case RowOperator.SQUARES | RowOperator.VARIANCE:
                if self.is_per_head(wide):
                    yield Statement(target, Const(0.0), 0)
                    return
                squares: Expr = Ref(_squares_from(stage.operands[1]))
                if operator is RowOperator.VARIANCE:
                    squares = apply("div", squares, self.elements(wide))
                yield Statement(target, squares, 0)
            case RowOperator.SPREAD:
                if not self.is_per_head(wide):
                    raise Unfit(OVER_ALL_HEADS)
                for part in self.parts(target):
                    share = apply("div", given[0][0], self.elements(self.step.widths[target]))
                    yield Statement(part, share, 0)
            case RowOperator.SLICE:
                self.require_one_width(stage)
                first = self.offset(stage.offset, wide)
                self.read_as[target] = given[0][first : first + max(1, self.count(self.step.widths[target]))]
            case RowOperator.CONCAT:
                self.require_one_width(stage)
                self.read_as[target] = tuple(value for values in given for value in values)
            case RowOperator.PAD:
                self.require_one_width(stage)
                first, count = self.offset(stage.offset, wide), self.count(self.step.widths[target])
                zeros = (Const(0.0),) * count
                self.read_as[target] = (*zeros[:first], *given[0], *zeros[first + len(given[0]) :])
            case RowOperator.CUMSUM | RowOperator.CUMSUM_REVERSED | RowOperator.REPEAT | RowOperator.SEGMENT_SUM:
                yield from self.of_rules(stage)
            case RowOperator.ROLL | RowOperator.SHIFT:
                raise Unfit("a step moves units of a head to other places, which other threads have")
            case _:
                raise InternalError(f"{operator.value} in a loop")
        # The target may be stored, so it is a value of its own too.
        if target in self.read_as:
            for part, value in zip(self.parts(target), self.read_as[target], strict=True):
                yield Statement(part, value, 0)

    def of_rules(self, stage: RowStage) -> Iterator[Operation]:
        """A row whose parts are products of the operand's parts and matrices given by rules."""
        target, (name,) = stage.target, stage.operands
        widths = (self.step.widths[target], self.step.widths[name])
        if all(map(self.is_per_head, widths)):
            yield Statement(target, self.values(name)[0], 0)  # the head has no other number
            return
        if self.count(widths[0]) != self.count(widths[1]) or not self.count(widths[0]):
            raise Unfit(
                f"{stage.operator.value} leads from a state's width to a multiple of it, or back: declare a width "
                "for the narrower value (`dim K`)"
            )
        made, operands = self.named(name, target)
        yield from made
        products = []
        for part, own in enumerate(self.parts(target)):
            for other, operand in enumerate(operands):
                if rule := rule_of(stage.operator, stage.times, part, other):
                    taken = yield from self.taken_once(own, operand)
                    products.append(PartProduct(own, taken, rule, None, *map(self.number, widths)))
        yield from products

    def of_late_sum(self, target: str, summed: LateSum) -> Iterator[Operation]:
        """A sum over all heads: where it goes to memory, units make their terms of it."""
        self.late[target] = summed
        if target in self.step.outputs:
            for name, term in zip(late_names(target, len(summed.parts)), summed.parts, strict=True):
                yield Statement(name, term, 0)

    def require_one_width(self, stage: RowStage) -> None:
        """A row may be cut, or put together, where all its parts have one width."""
        names = (stage.target, *stage.operands)
        if len({split_multiple(self.step.widths[name])[1] for name in names}) > 1:
            raise Unfit(_SEVERAL_WIDTHS)

    def elements(self, width: Dim) -> Expr:
        """How many elements of a value of that width a head has."""
        return elements_per_head(self.count(width), self.number(width))


def _squares_from(mean: str) -> str:
    """The name of the sum of the squares of deviations from a mean."""
    return f"{mean}__squares"


def _other_blocks(matrix: str) -> str:
    return f"{matrix} has another number of blocks than heads: declare it `matrix`, which has a block per head"
