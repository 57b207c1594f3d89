"""Unification of sizes: equations between Dims, solved for the unknown widths and the dims without a default.

What cannot be solved for stays as a Constraint on the sizes that the user will choose (`I == H`), unless no choice of
sizes can satisfy it.
"""

from __future__ import annotations

from math import gcd

from rnncc.analysis.widths import divided
from rnncc.ir import dim as dims
from rnncc.ir.cell import Constraint
from rnncc.ir.dim import ONE, Dim
from rnncc.language.source import Span

# Unknown widths are dims named `?0`, `?1`, …: a user cannot write them.
_UNKNOWN = "?"


def is_unknown(width: Dim) -> bool:
    """Whether a width still holds an unknown."""
    return any(name.startswith(_UNKNOWN) for name in dims.names(width))


class Solver:
    """Widths known so far. `free` are the dims that may be solved for (those without a default),
    `given` those that measure inputs."""

    def __init__(self, free: frozenset[str], given: frozenset[str]) -> None:
        self.free = free
        self.given = given
        self.bound: dict[str, Dim] = {}
        # Equalities that the user's sizes must satisfy, used to see that later ones follow from them.
        self.assumed: dict[str, Dim] = {}
        self.constraints: dict[tuple[Dim, Dim, bool], Constraint] = {}
        self.divisible: set[tuple[Dim, Dim]] = set()
        self.count = 0

    def fresh(self) -> Dim:
        """A new unknown width."""
        self.count += 1
        return dims.named(f"{_UNKNOWN}{self.count - 1}")

    def resolve(self, width: Dim) -> Dim:
        """The width with everything known put in."""
        while True:
            known = [name for name in dims.names(width) if name in self.bound]
            if not known:
                return divided(width, self.divisible)
            for name in known:
                self._shorten(name)
            width = dims.substitute(width, {name: self.bound[name] for name in known})

    def _shorten(self, name: str) -> None:
        """Make a chain of bindings ?1 -> ?2 -> H one step long."""
        chain = [name]
        while (target := _single_name(self.bound[chain[-1]])) is not None and target in self.bound:
            chain.append(target)
        for earlier in chain[:-1]:
            self.bound[earlier] = self.bound[chain[-1]]

    def equal(self, left: Dim, right: Dim, span: Span, why: str) -> bool:
        """Make two widths equal; False where no sizes can."""
        left, right = self.resolve(left), self.resolve(right)
        if left == right:
            return True
        difference = dims.subtract(left, right)
        if self._solve(difference, span, why):
            return True
        left, right = (dims.substitute(side, self.assumed) for side in (left, right))
        if left == right:
            return True
        if self._impossible(dims.subtract(left, right)):
            return False
        self._assume(left, right, span, why)
        return True

    def _solve(self, difference: Dim, span: Span, why: str) -> bool:
        """Solve `difference == 0` for one unknown, the compiler's own before the user's dims."""
        names = sorted(dims.names(difference))
        # `?1 == 2*?0` gives ?1: to solve it for ?0 would divide what is not known yet.
        unknown = sorted(
            (name for name in names if name.startswith(_UNKNOWN)),
            key=lambda name: abs(_coefficient(difference, name)) != 1,
        )
        for name in (*unknown, *(name for name in names if name in self.free)):
            coefficient = _coefficient(difference, name)
            if not coefficient:
                continue
            rest = dims.subtract(difference, dims.scale(dims.named(name), coefficient))
            total = dims.scale(rest, -1 if coefficient > 0 else 1)
            if name in dims.names(total) or not _may_be_positive(total):
                continue
            count = dims.constant(abs(coefficient))
            if abs(coefficient) > 1 and dims.multiply(dims.floor_divide(total, count), count) != total:
                self.divides(total, count, span, why)
                self.divisible.add((total, count))
            self.bound[name] = dims.floor_divide(total, count)
            return True
        return False

    def _assume(self, left: Dim, right: Dim, span: Span, why: str) -> None:
        # Not "2*input_size must equal 2*hidden_size", nor "hidden_size + input_size must equal 2*hidden_size".
        terms = dims.subtract(left, right).terms
        common = gcd(*(coefficient for _, coefficient in terms))
        left, right = (
            Dim(tuple((atoms, abs(factor) // common) for atoms, factor in terms if (factor > 0) == is_left))
            for is_left in (True, False)
        )
        # "input_size must equal hidden_size": the size that a user of the module would change comes first.
        if dims.names(right) & self.given and not dims.names(left) & self.given:
            left, right = right, left
        for name, value in ((_single_name(left), right), (_single_name(right), left)):
            if name is not None and name not in dims.names(value) and name not in ("H", *self.assumed):
                self.assumed = {other: dims.substitute(known, {name: value}) for other, known in self.assumed.items()}
                self.assumed[name] = value
                break
        self.constraints.setdefault((left, right, False), Constraint(left, right, why, False, span))

    def _impossible(self, difference: Dim) -> bool:
        """Whether no sizes make `difference` zero, which are at least 1; or only a choice of H or of a dim with a
        default would: the width of an input may have to fit, what the cell has inside fits by itself."""
        signs = {coefficient > 0 for _, coefficient in difference.terms}
        return len(signs) == 1 or not dims.names(difference) & self.given

    def divides(self, left: Dim, right: Dim, span: Span, why: str) -> None:
        """Note that `left % right == 0` must hold."""
        number, divisor = dims.as_int(left), dims.as_int(right)
        if right == ONE or (number is not None and divisor is not None and number % divisor == 0):
            return
        self.constraints.setdefault((left, right, True), Constraint(left, right, why, True, span))

    def finish(self, default: Dim) -> tuple[Constraint, ...]:
        """Give every unknown that nothing decides the default width; the constraints on the user's sizes."""
        for position in range(self.count):
            left = self.resolve(dims.named(f"{_UNKNOWN}{position}"))
            for name in sorted(dims.names(left)):
                if name.startswith(_UNKNOWN) and name not in self.bound:
                    self.bound[name] = default
        kept: dict[tuple[Dim, Dim, bool], Constraint] = {}
        for found in self.constraints.values():
            left, right = self.resolve(found.left), self.resolve(found.right)
            if left != right or found.divides:
                final = Constraint(left, right, found.why, found.divides, found.span)
                kept.setdefault((left, right, found.divides), final)
        return tuple(kept.values())


def _single_name(width: Dim) -> str | None:
    match width.terms:
        case (((str(name),), 1),):
            return name
        case _:
            return None


def _coefficient(difference: Dim, name: str) -> int:
    """The factor of a name that stands alone in one term and nowhere else, else 0."""
    found = 0
    for atoms, coefficient in difference.terms:
        if atoms == (name,):
            found = coefficient
        elif name in dims.names(Dim(((atoms, 1),))):
            return 0
    return found


def _may_be_positive(width: Dim) -> bool:
    return any(coefficient > 0 for _, coefficient in width.terms)
