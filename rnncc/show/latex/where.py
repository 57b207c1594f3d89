"""The sentences below the equations: what the symbols are, how wide, with which structure, and how they start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.cell import Initialiser, State
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.structure import BlockDiagonal, Dense
from rnncc.ir.syntax import Call, ConstDecl, Keyword, Name
from rnncc.ir.typed import Group, GroupMember, Param, ParameterType
from rnncc.show.latex.equations import surrogates
from rnncc.show.latex.expression import ANY_GATE, Writer, number
from rnncc.show.latex.functions import AROUND, MEANINGS, SURROGATES, function_name
from rnncc.show.latex.names import name, size
from rnncc.show.latex.pieces import text
from rnncc.show.latex.scope import Names


@dataclass(frozen=True, slots=True)
class Where:
    """Writes the sentences of one cell. `used`: the functions of its equations."""

    names: Names
    used: set[str]

    def sentences(self) -> Iterator[str]:
        """One after the other, without a full stop."""
        yield "; ".join([*self._inputs(), *self._states(), self._output()])
        if trained := self._parameters(trained=True):
            yield "Trained: " + "; ".join(trained)
        if fixed := self._parameters(trained=False):
            yield "Fixed: " + "; ".join(fixed)
        yield from self._callers()
        if constants := list(self._constants()):
            yield "Constants: " + ", ".join(constants)
        yield from self._heads()
        yield from self._derivatives()
        if meanings := list(self._meanings()):
            yield "Here " + "; ".join(meanings)

    def _writer(self) -> Writer:
        return Writer(self.names, ANY_GATE)

    def _inputs(self) -> Iterator[str]:
        for place, given in enumerate(self.names.typed.inputs):
            time = () if given.per_sequence else (text("t", 0.4),)
            words = "is the input" if place == 0 else "is an input"
            if given.per_sequence:
                words += ", the same at all steps"
            start = "" if given.default is None else f" (${number(given.default).tex}$ where it is not given)"
            space = _space(given.width) if given.grid is None else _space(*given.grid.sides)
            yield f"${name(given.name, *time, bold=given.grid is not None).tex} \\in {space}$ {words}{start}"

    def _states(self) -> Iterator[str]:
        alike: dict[tuple[str, str], list[str]] = {}
        for state in self.names.typed.states:
            start = _begin(state)
            space = _space(state.width) if state.grid is None else _space(*state.grid.sides)
            alike.setdefault((space, start), []).append(state.name)
        bold = self.names.matrices
        for (space, start), states in alike.items():
            listed = "$, $".join(name(state, text("t", 0.4), bold=state in bold).tex for state in states)
            verb = "is a state" if len(states) == 1 else "are states"
            first = [name(state, text("0", 0.5), bold=state in bold).tex for state in states]
            begins = "with a trained start" if start == "trained" else f"with ${' = '.join([*first, start])}$"
            yield f"${listed} \\in {space}$ {verb} {begins}"

    def _output(self) -> str:
        return f"the output is ${name(self.names.typed.output, text('t', 0.4)).tex}$"

    def _parameters(self, trained: bool) -> list[str]:
        found = []
        for group in self.names.typed.groups if trained else ():
            members = [each for each in self.names.typed.members if each.group == group.name]
            if members and not group.name.endswith("__v"):
                found.append(self._group(group, members))
        for param in self.names.typed.params:
            if param.trained is trained:
                found.append(self._param(param))
        return found

    def _group(self, group: Group, members: list[GroupMember]) -> str:
        """`$W_i, W_f \\in …$`; a matrix of low rank is the product of its factors."""
        shapes = {self.names.typed.shapes[each.name] for each in members}
        written = members[0].written
        symbols = [self._member(each) for each in members]
        if len(symbols) > 4 and len(shapes) == 1:
            symbols = [self._writer().parameter(written, ANY_GATE, None).tex]
        if len(shapes) > 1:
            said = "$, $".join(f"{self._member(each)} \\in {self._shape(each.name)}" for each in members)
        else:
            said = f"{'$, $'.join(symbols)} \\in {self._shape(members[0].name)}"
        notes = []
        if group.name.endswith("__u"):
            said = f"{'$, $'.join(symbols)} \\in {self._low_rank(members[0])}"
            notes.append(f"of rank ${self._rank(members[0])}$, products of two factors")
        notes += _structured(group.type)
        for init in self.names.typed.inits:
            if init.name in {written, *(each.name for each in members)}:
                of = "" if init.name == written else f"${self._writer().write(Name(init.name)).tex}$ "
                notes.append(of + _start(init.initialiser))
        return f"${said}${_noted(notes)}"

    def _member(self, member: GroupMember) -> str:
        return self._writer().write(Name(f"{member.written}_{member.target}")).tex

    def _low_rank(self, left: GroupMember) -> str:
        """The set of matrices that a product of two factors is in."""
        typed = self.names.typed
        right = typed.shapes[f"{left.written}__v_{left.target}"]
        rows = typed.shapes[left.name].width
        assert right.columns is not None
        return _space(rows, right.columns)

    def _rank(self, left: GroupMember) -> str:
        rank = next(each.solved for each in self.names.typed.sizes if each.name == dims.rank_of(left.written))
        assert rank is not None
        return size(dims.substitute(rank, {"num_heads": ONE}))

    def _param(self, param: Param) -> str:
        notes = _structured(param.type)
        if param.initialiser.kind != "default":
            notes.append(_start(param.initialiser))
        return f"${name(param.name).tex} \\in {self._shape(param.name)}${_noted(notes)}"

    def _shape(self, parameter: str) -> str:
        shape = self.names.typed.shapes[parameter]
        return _space(shape.width, shape.columns if shape.kind == "matrix" else None)

    def _callers(self) -> Iterator[str]:
        for function in sorted(self.names.gated):
            targets = ", ".join(name(target.name).tex for target in self.names.callers(function))
            yield f"${function_name(function).tex}_*$ has parameters of its own for $* \\in \\{{{targets}\\}}$"

    def _constants(self) -> Iterator[str]:
        for statement in self.names.written.statements:
            if isinstance(statement, ConstDecl):
                of = statement.name in self.names.functions
                written = function_name(statement.name) if of else name(statement.name)
                value = self._writer().write(statement.value)
                if of and isinstance(statement.value, Name):
                    self.used.add(statement.value.name)
                    value = self.names.function(statement.value.name)
                yield f"${written.tex} = {value.tex}$"
        for given in self.names.typed.sizes:
            # The compiler's own sizes hold a double underscore.
            if given.default is not None and "__" not in given.name:
                yield f"${name(given.name).tex} = {size(given.default)}$"

    def _heads(self) -> Iterator[str]:
        if any("num_heads" in dims.names(shape.width) for shape in self.names.typed.shapes.values()):
            yield (
                "A layer has $N$ heads: matrices on states are block diagonal, with a block for each head, and sums, "
                "means, norms and the like are taken head by head"
            )

    def _derivatives(self) -> Iterator[str]:
        for targets, call in surrogates(self.names):
            grad = dict(call.keywords)["grad"]
            around = AROUND.get(call.function)
            shown = r" \cdot ".join(around) if around else self.names.function(call.function).tex
            bold = self.names.matrices
            where = ", ".join(name(each.name, text("t", 0.4), bold=each.name in bold).tex for each in targets)
            place = f" in ${where}$" if targets else ""
            yield f"The gradient takes the derivative of ${shown}${place} to be ${self._derivative(grad)}$"

    def _derivative(self, grad: Keyword) -> str:
        if isinstance(grad, Call) and grad.function in SURROGATES:
            return SURROGATES[grad.function].format(k=self._writer().write(grad.arguments[0]).tex)
        return self._writer().keyword(grad).tex

    def _meanings(self) -> Iterator[str]:
        for function in sorted(self.used & set(MEANINGS)):
            yield MEANINGS[function].format(self.names.function(function).tex)


def _begin(state: State) -> str:
    """What a state starts at; the identity is written as in equations."""
    if state.initial is None:
        return "trained"
    shown = number(state.initial).tex
    if state.diagonal and state.grid is not None:
        identity = f"\\mathrm{{I}}_{{{size(state.grid.rows)}}}"
        return identity if state.initial == 1 else f"{shown} \\, {identity}"
    return shown


def _space(width: Dim, columns: Dim | None = None) -> str:
    """`\\mathbb{R}^{H \\times I}`."""
    if columns is not None:
        return f"\\mathbb{{R}}^{{{size(width)} \\times {size(columns)}}}"
    return r"\mathbb{R}" if width == ONE else f"\\mathbb{{R}}^{{{size(width)}}}"


def _structured(type_: ParameterType) -> list[str]:
    """What is said of a matrix beyond its shape."""
    notes = ["diagonal"] if type_.kind == "diag" else []
    match type_.structure:
        case Dense():
            pass
        case BlockDiagonal(blocks):
            of = "a block for each head" if blocks == HEADS else f"${size(blocks)}$ blocks"
            notes.append(f"block diagonal, {of}")
        case _:
            assert_never(type_.structure)
    if (sparsity := type_.sparsity) is not None:
        kind = "sparse" if sparsity.drawn else "with a mask"
        blocked = "" if sparsity.block == 1 else f", in blocks of ${sparsity.block} \\times {sparsity.block}$"
        density = "" if sparsity.density == 1 else f", of density ${number(sparsity.density).tex}$"
        notes.append(kind + density + blocked)
    return notes


def _noted(notes: list[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def _start(initialiser: Initialiser) -> str:
    """How a parameter starts: `starts at $1$`, `starts as $U(0, 1)$`, `starts orthogonal`."""
    values = ", ".join(number(value).tex for value in initialiser.values)
    match initialiser.kind:
        case "constant":
            return f"starts at ${values}$"
        case "uniform":
            return f"starts as $\\mathcal{{U}}({values})$"
        case "normal":
            mean, deviation = (number(value).tex for value in initialiser.values)
            return f"starts as $\\mathcal{{N}}({mean}, {deviation}^2)$"
        case "formula" if initialiser.formula is not None:
            written = initialiser.formula.text.replace("_", r"\_")
            return f"starts at \\texttt{{{written}}}"
        case "eye":
            return "starts as the identity"
        case "spectral":
            return f"starts normal, scaled to the spectral radius ${values}$"
        case other:
            return f"starts {other.replace('_', ' ')}"


def joined(sentences: Iterable[str]) -> str:
    """The sentences as lines of a paragraph."""
    return "\n".join(f"{sentence}." for sentence in sentences)
