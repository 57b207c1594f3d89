"""Makes a step shorter. By the algebra of sums over a head some reductions need not wait for others, so there are fewer
phases. And what a step divides by a square root that it makes is a product.

All rewrites look at what is computed, not at what it is called.

`with_moments`  The mean of (x - mean(x))² waits for the mean of x. But parts of both can be joined at once, without
                cancellation (Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
                Variances", 1979). So a norm forward takes one phase.
`split`         A sum of a + s·b, in which s is one number per head, waits for s. But it is Σa + s·Σb. So a norm
                backward takes one phase: the gradient of its mean is linear in that of its variance.
`with_rsqrt`    A quotient by a square root is a product with `rsqrt`. layernorm and rmsnorm are written so from the
                start.

A split loses no accuracy worth a thought. In a + s·b, both a and s·b are rounded before they are added, so the sum has
errors in proportion to Σ|a| and to Σ|s·b| already. Σa and s·Σb have the same. For that reason x·(a + s·b) is no sum of
x·a and x·s·b here: those are not computed in the step, and may be much larger than what they add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of the values that a step does not make.

    scalars     those that are one number per head
    zero_sums   sets of values per unit, each in the order of their names, which have the sum zero over all units of a
                head: deviations of all elements from their mean
    """

    scalars: Container[str]
    zero_sums: Container[tuple[str, ...]]


class _Definitions:
    """What the names of a step stand for."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.known = {each.target: each.expr for each in operations if isinstance(each, Statement)}
        self.sums = {
            each.results[0]: each
            for each in operations
            if isinstance(each, FusedReduction) and each.kind is ReductionKind.SUM
        }

    def of(self, expr: Expr) -> Expr:
        """The expression that a name stands for, if it is a name and stands for one."""
        while isinstance(expr, Ref) and expr.name in self.known:
            expr = self.known[expr.name]
        return expr

    def squared(self, expr: Expr) -> Expr | None:
        """The d of d² or d·d."""
        match self.of(expr):
            case Apply("pow", (base, Const(2.0))):
                return base
            case Apply("mul", (left, right)) if self.of(left) == self.of(right):
                return left
            case _:
                return None

    def mean_of(self, expr: Expr) -> str | None:
        """The name of the sum that a mean over a head is made of."""
        match self.of(expr):
            case Apply("div", (Ref(name), count)) if name in self.sums:
                whole = self.sums[name]
                return name if count == elements_per_head(len(whole.sources), whole.width) else None
            case _:
                return None

    def is_deviation(self, expr: Expr, source: str, whole: FusedReduction) -> bool:
        """Whether it is source - mean, and the mean is made of that sum."""
        match self.of(expr):
            case Apply("sub", (value, mean)):
                return self.of(value) == self.of(Ref(source)) and self.mean_of(mean) == whole.results[0]
            case _:
                return False

    def are_deviations(self, values: Sequence[Expr | None], whole: FusedReduction) -> bool:
        """Whether they are those of all sources of a sum, in order."""
        return len(values) == len(whole.sources) and all(
            value is not None and self.is_deviation(value, source, whole)
            for value, source in zip(values, whole.sources, strict=True)
        )


def with_moments(operations: Sequence[Operation]) -> list[Operation]:
    """The operations in which a mean comes with the sum of the squares of deviations from it."""
    definitions = _Definitions(operations)
    squares_of: dict[str, str] = {}  # the name of the squares by that of the sum
    same: dict[str, str] = {}  # for the name of any such squares, that of those that are made
    for name, squares in definitions.sums.items():
        roots = [definitions.squared(Ref(source)) for source in squares.sources]
        for whole, of_mean in definitions.sums.items():
            if whole not in same and definitions.are_deviations(roots, of_mean):
                same[name] = squares_of.setdefault(whole, name)
    found: list[Operation] = []
    for each in operations:
        match each:
            case FusedReduction((whole,), _, sources, width) if whole in squares_of:
                mean = f"{whole}__mean"
                found.append(FusedReduction((mean, squares_of[whole]), ReductionKind.MOMENTS, sources, width))
                count = elements_per_head(len(sources), width)
                found.append(Statement(whole, apply("mul", Ref(mean), count), 0))
            case FusedReduction((name,)) if name in same:
                found += [Statement(name, Ref(same[name]), 0)] if same[name] != name else []
            case Statement(target, Apply() as expr, line) if definitions.mean_of(expr) in squares_of:
                found.append(Statement(target, Ref(f"{definitions.mean_of(expr)}__mean"), line))
            case _:
                found.append(each)
    return found


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


def centred(operations: Sequence[Operation]) -> frozenset[tuple[str, ...]]:
    """The `zero_sums` that the operations make."""
    definitions = _Definitions(operations)
    found = set()
    for whole in definitions.sums.values():
        names = [
            next((Ref(name) for name in definitions.known if definitions.is_deviation(Ref(name), source, whole)), _ONE)
            for source in whole.sources
        ]
        found.add(_names(names))
    return frozenset(found)


def split(
    operations: Sequence[Operation],
    reductions: Sequence[FusedReduction],
    levels: Mapping[str, int],
    given: Given,
) -> list[Operation] | None:
    """The operations with each of `reductions` made of sums that wait for a phase less, or None where one of them
    cannot be. `levels`: how many phases each name waits for."""
    linear = _Linear(operations, levels, given)
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

    def __init__(self, operations: Sequence[Operation], levels: Mapping[str, int], given: Given) -> None:
        self.known = _Definitions(operations).known
        self.levels = levels
        self.level = 0  # what waits for so many phases comes late
        self.read = 0  # how many expressions `terms` has read for a sum
        self.given = given
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
            if (names := _names(values)) and names in self.given.zero_sums:
                continue
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
        return all(self.made.get(name, name in self.given.scalars) for name in references(expr))

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


def _names(values: Sequence[Expr]) -> tuple[str, ...]:
    """What values are called, in the order of their names; nothing where one has none."""
    names = sorted(value.name for value in values if isinstance(value, Ref))
    return tuple(names) if len(names) == len(values) else ()


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
