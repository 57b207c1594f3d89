"""The types of parameters: `vector`, `scalar`, `matrix(P, H)`, `diag`, `blockdiag(n)`, `lowrank(k)`."""

from __future__ import annotations

from rnncc.ir.dim import ONE, as_int, constant
from rnncc.ir.structure import block_diagonal
from rnncc.ir.syntax import Expression, TypeDecl
from rnncc.ir.typed import ParameterType
from rnncc.language.report import Report
from rnncc.language.source import Span
from rnncc.language.spelling import closest
from rnncc.stages.check.elsewhere import OUTSIDE_TYPES, report_outside
from rnncc.stages.check.static import Statics

_TYPES = ("vector", "scalar", "matrix", "diag", "blockdiag", "sparse", "mask", "lowrank")
_LATER = ("sparse", "mask")


BUILT_IN = {
    "W": ParameterType("matrix"),
    "R": ParameterType("matrix"),
    "b": ParameterType("vector"),
    "bR": ParameterType("vector"),
}


def parameter_type(written: TypeDecl, statics: Statics, report: Report) -> ParameterType:
    """The type, or one of kind unknown after an error was reported."""
    name, arguments, span = written.name, written.arguments, written.span
    if name in _LATER:
        message = f"'{name}' weights are not supported yet"
        help = "'matrix', 'diag', 'blockdiag(n)' and 'lowrank(k)' are"
        report.error("RNN228", message, span, help=help)
        return ParameterType("unknown", span=span)
    if name not in _TYPES and name in OUTSIDE_TYPES:
        report_outside(OUTSIDE_TYPES[name], span, report)
        return ParameterType("unknown", span=span)
    if name not in _TYPES:
        report.error("RNN227", f"unknown type '{name}'", span, help=closest(name, _TYPES) or "one of: vector, scalar, "
                     "matrix, matrix(rows, columns), diag, blockdiag(n), lowrank(k)")  # fmt: skip
        return ParameterType("unknown", span=span)
    for keyword, value in written.keywords:
        report.error("RNN227", f"'{name}' takes no argument '{keyword}'", value.span)
    if name == "blockdiag":
        return _blockdiag(arguments, statics, report, span)
    if name == "lowrank":
        return _lowrank(arguments, statics, report, span)
    if name == "matrix" and len(arguments) == 2:
        rows = statics.dim(arguments[0], "the number of rows")
        columns = statics.dim(arguments[1], "the number of columns")
        return ParameterType("matrix", rows, columns, span=span)
    if arguments:
        shape = "two sizes or none" if name == "matrix" else "no arguments"
        report.error("RNN227", f"'{name}' takes {shape}", span)
    return ParameterType(name, ONE if name == "scalar" else None, span=span)


def _lowrank(arguments: tuple[Expression, ...], statics: Statics, report: Report, span: Span) -> ParameterType:
    if len(arguments) != 1:
        report.error("RNN227", "'lowrank' takes the rank", span, help="lowrank(64)")
        return ParameterType("matrix", span=span)
    return ParameterType("matrix", rank=statics.dim(arguments[0], "the rank"), span=span)


def _blockdiag(arguments: tuple[Expression, ...], statics: Statics, report: Report, span: Span) -> ParameterType:
    if len(arguments) != 1:
        report.error("RNN227", "'blockdiag' takes the number of its blocks", span, help="blockdiag(4)")
        return ParameterType("matrix", span=span)
    blocks = statics.dim(arguments[0], "the number of blocks")
    count = None if blocks is None else as_int(blocks)
    if blocks is not None and count is None:
        message = "the number of blocks must be a whole number or a constant"
        report.error("RNN220", message, arguments[0].span)
    return ParameterType("matrix", structure=block_diagonal(constant(count or 1)), span=span)
