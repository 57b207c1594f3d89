"""How `split` shares a width among its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnncc.ir import dim as dims
from rnncc.ir.dim import Dim
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.stages.check.solver import is_unknown


@dataclass(frozen=True, slots=True)
class Split:
    """`targets = split(v)`: the declared widths (None: takes an equal share of the rest) and v's width."""

    targets: tuple[str, ...]
    declared: Mapping[str, Dim | None]
    width: Dim
    written: str


def _parts(targets: list[str], rest: Dim) -> str:
    """How a width that has no equal parts is cut: into whole multiples where there are enough of them."""
    count = len(targets)
    number = dims.as_int(rest)
    multiple, base = (number, dims.constant(1)) if number is not None else dims.split_multiple(rest)
    if multiple < count:
        width = f"{count}*P"
        return (
            f"split a value whose width has {count} parts: 'dim P = 16' and 'local v: {width}', or 'state h: {width}'"
        )
    widths = (dims.scale(base, multiple - count + 1), *[base] * (count - 1))
    declared = ", ".join(f"{name}: {dims.show(width)}" for name, width in zip(targets, widths, strict=True))
    return f"declare the widths of the targets, such as 'local {declared}'"


def split_widths(split: Split, span: Span, report: Report) -> dict[str, Dim] | Reported:
    """The width of each target."""
    open_targets = [name for name in split.targets if split.declared[name] is None]
    known = {name: width for name, width in split.declared.items() if width is not None}
    if not open_targets:
        return {name: known[name] for name in split.targets}
    if is_unknown(split.width):
        message = "the width of the value that is split is not known"
        help = f"name it and declare it: 'local v: {len(split.targets)}*H'"
        return report.error("RNN222", message, span, help=help)
    rest = split.width
    for width in known.values():
        rest = dims.subtract(rest, width)
    count = len(open_targets)
    share = dims.floor_divide(rest, dims.constant(count))
    if dims.multiply(share, dims.constant(count)) != rest:
        message = f"a width of {dims.show(rest)} cannot be split into {count} equal parts"
        return report.error("RNN222", message, span, help=_parts(open_targets, rest))
    if not any(coefficient > 0 for _, coefficient in share.terms):
        message = f"nothing is left for '{open_targets[0]}': the value split has width {dims.show(split.width)}"
        return report.error("RNN222", message, span)
    return {name: known.get(name, share) for name in split.targets}
