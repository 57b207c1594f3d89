"""Which kernels run a call, or why its loops run in eager torch (the eager fallback)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..arguments.tensors import under_autocast, under_trace
from ..eager.elementwise import in_forward_mode
from ..settings import warns_of_slow_paths
from ..spec import CellSpec
from .kernels import Kernels

KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# Two reasons for the eager fallback, which docs/torch.md names: no warning says them.
TRANSFORMS = "torch.func transforms run through the eager fallback"
ONNX = "torch.onnx.export writes torch's own operators down"


def choose_kernels(kernels: Kernels | None, x: Tensor, backend: str | None, missing: str) -> tuple[Kernels | None, str]:
    """The kernels to use for this input, or None for the eager fallback, and the reason. `missing` says why there are
    no kernels. Raises NotImplementedError for dual tensors where torch compiles, RuntimeError where `backend` cannot
    run."""
    transformed = torch._C._are_functorch_transforms_active()
    if in_forward_mode() and not transformed and _compiles():
        # Compiled code would lose tangents silently.
        raise NotImplementedError(
            "torch.compile does not hand on the tangents of dual tensors: use torch.func.jvp, or do not compile"
        )
    if backend == "reference":
        return None, "backend='reference' was asked for"
    recorded = torch.compiler.is_compiling() or under_trace()
    if recorded and torch.onnx.is_in_onnx_export():
        return None, ONNX
    if kernels is None:
        reason = missing
    elif not (x.is_cpu or x.is_cuda or x.is_meta):
        reason = f"this package has no kernels for the device {x.device.type}"
    elif x.is_cuda and not kernels.run_on_gpu(x.get_device()):
        reason = _no_architecture(kernels, x)
    elif x.dtype not in KERNEL_DTYPES or (x.is_cuda and x.dtype == torch.float64):
        reason = f"the kernels do not take {x.dtype} on {x.device.type}"
    elif backend is not None and x.device.type not in (backend, "meta"):
        reason = f"the input is on {x.device.type}"
    elif transformed:
        reason = TRANSFORMS
    else:
        if recorded or under_autocast(x):
            kernels = kernels.dispatched
        if x.is_cuda:
            return kernels, "one launch a loop"
        return kernels, "a kernel for the CPU takes every size and dtype here"
    if backend is not None:
        raise RuntimeError(f"backend={backend!r} cannot run: {reason}")
    return None, reason


_TOLD: set[str] = set()


def kernels_of_call(
    cell: CellSpec, kernels: Kernels | None, x: Tensor, backend: str | None, missing: str
) -> Kernels | None:
    """As `choose_kernels`, for a call with the input `x` [T, B, width]. Warns once per cell and reason where a long
    call runs by the eager fallback and nobody asked for that."""
    chosen, reason = choose_kernels(kernels, x, backend, missing)
    # A package without kernels warned when it was loaded, and the documents name the other reasons.
    if chosen is not None or kernels is None or backend == "reference" or reason in (TRANSFORMS, ONNX):
        return chosen
    if x.shape[0] >= kernels.long_call_steps:
        _tell(f"{cell.name}: the eager fallback runs, which is many times slower: {reason}")
    return None


def _tell(text: str) -> None:
    if text not in _TOLD and warns_of_slow_paths():
        _TOLD.add(text)
        warnings.warn(f"{text} (RNNCC_LOG=error hides this)", stacklevel=4)


# This is torch.compiler.assume_constant_result, which would import all of torch._dynamo: torch calls the function once,
# while it traces.
_tell._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _compiles() -> bool:
    """Whether torch.compile is active, also where it gave up this function and compiles those that it calls."""
    return torch.compiler.is_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def _no_architecture(kernels: Kernels, x: Tensor) -> str:
    major, minor = torch.cuda.get_device_capability(x.device)
    built = ", ".join(kernels.architectures) or "the CPU alone"
    return (
        f"this package was built for {built}, and this GPU is sm_{major}{minor}; where NVRTC is found, "
        f"`rnncc build --target sm_{major}{minor}` and rnncc.load make one for it"
    )
