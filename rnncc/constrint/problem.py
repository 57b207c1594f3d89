"""One question to the solver: variables, requirements, order and limits, all immutable; and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rnncc.constrint import evaluate
from rnncc.constrint.expr import Node, Operand, Requirement, Variable, as_expression
from rnncc.constrint.lower import Lowering
from rnncc.constrint.order import Branch, Decisions
from rnncc.constrint.store import Limits, Program


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, what to decide first, and the variables that hold the objectives."""

    program: Program
    decisions: Decisions
    objectives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked. Owners of propagators are positions in `requirements`."""

    variables: tuple[Variable, ...]
    requirements: tuple[Requirement, ...]
    order: tuple[Branch, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def lowered(self, objectives: Sequence[Node] = ()) -> Lowered:
        """The program of the requirements, with variables for the objectives and for what the order decides."""
        lowering = Lowering(self.variables)
        for owner, requirement in enumerate(self.requirements):
            lowering.require(requirement.constraint, owner)
        holders = tuple(lowering.variable(objective) for objective in objectives)
        decisions = tuple((lowering.variable(branch.expression), branch.split) for branch in self.order)
        return Lowered(lowering.program(self.requirements), decisions, holders)

    def only(self, owners: Sequence[int]) -> Problem:
        """The same with only some of the requirements."""
        return replace(self, requirements=tuple(self.requirements[owner] for owner in owners))


@dataclass(frozen=True, slots=True, repr=False)
class Solution(Mapping[Variable, int]):
    """A value for every variable: `solution[x]`; `objectives` if something was minimised; `nodes` searched."""

    variables: tuple[Variable, ...] = field(compare=False)
    values_by_index: tuple[int, ...]
    objectives: tuple[int, ...] = ()
    nodes: int = 0

    def __getitem__(self, variable: Variable) -> int:
        if self.variables[variable.index] is not variable:
            raise KeyError(variable.name)
        return self.values_by_index[variable.index]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.named().items())
        return f"Solution({values})" if not self.objectives else f"Solution({values}; objectives {self.objectives})"

    def value(self, expression: Operand) -> int:
        """The value of any expression over the variables."""
        return evaluate.value(as_expression(expression), self.values_by_index)

    def named(self) -> dict[str, int]:
        """The values by the names of the variables."""
        return {variable.name: self[variable] for variable in self.variables}

    @property
    def objective(self) -> int:
        """The value of the first objective."""
        return self.objectives[0]
