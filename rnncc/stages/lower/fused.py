"""Whether a program fits the fused kernels, and how.

It does if all operands and sums of a step's products are units of the heads, and everything else is elementwise over
the same units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rnncc.ir.dim import add
from rnncc.ir.expr import references
from rnncc.ir.fused import FusedLoop, FusedPhase, FusedStatement
from rnncc.ir.kernel import Matrix, Program, TileStage
from rnncc.ir.plan import NoForm
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.diagnostics import InternalError
from rnncc.stages.lower.reading import Reader, Unfit


def fuse(program: Program) -> FusedLoop | NoForm:
    """The fused form, or why there is none."""
    try:
        return _loop(Reader(program))
    except Unfit as reason:
        return NoForm(str(reason))


def _loop(reader: Reader) -> FusedLoop:
    stages = reader.stages()
    products = [index for index, stage in enumerate(stages) if stage.products]
    if not products:
        raise Unfit("a step has no product")
    width = reader.width(stages, stages[products[0]].width)
    phases = tuple(_phase(reader, stages[index]) for index in products)
    parts = [stages[begin:end] for begin, end in pairwise((0, *products, len(stages)))]
    chain = tuple(reader.statements(part) for part in parts)
    edges = reader.edges(width)
    made = {statement.target: stage for stage, statements in enumerate(chain) for statement in statements}
    made |= {name: stage for stage, phase in enumerate(phases, 1) for name in phase.sums}
    for stage, phase in enumerate(phases):
        for operand in phase.operands:
            if made.get(operand, 0) > stage:
                raise Unfit(f"the operand {operand} is made by the product itself")
    last_use = {name: len(phases) for name in (edge.link for edge in edges)}
    for stage, names in reversed([*enumerate(_uses(chain, phases))]):
        last_use |= {name: stage for name in names if last_use.get(name, 0) < stage}
    kept = tuple(name for name in _in_order(chain, phases) if last_use.get(name, 0) > made[name])
    used = {name for names in _uses(chain, phases) for name in names}
    reads, rows, vectors = reader.reads(used, width)
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


def _phase(reader: Reader, stage: TileStage) -> FusedPhase:
    known = {matrix.name: matrix for matrix in reader.program.matrices}
    operands = tuple(dict.fromkeys(product.operand for product in stage.products))
    table: dict[tuple[str, str], Matrix] = {}
    for product in stage.products:
        if product.parts != 1 or reader.slots[product.operand].width != stage.width:
            raise Unfit(f"the operand {product.operand} has another width than the sums")
        for offset, name in enumerate(product.matrices):
            if diagonal_blocks(known[name].structure) != stage.blocks or known[name].parts != 1:
                raise Unfit(f"{name} has blocks of its own")
            table[stage.accumulators[product.first + offset], product.operand] = known[name]
    if len({product.transposed for product in stage.products}) != 1:
        raise InternalError("products of a stage have matrices and transposed ones")
    rows = [[table.get((accumulator, operand)) for operand in operands] for accumulator in stage.accumulators]
    transposed = stage.products[0].transposed
    names = tuple(tuple(None if matrix is None else matrix.name for matrix in row) for row in rows)
    whole = [[matrix for matrix in row if matrix is not None] for row in rows]
    joined = all(len(row) == len(operands) for row in whole) and _are_joined(whole, transposed)
    return FusedPhase(stage.accumulators, operands, names, joined, transposed)


def _are_joined(table: Sequence[Sequence[Matrix]], transposed: bool) -> bool:
    if len(table[0] if not transposed else table) > 1:
        return False
    in_memory = list(reversed(table[0])) if transposed else [row[0] for row in table]
    return all(
        after.index == before.index and after.offset == add(before.offset, before.rows)
        for before, after in pairwise(in_memory)
    )
