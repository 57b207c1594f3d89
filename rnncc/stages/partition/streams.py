"""Streams: values that one product of a packed group makes lie side by side, everything else by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnncc.analysis.sums import terms
from rnncc.ir.cell import Contraction, Node, Parameter, Pointwise, Stream
from rnncc.ir.expr import Ref

# What two members of a stream have in common: (group, operand) of each term in order; a vector has no operand.
_Form = tuple[tuple[str, str], ...]


def streams(
    names: Sequence[str], nodes: Mapping[str, Node], parameter_of: Mapping[str, Parameter]
) -> tuple[Stream, ...]:
    """The values that a loop reads as streams, in order of first reading."""
    position = {name: number for number, name in enumerate(nodes)}
    alike: dict[_Form | str, list[str]] = {}
    for name in names:
        form = _form(nodes.get(name), nodes, parameter_of)
        alike.setdefault(form or name, []).append(name)
    result: list[Stream] = []
    used = set(names)
    for key, members in alike.items():
        if isinstance(key, str) or len(members) == 1:
            result.append(Stream(members[0], (members[0],)))
            continue
        group = key[0][0]
        name, number = group, 2
        while name in used:
            name, number = f"{group}__{number}", number + 1
        used.add(name)
        rows = {member.name: row for row, member in enumerate(_first_group(members[0], nodes, parameter_of).members)}
        by_row = sorted(members, key=lambda member: (rows[_first_member(member, nodes)], position[member]))
        result.append(Stream(name, tuple(by_row)))
    return tuple(result)


def _form(node: Node | None, nodes: Mapping[str, Node], parameter_of: Mapping[str, Parameter]) -> _Form | None:
    """The common form of a value that is `group_g @ operand + vector_g + …`, else None."""
    if node is None:
        return None
    parts = [_product(node, parameter_of)] if isinstance(node, Contraction) else []
    gates: set[str] = set()
    if isinstance(node, Pointwise):
        for negative, term in terms(node.expr):
            if negative or not isinstance(term, Ref):
                return None
            made_by = nodes.get(term.name)
            if isinstance(made_by, Contraction):
                parts.append(_product(made_by, parameter_of))
                gates.add(_gate(made_by.matrix, parameter_of))
            elif term.name in parameter_of and len(parameter_of[term.name].members) > 1:
                parts.append((parameter_of[term.name].name, ""))
                gates.add(_gate(term.name, parameter_of))
            else:
                return None
    if len(gates) > 1 or not parts or any(part is None for part in parts) or not parts[0] or not parts[0][1]:
        return None
    return tuple(part for part in parts if part is not None)


def _gate(member: str, parameter_of: Mapping[str, Parameter]) -> str:
    """The gate that a member belongs to."""
    return member.removeprefix(f"{parameter_of[member].name}_") if member in parameter_of else ""


def _product(node: Contraction, parameter_of: Mapping[str, Parameter]) -> tuple[str, str] | None:
    """(group, operand) where the matrix is one of several packed members."""
    parameter = parameter_of.get(node.matrix)
    if parameter is None or len(parameter.members) < 2:
        return None
    return parameter.name, node.operand


def _first_member(name: str, nodes: Mapping[str, Node]) -> str:
    """Find the matrix of a value's first product."""
    node = nodes[name]
    if isinstance(node, Contraction):
        return node.matrix
    assert isinstance(node, Pointwise)
    _, first = terms(node.expr)[0]
    assert isinstance(first, Ref)
    return _first_member(first.name, nodes)


def _first_group(name: str, nodes: Mapping[str, Node], parameter_of: Mapping[str, Parameter]) -> Parameter:
    return parameter_of[_first_member(name, nodes)]
