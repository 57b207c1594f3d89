"""ConstrINT: a solver for integer constraints, in plain Python.

    from rnncc.constrint import Infeasible, Model

    model = Model()
    hidden, count = model.integer("hidden", 1, 4096), model.integer("count", 1, 132)
    tile = model.choice("tile", (16, 32, 64))
    model.require(hidden == tile * count, because="tiles: they cover the hidden units exactly")
    model.require(tile * hidden * 2 <= 190_000, because="registers: a tile's weights stay on one SM")
    best = model.minimise(count, given={hidden: 768})

It knows nothing of what its numbers mean and imports only the standard library. See docs/constrint.md.
"""

from rnncc.constrint.errors import ConstrintError, LimitReached, ModelError, WrongAnswer
from rnncc.constrint.explain import Conflict, Infeasible, Part
from rnncc.constrint.expr import (
    Constraint,
    Expression,
    Requirement,
    Variable,
    all_of,
    any_of,
    by,
    ceil_div,
    distinct,
    divides,
    implies,
    lookup,
    maximum,
    member,
    minimum,
    round_up,
    table,
    truth,
)
from rnncc.constrint.model import Model
from rnncc.constrint.order import Branch, ascending, descending, preferring, towards
from rnncc.constrint.problem import Solution
from rnncc.constrint.store import Limits

__all__ = [
    "Branch",
    "Conflict",
    "Constraint",
    "ConstrintError",
    "Expression",
    "Infeasible",
    "LimitReached",
    "Limits",
    "Model",
    "ModelError",
    "Part",
    "Requirement",
    "Solution",
    "Variable",
    "WrongAnswer",
    "all_of",
    "any_of",
    "ascending",
    "by",
    "ceil_div",
    "descending",
    "distinct",
    "divides",
    "implies",
    "lookup",
    "maximum",
    "member",
    "minimum",
    "preferring",
    "round_up",
    "table",
    "towards",
    "truth",
]
