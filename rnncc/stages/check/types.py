"""The types of parameters: `vector`, `vector(P)`, `scalar`, `matrix(P, H)`, `diag`, `blockdiag(n)`, `lowrank(k)`,
`sparse(density=d)`, `mask`."""

from __future__ import annotations

from rnncc.ir.dim import ONE, as_int, constant
from rnncc.ir.structure import Sparsity, block_diagonal
from rnncc.ir.syntax import Expression, Lambda, TypeDecl
from rnncc.ir.typed import ParameterType
from rnncc.language.outside import OUTSIDE_TYPES
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import closest
from rnncc.language.words import TYPES
from rnncc.stages.check.elsewhere import report_outside
from rnncc.stages.check.static import Statics

_ANY_TYPE = (
    "one of: vector, vector(width), scalar, matrix, matrix(rows, columns), diag, blockdiag(n), lowrank(k), "
    "sparse(density=d), mask"
)

BUILT_IN = {
    "W": ParameterType("matrix"),
    "R": ParameterType("matrix"),
    "b": ParameterType("vector"),
    "bR": ParameterType("vector"),
}


def parameter_type(written: TypeDecl, statics: Statics, report: Report) -> ParameterType | Reported:
    """The type."""
    name, arguments, span = written.name, written.arguments, written.span
    if name not in TYPES and name in OUTSIDE_TYPES:
        return report_outside(OUTSIDE_TYPES[name], span, report)
    if name not in TYPES:
        buffer = "what is not trained has a statement of its own: 'buffer M: matrix = orthogonal'"
        help = buffer if name in ("buffer", "frozen", "fixed") else closest(name, TYPES) or _ANY_TYPE
        return report.error("RNN227", f"unknown type '{name}'", span, help=help)
    if name in ("sparse", "mask"):
        return ParameterType("matrix", sparsity=_sparsity(written, statics, report), span=span)
    if written.keywords:
        keyword, value = written.keywords[0]
        return report.error("RNN227", f"'{name}' takes no argument '{keyword}'", value.span)
    if name == "blockdiag":
        return _blockdiag(arguments, statics, report, span)
    if name == "lowrank":
        return _lowrank(arguments, statics, report, span)
    if name == "matrix" and len(arguments) == 2:
        rows = statics.dim(arguments[0], "the number of rows")
        columns = statics.dim(arguments[1], "the number of columns")
        if isinstance(rows, Reported):
            return rows
        if isinstance(columns, Reported):
            return columns
        return ParameterType("matrix", rows, columns, span=span)
    if name == "vector" and len(arguments) == 1:
        width = statics.dim(arguments[0], "the width")
        return width if isinstance(width, Reported) else ParameterType("vector", width, span=span)
    if arguments:
        shape = {"matrix": "two sizes or none", "vector": "one size or none"}.get(name, "no arguments")
        return report.error("RNN227", f"'{name}' takes {shape}", span)
    return ParameterType(name, ONE if name == "scalar" else None, span=span)


def _lowrank(
    arguments: tuple[Expression, ...], statics: Statics, report: Report, span: Span
) -> ParameterType | Reported:
    if len(arguments) != 1:
        return report.error("RNN227", "'lowrank' takes the rank", span, help="lowrank(64)")
    rank = statics.dim(arguments[0], "the rank")
    return rank if isinstance(rank, Reported) else ParameterType("matrix", rank=rank, span=span)


def _sparsity(written: TypeDecl, statics: Statics, report: Report) -> Sparsity:
    """`sparse(density=0.1)`, `sparse(density=0.1, block=16)`, `mask`, `mask(density=0.1)`."""
    name, drawn = written.name, written.name == "sparse"
    example = "sparse(density=0.1)" if drawn else "mask, or mask(density=0.1)"
    if written.arguments or (drawn and "density" not in dict(written.keywords)):
        report.error("RNN227", f"'{name}' takes a density", written.span, help=example)
        return Sparsity(1.0, drawn=drawn)
    density, block = 1.0, 1
    given_before: set[str] = set()
    for keyword, value in written.keywords:
        if keyword in given_before:
            report.error("RNN227", f"the argument '{keyword}' of '{name}' is given twice", value.span)
        given_before.add(keyword)
        if isinstance(value, Lambda):
            report.error("RNN227", f"'{keyword}' is a number", value.span, help=example)
            continue
        match keyword:
            case "density":
                given = statics.number(value, {}, "the density")
                if isinstance(given, Reported):
                    continue
                if not 0 < given <= 1:
                    report.error("RNN227", f"a density lies above 0, up to 1, not at {given}", value.span, help=example)
                else:
                    density = float(given)
            case "block":
                size = statics.integer(value, {}, "the size of blocks")
                if isinstance(size, Reported):
                    continue
                if size < 1:
                    report.error("RNN227", f"a block has at least one row, not {size}", value.span)
                block = max(size, 1)
            case _:
                report.error("RNN227", f"'{name}' takes no argument '{keyword}'", value.span, help=example)
    return Sparsity(density, block, drawn)


def _blockdiag(
    arguments: tuple[Expression, ...], statics: Statics, report: Report, span: Span
) -> ParameterType | Reported:
    if len(arguments) != 1:
        return report.error("RNN227", "'blockdiag' takes the number of its blocks", span, help="blockdiag(4)")
    blocks = statics.dim(arguments[0], "the number of blocks")
    if isinstance(blocks, Reported):
        return blocks
    count = as_int(blocks)
    if count is None:
        message = "the number of blocks must be a whole number or a constant"
        return report.error("RNN220", message, arguments[0].span)
    return ParameterType("matrix", structure=block_diagonal(constant(count)), span=span)
