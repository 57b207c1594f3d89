"""Gives a step addresses: slots for its values, and barriers between its stages.

Threads may divide units. A stage may read without waiting what was written before the last barrier, and the units of
its own width and blocks, which it wrote itself. Values of the step before are read through edges; so two steps in a row
are followed until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from rnncc.ir.kernel import Program, Slot, StoredSlot, TileSlot, ViewSlot
from rnncc.ir.step import Access, Edge, RowStage, Stage, Step, TileStage
from rnncc.stages.lower.shape import Key


def program_of(step: Step) -> Program:
    """The step with addresses."""
    tiles = (TileSlot(name, step.widths[name]) for stage in step.tiles for name in stage.accumulators)
    return Program(step, (*(_slot(step, name) for name in step.in_memory()), *tiles), _barriers(step))


def _slot(step: Step, name: str) -> Slot:
    width = step.widths[name]
    if name in step.inputs:
        return step.inputs[name]
    if name in step.views:
        view = step.views[name]
        return ViewSlot(name, width, view.operands[0], view.offset)
    return StoredSlot(name, width, step.outputs.get(name, ()))


def _barriers(step: Step) -> tuple[bool, ...]:
    """Which stages wait."""
    keys = dict(_keys(step))
    reads = [list(_reads(step, stage, keys)) for stage in step.stages]
    barriers = [False] * len(reads)
    while True:
        before = list(barriers)
        fresh: set[str] = set()  # written in this step, not yet waited for
        for _ in range(2):
            old, fresh = fresh, set()
            for index, stage in enumerate(step.stages):
                if barriers[index] or any(name in (old if previous else fresh) for name, previous in reads[index]):
                    barriers[index] = True
                    old, fresh = set(), set()
                fresh.update(_writes(stage))
        if barriers == before:
            return tuple(barriers)


def _keys(step: Step) -> Iterator[tuple[str, Key | None]]:
    """What the stage that makes a value shares with others; None: it is a row operator."""
    for stage in step.stages:
        if isinstance(stage, RowStage):
            yield stage.target, None
        else:
            yield from ((each.target, Key(stage.width, stage.blocks)) for each in stage.statements)


def _reads(step: Step, stage: Stage, keys: Mapping[str, Key | None]) -> Iterator[tuple[str, bool]]:
    """Values of which a stage reads units that it did not write itself: the name, and whether it is the step
    before's."""
    key: Key | None = None
    named: list[tuple[str, bool]]  # and whether a unit reads its own
    match stage:
        case TileStage():
            key = Key(stage.width, stage.blocks)
            named = [(product.operand, False) for product in stage.products]
            named += [(load.name, load.access is Access.UNIT) for load in stage.loads]
        case RowStage():
            named = [(name, True) for name in stage.operands]
        case _:
            assert_never(stage)
    for name, is_own in named:
        made, previous = name, False
        while made in step.views or isinstance(step.inputs.get(made), Edge):
            match step.inputs.get(made):
                case Edge(link=link, ahead=ahead):
                    made, previous = link, previous or not ahead
                case _:
                    made, is_own = step.views[made].operands[0], is_own and key is None
        if made in keys and not (is_own and keys[made] == key):
            yield made, previous


def _writes(stage: Stage) -> tuple[str, ...]:
    return stage.stored if isinstance(stage, TileStage) else (stage.target,)
