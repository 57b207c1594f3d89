"""Makes a step shorter. By the algebra of sums over a head some reductions need not wait for others, so there are fewer
phases. And what a step divides by a square root that it makes is a product.

All rewrites look at what is computed, not at what it is called.

`split`       A sum of a + s·b, in which s is one number per head, waits for s. But it is Σa + s·Σb.
`with_rsqrt`  A quotient by a square root is a product with `rsqrt`.

A split loses no accuracy worth a thought. In a + s·b, both a and s·b are rounded before they are added, so the sum has
errors in proportion to Σ|a| and to Σ|s·b| already. Σa and s·Σb have the same. For that reason x·(a + s·b) is no sum of
x·a and x·s·b here: those are not computed in the step, and may be much larger than what they add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, references, substitute
from rnncc.ir.fused import FusedReduction, ReductionKind
from rnncc.ir.step import Statement
from rnncc.stages.lower.operations import Operation, PartProduct, elements_per_head, made_by, taken_by

# The sums that may stand for one. Each is sent apart, and many would take longer than the phase.
MOST_PARTS = 2
# A sum is read through at most so many expressions. Without a bound, a value that is read twice at each of many
# statements would take forever.
MOST_READ = 500

_ONE = Const(1.0)
# The terms that a value is the sum of: values per unit, by the numbers per head that multiply them.
Terms = dict[Expr, Expr]


def with_rsqrt(operations: Sequence[Operation]) -> list[Operation]:
    """The operations in which nothing is divided by a square root that they make."""
    statements = [each for each in operations if isinstance(each, Statement)]
    roots = {each.target for each in statements if isinstance(each.expr, Apply) and each.expr.operator == "sqrt"}
    divided_by: set[str] = set()

    def rewritten(expr: Expr) -> Expr:
        match expr:
            case Apply("div", (value, Ref(name))) if name in roots:
                divided_by.add(name)
                return _times(rewritten(value), Ref(f"{name}__inverse"))
            case Apply("div", (value, Apply("sqrt", (square,)))):
                return _times(rewritten(value), apply("rsqrt", rewritten(square)))
            case Apply(operator, arguments):
                return Apply(operator, tuple(map(rewritten, arguments)))
            case _:
                return expr

    products = [
        replace(each, expr=rewritten(each.expr)) if isinstance(each, Statement) else each for each in operations
    ]
    found: list[Operation] = []
    for each in products:
        found.append(each)
        match each:
            case Statement(root, Apply("sqrt", (square,)), line) if root in divided_by:
                found.append(Statement(f"{root}__inverse", apply("rsqrt", square), line))
    return found


def split(
    operations: Sequence[Operation],
    reductions: Sequence[FusedReduction],
    levels: Mapping[str, int],
    scalars: Container[str],
) -> list[Operation] | None:
    """The operations with each of `reductions` made of sums that wait for a phase less, or None where one of them
    cannot be. `levels`: how many phases each name waits for. `scalars`: the names that the operations do not make, and
    that are one number per head."""
    linear = _Linear(operations, levels, scalars)
    made: dict[str, list[Operation]] = {}
    for reduction in reductions:
        parts = linear.parts(reduction) if reduction.kind is ReductionKind.SUM else None
        if parts is None:
            return None
        made[reduction.results[0]] = parts
    found: list[Operation] = []
    for each in operations:
        found += made.get(each.results[0], [each]) if isinstance(each, FusedReduction) else [each]
    return found


def needed(operations: Sequence[Operation], outlive: Iterable[str]) -> list[Operation]:
    """The operations without those that nothing needs. `outlive`: the values that a step leaves behind."""
    wanted = set(outlive)
    found: list[Operation] = []
    for each in reversed(operations):
        if not wanted.isdisjoint(made_by(each)):
            wanted.update(taken_by(each))
            found.append(each)
    return found[::-1]


class _Linear:
    """Reads values as sums of multiples: of a number per head, which may come late, and a value per unit, which may
    not."""

    def __init__(self, operations: Sequence[Operation], levels: Mapping[str, int], scalars: Container[str]) -> None:
        self.known = {each.target: each.expr for each in operations if isinstance(each, Statement)}
        self.levels = levels
        self.level = 0  # what waits for so many phases comes late
        self.read = 0  # how many expressions `terms` has read for a sum
        self.scalars = scalars
        self.made: dict[str, bool] = {}  # whether it is a number per head, for all that operations make
        self.first: dict[Expr, str] = {}  # names of the same number are one
        for each in operations:
            match each:
                case PartProduct(name):
                    self.made[name] = False
                case FusedReduction(results):
                    self.made |= dict.fromkeys(results, True)
                case Statement(name, expr):
                    self.made[name] = self.is_number(expr)
                    self.first.setdefault(expr, name)

    def parts(self, reduction: FusedReduction) -> list[Operation] | None:
        """Operations that make the target of a sum of other sums."""
        (target,) = reduction.results
        self.level, self.read = self.levels[target] - 1, 0
        by_factor: dict[Expr, list[Expr]] = {}
        for source in reduction.sources:
            terms = self.terms(Ref(source))
            if terms is None:
                return None
            for factor, value in terms.items():
                by_factor.setdefault(factor, []).append(value)
        made: list[Operation] = []
        sums: list[Expr] = []
        for factor, values in by_factor.items():
            if all(value == _ONE for value in values):
                sums.append(_times(factor, elements_per_head(len(values), reduction.width)))
                continue
            name = f"{target}__part{len(sums)}"
            statements = [Statement(f"{name}__{i}", value, 0) for i, value in enumerate(values)]
            made += [
                *statements,
                replace(reduction, results=(name,), sources=tuple(each.target for each in statements)),
            ]
            sums.append(_times(factor, Ref(name)))
        if sum(isinstance(each, FusedReduction) for each in made) > MOST_PARTS:
            return None
        whole = reduce(lambda left, right: apply("add", left, right), sums or [Const(0.0)])
        return [*made, Statement(target, whole, 0)]

    def terms(self, expr: Expr) -> Terms | None:
        """The values per unit by the numbers per head that multiply them; None where it is no such sum, or too long a
        one."""
        self.read += 1
        if self.read > MOST_READ:
            return None
        if self.is_early(expr):
            return {_ONE: expr}
        if self.is_number(expr):
            return {self.named_once(expr): _ONE}
        match expr:
            case Ref(name) if name in self.known:
                return self.terms(self.known[name])
            case Apply("neg", (value,)):
                return _mapped(self.terms(value), factors=_negated)
            case Apply("add", (left, right)):
                return _added(self.terms(left), self.terms(right))
            case Apply("sub", (left, right)):
                return _added(self.terms(left), _mapped(self.terms(right), factors=_negated))
            case Apply("mul", (left, right)):
                for by, other in ((left, right), (right, left)):
                    if self.is_number(by):
                        return _mapped(self.terms(other), factors=partial(_times, self.named_once(by)))
                    if self.is_early(by):
                        terms = self.terms(other)
                        # x·(a + s·b) may be exact where x·a and x·s·b cancel.
                        return _mapped(terms, values=partial(_times, by)) if terms and len(terms) == 1 else None
            case Apply("div", (value, by)) if self.is_number(by):
                return _mapped(self.terms(value), factors=partial(_divided, self.named_once(by)))
        return None

    def is_early(self, expr: Expr) -> bool:
        return all(self.levels.get(name, 0) < self.level for name in references(expr))

    def is_number(self, expr: Expr) -> bool:
        """Whether it is one number per head."""
        return all(self.made.get(name, name in self.scalars) for name in references(expr))

    def named_once(self, expr: Expr) -> Expr:
        """The expression, in which each number has one name."""
        same = {name: Ref(self.first[self.known[name]]) for name in references(expr) if name in self.known}
        return substitute(expr, same)


def _mapped(
    terms: Terms | None,
    *,
    factors: Callable[[Expr], Expr] = lambda factor: factor,
    values: Callable[[Expr], Expr] = lambda value: value,
) -> Terms | None:
    return None if terms is None else {factors(factor): values(value) for factor, value in terms.items()}


def _added(left: Terms | None, right: Terms | None) -> Terms | None:
    if left is None or right is None:
        return None
    both = {factor: apply("add", left[factor], right[factor]) for factor in left if factor in right}
    return left | right | both


def _divided(by: Expr, expr: Expr) -> Expr:
    return apply("div", expr, by)


def _negated(expr: Expr) -> Expr:
    return _times(Const(-1.0), expr)


def _times(left: Expr, right: Expr) -> Expr:
    """A product, without factors of 1."""
    match left, right:
        case (Const(1.0), other) | (other, Const(1.0)):
            return other
        case (Const(-1.0), Const(value)) | (Const(value), Const(-1.0)):
            return Const(-value)
        case (Const(-1.0), other) | (other, Const(-1.0)):
            return apply("neg", other)
        case _:
            return apply("mul", left, right)
