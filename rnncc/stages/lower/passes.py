"""Which statements share a stage, and which passes over a matrix are one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnncc.ir.cell import Node, RowOp, operands
from rnncc.ir.dim import HEADS, Dim, Grid
from rnncc.ir.step import MatrixStage, TileStage


@dataclass(frozen=True, slots=True)
class Key:
    """What the statements of a stage share: the width, the blocks that its tiles must not cross, and the shape of the
    matrices whose elements they are."""

    width: Dim
    blocks: Dim
    grid: Grid | None = None


Home = tuple[int, Key]


@dataclass(slots=True)
class Passes:
    """Makes one pass of two over the elements of a matrix, as long as there are such.

    nodes    the step's
    sources  the nodes that an operand is made of
    joined   passes that are one. Whatever waits for a node of them waits for all
    """

    nodes: Sequence[Node]
    sources: Callable[[str], Iterable[str]]
    joined: list[set[str]] = field(default_factory=list)

    def later(self, home: Mapping[str, Home]) -> dict[str, int] | None:
        """Where two passes can be one, the later of them: the levels that all nodes must have at least for that. None
        where there are no such passes."""
        readers: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(source for operand in operands(node) for source in self.sources(operand)):
                readers.setdefault(name, []).append(node.target)
        passes: dict[Key, dict[int, list[str]]] = {}
        for name, (level, key) in home.items():
            if key.grid is not None:
                passes.setdefault(key, {}).setdefault(level, []).append(name)
        for key, levels in passes.items():
            for first, second in pairwise(sorted(levels)):
                one, two = self._whole(levels[first]), self._whole(levels[second])
                if one.isdisjoint(two):
                    # Elements may be read where they are made; all else waits for the end of the first pass.
                    waiting = [
                        reader
                        for name in sorted(one)
                        for reader in readers.get(name, ())
                        if reader not in one and home.get(reader, (0, None))[1] != key
                    ]
                    if not self._reached(waiting, readers).isdisjoint(two):
                        continue
                    if _are_read_whole(levels[first], readers, levels[second], self.nodes):
                        continue
                self.joined = [*(each for each in self.joined if each.isdisjoint(one | two)), one | two]
                kept = {name: level for name, (level, _) in home.items()}
                return kept | dict.fromkeys(levels[first], second)
        return None

    def _whole(self, names: Iterable[str]) -> set[str]:
        """Nodes, and those of the passes that these are part of."""
        found = set(names)
        return found.union(*(each for each in self.joined if not each.isdisjoint(found)))

    def _reached(self, waiting: list[str], readers: Mapping[str, Sequence[str]]) -> set[str]:
        """The nodes, and what waits for them."""
        reached = self._whole(waiting)
        waiting = sorted(reached)
        while waiting:
            more = self._whole(readers.get(waiting.pop(), ())) - reached
            reached |= more
            waiting += sorted(more)
        return reached


def _are_read_whole(
    made: Iterable[str], readers: Mapping[str, Sequence[str]], others: Container[str], nodes: Sequence[Node]
) -> bool:
    """Whether the sum of a row or column is read by a pass."""
    sums = {node.target for node in nodes if isinstance(node, RowOp)}
    return any(reader in others for name in made if name in sums for reader in readers.get(name, ()))


def key_of(stage: TileStage | MatrixStage) -> Key:
    """What the statements of a stage share."""
    if isinstance(stage, TileStage):
        return Key(stage.width, stage.blocks)
    return Key(stage.grid.width, HEADS, stage.grid)
