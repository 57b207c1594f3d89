"""Stages: the elementwise statements that one pass over a tile computes, and the products that feed them.

A statement's level is the number of passes that must come before it. Statements of one width follow each other in one
pass; a product needs its whole operand, a row operator its whole row, and so does whatever reads units that another
thread may own, so these begin a new level. One stage a level and width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, operands, without_heads
from rnncc.ir.dim import HEADS, ONE, Dim, Grid, split_multiple
from rnncc.ir.expr import Ref, references
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.step import (
    Access,
    Edge,
    Load,
    MatrixStage,
    Reduction,
    RowStage,
    Stage,
    Statement,
    Step,
    TileStage,
    is_narrow,
    row_parts,
)
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE, Source, Span, line_and_column
from rnncc.stages.lower.needs import Needs
from rnncc.stages.lower.passes import Home, Key, Passes
from rnncc.stages.lower.products import Accumulator, accumulate, form_products

_ALONG = {RowOperator.BY_ROW: Access.ROW, RowOperator.BY_COLUMN: Access.COLUMN}
# The axis whose lines are reduced, and whether the largest element is taken, not the sum.
_REDUCTIONS = {
    RowOperator.ROW_SUMS: (Access.ROW, False),
    RowOperator.COLUMN_SUMS: (Access.COLUMN, False),
    RowOperator.ROW_MAXIMA: (Access.ROW, True),
    RowOperator.COLUMN_MAXIMA: (Access.COLUMN, True),
}


def staged(needs: Needs, source: Source) -> Step:
    """The step that provides what is needed."""
    stager = _Stager(needs, source)
    stages = tuple(stager.stages())
    products = [product for stage in stages if isinstance(stage, TileStage) for product in stage.products]
    used = {*(name for product in products for name in product.matrices), *(outer.matrix for outer in needs.outers)}
    return Step(
        inputs=needs.inputs,
        widths=needs.widths,
        matrices=tuple(matrix for name, matrix in needs.matrices.items() if name in used),
        stages=stages,
        views=stager.views,
        outputs={name: tuple(places) for name, places in needs.outputs.items()},
        kept=tuple(needs.lasting),
        finals=tuple(needs.finals),
        outers=tuple(needs.outers),
        sums=tuple(needs.sums),
        zeros=tuple(needs.zeros),
        weights=tuple(needs.weights),
        constants=needs.constants,
        masked=needs.masked,
    )


@dataclass(slots=True)
class Group:
    """A stage while it is filled."""

    nodes: list[Pointwise] = field(default_factory=list)
    accumulators: list[Accumulator] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)


class _Stager:
    """Gives nodes to stages."""

    def __init__(self, needs: Needs, source: Source) -> None:
        self.needs, self.source, self.widths = needs, source, needs.widths
        body = self._with_operands(_alive(needs.nodes, needs.outlasting))
        self.views = {node.target: node for node in body if isinstance(node, RowOp) and self._is_view(node)}
        nodes = [node for node in body if node.target not in self.views]
        found = accumulate(nodes, needs.outlasting, needs)
        # What fills the rows or columns of a matrix is read where it lies, by the statements of that matrix.
        self.spreads = {
            node.target: node
            for node in found.nodes
            if isinstance(node, RowOp) and self._is_read_along(node, found.nodes)
        }
        self.nodes = [node for node in found.nodes if node.target not in self.spreads]
        self.accumulators = {accumulator.name: accumulator for accumulator in found.accumulators}
        for name in self.accumulators:
            self.widths[name] = self.widths[name.removesuffix("__sum")]
        self.whole = without_heads(self.nodes, needs.outlasting)
        self.levels: dict[str, int] = {}
        self.keys: dict[str, Key | None] = {}  # None: a row operator's target

    def _with_operands(self, nodes: list[Node]) -> list[Node]:
        """The nodes, and what stores the operand of each product. A product reads what a stage made: no tensor of the
        call (a gradient that comes from outside, say), and no part of another value."""
        made: list[Node] = []
        copies: set[str] = set()
        parts = {node.target for node in nodes if self._is_view(node)}
        for node in nodes:
            if isinstance(node, Contraction):
                name, copy = node.operand, f"{node.operand}__operand"
                given = self.needs.inputs.get(name)
                if name in parts:
                    self.needs.outlasting[name] = None
                elif given is not None and not (isinstance(given, Edge) and not given.ahead):
                    if copy not in copies:
                        copies.add(copy)
                        self.widths[copy] = self.widths[name]
                        made.append(Pointwise(copy, Ref(name)))
                    node = replace(node, operand=copy)
            made.append(node)
        return made

    def _is_view(self, node: Node) -> bool:
        if (
            not isinstance(node, RowOp)
            or node.operator is not RowOperator.SLICE
            or node.target in self.needs.outlasting
        ):
            return False
        return is_contiguous(node.offset, self.widths[node.target], self.widths[node.operands[0]])

    def _is_read_along(self, node: RowOp, nodes: Sequence[Node]) -> bool:
        """Whether a vector that fills rows or columns lies in one piece, and only statements of that matrix read it."""
        if node.operator not in _ALONG or node.target in self.needs.outlasting:
            return False
        readers = (each for each in nodes if node.target in operands(each))
        alike = all(isinstance(each, Pointwise) and self.needs.grids.get(each.target) == node.grid for each in readers)
        return alike and row_parts(self.widths[node.operands[0]]) == 1

    def _reduction(self, node: RowOp) -> Reduction | None:
        """What a row operator takes of the rows or columns of a matrix, in the pass over its elements."""
        found = _REDUCTIONS.get(node.operator)
        if found is None or row_parts(self.widths[node.target]) != 1:
            return None
        axis, largest = found
        return Reduction(node.target, node.operands[0], axis, largest)

    def stages(self) -> list[Stage]:
        """The stages, in order."""
        home = self._homes({})
        passes = Passes(self.nodes, self._sources)
        while (later := passes.later(home)) is not None:
            home = self._homes(later)
        groups: dict[tuple[int, Key], Group] = {}
        order: dict[int, list[Key | RowOp]] = {}
        for node in self.nodes:
            place = home.get(node.target)
            if place is None:
                assert isinstance(node, RowOp)
                order.setdefault(self.levels[node.target], []).append(node)
                continue
            level, key = place
            if place not in groups:
                groups[place] = Group()
                order.setdefault(level, []).append(key)
            group = groups[place]
            match node:
                case Pointwise(_, expr):
                    group.nodes.append(node)
                    own = [name for name in dict.fromkeys(references(expr)) if name in self.accumulators]
                    group.accumulators.extend(self.accumulators[name] for name in own)
                case RowOp() if reduction := self._reduction(node):
                    group.reductions.append(reduction)
                case _:
                    raise InternalError(f"{node.target} does not belong in a loop's statements")
        stored = self._stored(home)
        return [
            self._stage(entry, groups[level, entry], stored) if isinstance(entry, Key) else self._row_stage(entry)
            for level in sorted(order)
            for entry in order[level]
        ]

    def _homes(self, least: Mapping[str, int]) -> dict[str, Home]:
        """The level and the key of each node that shares a stage, where some have a level of their own at `least`.
        Sets the levels of all."""
        home: dict[str, Home] = {}
        for node in self.nodes:
            target, key = node.target, None
            match node:
                case Pointwise(_, expr):
                    key = self._key(node)
                    level = max((self._level_for(name, key) for name in references(expr)), default=0)
                case RowOp() if (reduction := self._reduction(node)) and node.grid:
                    key = Key(node.grid.width, HEADS, node.grid)
                    level = self._level_for(reduction.source, key)
                case RowOp():
                    level = max(self._level_for(name, None) for name in node.operands)
                case Contraction() | Delay():
                    raise InternalError(f"{target} does not belong in a loop's statements")
                case _:
                    assert_never(node)
            level = max(level, least.get(target, 0))
            if key is not None:
                home[target] = (level, key)
            # What a row adds up to is there when all of it is.
            self.levels[target], self.keys[target] = level, key if isinstance(node, Pointwise) else None
        return home

    def _key(self, node: Pointwise) -> Key:
        width, grid = self.widths[node.target], self.needs.grids.get(node.target)
        if width == ONE:
            return Key(width, ONE)
        if grid is not None and grid.width == width:
            return Key(width, HEADS, grid)
        usual = ONE if is_narrow(width) or node.target in self.whole else HEADS
        for name in references(node.expr):
            accumulator = self.accumulators.get(name)
            for contraction in accumulator.contractions if accumulator else ():
                blocks = diagonal_blocks(self.needs.matrices[contraction.matrix].structure)
                # One number per head of a product comes from the head's own block.
                if blocks not in (ONE, usual):
                    return Key(width, blocks)
        return Key(width, usual)

    def _level_for(self, name: str, key: Key | None) -> int:
        """The first level at which a stage of `key` (None: a row operator) may read a value."""
        if name in self.accumulators:
            reads = [contraction.operand for contraction in self.accumulators[name].contractions]
            return max(self._level_for(operand, None) for operand in reads)
        if name in self.views:
            return self._level_for(self.views[name].operands[0], None)
        if name in self.spreads:
            return self._level_for(self.spreads[name].operands[0], None)
        if name not in self.levels:
            return 0
        return self.levels[name] + (key is None or self.keys[name] != key)

    def _sources(self, name: str) -> Iterator[str]:
        """The nodes that what stands under a name is made of."""
        if name in self.accumulators:
            for contraction in self.accumulators[name].contractions:
                yield from self._sources(contraction.operand)
        elif (whole := self.views.get(name) or self.spreads.get(name)) is not None:
            yield from self._sources(whole.operands[0])
        else:
            yield name

    def _stored(self, home: Mapping[str, Home]) -> dict[str, None]:
        """Values that need an address: what must have one, and what another stage reads."""
        stored = dict(self.needs.outlasting)

        def read(name: str) -> None:
            while (whole := self.views.get(name) or self.spreads.get(name)) is not None:
                name = whole.operands[0]
            if name in self.levels:
                stored[name] = None

        for node in self.nodes:
            own = home.get(node.target)
            for name in operands(node):
                if own is None or home.get(name) != own:
                    read(name)
        for accumulator in self.accumulators.values():
            for contraction in accumulator.contractions:
                read(contraction.operand)
        return stored

    def _stage(self, key: Key, group: Group, stored: dict[str, None]) -> Stage:
        return self._tile_stage(key, group, stored) if key.grid is None else self._matrix_stage(key.grid, group, stored)

    def _matrix_stage(self, grid: Grid, group: Group, stored: dict[str, None]) -> MatrixStage:
        inside = {node.target for node in group.nodes}
        names = [name for node in group.nodes for name in references(node.expr)]
        names += [reduction.source for reduction in group.reductions]
        loads = []
        for name in dict.fromkeys(names):
            if name in self.needs.constants or name in inside:
                continue
            if spread := self.spreads.get(name):
                loads.append(Load(spread.operands[0], _ALONG[spread.operator], name))
            else:
                loads.append(Load(name, access(self.widths[name], grid.width)))
        return MatrixStage(
            grid,
            tuple(loads),
            tuple(name for name in self.needs.constants if name in names),
            tuple(Statement(node.target, node.expr, self._line(node.span)) for node in group.nodes),
            tuple(
                sorted(
                    group.reductions,
                    key=lambda each: (each.axis is Access.COLUMN, each.axis is Access.COLUMN and each.largest),
                )
            ),
            tuple(node.target for node in group.nodes if node.target in stored),
        )

    def _tile_stage(self, key: Key, group: Group, stored: dict[str, None]) -> TileStage:
        accumulators = list({accumulator.name: accumulator for accumulator in group.accumulators}.values())
        products, columns = form_products(accumulators, self.widths)
        inside = {node.target for node in group.nodes}
        names = [name for node in group.nodes for name in references(node.expr)]
        loads = []
        for name in dict.fromkeys(names):
            if name in self.needs.constants or name in inside:
                continue
            loads.append(Load(name, Access.UNIT if name in columns else access(self.widths[name], key.width)))
        return TileStage(
            key.width,
            row_parts(key.width),
            key.blocks,
            products,
            columns,
            tuple(loads),
            tuple(name for name in self.needs.constants if name in names),
            tuple(Statement(node.target, node.expr, self._line(node.span)) for node in group.nodes),
            tuple(node.target for node in group.nodes if node.target in stored),
        )

    def _row_stage(self, node: RowOp) -> RowStage:
        width = self.widths[node.target]
        return RowStage(node.target, node.operator, node.operands, width, node.offset, node.times, node.grid)

    def _line(self, span: Span) -> int:
        return 0 if span == NOWHERE else line_and_column(self.source, span.start)[0]


def _alive(nodes: list[Node], wanted: Iterable[str]) -> list[Node]:
    """The nodes that something wanted depends on."""
    read = set(wanted)
    kept = []
    for node in reversed(nodes):
        if node.target in read:
            kept.append(node)
            read.update(operands(node))
    return kept[::-1]


def access(width: Dim, stage: Dim) -> Access:
    """How a statement of a stage's width reads a value."""
    if width == stage or not is_narrow(width):
        return Access.UNIT
    return Access.ONE if width == ONE else Access.HEAD


def is_contiguous(offset: Dim, width: Dim, whole: Dim) -> bool:
    """Whether units [offset, offset + width) of each head lie side by side: both are multiples of the base of
    `whole`."""
    _, base = split_multiple(whole)
    return split_multiple(width)[1] == base and (not offset.terms or split_multiple(offset)[1] == base)
