"""`check`: a cell as it was written becomes a cell whose names, sizes, parameters and parts are known.

Input: CellDecl, and other values for constants (`shaping`). Output: Cell, and warnings. `check_all` takes all cells of
a text. Fails with: RnnccError holding every RNN2xx error.

The passes, each in its module: declare, unroll, resolve, order, shapes, flatten, place, heads, families, locate,
hoist, segments; lints looks for what is legal and suspicious.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnncc.ir.cell import Cell
from rnncc.ir.syntax import CellDecl, ConstDecl
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.stages.check.assemble import assemble
from rnncc.stages.check.declare import Symbols, declare
from rnncc.stages.check.order import order
from rnncc.stages.check.report import Report, closest
from rnncc.stages.check.resolve import Resolved, resolve
from rnncc.stages.check.shapes import infer
from rnncc.stages.check.unroll import unroll


def check_all(
    declarations: Sequence[CellDecl], constants: Mapping[str, int | float | str]
) -> tuple[tuple[Cell, ...], tuple[tuple[Diagnostic, ...], ...]]:
    """The checked cells of a text, and the warnings of each. A constant's value goes to the cells that have it. Raises
    RnnccError with the errors of all cells."""
    checked: list[tuple[Cell, tuple[Diagnostic, ...]]] = []
    errors: list[Diagnostic] = []
    names = [{item.name for item in cell.statements if isinstance(item, ConstDecl)} for cell in declarations]
    known = frozenset[str]().union(*names)
    for declaration, own in zip(declarations, names, strict=True):
        # A name that no cell has is every cell's mistake.
        given = {name: value for name, value in constants.items() if name in own or name not in known}
        try:
            checked.append(check(declaration, given))
        except RnnccError as error:
            errors += error.diagnostics
    if errors:
        raise RnnccError(*errors)
    return tuple(cell for cell, _ in checked), tuple(warnings for _, warnings in checked)


def check(decl: CellDecl, shaping: Mapping[str, int | float | str] = {}) -> tuple[Cell, tuple[Diagnostic, ...]]:
    """The checked cell and its warnings (then performance notes); see the module's docstring."""
    report = Report(decl.source)
    symbols = declare(decl, shaping, report)
    instances = unroll(decl, symbols, report)
    resolved = resolve(instances, symbols, report)
    output = _output(decl, symbols, resolved, report)
    _states_written(symbols, resolved, report)
    ordered = order(resolved.equations, report)
    shapes = infer(ordered, resolved, symbols, report)
    report.stop()
    cell = assemble(decl, resolved, shapes, symbols, output, report)
    report.stop()
    return cell, report.warnings


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


def _states_written(symbols: Symbols, resolved: Resolved, report: Report) -> None:
    targets = {equation.target for equation in resolved.equations}
    for name, state in symbols.states.items():
        if name not in targets:
            help = f"write '{name}[t] = …'"
            report.error("RNN205", f"no equation updates the state '{name}'", state.span, "never updated", help)
