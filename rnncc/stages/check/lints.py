"""What is legal and suspicious: warnings and performance notes.

Each rule is one function from the checked cell's parts to the report. What a rule means stands in
`rnncc.language.codes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rnncc.analysis.bounds import Bounds
from rnncc.ir.cell import Constraint, Contraction, Node, Placement, Pointwise, RowOp, RowOperator, Segment, operands
from rnncc.ir.dim import show
from rnncc.ir.expr import Apply, Expr, Ref
from rnncc.language.diagnostics import Severity
from rnncc.language.source import Span
from rnncc.stages.check.cost import WARN_SECONDS, cost, most_expensive
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.fold import leaves_the_numbers
from rnncc.stages.check.place import Placed, Program
from rnncc.stages.check.report import Report
from rnncc.stages.check.resolve import Resolved
from rnncc.stages.check.terms import Equation, Op, Product, Val, names, walk


@dataclass(frozen=True, slots=True)
class Subject:
    """A checked cell: `mentioned` are all names in its text, `live` the equations that something depends on,
    `constraints` what its widths ask of the sizes."""

    resolved: Resolved
    symbols: Symbols
    program: Program
    prologue: tuple[Node, ...]
    segments: tuple[Segment, ...]
    placed: Placed
    mentioned: frozenset[str]
    live: tuple[Equation, ...]
    constraints: tuple[Constraint, ...]


def live_equations(resolved: Resolved, roots: tuple[str, ...]) -> tuple[Equation, ...]:
    """The equations that the states or the output depend on."""
    by_target = {equation.target: equation for equation in resolved.equations}
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in by_target and name not in seen:
            seen.add(name)
            waiting += names(by_target[name].term)
    return tuple(equation for equation in resolved.equations if equation.target in seen)


def _unused_values(subject: Subject, report: Report) -> None:
    live = {equation.target for equation in subject.live}
    for equation in subject.resolved.equations:
        if equation.target not in live:
            message = f"'{equation.written}' is never used"
            report.warn("RNN251", message, equation.target_span, "nothing depends on it")


def _unused_declarations(subject: Subject, report: Report) -> None:
    symbols = subject.symbols
    read = {name for equation in subject.live for name in names(equation.term)}
    families = {subject.resolved.members[name].family for name in read if name in subject.resolved.members}
    targets = {equation.written.partition("[")[0] for equation in subject.resolved.equations}
    for name, span in symbols.spans.items():
        kind = symbols.kinds[name]
        unused = {
            "param": name not in read,
            "family": name not in families,
            "constant": name not in subject.mentioned,
            "dim": name not in subject.mentioned,
            "local": name not in targets,
        }
        if unused.get(kind):
            report.warn("RNN252", f"the {kind} '{name}' is never used", span)


def _unused_inputs(subject: Subject, report: Report) -> None:
    read = {name.partition("__")[0] for equation in subject.live for name in names(equation.term)}
    for name, given in subject.symbols.inputs.items():
        if name not in read:
            span = given.span if given.span.end else next(iter(subject.symbols.states.values())).span
            report.warn("RNN253", f"the input '{name}' is never used", span)


def _states_and_output(subject: Subject, report: Report) -> None:
    program, placed, symbols = subject.program, subject.placed, subject.symbols
    if placed.last.get(program.output, -1) < 0:
        span = symbols.output.span if symbols.output else next(iter(symbols.states.values())).span
        report.warn("RNN255", f"the output '{program.output}' depends on no state", span)
        return
    seen: set[str] = set()
    waiting = [program.output]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in program.nodes:
            waiting += operands(program.nodes[name])
        elif name.endswith("__1") and name[:-3] in program.nodes:
            waiting.append(name[:-3])
    for name, state in symbols.states.items():
        if name not in seen:
            message = f"the state '{name}' never reaches the output '{program.output}'"
            report.warn("RNN254", message, state.span)


def _conventions(subject: Subject, report: Report) -> None:
    """R belongs to states, W to inputs."""
    for node in _of_kind(subject.program.nodes):
        member = subject.resolved.members.get(node.matrix)
        recurrent = subject.placed.last.get(node.operand, -1) >= 0
        if member is not None and member.family == "R" and not recurrent:
            report.warn("RNN256", "'R' stands before a value that no state reaches", node.span, help="write 'W'")
        if member is not None and member.family == "W" and recurrent:
            message = "'W' stands before a value that depends on a state: the cell has one head only"
            help = "write 'R', or declare a family: 'weights V: matrix'"
            report.warn("RNN257", message, node.span, help=help)


def _of_kind(nodes: Mapping[str, Node]) -> Iterator[Contraction]:
    for node in nodes.values():
        if isinstance(node, Contraction):
            yield node


def _missing_bias(subject: Subject, report: Report) -> None:
    members = subject.resolved.members
    for equation in subject.live:
        matrices = [part.matrix for part in walk(equation.term) if isinstance(part, Product)]
        own = {members[m.name].family for m in matrices if isinstance(m, Val) and m.name in members}
        read = {members[name].family for name in names(equation.term) if name in members}
        if own & {"W", "R"} and "b" not in read:
            report.warn("RNN258", f"the equation of '{equation.written}' has no bias", equation.target_span)


def _unbounded_exp(subject: Subject, report: Report) -> None:
    # What a user passes beside x is a time, a gap or a gate as a rule: it is taken to be non-negative, so that a decay
    # `exp(-softplus(lam)*gap)` is quiet.
    bounds = Bounds(
        subject.segments,
        subject.placed.placement,
        subject.prologue,
        frozenset(name for name in subject.symbols.inputs if name != "x"),
    )
    for segment in subject.segments:
        for node in segment.nodes:
            for part in _applications(node):
                if part.operator == "exp" and not bounds.of(part.arguments[0]).above:
                    report.warn(
                        "RNN259",
                        f"exp of an unbounded value in the loop, in the equation of '{_owner(node)}'",
                        node.span,
                        help="subtract a running maximum, as sLSTM does, or bound the argument",
                    )


def _division(subject: Subject, report: Report) -> None:
    zero = {f"{name}__1": name for name, initial in subject.symbols.initial.items() if initial == 0}
    for node in subject.program.nodes.values():
        for part in _applications(node):
            if part.operator != "div":
                continue
            for factor in _factors(part.arguments[1]):
                if isinstance(factor, Ref) and factor.name in zero:
                    state = zero[factor.name]
                    message = f"division by the state '{state}', whose initial value is 0"
                    help = f"give it another initial value, or bound it: 'max({state}[t-1], 1)'"
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


def _no_gradient(subject: Subject, report: Report) -> None:
    for equation in subject.live:
        for part in walk(equation.term):
            if isinstance(part, Op) and part.operator in ("heaviside", "sign"):
                help = "heaviside(v, grad=fast_sigmoid(10))"
                message = f"the derivative of '{part.operator}' is 0: nothing before it is trained"
                report.warn("RNN261", message, part.span, help=f"name a surrogate derivative: {help}")


def _not_finite(subject: Subject, report: Report) -> None:
    for equation in subject.live:
        for part in walk(equation.term):
            if isinstance(part, Op) and leaves_the_numbers(part):
                help = "write 'inf' or '-inf' where that is meant"
                report.warn("RNN263", "finite numbers make an infinity or a NaN", part.span, help=help)


def _fixed_sizes(subject: Subject, report: Report) -> None:
    for constraint in subject.constraints:
        if not constraint.divides:
            left, right = show(constraint.left), show(constraint.right)
            message = f"the equations need {left} == {right} (I: input_size, H: hidden_size)"
            help = "apply a matrix where one of the two should be free: 'W@x'"
            report.warn("RNN262", message, constraint.span, help=help)


def _cost(subject: Subject, report: Report) -> None:
    found = cost(subject.segments)
    if found.seconds >= WARN_SECONDS:
        report.warn("RNN264", f"the loops hold {found}", most_expensive(subject.segments))


def _performance(subject: Subject, report: Report) -> None:
    for segment in subject.segments:
        depth: dict[str, int] = {}
        for node in segment.nodes:
            below = max((depth.get(name, 0) for name in operands(node)), default=0)
            depth[node.target] = below + isinstance(node, Contraction)
            if isinstance(node, Contraction) and depth[node.target] == 2:
                message = f"a step has {segment.phases} phases: this product waits for another one"
                _note(report, "RNN271", message, node.span)
                break
        for node in segment.nodes:
            reduces = isinstance(node, RowOp) and node.operator not in (
                RowOperator.SLICE,
                RowOperator.CONCAT,
                RowOperator.REPEAT,
            )
            if reduces and subject.placed.placement.get(node.target) is Placement.S:
                message = f"the equation of '{_owner(node)}' reduces over the units at every step"
                _note(report, "RNN272", message, node.span)
                break
    for equation in subject.live:
        for part in walk(equation.term):
            if isinstance(part, Product) and isinstance(part.matrix, Val) and _is_diagonal(part.matrix.name, subject):
                _note(report, "RNN273", "a product with a diagonal matrix works unit by unit", part.span)


def _is_diagonal(name: str, subject: Subject) -> bool:
    member, param = subject.resolved.members.get(name), subject.symbols.params.get(name)
    if member is not None:
        return subject.symbols.families[member.family].kind == "diag"
    return param is not None and param.type.kind == "diag"


def _note(report: Report, code: str, message: str, span: Span) -> None:
    report.warn(code, message, span, severity=Severity.NOTE)


def _owner(node: Node) -> str:
    """The user's name of the equation that a node was made from."""
    return node.target.partition("__")[0]


def _applications(node: Node) -> Iterator[Apply]:
    if isinstance(node, Pointwise):
        yield from _inner(node.expr)


def _inner(expr: Expr) -> Iterator[Apply]:
    if isinstance(expr, Apply):
        yield expr
        for argument in expr.arguments:
            yield from _inner(argument)


_RULES = (
    _unused_values,
    _unused_declarations,
    _unused_inputs,
    _states_and_output,
    _conventions,
    _missing_bias,
    _unbounded_exp,
    _division,
    _no_gradient,
    _fixed_sizes,
    _not_finite,
    _cost,
    _performance,
)


def lint(subject: Subject, report: Report) -> None:
    """Add warnings and notes to the report."""
    for rule in _RULES:
        rule(subject, report)
