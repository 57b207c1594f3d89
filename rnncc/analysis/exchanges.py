"""How often the units of a state must wait for each other in a step, by the equations alone."""

from __future__ import annotations

from rnncc.ir.dim import Dim, split_multiple
from rnncc.ir.term import OfMatrix, Op, Product, Row, Share, Surrogate, Term, Transposed, Unflatten, Val
from rnncc.ir.typed import Typed


def exchanges(typed: Typed) -> int:
    """The length of the longest chain of exchanges in a step. A product with a value that depends on a state counts
    once, and so does a function across units (a norm, softmax, a sum), or one that moves units. A norm counts once,
    because its mean and variance are joined of moments that are sent together. Those that do not wait for each other
    count once. So it is with matrices that change: a product with one adds up its rows."""
    counter = _Counter(typed)
    return max(counter.of_value(equation.target) or 0 for equation in typed.equations)


class _Counter:
    def __init__(self, typed: Typed) -> None:
        self.typed = typed
        self.terms = {equation.target: equation.term for equation in typed.equations}
        self.states = {state.name for state in typed.states}
        self.known: dict[str, int | None] = {}

    def of_value(self, name: str) -> int | None:
        """The exchanges before a value of this step is known; None: it depends on no state."""
        if name not in self.terms:
            return 0 if name.rsplit("__", 1)[0] in self.states else None
        if name not in self.known:
            self.known[name] = self.of_term(self.terms[name])
        return self.known[name]

    def of_term(self, term: Term) -> int | None:
        match term:
            case Val(name):
                return self.of_value(name)
            case Op(_, arguments):
                return _longest(arguments, self)
            case Surrogate(_, operand):
                return self.of_term(operand)
            case Product(left, Transposed(right)) if not (self.is_matrix(left) or self.is_matrix(right)):
                return _longest((left, right), self)  # each unit with each: nothing is added up
            case Product(OfMatrix("diag", vector), operand) | Product(operand, OfMatrix("diag", vector)):
                return _longest((vector, operand), self)
            case Product(matrix, operand):
                return _after(_longest((matrix, operand), self), 1)
            case Transposed(operand) | Unflatten(operand):
                return self.of_term(operand)
            case OfMatrix(function, operand, axis):
                return _after(self.of_term(operand), int(bool(axis) or function == "norm"))
            case Row(_, arguments):
                return _after(_longest(arguments, self), int(self.moves(term)))
            case Share(operand, targets):
                whole = self.width(operand)
                stays = whole is not None and split_multiple(whole)[0] % len(targets) == 0
                return _after(self.of_term(operand), int(not stays))
            case _:
                return None

    def is_matrix(self, term: Term) -> bool:
        """Whether a named value is a matrix."""
        return isinstance(term, Val) and self.typed.shapes[term.name].is_matrix

    def moves(self, term: Row) -> bool:
        """Whether the function needs units of others. To lay vectors of the same units side by side does not."""
        if term.function != "concat":
            return True
        widths = [self.width(argument) for argument in term.arguments]
        return None in widths or len({split_multiple(width)[1] for width in widths if width is not None}) > 1

    def width(self, term: Term) -> Dim | None:
        return self.typed.shapes[term.name].width if isinstance(term, Val) else None


def _longest(terms: tuple[Term, ...], counter: _Counter) -> int | None:
    found = [count for term in terms if (count := counter.of_term(term)) is not None]
    return max(found, default=None)


def _after(before: int | None, more: int) -> int | None:
    return None if before is None else before + more
