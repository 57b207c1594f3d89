"""Finds batched nodes that are one function in torch: layernorm with its scale and shift, a value cut into parts, and
products that are added to something.

Over all steps each node would be a pass over a [T, B, width] tensor. Only the form of the nodes counts, not whether the
user or the compiler wrote them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Contraction, Node, Placement, Pointwise, Role, RowOp, Value, operands
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.dim import add as add_dims
from rnncc.ir.dim import constant as constant_dim
from rnncc.ir.expr import Apply, Expr, Ref, references
from rnncc.ir.row_operator import RowOperator
from rnncc.stages.render.notation import python_dim
from rnncc.stages.render.python.code import Emitter, variable


@dataclass(frozen=True, slots=True)
class ScaledNorm:
    """`target` = weight * layernorm + the biases. The norm's own target is read nowhere else."""

    target: str
    norm: RowOp
    weight: str
    biases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """`targets` together are all units of the operand, in order."""

    targets: tuple[str, ...]
    operand: str


@dataclass(frozen=True, slots=True)
class Sum:
    """`target` = `start` plus products, or minus those whose sign is -1. Without a start the first product is one."""

    target: str
    start: Expr | None
    products: tuple[tuple[int, Contraction], ...]


Pattern = ScaledNorm | Cut | Sum
# One line of torch code.
Operation = Node | Pattern


def operation_reads(operation: Operation) -> tuple[str, ...]:
    """The values that an operation reads."""
    match operation:
        case ScaledNorm(_, norm, weight, biases):
            return (*norm.operands, weight, *biases)
        case Cut(_, operand):
            return (operand,)
        case Sum(_, start, products):
            read = (name for _, product in products for name in operands(product))
            return (*(() if start is None else references(start)), *read)
        case _:
            return operands(operation)


def operation_targets(operation: Operation) -> tuple[str, ...]:
    """The values that an operation makes."""
    return operation.targets if isinstance(operation, Cut) else (operation.target,)


def operation_text(operation: Operation, emitter: Emitter) -> str:
    """An operation as one line of torch code."""
    match operation:
        case ScaledNorm(target, norm, weight, biases):
            shift = " + ".join(variable(name) for name in biases) or "None"
            return f"{variable(target)} = {emitter.layer_norm(norm, variable(weight), shift)}"
        case Cut(targets, operand):
            widths = ", ".join(python_dim(emitter.table[name].width) for name in targets)
            return f"{', '.join(variable(name) for name in targets)} = {variable(operand)}.split(({widths}), -1)"
        case Sum(target, start, products):
            text = emitter.text(Pointwise(target, start)) if start is not None else ""
            for sign, product in products:
                text = emitter.contraction_onto(target, text, product, sign) if text else emitter.term(target, product)
            return f"{variable(target)} = {text}"
        case _:
            return emitter.node(operation)


def recognise(nodes: Sequence[Node], outputs: Iterable[str], table: Mapping[str, Value]) -> tuple[Operation, ...]:
    """The nodes with one operation for each pattern, and without those that only the patterns read. `outputs` are
    targets that are read elsewhere."""
    wanted = set(outputs)
    operations = _alive(_scaled(nodes, wanted, table), wanted)
    operations = _alive(_summed(operations, wanted, table), wanted)
    return tuple(_alive(_cut(operations, table), wanted))


def _alive(operations: Sequence[Operation], wanted: set[str]) -> list[Operation]:
    read = set(wanted)
    found = []
    for operation in reversed(operations):
        if read.intersection(operation_targets(operation)):
            found.append(operation)
            read.update(operation_reads(operation))
    return found[::-1]


def _scaled(nodes: Sequence[Node], wanted: set[str], table: Mapping[str, Value]) -> list[Operation]:
    """Puts each norm into its only reader, where that gives it a scale and shifts."""
    uses = Counter(name for node in nodes for name in _readings(node))
    norms = {
        node.target: node
        for node in nodes
        if isinstance(node, RowOp) and node.operator is RowOperator.LAYERNORM
        if uses[node.target] == 1 and node.target not in wanted
    }
    return [_scaled_norm(node, norms, table) or node for node in nodes]


def _scaled_norm(node: Node, norms: Mapping[str, RowOp], table: Mapping[str, Value]) -> ScaledNorm | None:
    """The node, if it is `weight * norm + bias + …` and all are as wide as the norm."""
    if not isinstance(node, Pointwise):
        return None
    width = table[node.target].width

    def is_vector(name: str) -> bool:
        return _is_vector(table.get(name), width)

    def is_norm(name: str) -> bool:
        # The norm of one number is one number. A wider scale would make more numbers of it.
        return name in norms and table[name].width == width

    scaled: list[tuple[RowOp, str]] = []
    biases: list[str] = []
    for term in _terms(node.expr):
        match term:
            case Ref(name) if is_vector(name):
                biases.append(name)
            case Apply("mul", (Ref(weight), Ref(norm))) if is_norm(norm) and is_vector(weight):
                scaled.append((norms[norm], weight))
            case Apply("mul", (Ref(norm), Ref(weight))) if is_norm(norm) and is_vector(weight):
                scaled.append((norms[norm], weight))
            case _:
                return None
    return ScaledNorm(node.target, *scaled[0], tuple(biases)) if len(scaled) == 1 else None


def _is_vector(value: Value | None, width: Dim) -> bool:
    """Whether a value is one vector of this width for all steps."""
    if value is None or value.role is Role.CONSTANT or value.columns is not None or value.width != width:
        return False
    return value.role is Role.PARAMETER or value.placement is Placement.P


def _terms(expr: Expr) -> list[Expr]:
    match expr:
        case Apply("add", (left, right)):
            return [*_terms(left), *_terms(right)]
        case _:
            return [expr]


def _summed(operations: Sequence[Operation], wanted: set[str], table: Mapping[str, Value]) -> list[Operation]:
    """Puts products into the sums that alone read them."""
    uses = Counter(name for operation in operations for name in _readings(operation))
    products = {
        operation.target: operation
        for operation in operations
        if isinstance(operation, Contraction) and uses[operation.target] == 1 and operation.target not in wanted
    }
    return [_sum_of(operation, products, table) or operation for operation in operations]


def _readings(operation: Operation) -> Iterable[str]:
    """What an operation reads, as often as it does: `u*u + u` reads u three times."""
    return references(operation.expr) if isinstance(operation, Pointwise) else operation_reads(operation)


def _sum_of(operation: Operation, products: Mapping[str, Contraction], table: Mapping[str, Value]) -> Sum | None:
    """The operation as a sum that ends with products, none of which broadcasts. The order is the one in which it was
    written, and a term in brackets stays one."""
    if not isinstance(operation, Pointwise):
        return None

    def product_of(term: Expr) -> Contraction | None:
        return products.get(term.name) if isinstance(term, Ref) and table[term.name].width not in (ONE, HEADS) else None

    start, added = operation.expr, list[tuple[int, Contraction]]()
    while isinstance(start, Apply) and start.operator in ("add", "sub"):
        product = product_of(start.arguments[1])
        if product is None:
            break
        added.append((1 if start.operator == "add" else -1, product))
        start = start.arguments[0]
    if not added:
        return None
    if first := product_of(start):
        return Sum(operation.target, None, ((1, first), *added[::-1]))
    # A number is no tensor yet.
    is_number = all(table[name].role is Role.CONSTANT for name in references(start))
    return None if is_number else Sum(operation.target, start, tuple(added[::-1]))


def _cut(operations: Sequence[Operation], table: Mapping[str, Value]) -> list[Operation]:
    """Slices that together are the whole operand become one split, which has one gradient and not one per slice."""
    slices: dict[str, list[RowOp]] = {}
    for operation in operations:
        if isinstance(operation, RowOp) and operation.operator is RowOperator.SLICE:
            slices.setdefault(operation.operands[0], []).append(operation)
    found: list[Operation] = []
    for operation in operations:
        group = slices.get(operation.operands[0], []) if isinstance(operation, RowOp) else []
        if not isinstance(operation, RowOp) or len(group) < 2 or not _is_whole(group, table):
            found.append(operation)
        elif operation is group[0]:
            found.append(Cut(tuple(each.target for each in group), operation.operands[0]))
        elif operation.operator is not RowOperator.SLICE:
            found.append(operation)
    return found


def _is_whole(group: Sequence[RowOp], table: Mapping[str, Value]) -> bool:
    offset = constant_dim(0)
    for operation in group:
        if operation.offset != offset:
            return False
        offset = add_dims(offset, table[operation.target].width)
    return offset == table[group[0].operands[0]].width
