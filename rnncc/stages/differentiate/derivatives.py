"""What an equation gives to the cotangents of its operands.

sympy derives it (symbolic.py). Its import takes longer than all other work on a cell, so what it makes of the equations
of the shipped cells, and of each operator alone, stands in known.json, which comes with rnncc. Equations that differ
in names alone are one there. `pytest tests/stages/test_derivatives.py --update-golden` writes the file; while the code
that derives is not what wrote it, the file counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, assert_never

from rnncc.ir.expr import Apply, Const, Expr, Ref, references, substitute
from rnncc.machine.cache import digest

KNOWN = Path(__file__).parent / "known.json"
_PACKAGE = Path(__file__).parents[2]
# Derivatives depend on these files.
_MADE_BY = (
    "language/operators.py",
    "language/surrogates.py",
    "stages/differentiate/normalise.py",
    "stages/differentiate/symbolic.py",
)

Named = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Derivative:
    """What `target = expr` gives to the cotangents of its operands: subexpressions that several have in common, and
    pairs of an operand and its cotangent's share, without those that are zero."""

    shared: Named
    pairs: Named


@dataclass(frozen=True, slots=True)
class Equation:
    """The right side of an equation whose operands are called `x00`, `x01`… in the order in which they come first. Its
    target is `t`, the target's cotangent `d_`, and what derivatives have in common `d_s0`, `d_s1`…

    `wanted`: the operands whose cotangents count. `constants`: those through which no gradient flows."""

    expr: Expr
    wanted: tuple[str, ...]
    constants: frozenset[str]


def contributions(
    target: str, expr: Expr, cotangent: str, wanted: tuple[str, ...], shared: str, constants: Collection[str]
) -> tuple[Named, Named]:
    """What `target = expr` gives to the cotangents of its operands `wanted`.

    `cotangent` is the target's. Returns (shared subexpressions, called `shared` and a number; pairs of an operand and
    its cotangent's share), pairs in the order of `wanted` without those that are zero.
    """
    names = {target: "t", cotangent: "d_"}
    names |= {name: f"x{number:02}" for number, name in enumerate(dict.fromkeys(references(expr)))}
    renamed = substitute(expr, {name: Ref(new) for name, new in names.items()})
    own_constants = frozenset(new for name, new in names.items() if name in constants)
    found = derivative(Equation(renamed, tuple(names[name] for name in wanted), own_constants))
    own = {new: Ref(name) for name, new in names.items()}
    own |= {name: Ref(f"{shared}{number}") for number, (name, _) in enumerate(found.shared)}

    def back(named: Named) -> Named:
        return tuple((own[name].name, substitute(part, own)) for name, part in named)

    return back(found.shared), back(found.pairs)


# The plain and the masked program of a cell have most equations in common.
@lru_cache(maxsize=1 << 14)
def derivative(equation: Equation) -> Derivative:
    """The derivative of an equation, known or derived now."""
    return known().get(equation) or derive(equation)


def derive(equation: Equation) -> Derivative:
    """Derive an equation by sympy."""
    from rnncc.stages.differentiate.symbolic import contributions_of

    return Derivative(*contributions_of(equation.expr, equation.wanted, equation.constants))


@cache
def known() -> Mapping[Equation, Derivative]:
    """The equations of known.json. None, while other code than this wrote it, and where the file is damaged."""
    try:
        table = json.loads(KNOWN.read_text(encoding="utf-8"))
        if table["made_by"] != _made_by():
            return {}
        return {
            Equation(_to_expr(expr), tuple(wanted), frozenset(constants)): Derivative(_named(shared), _named(pairs))
            for expr, wanted, constants, shared, pairs in table["equations"]
        }
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def written(equations: Iterable[Equation]) -> str:
    """The text of known.json for the equations, whose derivatives sympy makes now. A line has one of them."""
    rows = []
    for equation in equations:
        named = derive(equation)
        parts = [[[name, _to_json(part)] for name, part in each] for each in (named.shared, named.pairs)]
        rows.append(json.dumps([_to_json(equation.expr), equation.wanted, sorted(equation.constants), *parts]))
    return f'{{"made_by": "{_made_by()}", "equations": [\n' + ",\n".join(sorted(rows)) + "\n]}\n"


def _made_by() -> str:
    return digest(*((_PACKAGE / name).read_bytes() for name in _MADE_BY))


def _to_json(expr: Expr) -> Any:
    match expr:
        case Ref(name):
            return name
        case Const(value):
            return float(value)
        case Apply(operator, arguments):
            return [operator, *map(_to_json, arguments)]
        case _:
            assert_never(expr)


def _to_expr(value: Any) -> Expr:
    if isinstance(value, str):
        return Ref(value)
    if isinstance(value, float):
        return Const(value)
    operator, *arguments = value
    return Apply(operator, tuple(map(_to_expr, arguments)))


def _named(pairs: Any) -> Named:
    return tuple((name, _to_expr(part)) for name, part in pairs)
