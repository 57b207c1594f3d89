"""`verify` accepts what `partition` makes and names what is wrong with anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rnncc.ir.cell import Cell, Contraction, Pointwise, Segment, Stream
from rnncc.ir.dim import named
from rnncc.ir.expr import Ref, apply
from rnncc.ir.verify import verify
from rnncc.language.diagnostics import InternalError
from tests.stages.checking import partitioned


@pytest.fixture
def cell() -> Cell:
    return partitioned("state h", "z = sigmoid(W@x + R@h[t-1] + b)", "h[t] = z*h[t-1] + (1 - z)*tanh(W@x + b)")


def _segment(change: Callable[[Segment], Segment]) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, segments=(change(cell.segments[0]), *cell.segments[1:]))


def _twice(cell: Cell) -> Cell:
    return replace(cell, epilogue=(Pointwise("z__x", Ref("x")),))


def _unknown_width(cell: Cell) -> Cell:
    return replace(cell, values=(replace(cell.values[0], width=named("Q")), *cell.values[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_segment(lambda s: replace(s, nodes=s.nodes[::-1])), "before they are known"),
        (_segment(lambda s: replace(s, nodes=s.nodes[:-1])), "a state is not written"),
        (_segment(lambda s: replace(s, streams=s.streams[1:])), "before they are known"),
        (_segment(lambda s: replace(s, weights=())), "before they are known"),
        (_segment(lambda s: replace(s, streams=(*s.streams, Stream("x", ("x",))))), "read by nobody"),
        (_segment(lambda s: replace(s, phases=2)), "phases is 2"),
        (_segment(lambda s: replace(s, sequences=("z",))), "sequences begin with"),
        (_segment(lambda s: replace(s, batched=s.batched[1:])), "before they are known"),
        (
            _segment(lambda s: replace(s, nodes=(*s.nodes[:-1], Pointwise("h", apply("elu", Ref("z")))))),
            "uses ['elu'] in a loop",
        ),
        (
            _segment(lambda s: replace(s, nodes=(Contraction("z__R", "b_z", "h__1"), *s.nodes[1:]))),
            "before they are known",
        ),
        (lambda cell: replace(cell, output="nothing"), "the output nothing is not computed"),
        (lambda cell: replace(cell, values=cell.values[1:]), "values of role input"),
        (lambda cell: replace(cell, values=(*cell.values, cell.values[0])), "two values named x"),
        (lambda cell: replace(cell, states=()), "values of role previous"),
        (_twice, "written twice"),
        (_unknown_width, "a width of unknown ['Q']"),
    ],
)  # fmt: skip
def test_a_broken_cell_is_named(cell: Cell, change: Callable[[Cell], Cell], message: str) -> None:
    assert verify(cell) is cell
    with pytest.raises(InternalError, match="cell Cell: ") as caught:
        verify(change(cell))
    assert message in str(caught.value)
