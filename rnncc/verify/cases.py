"""The cases that `verify` runs: ways of calling a layer, and sizes of a cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product

import torch

from rnncc.ir.cell import Cell, Constraint, Size
from rnncc.ir.dim import as_int, constant, evaluate
from rnncc.ir.structure import DENSER

HALF = (torch.bfloat16, torch.float16)

# Hidden and input sizes beyond this are not tried.
LARGEST_SIZE = 256
# What a dim is whose default follows from H, where the cell has matrices.
KEYS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: T steps of a batch of B, one layer and one direction of it.

    batch    the batch size
    given    whether `hx` is passed; else the states start with their declared (or learned) values
    masked   whether batch entries have lengths of their own and start anew at some steps
    sizes    I, H and the dims that are not solved; none: small sizes that meet the cell's constraints
    """

    steps: int
    batch: int
    heads: int = 1
    reverse: bool = False
    given: bool = True
    masked: bool = False
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def runs_in_half(self) -> bool:
        """Whether 16-bit dtypes run it too. Runs in 32 and 64 bits are enough to find errors of the way of calling."""
        return self.given and self.heads == 1 and not self.reverse and not self.masked

    def __str__(self) -> str:
        words = [f"T={self.steps} B={self.batch}"]
        words += [f"{name}={size}" for name, size in self.sizes]
        words += [f"num_heads={self.heads}"] if self.heads > 1 else []
        words += ["reverse"] if self.reverse else []
        words += [] if self.given else ["no hx"]
        words += ["lengths and reset"] if self.masked else []
        words += [] if self.runs_in_half else ["not in 16 bits"]
        return ", ".join(words)


CASES = (
    Case(1, 1),
    Case(7, 3),
    Case(33, 16),
    Case(4, 3, given=False),
    Case(5, 4, reverse=True),
    Case(9, 5, masked=True),
    Case(6, 3, heads=2),
)


def cases_of(cell: Cell) -> tuple[Case, ...]:
    """The cases that `verify` runs: CASES, without those of several heads where the cell cannot have them."""
    return tuple(case for case in CASES if case.heads == 1 or _has_heads(cell, case.heads))


def sizes_of(cell: Cell, case: Case) -> dict[str, int]:
    """I, H, num_heads and every dim of a case. Raises ValueError where no small sizes meet the cell's constraints."""
    if not case.sizes:
        return problem_sizes(cell, case.heads)
    sizes = {**dict(case.sizes), "num_heads": case.heads}
    return sizes | {size.name: evaluate(size.solved, sizes) for size in cell.sizes if size.solved is not None}


def free_sizes(cell: Cell) -> list[Size]:
    """The dims that nothing else determines and a caller may give."""
    return [size for size in cell.sizes if size.solved is None and size.name != DENSER]


def problem_sizes(cell: Cell, num_heads: int = 1) -> dict[str, int]:
    """I, H and every dim: small sizes that meet the cell's constraints, 7 and 12 where they allow it.

    Raises ValueError where no small sizes meet them with so many heads."""
    # A matrix has other rows than columns, so that to take one for the other is an error.
    oblong = [KEYS, None] if any(state.grid for state in cell.states) else [None]
    for (inputs, hidden, free), keys in product(_candidates(), oblong):
        sizes = {"I": inputs, "H": hidden, "num_heads": num_heads}
        try:
            for size in free_sizes(cell):
                is_formula = size.default is not None and as_int(size.default) is None
                default = constant(keys) if keys and is_formula else size.default
                sizes[size.name] = free if default is None else evaluate(default, sizes)
        except ZeroDivisionError:
            continue
        for size in cell.sizes:
            if size.solved is not None:
                sizes[size.name] = evaluate(size.solved, sizes)
        if min(sizes.values()) > 0 and all(_holds(constraint, sizes) for constraint in cell.constraints):
            return sizes
    raise ValueError(f"no small sizes meet the constraints of {cell.name}")


def _candidates() -> Iterator[tuple[int, int, int]]:
    """I, H and a value for the dims that have none: usual sizes first, then more and more unusual ones."""
    every = range(1, LARGEST_SIZE + 1)
    yield from ((inputs, 12, 6) for inputs in (7, 12))
    yield from ((inputs, hidden, 6) for hidden in every for inputs in (7, hidden))
    yield from ((inputs, 12, 6) for inputs in every)
    few = range(1, 33)
    yield from ((inputs, hidden, free) for hidden in few for inputs in few for free in chain((6, hidden), few))


def _has_heads(cell: Cell, heads: int) -> bool:
    if cell.single_head_because:
        return False
    try:
        problem_sizes(cell, heads)
    except ValueError:
        return False
    return True


def _holds(constraint: Constraint, sizes: dict[str, int]) -> bool:
    left, right = evaluate(constraint.left, sizes), evaluate(constraint.right, sizes)
    return left % right == 0 if constraint.divides else left == right
