"""What is legal and suspicious in the equations: warnings, and a note on performance.

Each rule is one function from the typed cell to the report. What a rule means stands in `rnncc.language.codes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rnncc.ir.dim import show
from rnncc.ir.syntax import CellDecl
from rnncc.ir.term import Equation, Eye, OfMatrix, Op, Product, Term, Transposed, Unflatten, Val, children, names, walk
from rnncc.ir.typed import GroupMember, Typed
from rnncc.language.diagnostics import Severity
from rnncc.language.functions import REDUCTIONS
from rnncc.language.operators import STEPS
from rnncc.language.report import Report
from rnncc.language.spelling import as_operand
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.fold import leaves_the_numbers
from rnncc.stages.check.mentions import mentioned_names


@dataclass(frozen=True, slots=True)
class _Subject:
    """A typed cell: `members` by name, `mentioned` all names in its text, `live` the equations that the states or the
    output depend on."""

    cell: Typed
    symbols: Symbols
    members: Mapping[str, GroupMember]
    mentioned: frozenset[str]
    live: tuple[Equation, ...]


def _reached(cell: Typed, roots: Iterable[str], *, through: Collection[str] = ()) -> set[str]:
    """The values that the roots are computed from, the roots among them. What earlier values of the states in `through`
    were computed from counts as well."""
    by_target = {equation.target: equation for equation in cell.equations}
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in by_target:
            waiting += names(by_target[name].term)
        elif _base(name) in through or _base(name) in cell.value_delays:
            waiting.append(_base(name))
    return seen


def _base(name: str) -> str:
    """The state, input or value that a name belongs to: `h` of `h__1` and of `h__delay1__1`, `u` of `u__1`."""
    return name.partition("__")[0]


def _unused_values(subject: _Subject, report: Report) -> None:
    live = {equation.target for equation in subject.live}
    # What one turn of a loop leaves is used where another turn's is: the last one often is not.
    used = {_repeated(equation) for equation in subject.live} - {""}
    for equation in subject.cell.equations:
        if equation.target not in live and _repeated(equation) not in used:
            message = f"'{equation.written}' is never used"
            report.warn("RNN251", message, equation.target_span, "nothing depends on it")


def _repeated(equation: Equation) -> str:
    """The name of a value that each turn of a loop gives anew, `n` of `n[2]`; or nothing."""
    base, _, index = equation.written.partition("[")
    return base if index and index != "t]" else ""


def _unused_declarations(subject: _Subject, report: Report) -> None:
    symbols = subject.symbols
    read = {name for equation in subject.live for name in names(equation.term)}
    groups = {subject.members[name].written for name in read if name in subject.members}
    targets = {equation.written.partition("[")[0] for equation in subject.cell.equations}
    for name, span in symbols.spans.items():
        kind = symbols.kinds[name]
        unused = {
            "param": name not in read,
            "buffer": name not in read,
            "group": name not in groups,
            "constant": name not in subject.mentioned,
            "dim": name not in subject.mentioned,
            "function": name not in subject.mentioned,
            "local": name not in targets,
        }
        if unused.get(kind):
            report.warn("RNN252", f"the {kind} '{name}' is never used", span)


def _unused_inputs(subject: _Subject, report: Report) -> None:
    read = {_base(name) for equation in subject.live for name in names(equation.term)}
    for given in subject.cell.inputs:
        if given.name not in read:
            # x need not be declared.
            span = given.span if given.span.end else subject.cell.states[0].span
            report.warn("RNN253", f"the input '{given.name}' is never used", span)


def _states_and_output(subject: _Subject, report: Report) -> None:
    cell = subject.cell
    states = {state.name for state in cell.states}
    if not any(_base(name) in states for name in _reached(cell, [cell.output])):
        span = subject.symbols.output.span if subject.symbols.output else cell.states[0].span
        report.warn("RNN255", f"the output '{cell.output}' depends on no state", span)
        return
    reached = _reached(cell, [cell.output], through=states)
    for state in cell.states:
        if state.name not in reached:
            message = f"the state '{state.name}' never reaches the output '{cell.output}'"
            report.warn("RNN254", message, state.span)


def _missing_bias(subject: _Subject, report: Report) -> None:
    members = subject.members
    for equation in subject.live:
        matrices = [part.matrix for part in walk(equation.term) if isinstance(part, Product)]
        own = {members[m.name].written for m in matrices if isinstance(m, Val) and m.name in members}
        read = {members[name].group for name in names(equation.term) if name in members}
        if own & {"W", "R"} and "b" not in read:
            report.warn("RNN258", f"the equation of '{equation.written}' has no bias", equation.target_span)


def _no_gradient(subject: _Subject, report: Report) -> None:
    buffers = {param.name for param in subject.cell.params if not param.trained}
    for equation in subject.live:
        for part in _differentiated(equation.term):
            if isinstance(part, Op) and part.operator in STEPS and not buffers.issuperset(names(part)):
                example = "1" if part.operator in ("round", "floor") else "fast_sigmoid(10)"
                help = f"{part.operator}(v, grad={example})"
                message = f"the derivative of '{part.operator}' is 0: nothing before it is trained"
                report.warn("RNN261", message, part.span, help=f"name a surrogate derivative: {help}")


def _differentiated(term: Term) -> Iterator[Term]:
    """The term and every term inside it that a gradient may reach."""
    waiting = [term]
    while waiting:
        part = waiting.pop()
        if not (isinstance(part, Op) and part.operator == "detach"):
            yield part
            waiting += reversed(children(part))


def _fixed_sizes(subject: _Subject, report: Report) -> None:
    for constraint in subject.cell.constraints:
        if not constraint.divides:
            left, right = show(constraint.left), show(constraint.right)
            message = f"the equations need {left} == {right} (I: input_size, H: hidden_size)"
            help = "apply a matrix where one of the two should be free: 'W@x'"
            report.warn("RNN262", message, constraint.span, help=help)


def _not_finite(subject: _Subject, report: Report) -> None:
    for equation in subject.live:
        for part in walk(equation.term):
            if isinstance(part, Op) and leaves_the_numbers(part):
                help = "write 'inf' or '-inf' where that is meant"
                report.warn("RNN263", "finite numbers make an infinity or a NaN", part.span, help=help)


def _diagonal_product(subject: _Subject, report: Report) -> None:
    shapes = subject.cell.shapes
    for equation in subject.live:
        for part in walk(equation.term):
            if isinstance(part, Product) and isinstance(part.matrix, Val) and shapes[part.matrix.name].kind == "diag":
                message = "a product with a diagonal matrix works unit by unit"
                report.warn("RNN273", message, part.span, severity=Severity.NOTE)


def _by_elements(subject: _Subject, report: Report) -> None:
    for equation in subject.live:
        for part in walk(equation.term):
            match part:
                case Op("mul", (OfMatrix("diag") as diagonal, other)) | Op(
                    "mul", (other, OfMatrix("diag") as diagonal)
                ):
                    if _is_diagonal(diagonal, subject) and not _is_diagonal(other, subject):
                        _warn_of_diagonal(part, diagonal, other, subject, report)


def _warn_of_diagonal(product: Op, diagonal: Term, other: Term, subject: _Subject, report: Report) -> None:
    if _is_matrix(other, subject):
        d, m = report.text(diagonal.span), as_operand(report.text(other.span))
        message = f"'{m}' times '{d}', element by element, keeps the diagonal alone"
        help = f"write '{m}@{d}' to scale its columns, '{d}@{m}' its rows"
        report.warn("RNN265", message, product.span, "element by element", help)


def _is_diagonal(term: Term, subject: _Subject) -> bool:
    """Whether a term is the diagonal matrix of a vector, or the identity."""
    return isinstance(term, Eye) or (
        isinstance(term, OfMatrix) and term.function == "diag" and not _is_matrix(term.operand, subject)
    )


def _numbers_for_identities(subject: _Subject, report: Report) -> None:
    for equation in subject.live:
        for part in walk(equation.term):
            if isinstance(part, Product):
                for factor in (part.matrix, part.operand):
                    _warn_of_number(_without_numbers(factor, subject), subject, report)


def _warn_of_number(factor: Term, subject: _Subject, report: Report) -> None:
    match factor:
        case Op("add" | "sub", (left, right)):
            for number, matrix in ((left, right), (right, left)):
                size = _size_of_square(_without_numbers(matrix, subject), subject)
                if size and not _is_matrix(number, subject):
                    n, m = report.text(number.span), report.text(matrix.span)
                    identity = f"eye({size})" if n == "1" else f"{as_operand(n)}*eye({size})"
                    message = f"the number '{n}' meets every element of '{m}', not its diagonal alone"
                    report.warn("RNN266", message, number.span, "every element", f"write '{identity}' for the diagonal")


def _size_of_square(term: Term, subject: _Subject) -> str:
    """The width of both vectors where a term is the square matrix that two vectors make; or nothing."""
    shapes = subject.cell.shapes
    match term:
        case Product(left, Transposed(Val(name))) if not shapes[name].is_matrix:
            width = shapes[name].width
            return show(width) if any(shapes[each].width == width for each in names(left)) else ""
        case _:
            return ""


def _without_numbers(term: Term, subject: _Subject) -> Term:
    """The matrix of which a term is a multiple, or the term itself."""
    match term:
        case Op("mul" | "div" | "neg", arguments):
            matrices = [argument for argument in arguments if _is_matrix(argument, subject)]
            return _without_numbers(matrices[0], subject) if len(matrices) == 1 else term
        case _:
            return term


def _is_matrix(term: Term, subject: _Subject) -> bool:
    match term:
        case Val(name):
            return subject.cell.shapes[name].is_matrix
        case Op(_, arguments):
            return any(_is_matrix(argument, subject) for argument in arguments)
        case Product(_, operand):
            return isinstance(operand, Transposed) or _is_matrix(operand, subject)
        case OfMatrix(function, operand, axis):
            if function == "diag":
                return not _is_matrix(operand, subject)
            return function != "norm" and not (axis and function in REDUCTIONS)
        case _:
            return isinstance(term, Transposed | Eye | Unflatten)


_RULES = (
    _unused_values,
    _unused_declarations,
    _unused_inputs,
    _states_and_output,
    _missing_bias,
    _no_gradient,
    _fixed_sizes,
    _not_finite,
    _diagonal_product,
    _by_elements,
    _numbers_for_identities,
)


def lint(cell: Typed, decl: CellDecl, symbols: Symbols, report: Report) -> None:
    """Add warnings and notes to the report."""
    reached = _reached(cell, [*(state.name for state in cell.states), cell.output])
    live = tuple(equation for equation in cell.equations if equation.target in reached)
    members = {member.name: member for member in cell.members}
    subject = _Subject(cell, symbols, members, mentioned_names(decl), live)
    for rule in _RULES:
        rule(subject, report)
