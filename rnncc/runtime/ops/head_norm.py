"""The op `head_norm`: layer norm over each head in one pass over memory. torch's own operators take five. Packages with
GPU kernels have it where a cell of theirs calls it. templates/include/rnncc/torch/schema.h says what the op takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments.tensors import is_batched
from ..eager import rows
from .autograd import autograd_of_tensors, gradients_again, unrecorded
from .registration import check_fake_call, implement, mark_compliant, spread

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PIECE = 8  # each of the k parts of a head is rounded up to whole pieces, which have at most so many numbers


def takes_head_norm(value: Tensor, heads: int, k: int, vectors: Sequence[Tensor | None], most_units: int) -> bool:
    """Whether the op takes a norm. `vectors`: weight and bias. `most_units`: k * head_dim of the largest head. One head
    is left to torch's own layer norm, which is one pass too."""
    given = {vector.dtype for vector in vectors if vector is not None}
    return (
        value.is_cuda
        and heads > 1
        and value.dtype in _DTYPES
        and (not given or given in ({value.dtype}, {torch.float32}))
        and value.shape[-1] // heads + k * (_PIECE - 1) <= most_units
    )


def make_head_norm(library: torch.library.Library | None, namespace: str) -> Callable[..., Any]:
    """As `segment_ops.make_segment`."""
    forward_op = getattr(torch.ops, namespace).head_norm.default
    backward_op = getattr(torch.ops, namespace).head_norm_backward.default

    def fake(value: Any, weight: Any, bias: Any, heads: Any, *_: Any) -> Any:
        check_fake_call(value, (weight, bias))
        like = next((vector for vector in (weight, bias) if vector is not None), value)
        numbers = (*value.shape[:-1], heads)
        normalised = value.new_empty(value.shape, dtype=like.dtype)
        return normalised, *(value.new_empty(numbers, dtype=torch.float32) for _ in range(2))

    def fake_backward(d_normalised: Any, value: Any, *rest: Any) -> Any:
        vector = value.shape[-1:]
        made = (value.new_empty(value.shape), d_normalised.new_empty(vector), d_normalised.new_empty(vector))
        return [tensor for tensor, need in zip(made, rest[-1], strict=True) if need]

    def setup(ctx: Any, arguments: Any, results: Any) -> None:
        value, weight, bias, *ctx.numbers = arguments
        _, means, scales = results
        ctx.save_for_backward(value, weight, bias, means, scales)

    def backward(ctx: Any, gradient: Tensor) -> Any:
        value, weight, bias, means, scales = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[1:4])
        if torch.is_grad_enabled() or is_batched(gradient):
            made = _differentiable(ctx.numbers, (value, weight, bias), gradient, needs)
        else:
            made = spread(unrecorded(backward_op, gradient, value, weight, means, scales, ctx.numbers[1], needs), needs)
        return *made, None, None, None

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"{namespace}::head_norm_backward has no derivative of its own; differentiate head_norm twice instead"
        )

    def autocast(keyset: Any, value: Tensor, weight: Tensor | None, bias: Tensor | None, *numbers: Any) -> Any:
        # As torch's own layer norm, it gives float32. The result has the dtype of the vectors, or else the value's.
        vectors = [None if vector is None else vector.float() for vector in (weight, bias)]
        if weight is None and bias is None:
            value = value.float()
        with torch.autocast(value.device.type, enabled=False):
            return forward_op(value, *vectors, *numbers)

    recorded = autograd_of_tensors(forward_op, setup, backward, _written_out)
    if library is not None:
        torch.library.register_fake(f"{namespace}::head_norm", fake, lib=library)
        torch.library.register_fake(f"{namespace}::head_norm_backward", fake_backward, lib=library)
        implement(library, "head_norm", recorded.kernel, "Autograd")
        torch.library.register_autograd(f"{namespace}::head_norm_backward", refuse, lib=library)
        implement(library, "head_norm", autocast, "AutocastCUDA")
        mark_compliant(forward_op, backward_op)
    return recorded.call


def _differentiable(
    numbers: Sequence[Any], given: Sequence[Tensor | None], gradient: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by torch's own operators, which can be differentiated again, and batched. `numbers`: heads, k,
    epsilon; `given`: value, weight, bias."""
    heads, k, epsilon = numbers

    def run(tensors: list[Any]) -> list[Tensor]:
        value, weight, bias = tensors
        return [rows.layer_norm(value, heads, k, epsilon, weight, bias)]

    return gradients_again(run, given, [gradient], needs)


def _written_out(
    value: Tensor, weight: Tensor | None, bias: Tensor | None, heads: int, k: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The op in torch's own operators."""
    split = rows.split_heads(value.detach().float(), heads, k)
    variances, means = torch.var_mean(split, -1, correction=0)
    return rows.layer_norm(value, heads, k, epsilon, weight, bias), means, (variances + epsilon).rsqrt()
