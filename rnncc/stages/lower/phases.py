"""The phases of a fused step: what waits for what, made as few as the algebra of sums allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnncc.ir.dim import add
from rnncc.ir.fused import FusedPhase, FusedReduction, MatrixPart, MatrixRule
from rnncc.ir.plan import Unfit
from rnncc.ir.step import Matrix, Statement
from rnncc.ir.structure import Sparsity
from rnncc.stages.lower.operations import Operation, Product, made_by, taken_by
from rnncc.stages.lower.rules import with_joined_rules
from rnncc.stages.lower.shorten import Given, needed, split, with_moments, with_rsqrt
from rnncc.stages.lower.units import Units


@dataclass(slots=True)
class Found:
    """A phase: its sums, each with the matrices that it takes, by operand; its reductions; and the widths of sums and
    operands."""

    transposed: bool | None = None
    matrices: dict[str, dict[str, MatrixPart | MatrixRule]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    reductions: list[FusedReduction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Phased:
    """Operations, and what they wait for.

    levels   for each value that a step makes, how many phases are over before it is known
    found    the phases, in order: phase n takes values of level n or less, and gives values of level n + 1
    """

    operations: Sequence[Operation]
    levels: Mapping[str, int]
    found: Sequence[Found]


def in_fewest_phases(units: Units, operations: Sequence[Operation], given: Given) -> Phased:
    """The operations after all rewrites. Each rewrite leaves the values of a step as they are, and makes some wait for
    less. Raises Unfit."""
    operations = with_rsqrt(operations)  # a quotient by a square root is a product
    operations = with_moments(operations)  # a mean and its variance are one reduction
    operations = with_joined_rules(operations)  # a running sum that is repeated is one product
    step, number = phased(operations), 1
    while number < len(step.found):
        # Where a phase has nothing but reductions, these may be made of sums that an earlier phase gives.
        phase, earlier = step.found[number], None
        if not phase.matrices:
            earlier = split(step.operations, phase.reductions, step.levels, given)
        if earlier is None:
            number += 1
        else:
            step = phased(earlier)
    return phased(needed(step.operations, units.outlive()))


def phased(operations: Sequence[Operation]) -> Phased:
    """Operations as they are, and what they wait for. Raises Unfit."""
    made = {name for each in operations if not isinstance(each, Product) for name in made_by(each)}
    sums: dict[str, list[Product]] = {}
    for each in operations:
        if isinstance(each, Product):
            sums.setdefault(each.sum, []).append(each)
    levels: dict[str, int] = {}
    found: dict[int, Found] = {}

    def level_of(names: Iterable[str]) -> int:
        return max((levels.get(name, 0) for name in names), default=0)

    for each in operations:
        match each:
            case Product(name):
                # The first product of a sum stands for all of them.
                if name not in levels:
                    level = level_of(product.operand for product in sums[name])
                    for product in sums[name]:
                        if product.operand in made and product.operand not in levels:
                            raise Unfit(f"a sum of products takes {product.operand} before it is computed")
                    _add_sum(found.setdefault(level, Found()), sums[name])
                    levels[name] = level + 1
            case FusedReduction(results):
                level = level_of(taken_by(each))
                found.setdefault(level, Found()).reductions.append(each)
                levels |= dict.fromkeys(results, level + 1)
            case Statement(name):
                levels[name] = level_of(taken_by(each))
    return Phased(operations, levels, [found[level] for level in sorted(found)])


def _add_sum(phase: Found, products: Sequence[Product]) -> None:
    """Adds all products of a sum to a phase."""
    name = products[0].sum
    for product in products:
        phase.transposed = product.transposed if phase.transposed is None else phase.transposed
        if product.transposed not in (None, phase.transposed):
            raise Unfit("products with a matrix and with a transposed one would run at once")
    phase.matrices[name] = {product.operand: product.matrix for product in products}
    phase.widths |= {product.operand: product.operand_width for product in products} | {name: products[0].sum_width}


def phase_of(units: Units, found: Found) -> FusedPhase:
    """A phase, with its matrices as a table of sums and operands."""
    operands = _side_by_side(found)
    rows = tuple(tuple(taken.get(operand) for operand in operands) for taken in found.matrices.values())
    whole = [[part for part in row if part is not None] for row in rows]
    transposed = bool(found.transposed)
    is_full = bool(rows) and all(len(row) == len(operands) for row in whole) and len(units.widths) == 1
    in_memory = [[part for part in row if isinstance(part, MatrixPart)] for row in whole]
    return FusedPhase(
        tuple(found.matrices),
        operands,
        rows,
        is_full and in_memory == whole and _are_joined(units, in_memory, transposed),
        transposed,
        tuple(found.reductions),
        tuple(found.widths[name] for name in found.matrices),
        tuple(found.widths[name] for name in operands),
        _sparsity(units, [part for row in whole for part in row]),
    )


def _side_by_side(found: Found) -> tuple[str, ...]:
    """The operands in the order of the sums, but for those that the same sums take: they stand side by side."""
    by_sums: dict[tuple[str, ...], list[str]] = {}
    for operand in dict.fromkeys(operand for taken in found.matrices.values() for operand in taken):
        sums = tuple(name for name, taken in found.matrices.items() if operand in taken)
        by_sums.setdefault(sums, []).append(operand)
    return tuple(operand for operands in by_sums.values() for operand in operands)


def _sparsity(units: Units, matrices: Sequence[MatrixPart | MatrixRule]) -> Sparsity | None:
    """What is certain of all matrices, where each is sparse: no more than the density of the densest, in blocks that
    divide those of each."""
    in_memory = [units.matrices[each.name] for each in matrices if isinstance(each, MatrixPart)]
    found = [units.step.weights[matrix.index].sparsity for matrix in in_memory]
    known = [sparsity for sparsity in found if sparsity is not None]
    if not known or len(known) < len(matrices):
        return None
    return Sparsity(max(each.density for each in known), math.gcd(*(each.block for each in known)))


def _are_joined(units: Units, table: Sequence[Sequence[MatrixPart]], transposed: bool) -> bool:
    if len(table[0] if not transposed else table) > 1:
        return False
    in_memory = list(reversed(table[0])) if transposed else [row[0] for row in table]
    return all(_follows(units.matrices, before, after) for before, after in pairwise(in_memory))


def _follows(matrices: Mapping[str, Matrix], before: MatrixPart, after: MatrixPart) -> bool:
    """Whether rows of a weight stand behind others."""
    one, other = matrices[before.name], matrices[after.name]
    if one is other:
        return after.part == before.part + 1
    is_whole = before.part == one.parts - 1 and after.part == 0
    return is_whole and other.index == one.index and other.offset == add(one.offset, one.rows)
