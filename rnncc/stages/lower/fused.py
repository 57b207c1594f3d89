"""The fused form of a step, or why it has none.

A step becomes a FusedLoop in this order. Each part has a module of its own.

1. `Units` (units.py) reads the step as operations on single units (operations.py): statements, products and
   reductions. It raises Unfit where a step does anything else. Sums over all heads that nothing waits for are set
   apart (late.py).
2. `in_fewest_phases` (phases.py) rewrites the operations so that fewer of them wait for each other (shorten.py,
   rules.py), and divides products and reductions into *phases*.
3. `_chain` gives each statement to a *stage*, between two phases.
4. tensors.py finds the tensors that the stages read and write.
5. `_loop` puts all of this together as a FusedLoop (rnncc/ir/fused.py), if a kernel has room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rnncc.ir.dim import Dim
from rnncc.ir.expr import references
from rnncc.ir.fused import FusedLoop, FusedPhase
from rnncc.ir.plan import NoForm, Unfit
from rnncc.ir.step import Statement, Step
from rnncc.stages.lower.operations import Operation, made_by
from rnncc.stages.lower.phases import Phased, in_fewest_phases, phase_of, phased
from rnncc.stages.lower.relays import known_sizes, relays_of
from rnncc.stages.lower.shorten import Given, centred
from rnncc.stages.lower.tensors import edges_of, late_sums_of, reads_of, writes_of
from rnncc.stages.lower.units import MOST_TENSORS, Units

# A step has at most so many phases, since each is code of its own in a kernel.
MOST_PHASES = 16
# Nothing looks for fewer phases where the step as written has more than this.
MOST_WAITS = 4 * MOST_PHASES
# The addresses of two directions take at most so many bytes of a kernel's parameter. CUDA takes 32,764 for all of it.
MOST_BYTES = 30_000


def fuse(
    step: Step, forward: Step | None = None, *, one_head: bool = False, solved: Mapping[str, Dim] | None = None
) -> FusedLoop | NoForm:
    """The fused form, or why there is none. `forward`: the step that a backward one belongs to. `one_head`: the cell
    has one head only. `solved`: the cell's sizes that follow from others, by name."""
    try:
        units = Units(step, one_head=one_head)
        operations = [*units.operations()]
        zero_sums = frozenset() if forward is None else centred([*Units(forward, one_head=one_head).operations()])
        return _loop(units, operations, Given(units.scalars(), zero_sums), known_sizes(units.widths, solved or {}))
    except Unfit as reason:
        return NoForm(str(reason))


def _loop(units: Units, operations: Sequence[Operation], given: Given, sizes: Mapping[int, Dim]) -> FusedLoop:
    waits = len(phased(operations).found)
    _require_phases(waits, MOST_WAITS)
    step = in_fewest_phases(units, operations, given)
    if not step.found:
        raise Unfit("a step has no product and no reduction")
    _require_phases(len(step.found), MOST_PHASES)
    phases = tuple(phase_of(units, found) for found in step.found)
    chain = _chain(step, phases)
    made = {statement.target: stage for stage, statements in enumerate(chain) for statement in statements}
    made |= {name: stage for stage, phase in enumerate(phases, 1) for name in phase.gives}
    edges = tuple(edges_of(units))
    uses = _uses(chain, phases)
    last_use = {edge.link: len(phases) for edge in edges}
    for stage, names in enumerate(uses):
        last_use |= {name: stage for name in names if last_use.get(name, 0) < stage}
    kept = tuple(name for name in _in_order(chain, phases) if last_use.get(name, 0) > made[name])
    reads, rows, vectors = reads_of(units, set().union(*uses))
    writes, row_writes = writes_of(units, made)
    elsewhere = {*kept, *(edge.link for edge in edges), *(write.value for write in row_writes)}
    relays = relays_of(phases, chain, writes, frozenset(elsewhere), sizes)
    if relays:
        writes = tuple(sorted(writes, key=relays.takes))
    reductions = max(len(phase.reduced) for phase in phases)
    if max(len(reads), len(rows), len(writes) + len(row_writes), reductions) > MOST_TENSORS:
        raise Unfit(f"a step reads or writes more than {MOST_TENSORS} tensors, or has as many sums and norms at once")
    matrices = sum(len(phase.sums) * len(phase.operands) for phase in phases)
    tensors = 2 * (len(reads) + len(edges)) + len(rows) + len(writes) + len(row_writes) + len(vectors)
    if 2 * (8 * matrices + 24 * tensors) > MOST_BYTES:
        raise Unfit(
            f"the addresses of a step's {matrices} matrices and {tensors} tensors take more than {MOST_BYTES} bytes"
        )
    return FusedLoop(
        units.widths,
        phases,
        chain,
        reads,
        rows,
        vectors,
        units.step.constants,
        edges,
        kept,
        writes,
        units.step.masked,
        row_writes,
        late_sums_of(units),
        waits,
        relays,
    )


def _require_phases(count: int, most: int) -> None:
    if count > most:
        raise Unfit(f"a step has {count} products, norms and sums that wait for each other: at most {MOST_PHASES} may")


def _chain(step: Phased, phases: Sequence[FusedPhase]) -> tuple[tuple[Statement, ...], ...]:
    """The statements by the stage of the step that runs them: where the step has them, but no later than the phase
    that takes what they make."""
    after, count = [], 0  # after how many phases the step has each statement
    for each in step.operations:
        if isinstance(each, Statement):
            after.append((each, count))
        else:
            count = max(count, *(step.levels[name] for name in made_by(each)))
    latest = {name: number for number, phase in reversed([*enumerate(phases)]) for name in phase.takes}
    chain: list[list[Statement]] = [[] for _ in range(len(phases) + 1)]
    for statement, wanted in reversed(after):
        number = max(step.levels[statement.target], min(wanted, latest.get(statement.target, wanted)))
        chain[number].append(statement)
        for name in references(statement.expr):
            latest[name] = min(latest.get(name, number), number)
    return tuple(tuple(statements[::-1]) for statements in chain)


def _uses(chain: Sequence[tuple[Statement, ...]], phases: Sequence[FusedPhase]) -> list[set[str]]:
    """What each stage reads, for its statements or for the phase after it."""
    found = [{name for statement in statements for name in references(statement.expr)} for statements in chain]
    for names, phase in zip(found, phases, strict=False):
        names.update(phase.takes)
    return found


def _in_order(chain: Sequence[tuple[Statement, ...]], phases: Sequence[FusedPhase]) -> Iterator[str]:
    """The values that a step makes, in the order in which it does."""
    for stage, statements in enumerate(chain):
        if stage:
            yield from phases[stage - 1].gives
        yield from (statement.target for statement in statements)
