"""Whether a program fits the fused kernels, and how.

It does if a step has one stage with products, all of whose operands and sums are units of the heads, and everything
else is elementwise over the same units.
"""

from __future__ import annotations

from itertools import pairwise

from rnncc.ir.dim import add
from rnncc.ir.expr import references
from rnncc.ir.fused import FusedLoop
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
    with_products = [index for index, stage in enumerate(stages) if stage.products]
    if len(with_products) != 1:
        raise Unfit(f"a step has {len(with_products)} products that wait for each other")
    middle = with_products[0]
    width = reader.width(stages, stages[middle].width)
    sums, operands, table, transposed = _products(reader, stages[middle])
    start = reader.statements(stages[:middle])
    finish = reader.statements(stages[middle:])
    edges = reader.edges(width)
    made_early = {statement.target for statement in start}
    made_late = {statement.target for statement in finish}
    used_late = {name for statement in finish for name in references(statement.expr)}
    wanted_later = {edge.link for edge in edges}
    kept = tuple(
        statement.target for statement in start if statement.target in used_late or statement.target in wanted_later
    )
    for operand in operands:
        if operand in made_late:
            raise Unfit(f"the operand {operand} is made by the product itself")
    used = used_late | {name for statement in start for name in references(statement.expr)} | set(operands)
    reads, rows, vectors = reader.reads(used, width)
    return FusedLoop(
        sums,
        operands,
        tuple(tuple(matrix.name for matrix in row) for row in table),
        _are_joined(table, transposed),
        transposed,
        reads,
        rows,
        vectors,
        reader.program.constants,
        edges,
        kept,
        start,
        finish,
        reader.writes(made_early, made_late),
        reader.program.masked,
    )


def _products(
    reader: Reader, stage: TileStage
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[Matrix, ...], ...], bool]:
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
    sums = stage.accumulators
    if len(table) != len(sums) * len(operands):
        raise Unfit("not every sum of a step takes every operand")
    matrices = tuple(tuple(table[accumulator, operand] for operand in operands) for accumulator in sums)
    return sums, operands, matrices, stage.products[0].transposed


def _are_joined(table: tuple[tuple[Matrix, ...], ...], transposed: bool) -> bool:
    if len(table[0] if not transposed else table) > 1:
        return False
    in_memory = list(reversed(table[0])) if transposed else [row[0] for row in table]
    return all(
        after.index == before.index and after.offset == add(before.offset, before.rows)
        for before, after in pairwise(in_memory)
    )
