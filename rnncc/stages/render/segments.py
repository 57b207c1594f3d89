"""What both the binding in C++ and the specs in Python say about a segment's loops."""

from __future__ import annotations

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Segment


def segment_name(cell: Cell, index: int) -> str:
    """The name of a segment's ops: `lstm_0`."""
    return f"{cell.name.lower()}_{index}"


def single_name(cell: str) -> str:
    """The name of the ops of a cell's single step: `gla_single`."""
    return f"{cell.lower()}_single"


def has_matrices(cell: Cell, segment: Segment) -> bool:
    """Whether a state of the segment is a matrix."""
    return any(state.grid is not None for state in cell.states if state.name in segment.states)


def saved_names(adjoint: Adjoint) -> tuple[str, ...]:
    """What a training forward stores, in the kernels' order."""
    return adjoint.saved + adjoint.saved_states


def saved_rounded(adjoint: Adjoint) -> tuple[bool, ...]:
    """For each saved value whether it has the streams' dtype on a GPU."""
    return tuple(name in adjoint.rounded for name in saved_names(adjoint))


def saved_sequence(segment: Segment, adjoint: Adjoint) -> tuple[int, ...]:
    """For each saved value the sequence with the same values, or -1."""
    shared = set(adjoint.saved_states) & set(segment.sequences)
    return tuple(segment.sequences.index(name) if name in shared else -1 for name in saved_names(adjoint))


def saved_state(segment: Segment, adjoint: Adjoint) -> tuple[int, ...]:
    """For each saved value the state whose sequence it is, or -1."""
    states = [segment.states.index(name) for name in adjoint.saved_states]
    return (*(-1 for _ in adjoint.saved), *states)
