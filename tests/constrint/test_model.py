"""The questions a model answers, and how it says that there is no answer."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest

from rnncc.constrint import (
    Infeasible,
    LimitReached,
    Limits,
    Model,
    ModelError,
    Variable,
    WrongAnswer,
    ascending,
    ceil_div,
    descending,
    distinct,
    lookup,
    member,
    preferring,
    towards,
)
from rnncc.constrint.evaluate import holds, value
from rnncc.constrint.expr import as_expression
from rnncc.constrint.functions import Power
from rnncc.constrint.relations import AtMost
from rnncc.constrint.text import constraint, expression
from tests.constrint import classics
from tests.constrint.schedules import Case, schedule

# The base of every box of volume 5040.
BASES = [(a, b) for a, b in product(range(1, 5041), range(1, 72)) if 5040 % (a * b) == 0]


def tiles() -> tuple[Model, Variable, Variable, Variable]:
    """hidden == tile * count, and a tile's weights fit."""
    model = Model()
    hidden, count = model.integer("hidden", 1, 8192), model.integer("count", 1, 132)
    tile = model.choice("tile", (16, 32, 64))
    model.require(hidden == tile * count, because="tiles: they cover the hidden units exactly")
    model.require(2 * tile * hidden <= 190_000, because="shared memory: holds a tile's weights")
    return model, hidden, count, tile


def test_minimise_maximise_nearest() -> None:
    model, hidden, count, tile = tiles()
    best = model.minimise(count, given={hidden: 768})
    assert (best[count], best[tile], best.objective) == (12, 64, 12)
    assert best.named() == {"hidden": 768, "count": 12, "tile": 64}
    assert best.value(count * tile + 1) == 769
    assert repr(best) == "Solution(hidden=768, count=12, tile=64; objectives (12,))"
    assert model.maximise(hidden).objective == 2944
    assert model.nearest(hidden, 5000)[hidden] == 2944
    assert model.nearest(hidden, 1000)[hidden] == 1008, "of 992 and 1008, as near, the greater"
    assert model.nearest(hidden, 1001, given={tile: 64})[hidden] == 1024


def test_lexicographic_objectives() -> None:
    model = Model()
    x, y = model.integer("x", 0, 9), model.integer("y", 0, 9)
    model.require(x + y >= 9, because="asked")
    assert model.minimise((x + y, -x)).values_by_index == (9, 0)
    assert model.minimise((x + y, x)).objectives == (9, 0)
    assert model.minimise((y, x)).values_by_index == (9, 0)


def test_the_order_of_variables_and_values_is_the_users() -> None:
    model = Model()
    x, y = model.integer("x", 1, 3), model.integer("y", 1, 3)
    model.require(x != y, because="asked")

    def pairs(*order: object) -> list[tuple[int, ...]]:
        return [solution.values_by_index for solution in model.solutions(order=order)]  # type: ignore[arg-type]

    assert pairs(x, y) == [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
    assert pairs(descending(y), x) == [(1, 3), (2, 3), (1, 2), (3, 2), (2, 1), (3, 1)]
    assert pairs(preferring(x, (2, 7, 2)), y) == [(2, 1), (2, 3), (1, 2), (1, 3), (3, 1), (3, 2)]
    assert pairs(towards(y, 2), x)[:4] == [(1, 2), (3, 2), (1, 3), (2, 3)]
    assert pairs(ascending(x + y), x)[0] == (1, 2)
    assert len(list(model.solutions(2))) == 2


def test_a_conflict_names_its_requirements_with_numbers() -> None:
    model, hidden, _, tile = tiles()
    model.require(tile >= 1, because="nothing to do with it")
    with pytest.raises(Infeasible) as error:
        model.solve(given={hidden: 4096})
    conflict = error.value.conflict
    assert conflict.minimal
    assert [part.requirement.name for part in conflict.parts] == ["tiles", "shared memory", "hidden"]
    memory = conflict.parts[1]
    assert (memory.numbers, memory.values) == ("262144 <= 190000", {"tile": 32, "hidden": 4096})
    assert str(error.value) == (
        "these 3 requirements cannot hold together; any one less could:\n"
        "  - tiles: they cover the hidden units exactly\n"
        "      hidden == tile * count\n"
        "      the others leave 4096 == 2112, with hidden = 4096, tile = 16, count = 132\n"
        "  - shared memory: holds a tile's weights\n"
        "      2 * tile * hidden <= 190000\n"
        "      the others leave 262144 <= 190000, with tile = 32, hidden = 4096\n"
        "  - hidden: given\n"
        "      hidden == 4096\n"
        "      the others leave 2944 == 4096, with hidden = 2944\n"
        "  over hidden in 1..8192, tile in {16, 32, 64}, count in 1..132"
    )


def test_a_conflict_that_only_search_finds() -> None:
    model = Model()
    pigeons = [model.integer(f"pigeon{i}", 1, 3) for i in range(4)]
    model.require(distinct(pigeons), because="holes: one pigeon each")
    model.require(pigeons[0] <= 2, because="a bystander")
    with pytest.raises(Infeasible) as error:
        model.solve()
    assert [part.requirement.name for part in error.value.conflict.parts] == ["holes"]
    assert str(error.value).startswith("this requirement cannot hold:\n  - holes: one pigeon each")


def test_no_solutions_is_an_empty_iteration() -> None:
    model = Model()
    x = model.boolean("x")
    model.require(x == 2, because="asked")
    assert list(model.solutions()) == []


def test_limits_raise_and_keep_the_best() -> None:
    model, objective = classics.ALL["jobs 4 x 4"]()
    assert objective is not None
    with pytest.raises(LimitReached, match="within 10 nodes"):
        model.minimise(objective, limits=Limits(nodes=10))
    with pytest.raises(LimitReached, match="within 600 runs"):
        model.minimise(objective, limits=Limits(steps=600))
    made = schedule(Case(4, 768, 1, 256, False, "grid"))
    given = {made.hidden: 768}
    with pytest.raises(LimitReached) as error:
        made.model.minimise(made.cost, given=given, limits=Limits(nodes=200))
    best = error.value.best
    assert best is not None
    assert all(holds(requirement.constraint, best) for requirement in made.model.requirements)
    assert value(as_expression(made.cost), best) >= made.model.minimise(made.cost, given=given).objective


def test_bounds_that_creep_meet_a_limit_and_never_hang() -> None:
    model = Model()
    x, y = model.integer("x", 0, 10**12), model.integer("y", 0, 10**12)
    model.require(x < y, because="asked")
    model.require(y < x, because="asked")
    with pytest.raises(LimitReached, match="runs of propagators"):
        model.solve(limits=Limits(steps=20_000))


def test_a_comparison_is_no_truth_value() -> None:
    model = Model()
    x = model.integer("x", 0, 9)
    with pytest.raises(TypeError, match="no truth value"):
        bool(1 <= x <= 3)
    with pytest.raises(TypeError, match="an integer expression is needed"):
        x + "1"  # type: ignore[operator]
    with pytest.raises(TypeError, match="a constraint is needed"):
        model.require(True, because="asked")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no values"):
        model.integer("nothing", 2, 1)


@pytest.mark.parametrize("because", ["", " ", "name: "])
def test_a_requirement_needs_a_reason(because: str) -> None:
    model = Model()
    x = model.integer("x", 0, 9)
    with pytest.raises(ModelError, match="x <= 3 is required without a reason"):
        model.require(x <= 3, because=because)
    assert model.requirements == ()


def test_two_variables_have_two_names() -> None:
    model = Model()
    model.integer("x", 0, 9)
    with pytest.raises(ModelError, match="a variable x already"):
        model.choice("x", (1, 2))
    with pytest.raises(ModelError, match="a variable x already"):
        model.boolean("x")
    assert [variable.name for variable in model.variables] == ["x"]


def test_a_sum_that_decides_all_its_variables_is_looked_at_again() -> None:
    """Between 17 and 32, y + 8 leaves only y = 15, whose sum is neither. A linear `==` that fixes y by its bounds must
    see that itself: nothing else changes any more."""
    model = Model()
    y = model.choice("y", (3, 15, 30))
    model.require(member(y + 8, (17, 32)), because="sums: some are allowed")
    with pytest.raises(Infeasible):
        model.solve()
    with pytest.raises(Infeasible):
        model.minimise(y)


def test_requirements_that_share_a_sum_of_two_variables() -> None:
    """One requirement leaves wide holes in the sum, another fixes x, and then the sum decides y."""
    model = Model()
    x, y = model.choice("x", (1, 2, 8, 14)), model.choice("y", (3, 15, 30))
    used = lookup(x + y, {key: 100 if key in (17, 32) else 1000 for key in range(4, 45)})
    model.require(used + x <= 500, because="room: it suffices")
    assert sorted(solution.values_by_index for solution in model.solutions()) == [(2, 15), (2, 30), (14, 3)]
    with pytest.raises(Infeasible):
        model.solve(given={x: 8})
    with pytest.raises(Infeasible):
        model.minimise(used, given={x: 8})


@pytest.mark.parametrize("question", ["solve", "minimise"])
def test_a_solution_that_violates_a_requirement_is_never_returned(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A propagator that forgets its relation stands for any mistake of the solver."""
    monkeypatch.setattr(AtMost, "propagate", lambda _self, _store: True)
    model = Model()
    x, y = model.integer("x", 3, 9), model.integer("y", 0, 9)
    model.require(y == 2 * x - 6, because="tie: holds")
    model.require(x * x + y <= 5, because="registers: they suffice")
    with pytest.raises(WrongAnswer, match=r"violates registers: they suffice, with {'x': 3, 'y': 0}"):
        model.solve() if question == "solve" else model.minimise(x)


def test_objectives_that_the_search_gets_wrong_are_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Power, "propagate", lambda _self, _store: True)
    model = Model()
    x = model.integer("x", 2, 9)
    model.require(x >= 3, because="asked")
    with pytest.raises(WrongAnswer, match=r"its objectives are \(9,\), not \(4,\)"):
        model.minimise(x**2)


def test_formulas_read_as_written() -> None:
    model = Model()
    x, y = model.integer("x", 1, 9), model.integer("y", 1, 9)
    for built, text in (
        (x - (y - 1), "x - (y - 1)"),
        ((x + y) * 2, "(x + y) * 2"),
        (-((x + 1) ** 2), "-(x + 1)**2"),
        (2 ** (x * y), "2**(x * y)"),
        (ceil_div(x, 8) % y // 3, "ceil_div(x, 8) % y // 3"),
    ):
        assert expression(as_expression(built)) == text
    assert constraint(((x <= 3) & (y != 2)) | (x == y)) == "(x <= 3 and y != 2) or x == y"  # type: ignore[arg-type]


def test_magic_squares_of_three() -> None:
    model, _ = classics.magic_square(3)
    assert [solution.values_by_index for solution in model.solutions()] == [(2, 9, 4, 7, 5, 3, 6, 1, 8)]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("factorisation 31607 * 31627", 20),
        ("box 5040", min(2 * (a * b + (a + b) * 5040 // (a * b)) for a, b in BASES)),
        ("jobs 3 x 3", 11),
        ("jobs 4 x 4", 27),
    ],
)
def test_classics(name: str, least: int) -> None:
    model, objective = classics.ALL[name]()
    assert objective is not None
    assert model.minimise(objective).objective == least


def test_the_package_needs_the_standard_library_only() -> None:
    """Everything that its import brings in, less the interpreter's own, is the package."""
    code = (
        "import sys; before = set(sys.modules); import rnncc; rnncc_alone = set(sys.modules);"
        "import rnncc.constrint; print(*sorted(name for name in set(sys.modules) - rnncc_alone"
        " if name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert names
    assert all(name == "rnncc.constrint" or name.startswith("rnncc.constrint.") for name in names)
