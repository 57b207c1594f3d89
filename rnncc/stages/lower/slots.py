"""Gives a step addresses: slots for its values, and barriers between its stages; and what tables can hold of it.

Threads may divide units, the rows of matrices, and the batch entries of row operators. A stage may read without
waiting what was written before the last barrier, and what is divided as its own is, which the same thread wrote. Values
of the step before are read through edges; so two steps in a row are followed until nothing changes.

The entries of tables are 16-bit numbers (templates/include/rnncc/cpu/program.h).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, assert_never

from rnncc.ir.dim import Dim
from rnncc.ir.expr import Apply, Const, Ref
from rnncc.ir.kernel import Program, Slot, StoredSlot, TileSlot, ViewSlot
from rnncc.ir.lowered import LoweredLoop
from rnncc.ir.step import Access, Edge, MatrixStage, Product, RowStage, Stage, Step, TileStage
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.stages.lower.passes import Key, key_of

MOST = (1 << 15) - 1
# The line of a statement stands in a comment only.
_NOT_IN_TABLES = frozenset({"line"})
_BY_ROWS = "by rows"
_NUMBERS = {"parts": "parts in a row", "times": "repetitions", "index": "tensors", "first": "accumulators"}


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


def _keys(step: Step) -> Iterator[tuple[str, Key | str | None]]:
    """What the stage that makes a value shares with others; None: it is a row operator, for which threads divide the
    batch entries; _BY_ROWS: they divide heads and rows."""
    for stage in step.stages:
        match stage:
            case RowStage():
                yield stage.target, None
            case MatrixStage():
                yield from ((each.target, key_of(stage)) for each in stage.statements)
                yield from ((each.target, _BY_ROWS) for each in stage.reductions)
            case TileStage():
                yield from ((each.target, key_of(stage)) for each in stage.statements)
            case _:
                assert_never(stage)


def _reads(step: Step, stage: Stage, keys: Mapping[str, Key | str | None]) -> Iterator[tuple[str, bool]]:
    """Values of which a stage reads units that it did not write itself: the name, and whether it is the step
    before's."""
    key: Key | None = None
    named: list[tuple[str, bool]]  # and whether a unit reads its own
    match stage:
        case TileStage():
            key = key_of(stage)
            named = [(product.operand, False) for product in stage.products]
            named += [(load.name, load.access is Access.UNIT) for load in stage.loads]
        case MatrixStage():
            key = key_of(stage)
            named = [(load.name, load.access is Access.UNIT) for load in stage.loads]
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
    match stage:
        case TileStage():
            return stage.stored
        case MatrixStage():
            return stage.written
        case RowStage():
            return (stage.target,)
        case _:
            assert_never(stage)


def check_limits(cell: str, loops: tuple[LoweredLoop, ...]) -> None:
    """Raises RnnccError (RNN402) where a number does not fit a table."""
    for loop in loops:
        for program in (loop.forward, loop.backward):
            for what, count in _needs(program).items():
                if count > MOST:
                    raise RnnccError(
                        Diagnostic(
                            "RNN402",
                            f"{cell} is too large for the kernels: its loop needs {count:,} {what}, and their tables "
                            f"hold {MOST:,}",
                            help="shorten what is long ('for' loops above all), or divide the cell into layers",
                        )
                    )


def fits(program: Program) -> bool:
    """Whether the tables of a kernel hold the program."""
    return all(count <= MOST for count in _needs(program).values())


def _needs(program: Program) -> Counter[str]:
    """The largest number of each kind that the tables of a program hold."""
    step, found = program.step, Counter[str]()
    dims: set[Dim] = set()
    for name, value in _walk("", program):
        match value:
            case Dim():
                dims.add(value)
            case Product():
                found["products"] += 1
                found["matrices of products"] += len(value.matrices)
            case TileStage():
                found["values that a step stores"] += len(value.stored)
            case MatrixStage():
                found["values that a step stores"] += len(value.written)
            case RowStage():
                found["values that a step stores"] += 1 + len(value.operands)
            case StoredSlot():
                found["values that leave the loop"] += len(value.destinations)
            case int() if name in _NUMBERS:
                found[_NUMBERS[name]] = max(found[_NUMBERS[name]], value)
    # The shapes of weights are listed apart.
    found["widths"] = len(dims) + 2 * len(step.weights)
    found["values"], found["stages of a step"] = len(program.slots), len(step.stages)
    found["matrices"], found["gradients of matrices"] = len(step.matrices), len(step.outers)
    found["gradients of vectors"] = len(step.sums) + len(step.zeros)
    found["constants"] = len(step.constants)
    return found


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Everything in a program, with the name of the field it stands in; dims and expressions are wholes."""
    yield name, value
    if isinstance(value, tuple):
        for item in value:
            yield from _walk(name, item)
    elif is_dataclass(value) and not isinstance(value, (Dim, Apply, Const, Ref)):
        for each in fields(value):
            if each.name not in _NOT_IN_TABLES:
                yield from _walk(each.name, getattr(value, each.name))
