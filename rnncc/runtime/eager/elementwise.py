"""Elementwise functions that torch does not have exactly as the language defines them, and the clip of a gradient.

Arguments are tensors or Python numbers; at least one is a tensor. Shapes broadcast, and the result has the dtype of the
first tensor, or torch's promoted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Number = Tensor | float


def _tensor(value: Number, like: Number) -> Tensor:
    if isinstance(value, Tensor):
        return value
    assert isinstance(like, Tensor)
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _first(*values: Number) -> Tensor:
    for value in values:
        if isinstance(value, Tensor):
            return value
    return torch.zeros((), dtype=torch.get_default_dtype(), device="cpu")


def _pair(a: Number, b: Number) -> tuple[Tensor, Tensor]:
    like = _first(a, b)
    return _tensor(a, like), _tensor(b, like)


def _compare(name: str, a: Number, b: Number) -> Tensor:
    left, right = _pair(a, b)
    result: Tensor = getattr(torch, name)(left, right)
    return result.to(left.dtype)


def lt(a: Number, b: Number) -> Tensor:
    """The result is 1 where a < b, else 0."""
    return _compare("lt", a, b)


def le(a: Number, b: Number) -> Tensor:
    """The result is 1 where a <= b, else 0."""
    return _compare("le", a, b)


def gt(a: Number, b: Number) -> Tensor:
    """The result is 1 where a > b, else 0."""
    return _compare("gt", a, b)


def ge(a: Number, b: Number) -> Tensor:
    """The result is 1 where a >= b, else 0."""
    return _compare("ge", a, b)


def eq(a: Number, b: Number) -> Tensor:
    """The result is 1 where a == b, else 0."""
    return _compare("eq", a, b)


def ne(a: Number, b: Number) -> Tensor:
    """The result is 1 where a != b, else 0."""
    return _compare("ne", a, b)


def where(condition: Number, a: Number, b: Number) -> Tensor:
    """The result is a where condition != 0, else b."""
    like = _first(a, b, condition)
    return torch.where(_tensor(condition, like) != 0, _tensor(a, like), _tensor(b, like))


def max(a: Number, b: Number) -> Tensor:
    """torch.maximum."""
    return torch.maximum(*_pair(a, b))


def min(a: Number, b: Number) -> Tensor:
    """torch.minimum."""
    return torch.minimum(*_pair(a, b))


def pow(a: Number, b: Number) -> Tensor:
    """torch.pow."""
    return torch.pow(*_pair(a, b))


def logaddexp(a: Number, b: Number) -> Tensor:
    """torch.logaddexp."""
    return torch.logaddexp(*_pair(a, b))


def mod(a: Number, b: Number) -> Tensor:
    """torch.remainder: the sign of the divisor."""
    return torch.remainder(*_pair(a, b))


def clamp(a: Number, low: Number, high: Number) -> Tensor:
    """torch.clamp with bounds that may be tensors."""
    like = _first(a, low, high)
    # torch's own derivative fails where a bound has more elements than the value.
    values = (_tensor(a, like), _tensor(low, like), _tensor(high, like))
    return torch.clamp(*torch.broadcast_tensors(*values))  # type: ignore[no-untyped-call]


def epsilon(a: Tensor) -> float:
    """The machine epsilon of a's dtype."""
    return torch.finfo(a.dtype).eps


class _ClipGradient(torch.autograd.Function):
    """The identity, whose gradient is clipped elementwise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, bound: float) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        # A bound of 0 gives zeros even for NaN, which a clamp would let pass.
        return d.clamp(-ctx.bound, ctx.bound) if ctx.bound else torch.zeros_like(d), None


def exporting() -> bool:
    """Whether torch.export runs. The torch.compile of torch 2.11 takes `is_exporting` itself to be true always."""
    return torch.compiler.is_exporting()


# What torch.compiler.assume_constant_result does, but that this imports dynamo, and sympy with it.
exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is active (torch.func.jvp, torch.autograd.forward_ad)."""
    return forward_ad._current_level >= 0


def clip_gradient(value: Tensor, bound: float) -> Tensor:
    """The value; its gradient is clipped to [-bound, bound], and zero where bound is zero. Raises NotImplementedError
    under forward-mode differentiation, and in torch.export: torch's own operators cannot write a clip down."""
    if bound == math.inf:
        return value
    if exporting():
        if torch.onnx.is_in_onnx_export():
            return value  # a model for inference
        raise NotImplementedError(
            "an exported program of torch's own operators would have gradients without the recurrent_gradient_clip: "
            "set the layer's to None, or export with the kernels' ops (not backend='reference')"
        )
    # A `jvp` method could raise this too, but torch.compile takes no autograd.Function that has one.
    if in_forward_mode():
        raise NotImplementedError(
            "forward-mode automatic differentiation (torch.func.jvp, dual tensors) cannot go through "
            "recurrent_gradient_clip, which bounds what flows back; set it to None"
        )
    apply: Callable[[Tensor, float], Tensor] = _ClipGradient.apply
    return apply(value, bound)


def heaviside(v: Tensor) -> Tensor:
    """1 where v > 0, else 0 (also at 0); derivative 0."""
    return (v > 0).to(v.dtype)


def _magnitude(v: Tensor) -> Tensor:
    """|v| with the derivative -1 at 0, where torch.abs has 0. No surrogate may lose its gradient at 0."""
    return torch.where(v > 0, v, -v)


def _following(value: Tensor, smooth: Tensor) -> Tensor:
    """The value with the derivatives of `smooth`, of every order and in every mode."""
    # An autograd.Function would be more direct, but torch.compile takes none that forward mode can differentiate.
    return value.detach() + torch.where(smooth.isfinite(), smooth - smooth.detach(), 0)


def surrogate_fast_sigmoid(v: Tensor, value: Tensor, k: Number) -> Tensor:
    """Returns the value, with the derivative 1 / (1 + k|v|)² (Zenke & Ganguli 2018)."""
    if k == 0:
        return _following(value, v)
    # The derivative of v/(1 + k|v|) would lose digits where k|v| is large.
    falling = 1 / (1 + k * _magnitude(v))
    return _following(value, torch.where(v > 0, -falling, falling) / k)


def surrogate_atan(v: Tensor, value: Tensor, k: Number) -> Tensor:
    """Returns the value, with the derivative (k/2) / (1 + (π k v/2)²) (Fang et al. 2021)."""
    return _following(value, torch.atan(torch.pi / 2 * k * v) / torch.pi)


def surrogate_sigmoid(v: Tensor, value: Tensor, k: Number) -> Tensor:
    """Returns the value, with the derivative of sigmoid(k v)."""
    return _following(value, torch.sigmoid(k * v))


def surrogate_triangular(v: Tensor, value: Tensor, k: Number) -> Tensor:
    """Returns the value, with the derivative k·max(0, 1 - |v|) (Bellec et al. 2018)."""
    falling = torch.relu(1 - _magnitude(v)).square() / 2
    return _following(value, k * torch.where(v > 0, -falling, falling))


def surrogate_given(v: Tensor, value: Tensor, slope: Number) -> Tensor:
    """Returns the value, with the derivative `slope`, which is differentiated no further. No gradient passes where v is
    not finite."""
    factor = slope.detach() if isinstance(slope, Tensor) else slope
    return _following(value, factor * (v - v.detach()))
