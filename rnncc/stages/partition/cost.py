"""Estimates what a cell's kernels cost to compile, by the contents of its loops after every `for` is unrolled.

The estimate does not run `differentiate` and `lower`, which make the code (also the backward, and a second variant with
resets and lengths): on cells of thousands of operations they take seconds themselves.
tests/stages/test_partition_cost.py compares the estimated size of the code with the real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rnncc.analysis.functions import MOST_COPIES, is_function
from rnncc.analysis.norms import NORMS, apart
from rnncc.ir.cell import Contraction, Node, Pointwise, RowOp, Segment
from rnncc.ir.expr import operators
from rnncc.language.source import Span

# For each thing that a loop holds: the processor time that g++ 12 takes for one unit (-O2, x86-64-v3, either float or
# double), in seconds, and the generated C++, in KB. They are fitted to cells that hold one thing many times; each cell
# was one unit, measured on a shared AMD EPYC machine, in seconds [KB]: 30, 100 and 300 times tanh 2.5, 9.9, 32.8 [87,
# 140, 357]; 200 times log and exp 32.9 [390]; 60 gates 4.6 [227]; 45 tanh in one expression 3.5 [134]; 200 quotients
# 1.5 [259]; 300 sums 0.9 [149]; 60 states 3.2 [277]; 50 recurrent products one after the other, each with a tanh, 4.6
# [365]; 50 sums over the units, each with a tanh, 5.8 [469]; 50 times softmax, cumsum and tanh 11.5 [930]; a delta rule
# of 64 states 8.7 [727]; 16 loops of a state each 2.1 [441]; the LSTM 0.5 [48], NAS 0.7 [66].
_SECONDS = {
    "function": 0.09,
    "operation": 0.004,
    "row": 0.04,
    "product": 0.03,
    "state": 0.045,
    "stream": 0.02,
    "loop": 0.05,
}
# The same of a loop that calls its functions (MOST_COPIES). The registers of a pass are allocated in a time that grows
# with the square of the calls. With AVX-512, one tanh after the other took 0.5, 1.8 and 6.8 s for 100, 400 and 1000 of
# them, and 23 and 88 s for 2500 and 5000; 200 times log and exp 0.7 s, 200 products with a tanh each 8.6 s, 200 sums
# over the units with a tanh each 12.9 s.
_SECONDS_WITH_CALLS = _SECONDS | {"function": 0.002, "operation": 0.001, "row": 0.06, "product": 0.04}
_SECONDS_PER_PAIR = 3e-6
_KILOBYTES = {
    "function": 0.65,
    "operation": 0.1,
    "row": 4.5,
    "product": 3.0,
    "state": 3.0,
    "stream": 2.5,
    "loop": 15.0,
    "value": 0.4,
}
_LEAST_SECONDS, _LEAST_KILOBYTES = 0.2, 8.0
# The memory of a unit's compiler grows with its time. It took 52 MB for the LSTM, 130, 270 and 1090 for 400, 1000 and
# 5000 times tanh, 326 for 200 products, 356 for 200 sums, 298 for the delta rule.
_MEGABYTES, _MEGABYTES_PER_SECOND = 45.0, 22.0
# There is a unit for float and one for double. `rnncc.load` compiles the first, and a call may have the second one
# compiled. (`rnncc build` compiles both for three instruction sets.)
_UNITS = 2
# `rnncc check` warns of a cell from this `Cost.seconds` on.
WARN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a cell's kernels for one instruction set.

    seconds     processor time to compile all units
    memory_mb   memory of the compilers of both units together, in MB
    code_mb     size of the generated C++, in MB
    operations  number of operations in all loops
    """

    seconds: float
    memory_mb: float
    code_mb: float
    operations: int

    def __str__(self) -> str:
        memory = f"{self.memory_mb / 1000:.1f} GB" if self.memory_mb >= 1000 else f"{self.memory_mb:.0f} MB"
        return (
            f"{self.operations} operations: about {self.code_mb:.1f} MB of C++, which take about {self.seconds:.0f} s"
            f" of processor time and {memory} of memory to compile"
        )


def cost(segments: Iterable[Segment]) -> Cost:
    """Estimate the cost of a cell by its loops."""
    held: Counter[str] = Counter()
    unit = _LEAST_SECONDS
    for segment in segments:
        streams = sum(len(stream.members) for stream in segment.streams)
        own = Counter(loop=1, state=len(segment.states), stream=streams)
        for node in segment.nodes:
            own += _held(node)
        unit += sum(seconds * own[kind] for kind, seconds in _seconds(own).items())
        if own["function"] > MOST_COPIES:
            unit += _SECONDS_PER_PAIR * own["function"] ** 2
        held += own
    kilobytes = _LEAST_KILOBYTES + sum(size * held[kind] for kind, size in _KILOBYTES.items())
    operations = sum(held[kind] for kind in ("function", "operation", "row", "product"))
    return Cost(_UNITS * unit, _UNITS * (_MEGABYTES + _MEGABYTES_PER_SECOND * unit), kilobytes / 1000, operations)


def most_expensive(segments: Iterable[Segment]) -> Span:
    """The place of the equation whose instances cost most together; the first of equal ones."""
    seconds: dict[Span, float] = {}
    for segment in segments:
        held = [_held(node) for node in segment.nodes]
        rates = _seconds(sum(held, Counter()))
        for node, found in zip(segment.nodes, held, strict=True):
            own = sum(rates.get(kind, 0.0) * count for kind, count in found.items())
            seconds[node.span] = seconds.get(node.span, 0.0) + own
    return max(seconds, key=lambda span: (seconds[span], -span.start))


def _seconds(held: Counter[str]) -> dict[str, float]:
    """What each thing costs in a loop that holds these."""
    return _SECONDS_WITH_CALLS if held["function"] > MOST_COPIES else _SECONDS


def _held(node: Node) -> Counter[str]:
    """How many things of each kind (the keys of _SECONDS and _KILOBYTES) a node holds."""
    match node:
        case Pointwise():
            kinds = ("function" if is_function(operator) else "operation" for operator in operators(node.expr))
            return Counter(kinds) + Counter(value=1)
        case RowOp(_, operator) if operator in NORMS:
            return sum(map(_held, apart(node)), Counter())
        case RowOp():
            return Counter(row=1, value=1)
        case Contraction():
            return Counter(product=1, value=1)
        case _:
            return Counter(value=1)
