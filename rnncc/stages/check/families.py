"""Families packed into Parameters: one tensor a family, rows in the order their gates first stand in the text."""

from __future__ import annotations

from collections.abc import Mapping

from rnncc.ir.cell import Initialiser, Member, Parameter
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.structure import block_diagonal
from rnncc.language.source import Span
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.initialise import FOR_MATRICES
from rnncc.stages.check.names import reserved_attribute
from rnncc.stages.check.report import Report, closest
from rnncc.stages.check.resolve import FamilyMember, Resolved
from rnncc.stages.check.shape import Shape
from rnncc.stages.check.suggest import torch_parameter

ATTRIBUTES = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih"}
_FOR_VECTORS = "use a number, uniform(a, b) or normal(mean, std)"
BIASES = frozenset({"b", "bR"})


class _Packer:
    def __init__(
        self,
        read: set[str],
        resolved: Resolved,
        shapes: Mapping[str, Shape],
        blocks: Mapping[str, Dim],
        symbols: Symbols,
        report: Report,
    ) -> None:
        self.resolved, self.shapes, self.blocks = resolved, shapes, blocks
        self.read, self.symbols, self.report = read, symbols, report
        self.order = {equation.target: number for number, equation in reversed([*enumerate(resolved.equations)])
                      for equation in [equation]}  # fmt: skip

    def run(self) -> tuple[Parameter, ...]:
        by_family: dict[str, list[FamilyMember]] = {}
        for member in self.resolved.members.values():
            by_family.setdefault(member.family, []).append(member)
        for members in by_family.values():
            members.sort(key=lambda member: self.order[member.target])
        self.check_inits(by_family)
        result: list[Parameter] = []
        for family in self.symbols.families:
            members = [member for member in by_family.get(family, []) if member.name in self.read]
            if members:
                result += self.family(family, members, by_family)
        for name, param in self.symbols.params.items():
            if name in self.read:
                result.append(self.alone(name, name, self.start(name, "", param.initialiser)))
        for name, initial in self.symbols.initial.items():
            if initial is None:
                learned = f"{name}0"
                row = Member(learned, self.shapes[name].width, self.start(learned, "", Initialiser()))
                result.append(Parameter(learned, learned, (row,)))
        self.check_attributes(result)
        return tuple(result)

    def check_attributes(self, parameters: list[Parameter]) -> None:
        """Each parameter becomes an attribute of the module, under a name that nothing else there has."""
        taken: dict[str, str] = {}
        for parameter in parameters:
            name, attribute = parameter.name, parameter.attribute
            if reserved_attribute(attribute):
                message = f"no parameter can be called '{attribute}': every torch module has that name, or keeps it"
            elif attribute in taken:
                message = f"'{name}' would be the module's '{attribute}', which '{taken[attribute]}' is already"
            else:
                taken[attribute] = name
                continue
            self.report.error("RNN217", message, self.origin(name), "a reserved name", "choose another name")

    def origin(self, name: str) -> Span:
        """Where a parameter comes from: its declaration, its first use, or the state whose start it is."""
        if name in self.symbols.spans:
            return self.symbols.spans[name]
        uses = [member.span for member in self.resolved.members.values() if name in (member.family, member.name)]
        return uses[0] if uses else self.symbols.spans[name.removesuffix("0")]

    def family(
        self, family: str, members: list[FamilyMember], by_family: Mapping[str, list[FamilyMember]]
    ) -> list[Parameter]:
        """The family as one parameter, or one a gate where their columns or blocks differ."""
        forms = {(self.columns(member.name), self.blocks.get(member.name, ONE)) for member in members}
        if len(forms) > 1:
            return [self.alone(member.name, member.name, self.start(member.name, family)) for member in members]
        columns, blocks = forms.pop()
        rows = tuple(
            Member(member.name, self.shapes[member.name].width, self.start(member.name, family)) for member in members
        )
        attribute = ATTRIBUTES.get(family, family)
        recurrent = {member.target for member in by_family.get("R", []) if member.name in self.read}
        if family == "bR" and recurrent == {member.target for member in members}:
            attribute = "bias_hh"
        return [Parameter(family, attribute, rows, columns, block_diagonal(blocks), family in BIASES)]

    def columns(self, name: str) -> Dim | None:
        shape = self.shapes[name]
        return shape.columns if shape.kind == "matrix" else None

    def alone(self, name: str, attribute: str, start: Initialiser) -> Parameter:
        shape = self.shapes[name]
        found = self.resolved.members.get(name)
        is_bias = found is not None and found.family in BIASES
        row = Member(name, shape.width, start)
        structure = block_diagonal(self.blocks.get(name, ONE))
        return Parameter(name, attribute, (row,), self.columns(name), structure, is_bias)

    def start(self, name: str, family: str, default: Initialiser | None = None) -> Initialiser:
        """`init b_f` before `init b` before the default."""
        for key in (name, family):
            if key in self.symbols.inits:
                return self.symbols.inits[key][0]
        return default or Initialiser()

    def check_inits(self, by_family: Mapping[str, list[FamilyMember]]) -> None:
        learned = [f"{name}0" for name, initial in self.symbols.initial.items() if initial is None]
        known = [*self.resolved.members, *by_family, *self.symbols.params, *learned]
        for name, (start, span) in self.symbols.inits.items():
            if name not in known:
                self.unknown(name, span, known)
                continue
            one = by_family[name][0].name if name in by_family else name
            if start.kind in FOR_MATRICES and (name in learned or self.columns(one) is None):
                message = f"'{start.kind}' initialises matrices; '{name}' is a vector"
                self.report.error("RNN224", message, span, help=_FOR_VECTORS)
        for name, param in self.symbols.params.items():
            if param.initialiser.kind in FOR_MATRICES and self.columns(name) is None:
                message = f"'{param.initialiser.kind}' initialises matrices; '{name}' is none"
                self.report.error("RNN224", message, param.span, help=_FOR_VECTORS)

    def unknown(self, name: str, span: Span, known: list[str]) -> None:
        if name in self.symbols.families:
            self.report.error("RNN224", f"no equation uses the family '{name}'", span)
        elif name in self.symbols.states:
            help = f"write 'state {name} = …'; 'state {name} = learned' makes the parameter {name}0"
            self.report.error("RNN224", f"'{name}' is a state, not a parameter", span, help=help)
        elif owner := self.owner(name):
            family, target = owner
            message = f"'{name}' would be the {family} of '{target}', whose equation uses no {family}"
            help = f"use {family} in the equation of '{target}', or remove this line"
            self.report.error("RNN224", message, span, help=help)
        else:
            help = torch_parameter(name) or closest(name, known)
            self.report.error("RNN224", f"no parameter is called '{name}'", span, help=help)

    def owner(self, name: str) -> tuple[str, str] | None:
        """(family, target) where `name` is spelled like a member that no equation has."""
        for family in sorted(self.symbols.families, key=len, reverse=True):
            target = name.removeprefix(f"{family}_")
            if target != name and target in self.order:
                return family, target
        return None


def pack(
    read: set[str],
    resolved: Resolved,
    shapes: Mapping[str, Shape],
    blocks: Mapping[str, Dim],
    symbols: Symbols,
    report: Report,
) -> tuple[Parameter, ...]:
    """All parameters of the module: W, R, b, bR, other families, params, learned initial states. A member or param
    that no node reads (`read`) is not made."""
    return _Packer(read, resolved, shapes, blocks, symbols, report).run()
