"""A typed cell: every name, size and type of the text is known, and nothing is placed yet.

`check` makes it, `partition` cuts it into the parts of a Cell. Values have the names that they have in a Cell
(rnncc/ir/cell.py); equations are terms over them (rnncc/ir/term.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rnncc.ir.cell import Constant, Constraint, Initialiser, Input, Size, State
from rnncc.ir.dim import Dim, Grid
from rnncc.ir.structure import DENSE, Sparsity, Structure
from rnncc.ir.term import Equation
from rnncc.language.report import Reported
from rnncc.language.source import NOWHERE, Source, Span


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Shape:
    """`kind` is vector, matrix, diag or changing: a matrix that changes with the step. A matrix has `columns`, and as
    many rows as it is wide. Where `reported` has an error, the shape is not known: it fits everywhere.

    `partition` lays matrices that change out as vectors, whose `grid` says what they were."""

    width: Dim
    columns: Dim | None = None
    kind: str = "vector"
    grid: Grid | None = None
    reported: Reported | None = field(default=None, compare=False, repr=False)

    @property
    def is_matrix(self) -> bool:
        """Whether it has columns."""
        return self.kind in ("matrix", "diag", "changing")

    @property
    def laid_out(self) -> Shape:
        """A matrix that changes as the vector that it is laid out as; any other shape as it is."""
        if self.kind != "changing" or self.columns is None:
            return self
        grid = Grid(self.width, self.columns)
        return Shape(grid.width, grid=grid)


@dataclass(frozen=True, slots=True)
class ParameterType:
    """`kind` is vector, scalar, matrix or diag. `width` and `columns` are what `matrix(P, H)` gives, else None (to be
    inferred). `blockdiag(n)` is a matrix of that structure. `sparsity` is what `sparse` and `mask` give, `rank` what
    `lowrank(k)` gives.
    `initialiser`: how a group of the type starts where no `init` says it."""

    kind: str
    width: Dim | None = None
    columns: Dim | None = None
    structure: Structure = DENSE
    sparsity: Sparsity | None = None
    rank: Dim | None = None
    initialiser: Initialiser = Initialiser()
    span: Span = _span()

    @property
    def is_matrix(self) -> bool:
        """Whether `@` may stand behind it."""
        return self.kind in ("matrix", "diag")


def written(group: str) -> str:
    """A group as the text names it: R for its factors R__u and R__v."""
    return group.partition("__")[0]


@dataclass(frozen=True, slots=True)
class Group:
    """`weights NAME: TYPE`, or one of the built-in W, R, b and bR: each equation that names it has its own parameter.
    The span of a built-in group that the text does not declare is NOWHERE."""

    name: str
    type: ParameterType
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The parameter `name` of a group, which belongs to the equation of `target`. `span` is its first use."""

    name: str
    group: str
    target: str
    span: Span = _span()

    @property
    def written(self) -> str:
        """The group as the text names it."""
        return written(self.group)


@dataclass(frozen=True, slots=True)
class Param:
    """`param NAME: TYPE = INITIALISER`: one parameter for all equations; or a `buffer`, which is not trained."""

    name: str
    type: ParameterType
    initialiser: Initialiser
    trained: bool = True
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Init:
    """`init NAME = INITIALISER`. NAME is a group, a member of one, a param, or what the user took for one."""

    name: str
    initialiser: Initialiser
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Typed:
    """A cell whose equations mean something.

    inputs         x first, then those of the text
    states         those of the text; `partition` adds hidden ones for their older values
    groups         the built-in ones first; `members` in the order of their first use
    inits          as they stand in the text: which parameters there are, `partition` says
    equations      in the order of the text, one for each target
    state_delays   the largest k of `s[t-k]`, of states that are read in the past
    value_delays   the same of inputs and of values that inputs make: the inputs, then the values, as in the text
    shapes         of all values but those that `partition` makes, by name
    constraints    what the equations ask of sizes at construction
    divisible      pairs of a width and a number that divides it
    input_dims     dims that measure inputs alone: values of such a width are not laid out by heads
    output         the value the layer returns
    """

    name: str
    inputs: tuple[Input, ...]
    states: tuple[State, ...]
    sizes: tuple[Size, ...]
    constants: tuple[Constant, ...]
    groups: tuple[Group, ...]
    members: tuple[GroupMember, ...]
    params: tuple[Param, ...]
    inits: tuple[Init, ...]
    equations: tuple[Equation, ...]
    state_delays: Mapping[str, int]
    value_delays: Mapping[str, int]
    shapes: Mapping[str, Shape]
    constraints: tuple[Constraint, ...]
    divisible: frozenset[tuple[Dim, Dim]]
    input_dims: frozenset[str]
    output: str
    comment: str = field(default="", compare=False)
    source: Source = field(default=Source("", ""), compare=False, repr=False)


def delay_states(cell: Typed, state: str) -> tuple[str, ...]:
    """The hidden states that keep older values of a state. There is one for each step back but the first."""
    return tuple(f"{state}__delay{step}" for step in range(1, cell.state_delays.get(state, 0)))
