"""Where threads that divide units must wait for each other.

A stage may read without waiting what was written before the last barrier, and the units of its own width and blocks,
which it wrote itself. Values of the step before are read through edge slots; so two steps in a row are followed until
nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from rnncc.ir.kernel import Access, EdgeSlot, RowStage, Slot, Stage, TileStage, ViewSlot
from rnncc.stages.lower.shape import Key


def place_barriers(stages: Sequence[Stage], slots: Sequence[Slot], keys: Mapping[str, Key | None]) -> tuple[Stage, ...]:
    """The stages with `barrier` set where it is needed. `keys` has the key of the stage that wrote
    each value."""
    table = {slot.name: slot for slot in slots}
    barriers = [False] * len(stages)
    while True:
        before = list(barriers)
        fresh: set[str] = set()  # written in this step, not yet waited for
        for _ in range(2):
            old, fresh = fresh, set()
            for index, stage in enumerate(stages):
                reads = _reads(stage, table, keys)
                if barriers[index] or any(name in (old if previous else fresh) for name, previous in reads):
                    barriers[index] = True
                    old, fresh = set(), set()
                fresh.update(_writes(stage))
        if barriers == before:
            return tuple(replace(stage, barrier=barrier) for stage, barrier in zip(stages, barriers, strict=True))


def _reads(stage: Stage, table: Mapping[str, Slot], keys: Mapping[str, Key | None]) -> list[tuple[str, bool]]:
    """Values of which a stage reads units that it did not write itself: the name, and whether it is the step
    before's."""
    found = []

    def read(name: str, own: bool) -> None:
        previous = False
        slot = table.get(name)
        while isinstance(slot, ViewSlot | EdgeSlot):
            own = own and isinstance(slot, EdgeSlot)
            previous = previous or (isinstance(slot, EdgeSlot) and not slot.ahead)
            name = slot.link
            slot = table.get(name)
        if name not in keys:
            return
        key = keys[name]
        if isinstance(stage, TileStage):
            own = own and key is not None and (key.width, key.blocks) == (stage.width, stage.blocks)
        else:
            own = key is None
        if not own:
            found.append((name, previous))

    match stage:
        case TileStage():
            for product in stage.products:
                read(product.operand, own=False)
            for load in stage.loads:
                read(load.slot, own=load.access is Access.UNIT)
        case RowStage():
            for name in stage.operands:
                read(name, own=True)
        case _:
            assert_never(stage)
    return found


def _writes(stage: Stage) -> list[str]:
    match stage:
        case TileStage():
            return [statement.target for statement in stage.statements if statement.stored]
        case RowStage():
            return [stage.target]
        case _:
            assert_never(stage)
