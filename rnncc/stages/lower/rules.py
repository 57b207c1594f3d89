"""Running sums, repeated values and sums of neighbours as products with matrices of ones and zeros.

Such a matrix follows from a rule (MatrixRule), so it has no memory. Two of them in a row are one: to repeat a running
sum is a product too. So a chain of them waits once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rnncc.ir.expr import Apply, Expr, Ref, references, substitute
from rnncc.ir.fused import MatrixRule, Relation
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.step import Statement
from rnncc.stages.lower.operations import Operation, PartProduct


def rule_of(operator: RowOperator, times: int, part: int, taken: int) -> MatrixRule | None:
    """The matrix by which a part of a value takes a part of the operand: None where it takes nothing of it. A running
    sum goes through all units of a part before those of the next one."""
    match operator:
        case RowOperator.CUMSUM if taken <= part:
            return MatrixRule(Relation.ANY if taken < part else Relation.AT_MOST)
        case RowOperator.CUMSUM_REVERSED if taken >= part:
            return MatrixRule(Relation.ANY if taken > part else Relation.AT_LEAST)
        case RowOperator.REPEAT if taken == part:
            return MatrixRule(Relation.EQUAL, unit_times=times)
        case RowOperator.SEGMENT_SUM if taken == part:
            return MatrixRule(Relation.EQUAL, term_times=times)
    return None


def with_joined_rules(operations: Sequence[Operation]) -> list[Operation]:
    """The operations in which no product by a rule waits for another one, where one product can be both."""
    sums: dict[str, list[PartProduct]] = {}
    for each in operations:
        if isinstance(each, PartProduct):
            sums.setdefault(each.sum, []).append(each)
    by_rules = {
        name: product for name, (product, *more) in sums.items() if not more and isinstance(product.matrix, MatrixRule)
    }
    known = {each.target: each.expr for each in operations if isinstance(each, Statement)}
    found: list[Operation] = []
    for each in operations:
        if isinstance(each, PartProduct) and each.sum in by_rules:
            found += _joined(each, by_rules, known)
        else:
            found.append(each)
    return found


def _joined(outer: PartProduct, by_rules: Mapping[str, PartProduct], known: dict[str, Expr]) -> list[Operation]:
    """A product by a rule, made of products that wait for less, or itself. The statements in between are made again,
    from those products."""
    between, leaves = _traced(outer.operand, known)
    rules = {name: _composed(outer.matrix, by_rules[name].matrix) for name in leaves if name in by_rules}
    whole = [rule for rule in rules.values() if rule is not None]
    is_linear = all(_is_linear(known[name]) for name in between)
    if not leaves or len(whole) < len(leaves) or not (_repeats(outer.matrix) or is_linear):
        return [outer]
    own = {name: Ref(f"{outer.sum}__of_{name}") for name in (*leaves, *between)}
    return [
        *(
            replace(by_rules[name], sum=own[name].name, matrix=rule, sum_width=outer.sum_width)
            for name, rule in zip(leaves, whole, strict=True)
        ),
        *(Statement(own[name].name, substitute(known[name], own), 0) for name in between),
        Statement(outer.sum, own[outer.operand], 0),
    ]


def _traced(value: str, known: dict[str, Expr]) -> tuple[list[str], list[str]]:
    """The statements that make a value, in order, and what they read that no statement makes."""
    wanted = {value: None}
    between = []
    for name in reversed(known):
        if name in wanted:
            between.append(name)
            wanted |= dict.fromkeys(references(known[name]))
    return between[::-1], [name for name in wanted if name not in known]


def _repeats(matrix: object) -> bool:
    """Whether each unit takes one value as it is. Then it may take any function of values."""
    return isinstance(matrix, MatrixRule) and matrix.relation is Relation.EQUAL and matrix.term_times == 1


def _composed(outer: object, inner: object) -> MatrixRule | None:
    """The product of both matrices, where it is one of ones and zeros too."""
    if not isinstance(outer, MatrixRule) or not isinstance(inner, MatrixRule):
        return None
    if _repeats(outer):
        return replace(inner, unit_times=outer.unit_times * inner.unit_times)
    if inner.relation is Relation.EQUAL and inner.unit_times == 1:  # each value goes to one unit
        return replace(outer, term_times=outer.term_times * inner.term_times)
    return None


def _is_linear(expr: Expr) -> bool:
    """Whether it only adds, subtracts and negates."""
    match expr:
        case Ref():
            return True
        case Apply("add" | "sub" | "neg", arguments):
            return all(map(_is_linear, arguments))
        case _:
            return False
