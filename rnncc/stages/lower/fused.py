"""Whether a program fits the fused kernels, and how.

It does if all operands and sums of a step's products are units of the heads, and everything else is elementwise over
the same units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnncc.ir.dim import add
from rnncc.ir.expr import references
from rnncc.ir.fused import FusedLoop, FusedPhase, FusedStatement
from rnncc.ir.kernel import Matrix, Program, TileStage
from rnncc.ir.plan import NoForm
from rnncc.ir.structure import diagonal_blocks
from rnncc.stages.lower.reading import Reader, Unfit


def fuse(program: Program) -> FusedLoop | NoForm:
    """The fused form, or why there is none."""
    try:
        return _loop(Reader(program))
    except Unfit as reason:
        return NoForm(str(reason))


def _loop(reader: Reader) -> FusedLoop:
    stages = reader.stages()
    with_products = [stage for stage in stages if stage.products]
    if not with_products:
        raise Unfit("a step has no product")
    width = reader.width(stages, with_products[0].width)
    levels, products = _levels(reader, stages)
    phases = tuple(_phase(reader, found) for _, found in sorted(products.items()))
    edges = reader.edges(width)
    chain = _chain(reader, stages, phases, levels)
    made = {statement.target: stage for stage, statements in enumerate(chain) for statement in statements}
    made |= {name: stage for stage, phase in enumerate(phases, 1) for name in phase.sums}
    last_use = {edge.link: len(phases) for edge in edges}
    for stage, names in enumerate(_uses(chain, phases)):
        last_use |= {name: stage for name in names if last_use.get(name, 0) < stage}
    kept = tuple(name for name in _in_order(chain, phases) if last_use.get(name, 0) > made[name])
    reads, rows, vectors = reader.reads({name for names in _uses(chain, phases) for name in names}, width)
    return FusedLoop(
        phases,
        chain,
        reads,
        rows,
        vectors,
        reader.program.constants,
        edges,
        kept,
        reader.writes(made),
        reader.program.masked,
    )


@dataclass(slots=True)
class _Sums:
    """The sums of a phase, each with the matrices that it takes, by operand."""

    transposed: bool
    matrices: dict[str, dict[str, Matrix]] = field(default_factory=dict)


def _levels(reader: Reader, stages: Sequence[TileStage]) -> tuple[dict[str, int], dict[int, _Sums]]:
    """How many products must be waited for until a value is known, for all that a step makes; and the products by the
    level of their operands."""
    known = {matrix.name: matrix for matrix in reader.program.matrices}
    made = {statement.target for statement in reader.statements(stages)}
    levels: dict[str, int] = {}
    products: dict[int, _Sums] = {}
    for stage in stages:
        matrices: dict[str, dict[str, Matrix]] = {name: {} for name in stage.accumulators}
        for product in stage.products:
            if product.parts != 1 or reader.slots[product.operand].width != stage.width:
                raise Unfit(f"the operand {product.operand} has another width than the sums")
            if product.operand in made and product.operand not in levels:
                raise Unfit(f"the operand {product.operand} is made by the product itself")
            for offset, name in enumerate(product.matrices):
                if diagonal_blocks(known[name].structure) != stage.blocks or known[name].parts != 1:
                    raise Unfit(f"{name} has blocks of its own")
                matrices[stage.accumulators[product.first + offset]][product.operand] = known[name]
        transposed = any(product.transposed for product in stage.products)
        for accumulator, taken in matrices.items():
            level = max(levels.get(operand, 0) for operand in taken)
            found = products.setdefault(level, _Sums(transposed))
            if found.transposed != transposed or any(p.transposed != transposed for p in stage.products):
                raise Unfit("matrices and transposed ones are multiplied at once")
            found.matrices[accumulator] = taken
            levels[accumulator] = level + 1
        for statement in stage.statements:
            levels[statement.target] = max((levels.get(name, 0) for name in references(statement.expr)), default=0)
    return levels, products


def _phase(reader: Reader, found: _Sums) -> FusedPhase:
    operands = tuple(dict.fromkeys(operand for taken in found.matrices.values() for operand in taken))
    rows = [[taken.get(operand) for operand in operands] for taken in found.matrices.values()]
    names = tuple(tuple(None if matrix is None else matrix.name for matrix in row) for row in rows)
    whole = [[matrix for matrix in row if matrix is not None] for row in rows]
    joined = all(len(row) == len(operands) for row in whole) and _are_joined(whole, found.transposed)
    return FusedPhase(tuple(found.matrices), operands, names, joined, found.transposed)


def _chain(
    reader: Reader, stages: Sequence[TileStage], phases: Sequence[FusedPhase], levels: Mapping[str, int]
) -> tuple[tuple[FusedStatement, ...], ...]:
    """The statements by the stage of the step that runs them: where the program has them, but no later than the product
    that takes what they make."""
    after, count = [], 0  # after how many products the program has each statement
    for stage in stages:
        count = max([count, *(levels[name] for name in stage.accumulators)])
        after += [count] * len(stage.statements)
    latest = {operand: number for number, phase in reversed([*enumerate(phases)]) for operand in phase.operands}
    chain: list[list[FusedStatement]] = [[] for _ in range(len(phases) + 1)]
    for statement, wanted in reversed([*zip(reader.statements(stages), after, strict=True)]):
        number = max(levels[statement.target], min(wanted, latest.get(statement.target, wanted)))
        chain[number].append(statement)
        for name in references(statement.expr):
            latest[name] = min(latest.get(name, number), number)
    return tuple(tuple(statements[::-1]) for statements in chain)


def _uses(chain: Sequence[tuple[FusedStatement, ...]], phases: Sequence[FusedPhase]) -> list[set[str]]:
    """What each stage reads, for its statements or as an operand of the product after it."""
    found = [{name for statement in statements for name in references(statement.expr)} for statements in chain]
    for names, phase in zip(found, phases, strict=False):
        names.update(phase.operands)
    return found


def _in_order(chain: Sequence[tuple[FusedStatement, ...]], phases: Sequence[FusedPhase]) -> Iterator[str]:
    """The values that a step makes, in the order in which it does."""
    for stage, statements in enumerate(chain):
        if stage:
            yield from phases[stage - 1].sums
        yield from (statement.target for statement in statements)


def _are_joined(table: Sequence[Sequence[Matrix]], transposed: bool) -> bool:
    if len(table[0] if not transposed else table) > 1:
        return False
    in_memory = list(reversed(table[0])) if transposed else [row[0] for row in table]
    return all(
        after.index == before.index and after.offset == add(before.offset, before.rows)
        for before, after in pairwise(in_memory)
    )
