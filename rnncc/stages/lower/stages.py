"""Stages: the elementwise statements that one pass over a tile computes, and the products that feed them.

A statement's level is the number of passes that must come before it. Statements of one width follow each other in one
pass; a product needs its whole operand, a row operator its whole row, and so does whatever reads units that another
thread may own, so these begin a new level. One stage a level and width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, RowOperator, operands
from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.expr import Ref, references
from rnncc.ir.step import (
    Access,
    Edge,
    Load,
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
from rnncc.stages.lower.products import Accumulator, accumulate, form_products


@dataclass(frozen=True, slots=True)
class Key:
    """What the statements of a stage share: the width, and the blocks that its tiles must not cross."""

    width: Dim
    blocks: Dim


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


class _Stager:
    """Gives nodes to stages."""

    def __init__(self, needs: Needs, source: Source) -> None:
        self.needs, self.source, self.widths = needs, source, needs.widths
        body = self._with_operands(_alive(needs.nodes, needs.outlasting))
        self.views = {node.target: node for node in body if isinstance(node, RowOp) and self._is_view(node)}
        nodes = [node for node in body if node.target not in self.views]
        found = accumulate(nodes, needs.outlasting, self.widths, needs.matrices)
        self.nodes = found.nodes
        self.accumulators = {accumulator.name: accumulator for accumulator in found.accumulators}
        for name in self.accumulators:
            self.widths[name] = self.widths[name.removesuffix("__sum")]
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

    def stages(self) -> list[Stage]:
        """The stages, in order."""
        groups: dict[tuple[int, Key], Group] = {}
        order: dict[int, list[Key | RowOp]] = {}
        home: dict[str, tuple[int, Key]] = {}
        for node in self.nodes:
            match node:
                case Pointwise(target, expr):
                    key = self._key(node)
                    own = [name for name in dict.fromkeys(references(expr)) if name in self.accumulators]
                    level = max((self._level_for(name, key) for name in references(expr)), default=0)
                    self.levels[target], self.keys[target] = level, key
                    home[target] = (level, key)
                    if (level, key) not in groups:
                        groups[level, key] = Group()
                        order.setdefault(level, []).append(key)
                    groups[level, key].nodes.append(node)
                    groups[level, key].accumulators.extend(self.accumulators[name] for name in own)
                case RowOp(target):
                    level = max(self._level_for(name, None) for name in node.operands)
                    self.levels[target], self.keys[target] = level, None
                    order.setdefault(level, []).append(node)
                case Contraction() | Delay():
                    raise InternalError(f"{node.target} does not belong in a loop's statements")
                case _:
                    assert_never(node)
        stored = self._stored(home)
        return [
            self._tile_stage(entry, groups[level, entry], stored) if isinstance(entry, Key) else self._row_stage(entry)
            for level in sorted(order)
            for entry in order[level]
        ]

    def _key(self, node: Pointwise) -> Key:
        width = self.widths[node.target]
        if width == ONE:
            return Key(width, ONE)
        usual = ONE if is_narrow(width) else HEADS
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
        if name not in self.levels:
            return 0
        return self.levels[name] + (key is None or self.keys[name] != key)

    def _stored(self, home: dict[str, tuple[int, Key]]) -> dict[str, None]:
        """Values that need an address: what must have one, and what another stage reads."""
        stored = dict(self.needs.outlasting)

        def read(name: str) -> None:
            while name in self.views:
                name = self.views[name].operands[0]
            if name in self.levels:
                stored[name] = None

        for node in self.nodes:
            for name in operands(node):
                if not isinstance(node, Pointwise) or home.get(name) != home[node.target]:
                    read(name)
        for accumulator in self.accumulators.values():
            for contraction in accumulator.contractions:
                read(contraction.operand)
        return stored

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
        return RowStage(node.target, node.operator, node.operands, width, node.offset, node.times)

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
