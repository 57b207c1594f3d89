"""One question to the solver: variables, requirements, order and limits, all immutable; and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rnncc.constrint import evaluate
from rnncc.constrint.errors import ModelError
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

    def where(self, fixed: Mapping[Variable, int]) -> Lowered:
        """The same where some variables have these values. Raises ModelError for a value that a variable cannot
        have."""
        domains = list(self.program.domains)
        for variable, value in fixed.items():
            if value not in variable.domain:
                raise ModelError(f"{variable.name} cannot be {value}")
            domains[variable.index] = (value,)
        return replace(self, program=replace(self.program, domains=tuple(domains)))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked. Owners of propagators are positions in `requirements`. `where`: values that are no requirements,
    so no explanation names them."""

    variables: tuple[Variable, ...]
    requirements: tuple[Requirement, ...]
    order: tuple[Branch, ...] = ()
    limits: Limits = field(default_factory=Limits)
    where: Mapping[Variable, int] = field(default_factory=dict)

    def lowered(self, objectives: Sequence[Node] = ()) -> Lowered:
        """The program of the requirements, with variables for the objectives and for what the order decides."""
        lowering = Lowering(self.variables)
        for owner, requirement in enumerate(self.requirements):
            lowering.require(requirement.constraint, owner)
        holders = tuple(lowering.variable(objective) for objective in objectives)
        decisions = tuple((lowering.variable(branch.expression), branch.split) for branch in self.order)
        return Lowered(lowering.program(self.requirements), decisions, holders).where(self.where)

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
    _known: dict[Node, int] = field(default_factory=dict, init=False, compare=False)

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
        return evaluate.value(as_expression(expression), self.values_by_index, self._known)

    def along(self, variable: Variable) -> Callable[[Operand], Callable[[int], int]]:
        """The value of any expression over the variables by that of one of them, while the others keep their values. It
        is quicker than `value` where many values of the variable are asked for."""
        known: dict[Node, evaluate.Along] = {}

        def of(expression: Operand) -> Callable[[int], int]:
            return evaluate.function_of(
                evaluate.along(variable, as_expression(expression), self.values_by_index, known)
            )

        return of

    def named(self) -> dict[str, int]:
        """The values by the names of the variables."""
        return {variable.name: self[variable] for variable in self.variables}

    @property
    def objective(self) -> int:
        """The value of the first objective."""
        return self.objectives[0]
