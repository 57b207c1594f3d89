"""Compiles missing kernels when a call first needs them, and warns where a slower kernel runs.

The op itself asks (templates/include/rnncc/core/handler.h). So it makes no difference whether the call comes
from Python, from a graph that torch.compile made, from an exported program, or while a CUDA graph is captured.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..settings import compiles_at_first_use, log_level, warns_of_slow_paths
from ..spec import CellSpec
from . import ahead, fused
from .fused import DTYPES, STATE, Answer, Gpu, Key, Outcome, Wanted, split_program


class _WantedKernels(ctypes.Structure):
    """What the op asks for: rnncc_wanted_kernels."""

    _fields_ = [
        ("kind", ctypes.c_char_p), ("name", ctypes.c_char_p), ("instructions", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p), ("head_dim", ctypes.c_int64), ("heads", ctypes.c_int64),
        ("directions", ctypes.c_int32), ("device", ctypes.c_int32), ("is_long", ctypes.c_int32),
        ("left_out", ctypes.c_int32),
    ]  # fmt: skip


_Handler = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(_WantedKernels), ctypes.POINTER(ctypes.c_char), ctypes.c_int64
)

_CELLS: dict[str, CellSpec] = {}  # by the names of their loops
# A loop at a size, whichever its program, and whether there is a fused kernel, but the tensors' layout leaves it out.
_WARNED: set[tuple[object, ...]] = set()
# One lock for the kernels that are compiled together, so that nothing else waits, and one for warnings. A forked child
# clears them: no thread of the child would ever release a lock that was held at the fork.
_LOCKS: dict[tuple[object, ...], threading.Lock] = {}
os.register_at_fork(after_in_child=_LOCKS.clear)
# The codes for a missing NVRTC and for another version of rnncc (rnncc/language/codes/later.py).
_PREVENTING = ("RNN608", "RNN609")


def attach(library: ctypes.CDLL, cells: Sequence[CellSpec]) -> None:
    """From now on the library's loops ask `prepare`. Raises ValueError for a wrong setting, also on a machine without a
    GPU: it would be an error on a GPU."""
    compiles_at_first_use()
    log_level()
    _CELLS.clear()
    _CELLS.update({segment.name: cell for cell in cells for segment in cell.segments})
    _WARNED.clear()
    library.rnncc_set_kernel_handler(_HANDLER)
    # When Python ends, threads may still run a loop, and must not call the handler any more. Until then the library may
    # call it at any time. The registration below holds a reference to the handler, which keeps it alive even where
    # nothing else refers to this module.
    atexit.register(_forget, library, _HANDLER)


def _forget(library: ctypes.CDLL, handler: object) -> None:
    library.rnncc_set_kernel_handler(None)


@_Handler
def _HANDLER(asked, problem, size):  # type: ignore[no-untyped-def]
    try:
        wanted = asked.contents
        name = wanted.name.decode()
        match wanted.kind:
            case b"fused":
                dtype = next(found for found, (short, _) in DTYPES.items() if short == wanted.dtype.decode())
                key = (*split_program(name), wanted.head_dim, wanted.heads, wanted.directions, dtype, wanted.device)
                prepare(key, is_long=bool(wanted.is_long), left_out=bool(wanted.left_out))
            case b"GPU file":
                provide(name, fused.gpu_of(wanted.device))
            case b"GPU file soon":
                ahead.begin(partial(provide, name, fused.gpu_of(wanted.device)))
            case b"CPU file":
                provide_for_cpu(wanted.instructions.decode(), name)
            case kind:
                raise ValueError(f"no kernels are {kind!r}")
        return 0
    except KeyboardInterrupt:
        return -2
    # The library raises a RuntimeError with this text. Without it ctypes would print the exception and go on.
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode(errors="replace")[: size - 1]
        text = text.decode(errors="ignore").encode()  # no half of a character at the end
        ctypes.memmove(problem, text, len(text))
        return -1


def prepare(key: Key, *, is_long: bool, left_out: bool) -> None:
    """Compile the fused kernels of a loop at a size, where they are missing and can be compiled. The op calls this
    before the first call of that size, and before the first long one. `left_out`: there are kernels, but none takes the
    call's tensors as they lie. Warns once where a slower kernel runs than could run. Raises ValueError for a wrong
    setting."""
    begin_backward = _for_backward(key)
    # A forward waits for its own kernels alone. While NVRTC compiles them, work begins on those for its backward.
    wanted, answer = _wanted(key), _answer(key, begin_backward)
    if answer.outcome is Outcome.RUNS:
        begin_backward()  # also where there was nothing to compile
    loop, _, *size = key
    with _LOCKS.setdefault((), threading.Lock()):  # held for a moment, never while anything is compiled
        warning = (loop, *size, left_out)
        warned = warning in _WARNED
        if left_out:
            rows = "the rows of its tensors do not all begin at multiples of 16 bytes"
            slow = f"the fused kernel for {wanted} does not run: {rows}"
        elif answer.outcome is Outcome.FAILED or (answer.outcome is Outcome.PREVENTED and is_long):
            slow = f"no fused kernel for {wanted}: {answer.reason}"
        else:
            return
        _WARNED.add(warning)
    if not warned and warns_of_slow_paths():
        # The caller is the op, which has no line in Python, so the warning names this one.
        said = f"{slow}; the alternating kernel runs, which is slower (RNNCC_LOG=error hides this)"
        warnings.warn(said, stacklevel=1)


def _wanted(key: Key) -> Wanted:
    loop, program, head_dim, heads, directions, dtype, device = key
    return Wanted(_CELLS[loop], loop, head_dim, heads, dtype, fused.gpu_of(device), directions, programs=(program,))


def _for_backward(key: Key) -> Callable[[], None]:
    """What begins to compile, in the background, the kernels that the backward of a forward will wait for. Only its
    first call does something, and none for another program."""
    loop, program, head_dim, heads, directions, dtype, device = key
    backward = (loop, program.replace("forward", "backward"), head_dim, heads, directions, dtype, device)
    if backward == key or backward in STATE.answers:
        return _nothing
    return cache(partial(ahead.begin, partial(_answer, backward)))


def _nothing() -> None:
    pass


def _answer(key: Key, meanwhile: Callable[[], None] = _nothing) -> Answer:
    """Whether there are kernels for a loop at a size; they are compiled now if they can be, and `meanwhile` is called
    while the compilers run. A thread waits for another that compiles the same. Raises ValueError for a wrong
    setting."""
    wanted = _wanted(key)
    # By cell, not by loop: the loops of a cell are compiled together.
    together = (wanted.cell.name, wanted.programs, wanted.head_dim, wanted.made_for, wanted.dtype, wanted.gpu)
    with _LOCKS.setdefault(together, threading.Lock()):
        if key not in STATE.answers:
            STATE.answers[key] = settle(wanted, meanwhile)
        return STATE.answers[key]


def provide(file: str, gpu: Gpu) -> None:
    """Compile a file of kernels that take every size, and add it to the library. The op calls this where there is none.
    Raises RuntimeError where it cannot be compiled."""
    with _LOCKS.setdefault((file, gpu.capability), threading.Lock()):
        if (file, gpu.capability) not in STATE.provided:
            folder = _compile_file(file, gpu)
            assert STATE.library is not None
            STATE.library.rnncc_add_folder(os.fsencode(folder))
            STATE.provided.add((file, gpu.capability))


def provide_for_cpu(instructions: str, file: str) -> None:
    """Compile a file of the package's CPU kernels (`f64_masked`), and add it to the library. The op calls this where
    there is none. Raises RuntimeError where it cannot be compiled, and OSError where it cannot be opened."""
    with _LOCKS.setdefault((instructions, file), threading.Lock()):
        if (instructions, file) not in STATE.provided:
            path = _compile_for_cpu(instructions, file)
            assert STATE.library is not None
            opened = ctypes.CDLL(str(path))  # ctypes never closes it
            STATE.library.rnncc_add_library(ctypes.c_void_p(opened._handle))
            STATE.provided.add((instructions, file))


def _compile_for_cpu(instructions: str, file: str) -> Path:
    compute_type, _, masked = file.partition("_")
    what = f"CPU kernels that compute in {compute_type.replace('f', 'float')}{' for lengths and resets' * bool(masked)}"
    return _compile_missing(what, "", "compile_for_cpu", STATE.about["options"], (instructions, file))


def _compile_file(file: str, gpu: Gpu) -> Path:
    name = "sm_{}{}".format(*gpu.capability)
    # The file's name begins with that of its loop, and may with that of another cell's loop: `a_0` and `a_0_0`. A file
    # that belongs to no loop is made of all cells: some may not need it.
    loop = max((loop for loop in _CELLS if file.startswith(f"{loop}_")), key=len, default="")
    cell, name_of_cell = (_CELLS[loop], _CELLS[loop].name) if loop else (next(iter(_CELLS.values())), "")
    options = cell.program() | {"newton": bool(STATE.about["newton"])}
    return _compile_missing(
        f"kernels for {name}", f" --target {name}", "compile_file", options, (name_of_cell, file), gpu.numbers
    )


def _compile_missing(what: str, target: str, function: str, *arguments: Any) -> Path:
    """What a function of rnncc/on_demand.py compiles for this package. `target`: the option of `rnncc build` for it.
    Raises RuntimeError where it cannot be compiled."""
    about = STATE.about
    try:
        rnncc, on_demand = importlib.import_module("rnncc"), importlib.import_module("rnncc.on_demand")
        compile_missing = getattr(on_demand, function)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"this package has no {what}, and rnncc, which compiles them when they are needed, cannot be imported "
            f"({error}); `rnncc build {about['stem']}{target}` makes a package that has them"
        ) from None
    try:
        path: Path = compile_missing((about["source"], about["stem"], about["code"]), *arguments)
    except rnncc.RnnccError as error:
        raise RuntimeError(f"this package has no {what} yet: {_said(error)}") from None
    return path


def _said(error: Any) -> str:
    """An RnnccError in one line."""
    problem = error.diagnostics[0]
    return f"{problem.message} [{problem.code}]" + (f"; {problem.help}" if problem.help else "")


def settle(wanted: Wanted, meanwhile: Callable[[], None]) -> Answer:
    """Whether a fused kernel runs, which may exist or is compiled now; else why none runs. `meanwhile` is called while
    the compilers run. Raises ValueError for a wrong setting."""
    if reason := fused.why_never_fused(wanted):
        return Answer(Outcome.NONE, reason)
    if fused.has_kernel(wanted):
        return Answer(Outcome.RUNS)
    if fused.is_built_without(wanted):
        runs_one = fused.family_names(wanted, wanted.made_for)  # of two directions
        return Answer(Outcome.RUNS) if runs_one else Answer(Outcome.NONE, _none_fits(wanted))
    if reason := fused.what_prevents_compiling():
        return Answer(Outcome.PREVENTED, reason)
    rnncc = importlib.import_module("rnncc")
    try:
        reason = _compile(wanted, meanwhile)
    except rnncc.RnnccError as error:
        is_prevented = error.diagnostics[0].code in _PREVENTING
        return Answer(Outcome.PREVENTED if is_prevented else Outcome.FAILED, _said(error))
    # Any error may come here, also from a bug in rnncc or a broken installation. The layer must still run, and the
    # alternating kernel can run it. The user gets a warning, and this process does not try again.
    except Exception as error:
        return Answer(Outcome.FAILED, f"{type(error).__name__}: {error}")
    return Answer(Outcome.NONE, reason) if reason else Answer(Outcome.RUNS)


def _compile(wanted: Wanted, meanwhile: Callable[[], None]) -> str:
    """Compile the fused kernels and add them to the library. Returns "", or why there is no fused kernel. Raises
    RnnccError where the build fails, and RuntimeError, OSError or ValueError where its kernels cannot be read."""
    cell, about = wanted.cell, STATE.about
    problems = [(wanted.head_dim, heads, DTYPES[wanted.dtype][1]) for heads in wanted.made_for]
    options = cell.program() | {"problems": problems, "directions": wanted.directions}
    package = about["source"], about["stem"], about["code"]
    (program,) = wanted.programs
    folder, reason = importlib.import_module("rnncc.on_demand").compile_fused(
        package, options, (cell.name, program), wanted.gpu.numbers, meanwhile
    )
    if folder is None:
        return str(reason)
    fused.add_kernels(folder, wanted.gpu)
    # The compiled kernels may all be for another loop of the cell.
    return "" if fused.family_names(wanted, wanted.made_for) else _none_fits(wanted)


def _none_fits(wanted: Wanted) -> str:
    return f"no fused kernel for {wanted} fits this loop"
