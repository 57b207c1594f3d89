"""What commands need that judge or time kernels: PyTorch, a compiler, the device, and kernels that run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from rnncc.cli.output import ignore_missing_numpy
from rnncc.extras import needs_torch
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.progress import said_if_slow

if TYPE_CHECKING:
    from rnncc.verify.runner import Runner

fallback_option = click.option(
    "--allow-fallback", is_flag=True, help="Go on where the eager fallback runs in place of kernels, and say so."
)


def check_machine(command: str, device: str, *, allow_fallback: bool) -> None:
    """Before the work: raises RnnccError, RNN611 without PyTorch and RNN613 without the device. Kernels need compilers:
    if the fallback is not allowed, it is RNN601 without a C++ compiler, and RNN608 for a GPU without NVRTC."""
    from rnncc.machine.targets import architectures
    from rnncc.stages.build import find_nvrtc, find_toolchain

    ignore_missing_numpy()
    with needs_torch(command), said_if_slow("importing PyTorch"):
        import torch
    if device == "cuda" and not torch.cuda.is_available():
        _refuse("no kernels run on cuda: PyTorch finds no CUDA device", "`rnncc env` shows what is here")
    if not allow_fallback:
        find_toolchain()
        if device == "cuda":
            find_nvrtc(architectures("auto"), required=True)


def check_runner(cell: str, device: str, runner: Runner, *, allow_fallback: bool) -> None:
    """After the build: raises RnnccError (RNN613) where the fallback runs, and nobody allowed it."""
    if runner.is_fallback and not allow_fallback:
        _refuse(f"{cell}: no kernels run on {device}: {runner.why}", "--allow-fallback goes on with the eager fallback")


def _refuse(message: str, help: str) -> NoReturn:
    raise RnnccError(Diagnostic("RNN613", message, help=help))
