"""Groups packed into Parameters: one tensor a group, rows in the order their gates first stand in the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rnncc.ir.cell import Initialiser, Member, Parameter, operands
from rnncc.ir.dim import HEADS, ONE, Dim, show
from rnncc.ir.structure import DENSE, Structure, diagonal_blocks
from rnncc.ir.typed import GroupMember, Init, written
from rnncc.language.names import reserved_attribute
from rnncc.language.report import Report
from rnncc.language.source import NOWHERE, Span
from rnncc.language.spelling import closest, torch_parameter
from rnncc.stages.partition.flat import FlatCell

_ATTRIBUTES = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih"}
_FOR_VECTORS = "use a number, uniform(a, b) or normal(mean, std)"
_BIASES = frozenset({"b", "bR"})


def _attribute(group: str) -> str:
    """`weight_hh` of R; `weight_hh_u` of a factor of R."""
    attribute = _ATTRIBUTES.get(written(group), written(group))
    return attribute + group.removeprefix(written(group)).replace("__", "_")


class _Packer:
    def __init__(self, flat: FlatCell, structures: Mapping[str, Structure], report: Report) -> None:
        self.typed, self.shapes, self.structures, self.report = flat.typed, flat.shapes, structures, report
        self.read = {name for node in flat.nodes.values() for name in operands(node)}
        self.inits = {init.name: init.initialiser for init in flat.typed.inits}
        self.order = {equation.target: number for number, equation in enumerate(flat.typed.equations)}
        self.learned = [state.name for state in flat.typed.states if state.initial is None]
        self.members: dict[str, list[GroupMember]] = {}
        for member in sorted(flat.typed.members, key=lambda member: self.order[member.target]):
            self.members.setdefault(member.group, []).append(member)
        self.types = {group.name: group.type for group in flat.typed.groups}
        self.types |= {param.name: param.type for param in flat.typed.params}
        self.group_of = {member.name: member.group for member in flat.typed.members}

    def run(self) -> tuple[Parameter, ...]:
        for init in self.typed.inits:
            self.check_init(init)
        result: list[Parameter] = []
        for group in self.typed.groups:
            members = [member for member in self.members.get(group.name, []) if member.name in self.read]
            if members:
                result += self.group(group.name, members)
        for param in self.typed.params:
            if param.initialiser.is_for_matrices and self.columns(param.name) is None:
                message = f"'{param.initialiser.kind}' initialises matrices; '{param.name}' is none"
                self.report.error("RNN224", message, param.span, help=_FOR_VECTORS)
            if param.name in self.read:
                made = self.alone(param.name, param.name, self.start(param.name, default=param.initialiser))
                result.append(replace(made, trained=param.trained))
        for state in self.learned:
            name = f"{state}0"
            row = Member(name, self.shapes[state].width, self.start(name))
            result.append(Parameter(name, name, (row,), grid=self.shapes[state].grid))
        self.check_attributes(result)
        self.check_square(result)
        self.check_formulas(result)
        return tuple(result)

    def check_square(self, parameters: list[Parameter]) -> None:
        """A spectral radius is that of a square matrix."""
        for parameter in parameters:
            for member in parameter.members:
                columns = parameter.columns or member.width
                if member.initialiser.kind == "spectral" and columns != member.width:
                    sides = f"{show(member.width)} x {show(columns)}"
                    message = f"'spectral' initialises square matrices; '{member.name}' is {sides}"
                    group = self.group_of.get(member.name, "")
                    spans = [init.span for init in self.typed.inits if init.name in (member.name, group)]
                    self.report.error("RNN224", message, (spans or [self.origin(parameter.name)])[0])

    def check_formulas(self, parameters: list[Parameter]) -> None:
        """A formula has the shape of what starts so. A number fills all of it."""
        for parameter in parameters:
            for member in parameter.members:
                if (formula := member.initialiser.formula) is None or not formula.shape:
                    continue
                wanted = (member.width,) if parameter.columns is None else (member.width, parameter.columns)
                blocks = diagonal_blocks(parameter.structure)
                if parameter.grid is None and formula.shape == wanted and blocks in (ONE, HEADS):
                    continue
                shown = (" x ".join(map(show, shape)) for shape in (wanted, formula.shape))
                message = "'{}' has the shape {}, and the formula {}".format(member.name, *shown)
                if parameter.grid is not None:
                    message = f"'{member.name}' is a matrix in which a state starts: it takes no formula of vectors"
                elif formula.shape == wanted:
                    message = f"'{member.name}' has blocks of its own, and takes no formula of vectors"
                group = self.group_of.get(member.name, "")
                spans = [init.span for init in self.typed.inits if init.name in (member.name, group)]
                self.report.error("RNN224", message, (spans or [self.origin(parameter.name)])[0])

    def check_attributes(self, parameters: list[Parameter]) -> None:
        """Each parameter becomes an attribute of the module, under a name that nothing else there has.
        So does each mask."""
        made = [(p.name, p.attribute, f"'{p.name}'") for p in parameters]
        made += [(p.name, f"{p.attribute}_mask", f"the mask of '{p.name}'") for p in parameters if p.sparsity]
        taken: dict[str, str] = {}
        for name, attribute, said in made:
            if reserved_attribute(attribute):
                message = f"no parameter can be called '{attribute}': every torch module has that name, or keeps it"
            elif attribute in taken:
                message = f"{said} would be the module's '{attribute}', which {taken[attribute]} is already"
            else:
                taken[attribute] = said
                continue
            self.report.error("RNN217", message, self.origin(name), "a reserved name", "choose another name")

    def origin(self, name: str) -> Span:
        """Where a parameter comes from: its declaration, its first use, or the state whose start it is."""
        spans = [param.span for param in self.typed.params if param.name == name]
        spans += [group.span for group in self.typed.groups if group.name == name and group.span != NOWHERE]
        spans += [member.span for member in self.typed.members if name in (member.group, member.name)]
        spans += [state.span for state in self.typed.states if f"{state.name}0" == name]
        return spans[0]

    def group(self, name: str, members: list[GroupMember]) -> list[Parameter]:
        """The group as one parameter, or one a gate where their columns or structures differ."""
        forms = {(self.columns(member.name), self.structures.get(member.name, DENSE)) for member in members}
        if len(forms) > 1:
            return [self.alone(member.name, member.name, self.start(member.name, name)) for member in members]
        columns, structure = forms.pop()
        rows = tuple(
            Member(member.name, self.shapes[member.name].width, self.start(member.name, name)) for member in members
        )
        attribute = _attribute(name)
        recurrent = {
            member.target for member in self.typed.members if member.written == "R" and member.name in self.read
        }
        if name == "bR" and recurrent == {member.target for member in members}:
            attribute = "bias_hh"
        return [Parameter(name, attribute, rows, columns, structure, name in _BIASES, self.types[name].sparsity)]

    def columns(self, name: str) -> Dim | None:
        shape = self.shapes[name]
        return shape.columns if shape.kind == "matrix" else None

    def alone(self, name: str, attribute: str, start: Initialiser) -> Parameter:
        row = Member(name, self.shapes[name].width, start)
        is_bias = self.group_of.get(name) in _BIASES
        sparsity = self.types[self.group_of.get(name, name)].sparsity
        return Parameter(
            name, attribute, (row,), self.columns(name), self.structures.get(name, DENSE), is_bias, sparsity
        )

    def start(self, name: str, group: str = "", default: Initialiser | None = None) -> Initialiser:
        """`init b_f` before `init b` before the default."""
        return self.inits.get(name) or self.inits.get(group) or default or self.usual(group)

    def usual(self, group: str) -> Initialiser:
        return self.types[group].initialiser if group in self.types else Initialiser()

    def check_init(self, init: Init) -> None:
        """Whether there is something of this name that can start so."""
        learned = [f"{state}0" for state in self.learned]
        known = [*self.group_of, *self.members, *(param.name for param in self.typed.params), *learned]
        if init.name not in known:
            self.unknown(init, known)
            return
        one = self.members[init.name][0].name if init.name in self.members else init.name
        if init.initialiser.is_for_matrices and (init.name in learned or self.columns(one) is None):
            message = f"'{init.initialiser.kind}' initialises matrices; '{init.name}' is a vector"
            self.report.error("RNN224", message, init.span, help=_FOR_VECTORS)

    def unknown(self, init: Init, known: list[str]) -> None:
        name, span = init.name, init.span
        if name in {group.name for group in self.typed.groups}:
            self.report.error("RNN224", f"no equation uses the group '{name}'", span)
        elif name in {member.written for member in self.typed.members}:
            help = "its factors start so that the elements of their product have the usual variance"
            self.report.error("RNN224", f"'{name}' is of low rank: it takes no 'init'", span, help=help)
        elif name in {state.name for state in self.typed.states}:
            help = f"write 'state {name} = …'; 'state {name} = learned' makes the parameter {name}0"
            self.report.error("RNN224", f"'{name}' is a state, not a parameter", span, help=help)
        elif owner := self.owner(name):
            group, target = owner
            message = f"'{name}' would be the {group} of '{target}', whose equation uses no {group}"
            help = f"use {group} in the equation of '{target}', or remove this line"
            self.report.error("RNN224", message, span, help=help)
        else:
            help = torch_parameter(name) or closest(name, known)
            self.report.error("RNN224", f"no parameter is called '{name}'", span, help=help)

    def owner(self, name: str) -> tuple[str, str] | None:
        """(group, target) where `name` is spelled like a member that no equation has."""
        for group in sorted((group.name for group in self.typed.groups), key=len, reverse=True):
            target = name.removeprefix(f"{group}_")
            if target != name and target in self.order:
                return group, target
        return None


def pack(flat: FlatCell, structures: Mapping[str, Structure], report: Report) -> tuple[Parameter, ...]:
    """All parameters of the module: W, R, b, bR, other groups, params, learned initial states. A member or param that
    no node reads is not made. Reports RNN217 for names that a module cannot have, RNN224 for initialisers that fit
    nothing."""
    return _Packer(flat, structures, report).run()
