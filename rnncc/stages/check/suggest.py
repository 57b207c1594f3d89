"""What to write in place of a name that is not defined: the habits of other notations first, then the nearest name."""

from __future__ import annotations

import re

from rnncc.language.spelling import closest, torch_parameter
from rnncc.stages.check.declare import Symbols

_BEFORE = re.compile(r"_?(tm1|t_1|t1|prev|previous|old|last|minus_1)")


def undefined_name(name: str, symbols: Symbols, values: set[str], *, multiplies: bool) -> str:
    """The help for an undefined name. `values`: everything that may stand in an expression; `multiplies`: it stands
    before an `@`."""
    return (
        _of_equation(name, symbols, values, multiplies=multiplies)
        or _notation(name, symbols, values, multiplies=multiplies)
        or closest(name, values)
        or _declaration(name, symbols.first)
    )


def _of_equation(name: str, symbols: Symbols, values: set[str], *, multiplies: bool) -> str:
    """`U_f` where f has an equation and U is not declared; `b_f` where the equation of f is called `f_t`."""
    head, _, rest = name.rpartition("_")
    # `taw_m` is rather a misspelt `tau_m`; groups of papers have a letter.
    if not head or not rest or (len(head) > 2 and closest(name, values)):
        return ""
    kind = "matrix" if multiplies else "vector"
    if f"{rest}_t" in values:
        declare = "" if head in symbols.groups else f", and declare 'weights {head}: {kind}'"
        instead = f"write '{rest} = …' in place of '{rest}_t = …'{declare}"
        return f"{instead}: '{name}' is then the {head} of that equation"
    if head in symbols.groups or not _has_equation(rest, symbols, values) or torch_parameter(name):
        return ""
    return f"declare it: after 'weights {head}: {kind}', '{name}' is the {head} of the equation of '{rest}'"


def _has_equation(name: str, symbols: Symbols, values: set[str]) -> bool:
    given = (symbols.inputs, symbols.params, symbols.constants, symbols.groups, {symbols.first})
    return name in values and not any(name in names for names in given)


def _notation(name: str, symbols: Symbols, values: set[str], *, multiplies: bool) -> str:
    """`h_tm1`, `x_t`, `Wx`, `Wz@x`, `W_xh`, `bias`: what other notations call what the language writes differently."""
    timed = {*symbols.states, *symbols.inputs}
    for base in sorted(timed):
        rest = name.removeprefix(base)
        if rest != name and _BEFORE.fullmatch(rest):
            return f"write '{base}[t-1]' for the value before this step"
        if rest == "_t":
            return f"write '{base}[t]'"
    for group, kind in symbols.groups.items():
        rest = name.removeprefix(group)
        if rest == name or rest not in values:
            continue
        if multiplies or not kind.is_matrix:
            own = ""
            if _has_equation(rest, symbols, values):
                own = f"; '{group}_{rest}' is the one of the equation of '{rest}'"
            return f"write '{group}': each equation has its own{own}"
        time = "[t-1]" if rest in symbols.states else ""
        return f"write '{group}@{rest}{time}' for the product"
    for base in sorted(timed):
        rest = name.removesuffix(base)
        if rest != name and len(rest) == 1 and rest.isupper():
            time = "[t-1]" if base in symbols.states else ""
            return f"write '{rest}@{base}{time}' for the product, and declare 'weights {rest}: matrix'"
    found = torch_parameter(name)
    if found:
        return found
    group = name.split("_")[0]
    if group != name and group in symbols.groups:
        return f"write '{group}': each equation has its own; '{group}_g' is the one of the equation of 'g'"
    if name.lower() == "bias" and "b" in symbols.groups:
        return "write 'b': each equation has its own"
    return ""


def _declaration(name: str, first: str) -> str:
    if name == "x":
        return f"write '{first}', which stands in place of x, or define it: 'x = …'"
    if name == "u":
        return "write 'x' for the input of the step, or 'input u in place of x' above all; or define it: 'u = …'"
    if name[:1].isupper():
        return f"declare it: 'weights {name}: matrix' (one for each equation) or 'param {name}: matrix' (one for all)"
    return f"define it, '{name} = …', or declare it: 'param {name}: vector', 'const {name} = 0.1', 'input x, {name}: 1'"
