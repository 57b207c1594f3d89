"""What propagation alone, without search, knows: bounds, divisors, strides, tables, conditions."""

from __future__ import annotations

import pytest

from rnncc.constrint import (
    Limits,
    Model,
    ModelError,
    Variable,
    by,
    ceil_div,
    divides,
    implies,
    lookup,
    maximum,
    minimum,
    table,
    truth,
)
from rnncc.constrint.domain import Domain
from rnncc.constrint.functions import integer_root
from rnncc.constrint.problem import Problem
from rnncc.constrint.store import Contradiction, Meter, Store


def propagated(model: Model) -> dict[str, list[int] | Domain]:
    """The domains by name after propagation, long ranges as they are."""
    problem = Problem(model.variables, model.requirements)
    program = problem.lowered().program
    store = Store(program, program.part(range(len(model.requirements)), ()), Meter(Limits()))
    store.propagate()
    return {variable.name: short(store.domains[variable.index]) for variable in model.variables}


def short(domain: Domain) -> list[int] | Domain:
    """A short domain as a list."""
    return list(domain) if len(domain) <= 16 else domain


def three(low: int = 1, high: int = 4096) -> tuple[Model, Variable, Variable, Variable]:
    """A model of x, y, z."""
    model = Model()
    return model, model.integer("x", low, high), model.integer("y", low, high), model.integer("z", low, high)


def test_a_known_product_leaves_the_divisors() -> None:
    model, x, y, z = three()
    model.require(z == x * y, because="asked")
    model.require(z == 12, because="asked")
    assert propagated(model) == {"x": [1, 2, 3, 4, 6, 12], "y": [1, 2, 3, 4, 6, 12], "z": [12]}


def test_a_few_products_leave_the_divisors_of_all() -> None:
    model = Model()
    dim, count, tile = model.choice("dim", (6, 35)), model.integer("count", 1, 100), model.integer("tile", 1, 100)
    model.require(dim == count * tile, because="asked")
    assert propagated(model)["tile"] == [1, 2, 3, 5, 6, 7, 35]


def test_divides_leaves_divisors_and_multiples() -> None:
    model, x, y, _ = three()
    model.require(divides(x, 18), because="asked")
    model.require(divides(48, y), because="asked")
    result = propagated(model)
    assert result["x"] == [1, 2, 3, 6, 9, 18]
    assert result["y"] == range(48, 4081, 48)


def test_strides_pass_through_sums() -> None:
    model, x, y, z = three()
    model.require(x == 32 * y + 7, because="asked")
    model.require(z == x + 64, because="asked")
    assert propagated(model)["z"] == range(103, 4072, 32)


def test_a_wrong_residue_is_refuted_without_search() -> None:
    model, x, y, _ = three()
    model.require(6 * x - 4 * y == 3, because="asked")
    with pytest.raises(Contradiction):
        propagated(model)


def test_bounds_of_sums_products_and_quotients() -> None:
    model, x, y, z = three(1, 100)
    model.require(x * y <= 50, because="asked")
    model.require(x >= 7, because="asked")
    model.require(z >= ceil_div(x, 3), because="asked")
    model.require(x + z <= 40, because="asked")
    result = propagated(model)
    assert result["y"] == [1, 2, 3, 4, 5, 6, 7]
    assert result["x"] == range(7, 38)
    assert result["z"] == range(3, 34)


def test_powers_and_roots() -> None:
    model, x, y, z = three(-100, 100)
    model.require(x**2 <= 50, because="asked")
    model.require(2 ** maximum(0, minimum(y, 6)) == 16, because="asked")
    model.require(z**3 <= -65, because="asked")
    result = propagated(model)
    assert result["x"] == [-7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]
    assert result["y"] == [4]
    assert result["z"] == range(-100, -4)


@pytest.mark.parametrize("degree", [2, 3, 5])
def test_integer_root(degree: int) -> None:
    for number in (*range(300), 10**18 - 1, 10**18, 10**18 + 1):
        root = integer_root(number, degree)
        assert root**degree <= number < (root + 1) ** degree


def test_a_table_keeps_what_a_row_supports() -> None:
    model, x, y, z = three(0, 9)
    model.require(table((x, y), [(1, 5), (2, 5), (3, 6)]), because="asked")
    model.require(y <= 5, because="asked")
    model.require(lookup(z, {i: i * i % 7 for i in range(10)}) == 4, because="asked")
    assert propagated(model) == {"x": [1, 2], "y": [5], "z": [2, 5, 9]}


def test_a_function_of_several_variables_is_a_table_of_their_values() -> None:
    model, x, y, z = three(0, 9)
    model.require(by((x, y, 2), lambda a, b, c: c * a - b) == 15, because="asked")
    model.require(by(z, lambda a: a * a) == by((4,), lambda a: a * a), because="asked")
    assert propagated(model) == {"x": [8, 9], "y": [1, 3], "z": [4]}
    with pytest.raises(ModelError, match="tabled by variables and numbers"):
        by((x, y + 1), lambda a, b: a)


def test_conditions_work_in_both_directions() -> None:
    model, x, y, z = three(0, 9)
    model.require(implies(x >= 5, y == 3), because="asked")
    model.require(y >= 4, because="asked")
    model.require(truth(z < x) == 1, because="asked")
    assert propagated(model) == {"x": [1, 2, 3, 4], "y": [4, 5, 6, 7, 8, 9], "z": [0, 1, 2, 3]}


def test_equal_operations_share_what_is_known() -> None:
    model, x, y, z = three(1, 9)
    model.require(x * y <= 10, because="asked")
    model.require(z == y * x - 4, because="asked")
    assert propagated(model)["z"] == [1, 2, 3, 4, 5, 6]


def test_what_may_fail_is_refused() -> None:
    model, x, y, _ = three(0, 9)
    for wrong, text in (
        (10 // x, "the divisor must be positive, and it may be 0"),
        (x % (y - 1), "the divisor must be positive, and it may be -1"),
        (2 ** (x - 1), "the exponent must not be negative, and it may be -1"),
        ((x + 1) ** y, "the base or the exponent must be a constant"),
        (lookup(x, {1: 2}), "the table has no entry for 0"),
        (lookup((x, y), {(0, 0): 2}), r"the table has no entry for \(0, 1\)"),
        ((x * 10**10) ** 2, r"beyond 2\*\*62"),
    ):
        with pytest.raises(ModelError, match=text):
            model.minimise(wrong)


def test_a_variable_belongs_to_one_model() -> None:
    model, _, _, _ = three()
    other = Model()
    with pytest.raises(ModelError, match="x0 is a variable of another model"):
        model.minimise(other.integer("x0", 1, 2))
