"""Opens a package's library, and makes its functions into torch ops. The ops of a loop are in segment_ops.py, and
`head_norm` is in head_norm.py. `linear` is here, and `permute_rows`, which packages with GPU kernels have."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arguments.tensors import autocast_dtype, is_batched
from ..kernels.fork import release_threads
from ..kernels.kernels import Kernels, said_by
from ..modules.whole import WholeOps
from ..spec import CellSpec
from .autograd import autograd_of_tensors, unrecorded
from .flops import register_formulas
from .head_norm import make_head_norm
from .registration import check_fake_call, implement, mark_compliant, spread
from .segment_ops import make_segment

# torch forgets a registration when its Library object dies.
_LIBRARIES: list[torch.library.Library] = []


def open_library(path: Path, namespace: str, cells: Sequence[CellSpec], architectures: tuple[str, ...] = ()) -> Kernels:
    """Open the library, which makes its ops known as `namespace`, and give them what Python adds, once a process.
    Raises RuntimeError, OSError."""
    segments = [(cell, segment) for cell in cells for segment in cell.segments]
    # The schemas stand in templates/include/rnncc/torch/schema.h.
    opened = ctypes.CDLL(str(path))
    opened.rnncc_register.restype = ctypes.c_char_p
    if (problem := opened.rnncc_register()) is not None:
        raise RuntimeError(f"torch refused an op: {problem.decode()}")
    space = getattr(torch.ops, namespace)
    library = None
    # Another copy of the package may have been imported before, and the library opened without one.
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::linear", "AutocastCPU"):
        library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)
        os.register_at_fork(before=release_threads)
        register_formulas(namespace, segments)
    calls = {segment.name: make_segment(library, namespace, cell, segment) for cell, segment in segments}
    calls["linear"] = _make_linear(library, namespace)
    ops = {segment.name: getattr(space, f"{segment.name}_forward") for _, segment in segments}
    ops["linear"] = space.linear
    wholes = [(cell, segment) for cell, segment in segments if segment.whole is not None]
    whole: dict[str, WholeOps] = {each.name: WholeOps(library, namespace, cell, each) for cell, each in wholes}
    whole |= {cell.single.name: WholeOps(library, namespace, cell, cell.single) for cell in cells if cell.single}
    if hasattr(space, "permute_rows"):
        calls["permute_rows"] = make_permute_rows(library, namespace)
        ops["permute_rows"] = space.permute_rows
    units = 0
    if hasattr(space, "head_norm"):
        units = said_by(opened, "rnncc_head_norm_units")
        calls["head_norm"] = make_head_norm(library, namespace)
        ops["head_norm"] = space.head_norm
    steps = said_by(opened, "rnncc_long_call_steps")
    return Kernels(namespace, ops, architectures, calls, whole, long_call_steps=steps, head_norm_units=units)


def _make_linear(library: torch.library.Library | None, namespace: str) -> Callable[..., Any]:
    """As `segment_ops.make_segment`."""
    forward_op = getattr(torch.ops, namespace).linear.default
    backward_op = getattr(torch.ops, namespace).linear_backward.default

    def fake_linear(x: Any, weight: Any, bias: Any) -> Any:
        check_fake_call(x, (weight, bias))
        fits = x.shape[-1] == weight.shape[1]
        torch._check(fits, lambda: f"linear: x {x.shape} does not fit weight {weight.shape}")  # type: ignore[no-untyped-call]
        same = x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype)
        torch._check(same, lambda: "linear: x, weight and bias must have the same dtype")  # type: ignore[no-untyped-call]
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    def fake_backward(d_y: Any, x: Any, weight: Any, needs: Any) -> Any:
        made = (x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty((weight.shape[0],)))
        return [tensor for tensor, need in zip(made, needs, strict=True) if need]

    def setup(ctx: Any, tensors: Any, _: Any) -> None:
        x, weight, _ = tensors
        ctx.save_for_backward(x, weight)

    def backward(ctx: Any, d_y: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[1:])
        if not torch.is_grad_enabled() and not is_batched(d_y):
            return tuple(spread(unrecorded(backward_op, d_y, x, weight, needs), needs))
        rows = d_y.reshape(-1, d_y.shape[-1])
        return (
            d_y @ weight if needs[0] else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs[1] else None,
            rows.sum(0) if needs[2] else None,
        )

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"{namespace}::linear_backward has no derivative of its own; differentiate linear twice instead"
        )

    def autocast(keyset: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        device = x.device.type
        cast = [t if t is None else t.to(autocast_dtype(t, device)) for t in (x, weight, bias)]
        with torch.autocast(device, enabled=False):
            return forward_op(*cast)

    recorded = autograd_of_tensors(forward_op, setup, backward, torch.nn.functional.linear)
    if library is not None:
        torch.library.register_fake(f"{namespace}::linear", fake_linear, lib=library)
        torch.library.register_fake(f"{namespace}::linear_backward", fake_backward, lib=library)
        implement(library, "linear", recorded.kernel, "Autograd")
        torch.library.register_autograd(f"{namespace}::linear_backward", refuse, lib=library)
        implement(library, "linear", autocast, "AutocastCPU", "AutocastCUDA")
        mark_compliant(forward_op, backward_op)
    return recorded.call


def make_permute_rows(library: torch.library.Library | None, namespace: str) -> Callable[..., Any]:
    """As `segment_ops.make_segment`. What flows back goes the other way; autocast leaves it alone."""
    op = getattr(torch.ops, namespace).permute_rows.default

    def fake(rows: Any, firsts: Any, starts: Any, to_steps: Any) -> Any:
        check_fake_call(rows, (firsts, starts))
        return rows.new_empty(rows.shape)

    def setup(ctx: Any, arguments: Any, _: Any) -> None:
        _, firsts, starts, ctx.to_steps = arguments
        ctx.save_for_backward(firsts, starts)

    def backward(ctx: Any, gradient: Tensor) -> Any:
        return recorded.call(gradient, *ctx.saved_tensors, not ctx.to_steps), None, None, None

    def of_dual(rows: Tensor, *rest: Any) -> Tensor:
        value, tangent = forward_ad.unpack_dual(rows)  # type: ignore[no-untyped-call]
        made: Tensor = forward_ad.make_dual(recorded.call(value, *rest), recorded.call(tangent, *rest))  # type: ignore[no-untyped-call]
        return made

    recorded = autograd_of_tensors(op, setup, backward, of_dual)
    if library is not None:
        torch.library.register_fake(f"{namespace}::permute_rows", fake, lib=library)
        implement(library, "permute_rows", recorded.kernel, "Autograd")
        mark_compliant(op)
    return recorded.call
