"""What is legal and suspicious once the parts of a cell are known: warnings and notes on performance.

Each rule is one function from the parts to the report. What a rule means stands in `rnncc.language.codes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.analysis.bounds import Bounds
from rnncc.ir.cell import Contraction, Node, Placement, Pointwise, RowOp, Segment
from rnncc.ir.expr import Apply, Expr, Ref, references
from rnncc.ir.row_operator import RowOperator
from rnncc.language.diagnostics import Severity
from rnncc.language.report import Report
from rnncc.language.surrogates import DERIVATIVES
from rnncc.stages.partition.cost import WARN_SECONDS, cost, most_expensive
from rnncc.stages.partition.flat import FlatCell
from rnncc.stages.partition.place import Placed
from rnncc.stages.partition.segments import CellParts, depths


@dataclass(frozen=True, slots=True)
class _Subject:
    """A cell's parts, and the cell before anything was hoisted (`flat`): its nodes are those of the text."""

    flat: FlatCell
    placed: Placed
    parts: CellParts

    def reads_state(self, expr: Expr) -> bool:
        """Whether an expression depends on a state."""
        placed = self.placed
        return any(placed.last_segment.get(name, placed.owner.get(name, -1)) >= 0 for name in references(expr))


def _conventions(subject: _Subject, report: Report) -> None:
    """R belongs to states, W to inputs."""
    groups = {member.name: member.written for member in subject.flat.typed.members}
    for node in subject.flat.nodes.values():
        if not isinstance(node, Contraction):
            continue
        group, recurrent = groups.get(node.matrix), subject.placed.last_segment.get(node.operand, -1) >= 0
        if group == "R" and not recurrent:
            report.warn("RNN256", "'R' stands before a value that no state reaches", node.span, help="write 'W'")
        if group == "W" and recurrent:
            message = "'W' stands before a value that depends on a state: the cell has one head only"
            help = "write 'R', or declare a group: 'weights V: matrix'"
            report.warn("RNN257", message, node.span, help=help)


def _unbounded_exp(subject: _Subject, report: Report) -> None:
    # What a user passes beside x is a time, a gap or a gate as a rule: it is taken to be non-negative, so that a decay
    # `exp(-softplus(lam)*gap)` is quiet.
    beside_x = frozenset(given.name for given in subject.flat.typed.inputs[1:])

    bounds = Bounds(subject.parts.segments, subject.placed.placement, subject.parts.prologue, beside_x)
    for segment in subject.parts.segments:
        factors = _factors_of_states(segment, subject)
        for node in segment.nodes:
            for part in _applications(node):
                # What inputs alone make does not grow from step to step, unless it scales a state.
                if part.operator != "exp" or not (subject.reads_state(part) or part in factors):
                    continue
                if not bounds.of(part.arguments[0]).above:
                    report.warn(
                        "RNN259",
                        f"exp of an unbounded value in the loop, in the equation of '{_owner(node)}'",
                        node.span,
                        help="bound its argument: 'exp(min(v, 10))'; where such values are divided by each other, as "
                        "in sLSTM, subtract a running maximum",
                    )


def _factors_of_states(segment: Segment, subject: _Subject) -> set[Apply]:
    """The exps of inputs alone, and of parameters, by which a loop scales what depends on a state."""
    exprs = {node.target: node.expr for node in segment.nodes if isinstance(node, Pointwise)}
    products = [part for node in segment.nodes for part in _applications(node) if part.operator in ("mul", "div")]
    waiting = [
        factor
        for product in products
        if subject.reads_state(product)
        for factor in product.arguments
        if not subject.reads_state(factor)
    ]
    found: set[Apply] = set()
    seen: set[str] = set()
    while waiting:
        expr = waiting.pop()
        found |= {part for part in _inner(expr) if part.operator == "exp"}
        read = set(references(expr)) - seen
        seen |= read
        waiting += [exprs[name] for name in read if name in exprs]
    return found


def _division(subject: _Subject, report: Report) -> None:
    states = subject.flat.typed.states
    zero = {f"{state.name}__1": state for state in states if state.initial == 0 or state.diagonal}
    for node in subject.flat.nodes.values():
        for part in _applications(node):
            if part.operator != "div":
                continue
            for factor in _factors(part.arguments[1]):
                if isinstance(factor, Ref) and factor.name in zero:
                    state = zero[factor.name]
                    which = "has zeros" if state.diagonal else "is 0"
                    message = f"division by the state '{state.name}', whose initial value {which}"
                    help = f"give it another initial value, or bound it: 'max({state.name}[t-1], 1)'"
                    report.warn("RNN260", message, node.span, help=help)


def _factors(expr: Expr) -> Iterator[Expr]:
    """What is multiplied: if one is 0, so is the product."""
    match expr:
        case Apply("mul" | "neg" | "abs" | "sqrt", arguments):
            for argument in arguments:
                yield from _factors(argument)
        case Apply("div" | "pow", (base, _)):
            yield from _factors(base)
        case _:
            yield expr


def _cost(subject: _Subject, report: Report) -> None:
    found = cost(subject.parts.segments)
    if found.seconds >= WARN_SECONDS:
        report.warn("RNN264", f"the loops hold {found}", most_expensive(subject.parts.segments))


def _phases(subject: _Subject, report: Report) -> None:
    for segment in subject.parts.segments:
        depth = depths(segment.nodes)
        waiting = (node for node in segment.nodes if isinstance(node, Contraction) and depth[node.target] == 2)
        if (node := next(waiting, None)) is not None:
            message = f"a step has {segment.phases} phases: this product waits for another one"
            report.warn("RNN271", message, node.span, severity=Severity.NOTE)


def _reductions(subject: _Subject, report: Report) -> None:
    layout = (RowOperator.SLICE, RowOperator.CONCAT, RowOperator.REPEAT, RowOperator.ROLL, RowOperator.SHIFT)
    for segment in subject.parts.segments:
        for node in segment.nodes:
            # What adds up rows or columns of a matrix goes through all of it anyway.
            reduces = isinstance(node, RowOp) and node.grid is None and node.operator not in layout
            if reduces and subject.placed.placement.get(node.target) is Placement.S:
                message = f"the equation of '{_owner(node)}' reduces over the units at every step"
                report.warn("RNN272", message, node.span, severity=Severity.NOTE)
                break


def _owner(node: Node) -> str:
    """The user's name of the equation that a node was made from."""
    return node.target.partition("__")[0]


def _applications(node: Node) -> Iterator[Apply]:
    if isinstance(node, Pointwise):
        yield from _inner(node.expr)


def _inner(expr: Expr) -> Iterator[Apply]:
    if isinstance(expr, Apply):
        yield expr
        # A derivative that the text gives is what its author wants it to be.
        for argument in expr.arguments[:2] if expr.operator in DERIVATIVES else expr.arguments:
            yield from _inner(argument)


_RULES = (_conventions, _unbounded_exp, _division, _cost, _phases, _reductions)


def lint(flat: FlatCell, placed: Placed, parts: CellParts, report: Report) -> None:
    """Add warnings and notes to the report. `flat`: the cell before anything was hoisted."""
    for rule in _RULES:
        rule(_Subject(flat, placed, parts), report)
