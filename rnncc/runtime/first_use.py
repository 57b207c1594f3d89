"""Fused kernels that are missing are compiled when a call first needs them.

The op itself asks (templates/include/rnncc/cuda/fused/first_use.h). So it makes no difference whether the call comes
from Python, from a graph that torch.compile made, from an exported program, or while a CUDA graph is captured.
"""

from __future__ import annotations

import atexit
import ctypes
import enum
import importlib
import os
import threading
import warnings
from collections.abc import Sequence

import torch

from . import fused
from .fused import DTYPES, STATE, Answer, Key, Outcome, Wanted
from .settings import compiles_at_first_use, log_level, warns_of_slow_paths
from .spec import CellSpec

_Handler = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32,
    ctypes.c_int32, ctypes.POINTER(ctypes.c_char), ctypes.c_int64,
)  # fmt: skip


class Event(enum.IntEnum):
    """What happens for the first time, as rnncc::FusedEvent has it."""

    CALL = 0
    LONG_CALL = 1
    LEFT_OUT = 2


_CELLS: dict[str, CellSpec] = {}  # by the names of their loops
_WARNED: set[tuple[Key, bool]] = set()  # True: of a fused kernel that does not run
# One for what is compiled at once, so that nothing else waits. A child that was forked meanwhile begins without: there,
# no thread would ever release them.
_LOCKS: dict[tuple[str, int, tuple[int, ...], torch.dtype, tuple[int, int]], threading.Lock] = {}
os.register_at_fork(after_in_child=_LOCKS.clear)
# What a missing nvcc and another version of rnncc are called (rnncc/codes/later.py).
_KEEPING = ("RNN608", "RNN609")


def attach(library: ctypes.CDLL, cells: Sequence[CellSpec]) -> None:
    """From now on the library's loops ask here. Raises ValueError for a setting that means nothing, on any machine: it
    would be one on a GPU."""
    compiles_at_first_use()
    log_level()
    _CELLS.clear()
    _CELLS.update({segment.name: cell for cell in cells for segment in cell.segments})
    _WARNED.clear()
    if hasattr(library, "rnncc_set_fused_handler"):
        library.rnncc_set_fused_handler(_HANDLER)
        # Threads that still run a loop while Python ends find nobody. Until then the library calls the handler, which
        # what is registered here keeps alive, also where nothing else of this module is used any more.
        atexit.register(_forget, library, _HANDLER)


def _forget(library: ctypes.CDLL, handler: object) -> None:
    library.rnncc_set_fused_handler(None)


@_Handler
def _HANDLER(loop, dtype, units, heads, directions, device, event, problem, size):  # type: ignore[no-untyped-def]
    try:
        torch_dtype = next(found for found, (name, _) in DTYPES.items() if name == dtype.decode())
        prepare((loop.decode(), units, heads, directions, torch_dtype, device), Event(event))
        return 0
    except KeyboardInterrupt:
        return -2
    # The library raises it as a RuntimeError; ctypes would print it and go on.
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode()[: size - 1]
        ctypes.memmove(problem, text, len(text))
        return -1


def prepare(key: Key, event: Event) -> None:
    """Before a loop runs at a size for the first time: compiles its fused kernels where it has none. A slow path that
    could be a fast one is one warning. Raises ValueError for a setting that means nothing."""
    loop, units, heads, directions, dtype, device = key
    cell = _CELLS[loop]
    wanted = Wanted(cell, loop, units, heads, dtype, torch.cuda.get_device_capability(device), directions)
    # By the cell: its loops are compiled together.
    together = (cell.name, units, wanted.made_for, dtype, wanted.capability)
    with _LOCKS.setdefault(together, threading.Lock()):
        if key not in STATE.answers:
            STATE.answers[key] = settle(wanted)
        answer = STATE.answers[key]
        is_left_out = event is Event.LEFT_OUT
        warned = (key, is_left_out) in _WARNED
        if is_left_out:
            rows = "the rows of its tensors do not all begin at multiples of 16 bytes"
            slow = f"the fused kernel for {wanted} does not run: {rows}"
        elif answer.outcome is Outcome.FAILED or (answer.outcome is Outcome.KEPT and event is Event.LONG_CALL):
            slow = f"no fused kernel for {wanted}: {answer.reason}"
        else:
            return
        _WARNED.add((key, is_left_out))
    if not warned and warns_of_slow_paths():
        # The caller is the op, which has no line of its own.
        said = f"{slow}; the alternating kernel runs, which is slower (RNNCC_LOG=error hides this)"
        warnings.warn(said, stacklevel=1)


def settle(wanted: Wanted) -> Answer:
    """Whether a fused kernel runs: there may be one, or it is compiled now. Raises ValueError for a setting that means
    nothing."""
    reason = fused.needless(wanted)
    if reason is not None:
        return Answer(Outcome.NONE, reason) if reason else Answer(Outcome.RUNS)
    reason = fused.kept_from_compiling()
    if reason:
        return Answer(Outcome.KEPT, reason)
    rnncc = importlib.import_module("rnncc")
    try:
        reason = _compile(wanted)
    except rnncc.RnnccError as error:
        problem = error.diagnostics[0]
        text = f"{problem.message} [{problem.code}]" + (f"; {problem.help}" if problem.help else "")
        return Answer(Outcome.KEPT if problem.code in _KEEPING else Outcome.FAILED, text)
    # Whatever it was, also a bug in rnncc or half an installation of it: the layer must run, and the alternating kernel
    # can. The user hears of it, and it is not tried again.
    except Exception as error:
        return Answer(Outcome.FAILED, f"{type(error).__name__}: {error}")
    return Answer(Outcome.NONE, reason) if reason else Answer(Outcome.RUNS)


def _compile(wanted: Wanted) -> str:
    """Why there is no fused kernel, or nothing: then it is compiled, and the library knows it. Raises RnnccError, and
    RuntimeError, OSError, ValueError for kernels that cannot be read."""
    driver, cell, about = importlib.import_module("rnncc.driver"), wanted.cell, STATE.about
    problems = [(wanted.units, heads, DTYPES[wanted.dtype][1]) for heads in wanted.made_for]
    options = cell.program() | {"problems": problems}
    folder, reason = driver.compile_fused(
        about["source"], about["stem"], options, cell.name, wanted.capability, about["code"]
    )
    if folder is None:
        return str(reason)
    fused.add_kernels(folder, wanted.capability)
    # What was compiled may be another loop's of the cell.
    return "" if fused.families(wanted, wanted.made_for) else f"no fused kernel for {wanted} fits this loop"
