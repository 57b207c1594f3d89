"""What norms and softmax are made of, by torch's definitions."""

from __future__ import annotations

from rnncc.ir.cell import Node, Pointwise, RowOp
from rnncc.ir.expr import Const, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.language.diagnostics import InternalError

NORMS = frozenset({RowOperator.LAYERNORM, RowOperator.RMSNORM, RowOperator.SOFTMAX})
# torch.nn.functional.layer_norm's default.
LAYERNORM_EPSILON = 1e-5


def apart(norm: RowOp) -> tuple[Node, ...]:
    """The nodes that make the value of one of NORMS, its target last. Elementwise nodes are as wide as the operand."""
    target, (operand,), span = norm.target, norm.operands, norm.span
    value = Ref(operand)

    def reduced(operator: RowOperator, *operands: str) -> RowOp:
        return RowOp(f"{target}__{operator.value}", operator, operands, span=span)

    match norm.operator:
        case RowOperator.LAYERNORM:
            mean = reduced(RowOperator.MEAN, operand)
            variance = reduced(RowOperator.VARIANCE, operand, mean.target)
            scale = apply("rsqrt", apply("add", Ref(variance.target), Const(norm.epsilon)))
            centred = Pointwise(f"{target}__centred", apply("sub", value, Ref(mean.target)), span)
            return mean, centred, variance, Pointwise(target, apply("mul", Ref(centred.target), scale), span)
        case RowOperator.RMSNORM:
            squares = Pointwise(f"{target}__squares", apply("mul", value, value), span)
            mean = reduced(RowOperator.MEAN, squares.target)
            scale = apply("rsqrt", apply("add", Ref(mean.target), apply("epsilon", value)))
            return squares, mean, Pointwise(target, apply("mul", value, scale), span)
        case RowOperator.SOFTMAX:
            # The gradient through the maximum would cancel, so there is none.
            largest = reduced(RowOperator.MAX, operand)
            moved = apply("sub", value, apply("detach", Ref(largest.target)))
            powers = Pointwise(f"{target}__exp", apply("exp", moved), span)
            total = reduced(RowOperator.SUM, powers.target)
            quotient = apply("div", Ref(powers.target), Ref(total.target))
            return largest, powers, total, Pointwise(target, quotient, span)
        case _:
            raise InternalError(f"{norm.operator.value} is no norm")
