"""Batched nodes that torch has one function for: normalisations over a row, and a value cut into parts.

Row functions are decomposed early (stages/partition), which suits loops. Over all steps every node would be a pass
over a [T, B, width] tensor, so the patterns are put together again: by their form, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Node, Placement, Pointwise, Role, RowOp, RowOperator, Value, operands
from rnncc.ir.dim import HEADS, Dim, split_multiple
from rnncc.ir.dim import add as add_dims
from rnncc.ir.dim import constant as constant_dim
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.stages.render.python_code import Emitter, dim_text, variable


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
    """`target` = softmax(operand) over each head's units."""

    target: str
    operand: str


@dataclass(frozen=True, slots=True)
class Split:
    """`targets` are the operand's units, all of them, in order."""

    targets: tuple[str, ...]
    operand: str


Fused = LayerNorm | Softmax | Split
Step = Node | Fused


def step_reads(step: Step) -> tuple[str, ...]:
    """The values that a step reads."""
    match step:
        case LayerNorm(_, operand, _, weight, biases):
            return (operand, *((weight,) if weight else ()), *biases)
        case Softmax(_, operand) | Split(_, operand):
            return (operand,)
        case _:
            return operands(step)


def step_targets(step: Step) -> tuple[str, ...]:
    """The values that a step makes."""
    return step.targets if isinstance(step, Split) else (step.target,)


def step_text(step: Step, emitter: Emitter) -> str:
    """A step as one line of torch code."""
    match step:
        case LayerNorm(target, operand, epsilon, weight, biases):
            shape = f"{dim_text(HEADS)}, {split_multiple(emitter.table[operand].width)[0]}"
            scale = variable(weight) if weight else "None"
            shift = " + ".join(variable(name) for name in biases) or "None"
            return f"{variable(target)} = rows.layer_norm({variable(operand)}, {shape}, {epsilon!r}, {scale}, {shift})"
        case Softmax(target, operand):
            shape = f"{dim_text(HEADS)}, {split_multiple(emitter.table[operand].width)[0]}"
            return f"{variable(target)} = rows.softmax({variable(operand)}, {shape})"
        case Split(targets, operand):
            widths = ", ".join(dim_text(emitter.table[name].width) for name in targets)
            return f"{', '.join(variable(name) for name in targets)} = {variable(operand)}.split(({widths}), -1)"
        case _:
            return emitter.node(step)


def fuse(nodes: Sequence[Node], kept: Iterable[str], table: Mapping[str, Value]) -> tuple[Step, ...]:
    """The nodes with patterns in one step each, without what only the patterns read. `kept`: targets read elsewhere."""
    wanted = set(kept)
    steps: list[Step] = [_normalised(node, nodes) or node for node in nodes]
    steps = _alive(steps, wanted)
    steps = _alive(_scaled(steps, wanted, table), wanted)
    return tuple(_alive(_cut(steps, table), wanted))


def _alive(steps: Sequence[Step], wanted: set[str]) -> list[Step]:
    read = set(wanted)
    found = []
    for step in reversed(steps):
        if read.intersection(step_targets(step)):
            found.append(step)
            read.update(step_reads(step))
    return found[::-1]


def _normalised(node: Node, nodes: Sequence[Node]) -> LayerNorm | Softmax | None:
    """The function that a node is the last part of."""
    if not isinstance(node, Pointwise):
        return None
    made = {each.target: each for each in nodes}
    match node.expr:
        case Apply("mul", (Ref(centred), Apply("div", (Const(1.0), root)))) | Apply("div", (Ref(centred), root)):
            return _layer_norm(node.target, centred, root, made) or _softmax(node, made)
        case _:
            return None


def _layer_norm(target: str, centred: str, root: Expr, made: Mapping[str, Node]) -> LayerNorm | None:
    match root:
        case Apply("sqrt", (Apply("add", (Ref(variance), Const(epsilon))),)):
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
        case Apply("exp", (Apply("sub", (Ref(operand), Ref(largest))),)):
            return Softmax(node.target, operand) if _row_operand(largest, RowOperator.MAX, made) == operand else None
        case _:
            return None


def _row_operand(name: str, operator: RowOperator, made: Mapping[str, Node]) -> str:
    """What a row operator is applied to, "" where the name is no such operator's value."""
    node = made.get(name)
    return node.operands[0] if isinstance(node, RowOp) and node.operator is operator else ""


def _expression(name: str, made: Mapping[str, Node]) -> Expr | None:
    node = made.get(name)
    return node.expr if isinstance(node, Pointwise) else None


def _scaled(steps: Sequence[Step], wanted: set[str], table: Mapping[str, Value]) -> list[Step]:
    """Norms with the scale and the shifts that their only reader gives them."""
    norms = {step.target: step for step in steps if isinstance(step, LayerNorm)}
    uses: dict[str, int] = {}
    for step in steps:
        for name in step_reads(step):
            uses[name] = uses.get(name, 0) + 1
    found: list[Step] = []
    for step in steps:
        affine = _affine(step, norms, table) if isinstance(step, Pointwise) else None
        alone = affine is not None and uses[affine[0]] == 1 and affine[0] not in wanted
        if alone and affine is not None and isinstance(step, Pointwise):
            norm, weight, biases = norms[affine[0]], affine[1], affine[2]
            found.append(LayerNorm(step.target, norm.operand, norm.epsilon, weight, biases))
        else:
            found.append(step)
    return found


def _affine(
    step: Pointwise, norms: Mapping[str, LayerNorm], table: Mapping[str, Value]
) -> tuple[str, str, tuple[str, ...]] | None:
    """The norm, the scale and the shifts of `weight * norm + bias + …`, all as wide as the norm."""
    width = table[step.target].width
    # The norm of one number is one number, which a wider scale would stretch.
    norms = {name: norm for name, norm in norms.items() if table[norm.operand].width == width}

    def is_vector(term: Expr) -> bool:
        return isinstance(term, Ref) and _is_vector(table.get(term.name), width)

    scaled: list[tuple[str, str]] = []
    biases: list[str] = []
    for term in _terms(step.expr):
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


def _cut(steps: Sequence[Step], table: Mapping[str, Value]) -> list[Step]:
    """Slices that together are the whole of their operand become one split: it has one gradient, not one a slice."""
    slices: dict[str, list[RowOp]] = {}
    for step in steps:
        if isinstance(step, RowOp) and step.operator is RowOperator.SLICE:
            slices.setdefault(step.operands[0], []).append(step)
    found: list[Step] = []
    for step in steps:
        group = slices.get(step.operands[0], []) if isinstance(step, RowOp) else []
        if not isinstance(step, RowOp) or len(group) < 2 or not _is_whole(group, table):
            found.append(step)
        elif step is group[0]:
            found.append(Split(tuple(each.target for each in group), step.operands[0]))
        elif step.operator is not RowOperator.SLICE:
            found.append(step)
    return found


def _is_whole(group: Sequence[RowOp], table: Mapping[str, Value]) -> bool:
    offset = constant_dim(0)
    for step in group:
        if step.offset != offset:
            return False
        offset = add_dims(offset, table[step.target].width)
    return offset == table[group[0].operands[0]].width
