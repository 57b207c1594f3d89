"""On random small models: solutions are all solutions, the optimum is the optimum, a conflict is a minimal one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnncc.constrint import Branch, Expression, Infeasible, Limits, Solution
from rnncc.constrint.evaluate import holds
from rnncc.constrint.order import descending, preferring
from tests import seeds
from tests.constrint.random_models import Random, models

PROPERTY = settings(max_examples=seeds.count(60))


def solved(question: Callable[[], Solution]) -> Solution | None:
    """What a question answers, None if there is no solution."""
    try:
        return question()
    except Infeasible:
        return None


@PROPERTY
@given(models())
def test_the_solutions_are_all_solutions_each_once(random: Random) -> None:
    found = [solution.values_by_index for solution in random.model.solutions()]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(random.assignments())


@pytest.mark.long
@PROPERTY
@given(models(), st.integers(0, 2))
def test_the_order_changes_nothing_but_the_order(random: Random, way: int) -> None:
    variables = random.model.variables[::-1]
    orders: list[list[Expression | Branch]] = [
        [descending(variable) for variable in variables],
        [preferring(variables[0], (3, 8, 1))],
        [random.objectives[0], *variables],
    ]
    found = [solution.values_by_index for solution in random.model.solutions(order=orders[way])]
    assert sorted(found) == sorted(random.assignments())


@PROPERTY
@given(models())
def test_the_least_is_the_least_lexicographically(random: Random) -> None:
    least = min((random.objective(values) for values in random.assignments()), default=None)
    solution = solved(lambda: random.model.minimise(random.objectives))
    if least is None:
        assert solution is None
    else:
        assert solution is not None
        assert solution.objectives == least
        assert random.objective(solution.values_by_index) == least
        assert all(holds(requirement.constraint, solution.values_by_index) for requirement in random.model.requirements)


@PROPERTY
@given(models())
def test_the_least_where_a_variable_has_a_value(random: Random) -> None:
    variable = random.model.variables[0]
    for number in variable.domain:
        assignments = [values for values in random.assignments() if values[0] == number]
        least = min((random.objective(values) for values in assignments), default=None)
        try:
            found = random.model.minimise(random.objectives, where={variable: number})
        except Infeasible:
            assert least is None
        else:
            assert found.objectives == least and found[variable] == number


@PROPERTY
@given(models())
def test_an_expression_by_the_value_of_a_variable(random: Random) -> None:
    for assignment in random.assignments()[:3]:
        for index, variable in enumerate(random.model.variables):
            along = Solution(random.model.variables, assignment).along(variable)
            functions = [along(objective) for objective in random.objectives]
            for number in variable.domain:
                values = (*assignment[:index], number, *assignment[index + 1 :])
                assert tuple(function(number) for function in functions) == random.objective(values)


@PROPERTY
@given(models(), st.integers(-10, 50))
def test_the_nearest_is_the_nearest(random: Random, target: int) -> None:
    variable = random.model.variables[0]
    best = min(((abs(values[0] - target), -values[0]) for values in random.assignments()), default=None)
    solution = solved(lambda: random.model.nearest(variable, target))
    assert (None if solution is None else (abs(solution[variable] - target), -solution[variable])) == best


@PROPERTY
@given(models())
def test_a_conflict_is_infeasible_and_minimal(random: Random) -> None:
    if random.assignments():
        return
    with pytest.raises(Infeasible) as error:
        random.model.solve()
    conflict = error.value.conflict
    assert conflict.minimal
    assert set(map(id, (part.requirement for part in conflict.parts))) <= set(map(id, random.model.requirements))

    def feasible(without: int | None) -> bool:
        chosen = [part.requirement.constraint for i, part in enumerate(conflict.parts) if i != without]
        every = product(*(variable.domain for variable in random.model.variables))
        return any(all(holds(constraint, values) for constraint in chosen) for values in every)

    assert not feasible(None)
    assert all(feasible(index) for index in range(len(conflict.parts)))
    assert str(error.value).startswith(("this requirement", "these "))
    # With searches of one node, what is undecided stays.
    named = [part.requirement.constraint for part in error.value.conflict_within(Limits(nodes=1)).parts]
    every = product(*(variable.domain for variable in random.model.variables))
    assert not any(all(holds(constraint, values) for constraint in named) for values in every)
