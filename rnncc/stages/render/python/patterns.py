"""Finds batched nodes that are one function in torch: normalisations over a row, a value cut into parts, and products
that are added to something.

Row functions are decomposed early (stages/partition), which suits loops. Over all steps each node would be a pass over
a [T, B, width] tensor, so these patterns are put together again. Only their form counts, not whether the user or the
compiler wrote them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Contraction, Node, Placement, Pointwise, Role, RowOp, RowOperator, Value, operands
from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.dim import add as add_dims
from rnncc.ir.dim import constant as constant_dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.stages.render.notation import python_dim
from rnncc.stages.render.python.code import Emitter, variable


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """`target` = weight * (operand - mean) / sqrt(variance + epsilon) + the biases."""

    target: str
    operand: str
    epsilon: float
    weight: str = ""
    biases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Softmax:
    """`target` = softmax(operand), over the units of each head."""

    target: str
    operand: str


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


Pattern = LayerNorm | Softmax | Cut | Sum
# One line of torch code.
Operation = Node | Pattern


def operation_reads(operation: Operation) -> tuple[str, ...]:
    """The values that an operation reads."""
    match operation:
        case LayerNorm(_, operand, _, weight, biases):
            return (operand, *((weight,) if weight else ()), *biases)
        case Softmax(_, operand) | Cut(_, operand):
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
        case LayerNorm(target, operand, epsilon, weight, biases):
            shape = f"{python_dim(HEADS)}, {split_multiple(emitter.table[operand].width)[0]}"
            scale = variable(weight) if weight else "None"
            shift = " + ".join(variable(name) for name in biases) or "None"
            return f"{variable(target)} = tools.layer_norm({variable(operand)}, {shape}, {epsilon!r}, {scale}, {shift})"
        case Softmax(target, operand):
            shape = f"{python_dim(HEADS)}, {split_multiple(emitter.table[operand].width)[0]}"
            return f"{variable(target)} = rows.softmax({variable(operand)}, {shape})"
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
    operations: list[Operation] = [_normalised(node, nodes, table) or node for node in nodes]
    operations = _alive(operations, wanted)
    operations = _alive(_scaled(operations, wanted, table), wanted)
    operations = _alive(_summed(operations, wanted, table), wanted)
    return tuple(_alive(_cut(operations, table), wanted))


def has_layer_norm(nodes: Sequence[Node], table: Mapping[str, Value]) -> bool:
    """Whether `recognise` finds a layer norm among the nodes."""
    return any(isinstance(_normalised(node, nodes, table), LayerNorm) for node in nodes)


def _alive(operations: Sequence[Operation], wanted: set[str]) -> list[Operation]:
    read = set(wanted)
    found = []
    for operation in reversed(operations):
        if read.intersection(operation_targets(operation)):
            found.append(operation)
            read.update(operation_reads(operation))
    return found[::-1]


def _normalised(node: Node, nodes: Sequence[Node], table: Mapping[str, Value]) -> LayerNorm | Softmax | None:
    """The function whose last part the node is. Its parts are as wide as its operand: a number that is spread on the
    way has the same equations, and more units in its sums."""
    if not isinstance(node, Pointwise):
        return None
    width = table[node.target].width
    made = {each.target: each for each in nodes if isinstance(each, RowOp) or table[each.target].width == width}
    match node.expr:
        case (
            Apply("mul", (Ref(centred), Apply("rsqrt", (variance,))))
            | Apply("mul", (Ref(centred), Apply("div", (Const(1.0), Apply("sqrt", (variance,))))))
            | Apply("div", (Ref(centred), Apply("sqrt", (variance,))))
        ):
            found: LayerNorm | Softmax | None = _layer_norm(node.target, centred, variance, made)
        case _:
            found = _softmax(node, made)
    return found if found is not None and table[found.operand].width == width else None


def _layer_norm(target: str, centred: str, moved: Expr, made: Mapping[str, Node]) -> LayerNorm | None:
    match moved:
        case Apply("add", (Ref(variance), Const(epsilon))):
            squares = _row_operand(variance, RowOperator.MEAN, made)
        case _:
            return None
    if _expression(squares, made) != Apply("mul", (Ref(centred), Ref(centred))):
        return None
    match _expression(centred, made):
        case Apply("sub", (Ref(operand), Ref(mean))) if _row_operand(mean, RowOperator.MEAN, made) == operand:
            return LayerNorm(target, operand, epsilon)
        case _:
            return None


def _softmax(node: Pointwise, made: Mapping[str, Node]) -> Softmax | None:
    match node.expr:
        case Apply("div", (Ref(powers), Ref(total))) if _row_operand(total, RowOperator.SUM, made) == powers:
            pass
        case _:
            return None
    match _expression(powers, made):
        case Apply("exp", (Apply("sub", (Ref(operand), Apply("detach", (Ref(largest),)))),)):
            return Softmax(node.target, operand) if _row_operand(largest, RowOperator.MAX, made) == operand else None
        case _:
            return None


def _row_operand(name: str, operator: RowOperator, made: Mapping[str, Node]) -> str:
    """The operand of the row operator that makes this value, or "" where another node makes it."""
    node = made.get(name)
    return node.operands[0] if isinstance(node, RowOp) and node.operator is operator else ""


def _expression(name: str, made: Mapping[str, Node]) -> Expr | None:
    node = made.get(name)
    return node.expr if isinstance(node, Pointwise) else None


def _scaled(operations: Sequence[Operation], wanted: set[str], table: Mapping[str, Value]) -> list[Operation]:
    """Puts into each norm the scale and the shifts that its only reader gives it."""
    norms = {operation.target: operation for operation in operations if isinstance(operation, LayerNorm)}
    uses: dict[str, int] = {}
    for operation in operations:
        for name in operation_reads(operation):
            uses[name] = uses.get(name, 0) + 1
    found: list[Operation] = []
    for operation in operations:
        affine = _affine(operation, norms, table) if isinstance(operation, Pointwise) else None
        alone = affine is not None and uses[affine[0]] == 1 and affine[0] not in wanted
        if alone and affine is not None and isinstance(operation, Pointwise):
            norm, weight, biases = norms[affine[0]], affine[1], affine[2]
            found.append(LayerNorm(operation.target, norm.operand, norm.epsilon, weight, biases))
        else:
            found.append(operation)
    return found


def _affine(
    operation: Pointwise, norms: Mapping[str, LayerNorm], table: Mapping[str, Value]
) -> tuple[str, str, tuple[str, ...]] | None:
    """The norm, the scale and the shifts of `weight * norm + bias + …`, all as wide as the norm."""
    width = table[operation.target].width
    # The norm of one number is one number. A wider scale would make more numbers of it.
    norms = {name: norm for name, norm in norms.items() if table[norm.operand].width == width}

    def is_vector(term: Expr) -> bool:
        return isinstance(term, Ref) and _is_vector(table.get(term.name), width)

    scaled: list[tuple[str, str]] = []
    biases: list[str] = []
    for term in _terms(operation.expr):
        match term:
            case Ref(name) if is_vector(term):
                biases.append(name)
            case Apply("mul", (Ref(weight), Ref(norm))) if norm in norms and is_vector(Ref(weight)):
                scaled.append((norm, weight))
            case Apply("mul", (Ref(norm), Ref(weight))) if norm in norms and is_vector(Ref(weight)):
                scaled.append((norm, weight))
            case _:
                return None
    if len(scaled) != 1:
        return None
    return scaled[0][0], scaled[0][1], tuple(biases)


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
