"""Products: sums of contractions become accumulators, contractions of one operand become one product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, operands
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.ir.step import Product, row_parts
from rnncc.ir.structure import diagonal_blocks
from rnncc.stages.lower.needs import Needs


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The sum of some contractions."""

    name: str
    contractions: tuple[Contraction, ...]


@dataclass(frozen=True, slots=True)
class Accumulated:
    """Nodes without contractions, and the accumulators that they read."""

    nodes: tuple[Node, ...]
    accumulators: tuple[Accumulator, ...]


def accumulate(nodes: Iterable[Node], stored: Iterable[str], needs: Needs) -> Accumulated:
    """A contraction that only one sum reads joins that sum's accumulator, one that only one statement of its width
    reads is an accumulator of its own; any other is `NAME__sum`, and a statement copies it to its name."""
    widths, matrices = needs.widths, needs.matrices
    body = list(nodes)
    contractions = {node.target: node for node in body if isinstance(node, Contraction)}
    kept = set(stored)
    uses: Counter[str] = Counter()
    reader: dict[str, Pointwise] = {}
    for node in body:
        match node:
            case Pointwise(target, expr):
                for name in references(expr):
                    uses[name] += 1
                    # A reader of another width, and one whose units are elements of a matrix, needs the value stored.
                    uses[name] += widths[target] != widths[name] or target in needs.grids
                    reader[name] = node
            case Contraction() | RowOp() | Delay():
                for name in operands(node):
                    uses[name] += 2
            case _:
                assert_never(node)

    def alone(name: str) -> bool:
        contraction = contractions.get(name)
        if contraction is None or uses[name] != 1 or name in kept:
            return False
        return diagonal_blocks(matrices[contraction.matrix].structure) in (ONE, HEADS)

    sums: dict[str, list[Contraction]] = {}

    def merge(expr: Expr) -> Expr:
        match expr:
            case Const() | Ref():
                return expr
            case Apply("add", _):
                terms = [merge(term) for term in _terms(expr)]
                products = [term.name for term in terms if isinstance(term, Ref) and alone(term.name)]
                if len(products) > 1:
                    first = products[0]
                    for name in products:
                        sums.setdefault(first, []).append(contractions[name])
                    terms = [term for term in terms if not (isinstance(term, Ref) and term.name in products[1:])]
                result = terms[0]
                for term in terms[1:]:
                    result = Apply("add", (result, term))
                return result
            case Apply(operator, arguments):
                return Apply(operator, tuple(merge(argument) for argument in arguments))
            case _:
                assert_never(expr)

    merged = [replace(node, expr=merge(node.expr)) if isinstance(node, Pointwise) else node for node in body]
    absorbed = {contraction.target for group in sums.values() for contraction in group[1:]}
    result: list[Node] = []
    accumulators = []
    for node in merged:
        if not isinstance(node, Contraction):
            result.append(node)
        elif node.target in absorbed:
            continue
        elif alone(node.target):
            accumulators.append(Accumulator(node.target, tuple(sums.get(node.target, [node]))))
        else:
            name = f"{node.target}__sum"
            accumulators.append(Accumulator(name, (replace(node, target=name),)))
            result.append(Pointwise(node.target, Ref(name), node.span))
    return Accumulated(tuple(result), tuple(accumulators))


def _terms(expr: Expr) -> list[Expr]:
    match expr:
        case Apply("add", (left, right)):
            return [*_terms(left), *_terms(right)]
        case _:
            return [expr]


def form_products(
    accumulators: Iterable[Accumulator], widths: Mapping[str, Dim]
) -> tuple[tuple[Product, ...], tuple[str, ...]]:
    """The products of a stage and its accumulators in the order of their columns: contractions of one operand stand
    side by side where they can, so that one product makes them all."""
    found = list(accumulators)
    by_operand: dict[tuple[str, bool, Dim], list[tuple[str, str]]] = {}
    matrices: dict[str, Dim] = {}
    for accumulator in found:
        for contraction in accumulator.contractions:
            matrices[contraction.matrix] = ONE
            key = (contraction.operand, contraction.transposed, widths[contraction.matrix])
            by_operand.setdefault(_key(key, contraction), []).append((accumulator.name, contraction.matrix))
    column: dict[str, int] = {}
    for entries in by_operand.values():
        for name, _ in entries:
            column.setdefault(name, len(column))
    begun: set[str] = set()
    products: list[Product] = []
    for (operand, transposed, _), entries in by_operand.items():
        run: list[tuple[int, str, bool]] = []
        for name, matrix in sorted(entries, key=lambda entry: column[entry[0]]):
            piece = (column[name], matrix, name in begun)
            if run and (piece[0] != run[-1][0] + 1 or piece[2] != run[-1][2]):
                products.append(_product(operand, transposed, run, widths))
                run = []
            run.append(piece)
            begun.add(name)
        products.append(_product(operand, transposed, run, widths))
    return tuple(products), tuple(column)


def _key(key: tuple[str, bool, Dim], contraction: Contraction) -> tuple[str, bool, Dim]:
    # Untransposed products of one operand differ in rows only, which are columns of the packed weights; transposed ones
    # must agree in their rows, which are the terms.
    return key if contraction.transposed else (key[0], key[1], ONE)


def _product(operand: str, transposed: bool, run: list[tuple[int, str, bool]], widths: Mapping[str, Dim]) -> Product:
    names = tuple(matrix for _, matrix, _ in run)
    return Product(operand, names, run[0][0], row_parts(widths[operand]), transposed, run[0][2])
