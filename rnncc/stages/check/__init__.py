"""`check`: is the text meaningful? A cell as it was written becomes a cell whose names, sizes and types are known.

Input: CellDecl, and other values for its constants. Output: Typed, and warnings. Fails with: RnnccError holding every
RNN2xx error that is found before anything is placed (`partition` finds the others).

The passes, each in its module: declare, expand, unroll, resolve, order, shapes; lints looks for what is legal and
suspicious.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rnncc.ir.cell import Constant, Input, Size, State
from rnncc.ir.dim import constant, number_of
from rnncc.ir.structure import DENSER
from rnncc.ir.syntax import CellDecl, ConstDecl
from rnncc.ir.typed import Group, Init, Param, Typed, written
from rnncc.language.diagnostics import Diagnostic, Label
from rnncc.language.greek import clashes
from rnncc.language.report import Report
from rnncc.language.source import NOWHERE
from rnncc.language.spelling import closest
from rnncc.stages.check.declare import Symbols, declare
from rnncc.stages.check.expand import expand
from rnncc.stages.check.lints import lint
from rnncc.stages.check.order import order
from rnncc.stages.check.resolve import Resolved, resolve
from rnncc.stages.check.shapes import Shapes, infer
from rnncc.stages.check.unroll import unroll

Constants = Mapping[str, int | float | str]


def constants_of(declarations: Sequence[CellDecl], constants: Constants) -> tuple[Constants, ...]:
    """The share of each cell of a text in the constants given for all of them."""
    names = [{item.name for item in cell.statements if isinstance(item, ConstDecl)} for cell in declarations]
    known = frozenset[str]().union(*names)
    # A name that no cell has is every cell's mistake.
    return tuple({name: constants[name] for name in constants if name in own or name not in known} for own in names)


def check(decl: CellDecl, constants: Constants) -> tuple[Typed, tuple[Diagnostic, ...]]:
    """The typed cell and its warnings (then performance notes); see the module's docstring."""
    report = Report(decl.source)
    _spelled_alike(decl, report)
    symbols = declare(decl, constants, report)
    instances = unroll(expand(decl, symbols, report), symbols, report)
    resolved = resolve(instances, symbols, report)
    output = _output(decl, symbols, resolved, report)
    _states_written(symbols, resolved, report)
    # What is outside the language has no widths. Other errors may come of it, and it helps nobody to mend them first.
    report.stop_at("RNN229", "RNN240")
    ordered, early = order(resolved.equations, resolved.value_delays, report)
    resolved = replace(resolved, wrong=early | resolved.wrong)
    shapes = infer(ordered, resolved, symbols, report)
    report.stop_at("RNN229", "RNN240")
    if output in shapes.values and shapes.values[output].is_matrix:
        _matrix_output(output, symbols, report)
    report.stop()
    cell = _typed(decl, symbols, resolved, shapes, output)
    lint(cell, decl, symbols, report)
    return cell, report.warnings


def _spelled_alike(decl: CellDecl, report: Report) -> None:
    for clash in clashes(decl.source, decl.span):
        message = f"'{clash.second}' and '{clash.first}' are two spellings of one name"
        note = Label(clash.first_span, f"'{clash.first}' stands here")
        help = "a Greek letter is called by its English name in what is generated: rename one of them"
        report.error("RNN219", message, clash.second_span, help=help, notes=(note,))


def _output(decl: CellDecl, symbols: Symbols, resolved: Resolved, report: Report) -> str:
    """The value that the layer returns: the declared output, else the first state."""
    first = next(iter(symbols.states), "")
    if symbols.output is None:
        return first
    name, span = symbols.output.name, symbols.output.span
    targets = {equation.target for equation in resolved.equations}
    if name in symbols.states or name in targets:
        return name
    if name in symbols.kinds and symbols.kinds[name] != "local":
        message = f"the output '{name}' is {symbols.kinds[name]}: it must be a state or a value of an equation"
        report.error("RNN232", message, span)
    else:
        help = closest(name, targets | set(symbols.states)) or f"write '{name} = …'"
        report.error("RNN202", f"no equation defines the output '{name}'", span, help=help)
    return first


def _matrix_output(output: str, symbols: Symbols, report: Report) -> None:
    """Report an output that is a matrix: a declared one, or the first state."""
    span = symbols.spans.get(output, NOWHERE) if symbols.output is None else symbols.output.span
    message = f"the output '{output}' is a matrix: a layer returns a vector at each step"
    help = f"declare another, 'output y', and read the matrix: 'y = {output}[t]@q'"
    report.error("RNN232", message, span, "a matrix", help)


def _states_written(symbols: Symbols, resolved: Resolved, report: Report) -> None:
    targets = {equation.target for equation in resolved.equations}
    for name, state in symbols.states.items():
        if name not in targets:
            help = f"write '{name}[t] = …'"
            if f"{name}_t" in targets:
                help += f" in place of '{name}_t = …'"
            report.error("RNN205", f"no equation updates the state '{name}'", state.span, "never updated", help)


def _typed(decl: CellDecl, symbols: Symbols, resolved: Resolved, shapes: Shapes, output: str) -> Typed:
    values, constants = shapes.values, symbols.constants.items()
    types = [*symbols.groups.values(), *(param.type for param in symbols.params.values())]
    return Typed(
        name=decl.name,
        inputs=tuple(
            Input(
                name,
                values[name].width,
                given.span,
                default=symbols.defaults.get(name),
                per_sequence=name in symbols.per_sequence,
                grid=symbols.grids.get(name),
            )
            for name, given in symbols.inputs.items()
        ),
        states=tuple(
            State(
                name,
                values[name].laid_out.width,
                symbols.initial[name],
                span=state.span,
                grid=values[name].laid_out.grid,
                diagonal=name in symbols.diagonal,
            )
            for name, state in symbols.states.items()
        ),
        sizes=tuple(
            Size(name, default, shapes.solved.get(name), span) for name, (default, span) in symbols.dims.items()
        )
        + tuple(Size(made.size, None, made.rank, symbols.spans[name]) for name, made in symbols.low_rank.items())
        + ((Size(DENSER, constant(0)),) if any(type_.sparsity for type_ in types) else ()),
        constants=(
            *(Constant(name, c.value, name in symbols.statics.shaping, c.span) for name, c in constants),
            *(Constant(number_of(name), 0, False, span, name) for name, span in resolved.sizes.items()),
        ),
        groups=tuple(
            Group(name, type_, symbols.spans.get(written(name), NOWHERE)) for name, type_ in symbols.groups.items()
        ),
        members=tuple(resolved.members.values()),
        params=tuple(Param(name, p.type, p.initialiser, p.trained, p.span) for name, p in symbols.params.items()),
        inits=tuple(Init(name, initialiser, span) for name, (initialiser, span) in symbols.inits.items()),
        equations=shapes.equations,
        state_delays=resolved.state_delays,
        value_delays=resolved.value_delays,
        shapes=values,
        constraints=shapes.constraints,
        divisible=shapes.divisible,
        input_dims=shapes.input_dims,
        output=output,
        comment=decl.comment,
        source=decl.source,
    )
