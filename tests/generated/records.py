"""What is drawn, for cells from the whole language."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.generated.leaves import Leaf
from tests.language.loop import Case, Setting


@dataclass(frozen=True, slots=True)
class Generated:
    """A cell, and how its layer is made and run.

    case       the layer's arguments, and how the loop that it is compared with computes a step
    settings   the ways of calling it
    sizes      the layer's I, H and dims
    constants  values of constants that differ from the text
    """

    seed: int
    text: str
    case: Case
    settings: tuple[Setting, ...]
    sizes: dict[str, int]
    constants: dict[str, float]

    @property
    def name(self) -> str:
        return self.case.name


@dataclass(slots=True)
class Parts:
    """What is drawn so far: lines of the text, values that equations may read, arguments of the layer."""

    declarations: list[str] = field(default_factory=list)
    equations: list[str] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    defaults: dict[str, float] = field(default_factory=dict)
    per_sequence: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    vectors: list[tuple[str, str]] = field(default_factory=list)
    # Matrices with fixed widths: text, result, operand, and the highest level of operands, where there is one.
    matrices: list[tuple[str, str, str, str]] = field(default_factory=list)
    # The same of parameters of other equations.
    shared: list[tuple[str, str, str, str]] = field(default_factory=list)
    # Groups of matrices that few cells have.
    groups: list[str] = field(default_factory=list)
