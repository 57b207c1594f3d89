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
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.expr import references
from rnncc.ir.kernel import (
    Access,
    EdgeSlot,
    Load,
    Matrix,
    RowStage,
    Slot,
    Stage,
    Statement,
    StoredSlot,
    TileSlot,
    TileStage,
    ViewSlot,
    row_parts,
)
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE, Span, line_and_column
from rnncc.stages.lower.barriers import place_barriers
from rnncc.stages.lower.needs import Needs
from rnncc.stages.lower.products import Accumulator, accumulate, form_products
from rnncc.stages.lower.shape import Key, access, is_contiguous, is_narrow


@dataclass(slots=True)
class Group:
    """A stage while it is filled."""

    nodes: list[Pointwise] = field(default_factory=list)
    accumulators: list[Accumulator] = field(default_factory=list)


class Stager:
    """Turns a program's needs into slots and stages."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        needs.nodes = self._with_operands(_alive(needs.nodes, needs.must_store))
        nodes = [node for node in needs.nodes if not self._is_view(node)]
        self.views = {node.target: node for node in needs.nodes if self._is_view(node) and isinstance(node, RowOp)}
        widths = _Widths(needs)
        found = accumulate(nodes, needs.must_store, widths, needs.matrices)
        self.nodes = found.nodes
        self.accumulators = {accumulator.name: accumulator for accumulator in found.accumulators}
        self.widths = widths
        for accumulator in found.accumulators:
            widths.extra[accumulator.name] = needs.width(accumulator.name.removesuffix("__sum"))
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
                slot = self.needs.externals.get(name)
                if name in parts:
                    self.needs.must_store[name] = None
                elif slot is not None and not (isinstance(slot, EdgeSlot) and not slot.ahead):
                    if copy not in copies:
                        copies.add(copy)
                        made.append(self.needs.copied(name, copy))
                    node = replace(node, operand=copy)
            made.append(node)
        return made

    def _is_view(self, node: Node) -> bool:
        if (
            not isinstance(node, RowOp)
            or node.operator is not RowOperator.SLICE
            or node.target in self.needs.must_store
        ):
            return False
        return is_contiguous(node.offset, self.needs.width(node.target), self.needs.width(node.operands[0]))

    def build(self) -> tuple[tuple[Slot, ...], tuple[Matrix, ...], tuple[Stage, ...]]:
        """Slots, matrices and stages of the program."""
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
        stages: list[Stage] = []
        tiles: list[Slot] = []
        for level in sorted(order):
            for entry in order[level]:
                if isinstance(entry, Key):
                    stage = self._tile_stage(entry, groups[level, entry], stored)
                    tiles += [TileSlot(name, self.widths[name]) for name in stage.accumulators]
                    stages.append(stage)
                else:
                    stages.append(self._row_stage(entry))
        slots = self._slots(stages, stored, tiles)
        return slots, self._matrices(stages), place_barriers(stages, slots, self.keys)

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
        stored = dict(self.needs.must_store)

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
            tuple(
                Statement(node.target, node.expr, node.target in stored, self._line(node.span)) for node in group.nodes
            ),
            barrier=False,
        )

    def _row_stage(self, node: RowOp) -> RowStage:
        width = self.widths[node.target]
        return RowStage(node.target, node.operator, node.operands, width, node.offset, node.times, barrier=False)

    def _line(self, span: Span) -> int:
        return 0 if span == NOWHERE else line_and_column(self.needs.source, span.start)[0]

    def _slots(self, stages: list[Stage], stored: dict[str, None], tiles: list[Slot]) -> tuple[Slot, ...]:
        """Every slot that the stages, the edges or the products after the loop name."""
        slots: dict[str, Slot] = {}

        def add(name: str) -> None:
            if name in slots or name in self.accumulators:
                return
            if name in self.needs.externals:
                slot = self.needs.externals[name]
                slots[name] = slot
                if isinstance(slot, EdgeSlot):
                    add(slot.link)
            elif name in self.views:
                view = self.views[name]
                add(view.operands[0])
                slots[name] = ViewSlot(name, self.widths[name], view.operands[0], view.offset)
            else:
                places = tuple(self.needs.destinations.get(name, ()))
                slots[name] = StoredSlot(name, self.widths[name], places, name in self.needs.lasting)

        for name, external in self.needs.externals.items():
            if isinstance(external, EdgeSlot) or name in self.needs.lasting:
                add(name)
        for stage in stages:
            match stage:
                case TileStage():
                    for product in stage.products:
                        add(product.operand)
                    for load in stage.loads:
                        add(load.slot)
                    for statement in stage.statements:
                        if statement.stored:
                            add(statement.target)
                case RowStage():
                    for name in (*stage.operands, stage.target):
                        add(name)
                case _:
                    assert_never(stage)
        for name in self.needs.lasting:
            add(name)
        return (*slots.values(), *tiles)

    def _matrices(self, stages: list[Stage]) -> tuple[Matrix, ...]:
        used = dict(self.needs.used_matrices)
        for stage in stages:
            if isinstance(stage, TileStage):
                used.update({name: None for product in stage.products for name in product.matrices})
        return tuple(matrix for name, matrix in self.needs.matrices.items() if name in used)


def _alive(nodes: list[Node], wanted: Iterable[str]) -> list[Node]:
    """The nodes that something wanted depends on."""
    read = set(wanted)
    kept = []
    for node in reversed(nodes):
        if node.target in read:
            kept.append(node)
            read.update(operands(node))
    return kept[::-1]


class _Widths(dict[str, Dim]):
    """The widths of a program's values and of the accumulators made here."""

    def __init__(self, needs: Needs) -> None:
        super().__init__()
        self.needs = needs
        self.extra: dict[str, Dim] = {}

    def __missing__(self, name: str) -> Dim:
        return self.extra[name] if name in self.extra else self.needs.width(name)


def build_stages(needs: Needs) -> tuple[tuple[Slot, ...], tuple[Matrix, ...], tuple[Stage, ...]]:
    """Slots, matrices and stages that provide what is needed."""
    return Stager(needs).build()
