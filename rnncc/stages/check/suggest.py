"""What to write in place of a name that is not defined: the habits of other notations first, then the nearest name."""

from __future__ import annotations

import re

from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.report import closest

_BEFORE = re.compile(r"_?(tm1|t_1|t1|prev|previous|old|last|minus_1)")


def undefined_name(name: str, symbols: Symbols, values: set[str]) -> str:
    """The help for an undefined name. `values`: everything that may stand in an expression."""
    return _notation(name, symbols, values) or closest(name, values) or _declaration(name)


def _notation(name: str, symbols: Symbols, values: set[str]) -> str:
    """`h_tm1`, `x_t`, `Wx`, `W_xh`, `bias`: what other notations call what the language writes differently."""
    timed = {*symbols.states, *symbols.inputs}
    for base in timed:
        rest = name.removeprefix(base)
        if rest != name and _BEFORE.fullmatch(rest):
            return f"write '{base}[t-1]' for the value before this step"
        if rest == "_t":
            return f"write '{base}[t]'"
    matrices = [family for family, kind in symbols.families.items() if kind.is_matrix]
    for family in matrices:
        rest = name.removeprefix(family)
        if rest != name and rest in values:
            time = "[t-1]" if rest in symbols.states else ""
            return f"write '{family}@{rest}{time}' for the product"
    family = name.split("_")[0]
    if family != name and family in symbols.families:
        return f"write '{family}': each equation has its own; '{family}_g' is the one of the equation of 'g'"
    if name.lower() == "bias" and "b" in symbols.families:
        return "write 'b': each equation has its own"
    return ""


def _declaration(name: str) -> str:
    if name[:1].isupper():
        return f"declare it: 'weights {name}: matrix' (one for each equation) or 'param {name}: matrix' (one for all)"
    return f"define it, '{name} = …', or declare it: 'param {name}: vector', 'const {name} = 0.1', 'input x, {name}: 1'"
