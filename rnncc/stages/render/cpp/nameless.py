"""Elementwise stages without their names, by which those that do the same are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rnncc.ir.expr import Ref, references, substitute
from rnncc.ir.step import Load, MatrixStage, Statement, TileStage


def nameless(stage: TileStage | MatrixStage) -> tuple[TileStage | MatrixStage, dict[str, str]]:
    """A stage whose values are called by the order in which its statements name them, and these names by the old ones.
    Constants keep theirs."""
    order = [name for name in dict.fromkeys(_mentions(stage)) if name not in stage.constants]
    names = {name: f"v{index}__" for index, name in enumerate(order)}
    values = {name: Ref(new) for name, new in names.items()}
    loads = {load.local: load.access for load in stage.loads}
    changes: dict[str, Any] = {
        "loads": tuple(Load(names[name], loads[name]) for name in order if name in loads),
        "statements": tuple(
            Statement(names[each.target], substitute(each.expr, values), 0) for each in stage.statements
        ),
        "stored": tuple(names[name] for name in order if name in stage.stored),
    }
    if isinstance(stage, MatrixStage):
        changes["reductions"] = tuple(
            replace(each, target=names[each.target], source=names[each.source]) for each in stage.reductions
        )
    return replace(stage, **changes), names


def slots_of(stage: TileStage | MatrixStage) -> dict[str, str]:
    """The slots of values that lie in memory, by what a stage calls them."""
    made = [each.target for each in stage.reductions] if isinstance(stage, MatrixStage) else []
    return {load.local: load.name for load in stage.loads} | {name: name for name in (*stage.stored, *made)}


def _mentions(stage: TileStage | MatrixStage) -> Iterator[str]:
    for statement in stage.statements:
        yield from references(statement.expr)
        yield statement.target
    if isinstance(stage, MatrixStage):
        for each in stage.reductions:
            yield from (each.source, each.target)
    yield from (load.local for load in stage.loads)
