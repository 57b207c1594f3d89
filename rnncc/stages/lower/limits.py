"""What the tables of a kernel can hold: their entries are 16-bit numbers (templates/include/rnncc/cpu/program.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from rnncc.ir.dim import Dim
from rnncc.ir.expr import Apply, Const, Ref
from rnncc.ir.kernel import Program, StoredSlot
from rnncc.ir.plan import LoopPlan
from rnncc.ir.step import Product, RowStage, TileStage
from rnncc.language.diagnostics import Diagnostic, RnnccError

MOST = (1 << 15) - 1
# The line of a statement stands in a comment only.
_NOT_IN_TABLES = frozenset({"line"})
_NUMBERS = {"parts": "parts in a row", "times": "repetitions", "index": "tensors", "first": "accumulators"}


def check_limits(cell: str, loops: tuple[LoopPlan, ...]) -> None:
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
