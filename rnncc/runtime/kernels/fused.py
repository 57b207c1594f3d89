"""Fused kernels, each for one size: which ones this package has, and how `explain()` describes them."""

from __future__ import annotations

import ctypes
import enum
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..settings import compiles_at_first_use
from ..spec import CellSpec, SegmentSpec, Sizes
from . import ahead
from .index import Kernel, Table, read_index
from .kernels import runs_on

# dtype -> its name in the index of kernels, and its name in rnncc's options (`--dtype`)
DTYPES = {torch.float32: ("f32", "fp32"), torch.bfloat16: ("bf16", "bf16"), torch.float16: ("f16", "fp16")}
_WORDS = {"forward": "forward", "backward": "backward", "inference": "without gradients"}
_TRAINING = ("forward", "backward")  # the programs of a call with gradients
_HEAD_DIM_BLOCK = 8  # the head_dim of a fused kernel is a multiple of this


def split_program(program: str) -> tuple[str, str]:
    """The loop of a program, and the program's own name: `lstm_0` and `masked_inference` of `lstm_0_masked_inference`.
    A call with gradients takes `forward` and `backward`, another one `inference`, which keeps nothing; those that are
    `masked` take lengths and resets."""
    loop, _, name = program.rpartition("_")
    segment = loop.removesuffix("_masked")
    return segment, name if segment == loop else f"masked_{name}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine: its compute capability, its SMs, the largest shared memory of a CTA, and torch's number
    for it, which does not tell it from others of its kind."""

    capability: tuple[int, int]
    sms: int
    shared_bytes: int
    index: int = field(default=0, compare=False)

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Its compute capability, and torch's number for it: what rnncc/on_demand.py takes."""
        return (*self.capability, self.index)


def gpu_of(device: int) -> Gpu:
    """The GPU that has that number for torch."""
    known: Any = torch.cuda.get_device_properties(device)  # torch does not declare all that there is
    return Gpu((known.major, known.minor), known.multi_processor_count, known.shared_memory_per_block_optin, device)


# A loop and one of its programs, the head_dim of its state, heads, directions, dtype and device.
Key = tuple[str, str, int, int, int, torch.dtype, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A loop at a size, for which kernels are wanted.

    segment     the loop's name
    head_dim    the width of a head's state; where values have several widths, the largest
    heads       the heads of one direction
    gpu         the GPU
    directions  1, or 2 where both directions of a layer run in one call
    head_dims   those of all values, where they are known
    programs    which of the loop's programs
    """

    cell: CellSpec
    segment: str
    head_dim: int
    heads: int
    dtype: torch.dtype
    gpu: Gpu
    directions: int = 1
    head_dims: tuple[int, ...] = ()
    programs: tuple[str, ...] = _TRAINING

    @property
    def made_for(self) -> tuple[int, ...]:
        """The numbers of heads to compile kernels for. The last is that of all directions, which run side by side.
        Where there are two directions, that of one comes first: some kernels can only run the directions one after the
        other."""
        return tuple(dict.fromkeys((self.heads, self.heads * self.directions)))

    def __str__(self) -> str:
        heads = f"{self.heads} head{'s' if self.heads > 1 else ''} with head_dim {self.head_dim}"
        both = " in both directions" if self.directions > 1 else ""
        return f"{heads}{both}, {str(self.dtype).removeprefix('torch.')}"


class Outcome(enum.Enum):
    """The result of the search for a fused kernel. RUNS: there is one. NONE: there can be none. FAILED: its compilation
    failed. PREVENTED: a setting, or something missing on this machine, prevents its compilation."""

    RUNS = enum.auto()
    NONE = enum.auto()
    PREVENTED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a fused kernel runs. `reason` says why none runs, and is "" for RUNS."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a folder. `gpu`: the GPU for which its kernels were compiled at first use; None: they are the
    package's own, for all of its GPUs."""

    tables: tuple[Table, ...]
    gpu: Gpu | None

    def run_on(self, gpu: Gpu, table: Table, directions: int) -> tuple[Kernel, ...]:
        """The kernels of one of the tables that launch so many directions, and for which that GPU has what they
        need."""
        if self.gpu not in (None, gpu) or not runs_on(table.architecture, *gpu.capability):
            return ()
        return tuple(
            each
            for each in table.kernels
            if each.sms <= gpu.sms and each.shared_bytes <= gpu.shared_bytes and each.directions >= directions
        )


@dataclass(slots=True)
class _State:
    library: ctypes.CDLL | None
    about: Mapping[str, Any]
    folders: list[Tables]
    readable: bool  # whether the package's own index could be read
    answers: dict[Key, Answer]  # of first_use.settle, one for each size that was asked for
    provided: set[tuple[object, ...]]  # by first_use: (file, capability), (instruction set, file)


STATE = _State(None, {}, [], True, {}, set())


def attach(directory: Path, library: ctypes.CDLL, about: Mapping[str, Any]) -> None:
    """Read the index of the package in `directory`; `about` is its `_rnncc.json`. An unreadable index counts as
    empty."""
    index = directory / "cuda" / "fused.txt"
    STATE.library, STATE.about, STATE.folders, STATE.readable = library, about, [], True
    try:
        if index.is_file():
            STATE.folders.append(Tables(tuple(read_index(index)), None))
    except (OSError, ValueError):
        STATE.readable = False
    STATE.answers.clear()
    STATE.provided.clear()


def add_kernels(folder: Path, gpu: Gpu) -> None:
    """Add the fused kernels of a folder to the library. They are for GPUs like that one. Raises RuntimeError, OSError
    or ValueError where they cannot be read."""
    tables = Tables(tuple(read_index(folder / "fused.txt")), gpu)
    assert STATE.library is not None
    if STATE.library.rnncc_add_kernels(os.fsencode(folder)) < 1:
        raise RuntimeError(f"the kernels in {folder} cannot be read")
    STATE.folders.append(tables)


def describe(
    cell: CellSpec, segment: SegmentSpec, sizes: Sizes, directions: int, like: Tensor, batch: int | None
) -> list[str]:
    """Lines of `explain()`: which kernels run a loop on a GPU, and why, for streams of the dtype and on the device of
    `like`. With `batch`, also which of them run a batch of that size."""
    wanted, settled = _wanted(cell, segment, sizes, directions, like)
    lines = [explain(wanted, settled)]
    if wanted.segment in STATE.about["scans"]:
        lines.append(
            "vectorised kernels (tall ones for few channels) where all tensors' rows begin at multiples of 16 bytes, "
            "else narrow ones"
        )
    if wanted.segment in STATE.about["newton"]:
        lines.append(
            "forward Newton's iterations in place of the walk for few channels and many steps, where all tensors' rows "
            "begin at multiples of 16 bytes"
        )
    kinds = (wanted, replace(wanted, programs=("inference",)))
    if any(family_names(each, None) for each in kinds) and not why_uneven(wanted):
        if batch is not None:
            kernels = chosen(wanted, batch, like.get_device(), denser=bool(sizes.get(cell.denser)))
            lines.append(f"a batch of {batch}: {kernels}")
        lines.append("tensors whose rows do not all begin at multiples of 16 bytes: alternating")
    return lines


def kernels_of(cell: CellSpec, segment: SegmentSpec, sizes: Sizes, directions: int, like: Tensor) -> str:
    """The kernels that run a loop on a GPU, as `fused (forward grid, backward grid)`. Arguments as in `describe`."""
    kernels, _ = kernels_for(*_wanted(cell, segment, sizes, directions, like))
    return kernels


def _wanted(
    cell: CellSpec, segment: SegmentSpec, sizes: Sizes, directions: int, like: Tensor
) -> tuple[Wanted, str | None]:
    """What fused kernels of a loop are for, and the reason of the answer where a call asked for them already."""
    ahead.finish()  # kernels of the backward belong to the answer
    dtype, device = like.dtype, like.get_device()
    heads, head_dims = sizes["num_heads"], segment.fused_head_dims(sizes)
    size = max(head_dims), heads, directions, dtype, device
    answers = [STATE.answers.get((segment.name, program, *size)) for program in _TRAINING]
    wanted = Wanted(cell, segment.name, max(head_dims), heads, dtype, gpu_of(device), directions, tuple(head_dims))
    reasons = [answer.reason for answer in answers if answer is not None]
    return wanted, next((reason for reason in reasons if reason), "" if reasons else None)


def chosen(wanted: Wanted, batch: int, device: int, *, denser: bool) -> str:
    """Which of the kernels that exist now run a batch of that size: `forward gather, backward scatter, without
    gradients gather`. `denser`: whether masks are denser than planned. Raises RuntimeError where the library cannot
    ask the GPU."""
    found = []
    library = STATE.library
    assert library is not None
    for program, words in (("forward", "forward"), ("backward", "backward"), ("inference", "without gradients")):
        text = ctypes.create_string_buffer(1024)
        launches = library.rnncc_choose_kernel(
            f"{wanted.segment}_{program}".encode(), DTYPES[wanted.dtype][0].encode(), ctypes.c_int64(wanted.head_dim),
            ctypes.c_int64(wanted.heads), ctypes.c_int64(batch), wanted.directions, int(denser), device,
            text, ctypes.c_int64(len(text)),
        )  # fmt: skip
        if launches < 0:
            raise RuntimeError(f"which kernel runs a batch of {batch}: {text.value.decode()}")
        name = text.value.decode()
        kernels = (kernel for folder in STATE.folders for table in folder.tables for kernel in table.kernels)
        family = next((kernel.family for kernel in kernels if kernel.name == name), "alternating")
        found.append(f"{words} {family}" + (f" in {launches} launches" if launches > 1 else ""))
    return ", ".join(found)


def explain(wanted: Wanted, settled: str | None) -> str:
    """Which kernels run, and why, in words. `settled` is the answer's reason, None where no call asked yet."""
    return ", ".join(kernels_for(wanted, settled))


def kernels_for(wanted: Wanted, settled: str | None) -> tuple[str, str]:
    """The same as two texts: the kernels; for what they were made, and why they run."""
    if own := STATE.about["scans"].get(wanted.segment):
        return own, "one launch per sequence at every size: a step has no product and no reduction"
    if wanted.segment in STATE.about["by_head"]:
        limits = "a head of more than 128 x 128, or a sum over several heads, runs the alternating kernel"
        return "by head", f"one launch per sequence, and a CTA for each head: {limits}"
    # A width that is no multiple of 8 rules fused kernels out, also where there are some for the widest value.
    if why_uneven(wanted):
        return "alternating", f"one launch per sequence at every size: {why_never_fused(wanted)}"
    one, others = family_names(wanted, wanted.made_for[:1]), family_names(wanted, None)
    # After the compilation, kernels for one direction alone mean that both directions do not fit in a launch.
    # Before it, they do not count: the first call compiles those for both.
    own = family_names(wanted, wanted.made_for if settled == "" else wanted.made_for[-1:])
    if own:
        alone = f"; the other pass alternates: {settled}" if settled else ""
        return f"fused ({own})", f"made for {wanted}{alone}"
    reason = (
        settled
        or why_never_fused(wanted)
        or what_prevents_compiling()
        or f"the first call of several steps compiles a fused one for {wanted}"
    )
    if not STATE.readable:
        reason = f"the package's own index of fused kernels cannot be read; {reason}"
    kernels, why = "alternating", f"one launch per sequence at every size: {reason}"
    if one or others:
        made_for = "one direction" if one else "another number of heads"
        kernels, why = f"fused ({one or others})", f"made for {made_for}: {reason}"
    without = family_names(replace(wanted, programs=("inference",)), wanted.made_for[-1:])
    # Calls without gradients compile no more than they take.
    return (f"fused ({without})", f"made for {wanted}; with gradients {kernels}, {why}") if without else (kernels, why)


def has_kernel(wanted: Wanted) -> bool:
    """Whether there is a fused kernel for all of the directions, for each of the programs."""
    heads = wanted.made_for[-1:]
    return all(any(able for _, able in _tables(wanted, program, heads)) for program in wanted.programs)


def is_built_without(wanted: Wanted) -> bool:
    """Whether the package was built with fused kernels of that size for the other program of a call with gradients, and
    without any for this one: then none fits."""
    (program,) = wanted.programs
    heads, own = wanted.made_for[-1:], [folder for folder in STATE.folders if folder.gpu is None]
    other = program.replace("forward", "backward") if "forward" in program else program.replace("backward", "forward")
    return not any(_tables(wanted, program, heads, own)) and any(able for _, able in _tables(wanted, other, heads, own))


def why_never_fused(wanted: Wanted) -> str:
    """Why no fused kernel can be compiled, wherever and whenever; else ""."""
    if wanted.segment in STATE.about["scans"]:
        return "its loop has kernels for every size"
    if why := STATE.about["fused"][wanted.segment]:
        return f"its loop has no fused form: {why}"
    if wanted.dtype not in DTYPES:
        return f"fused kernels are for float32, bfloat16 and float16, not {wanted.dtype}"
    return why_uneven(wanted)


def why_uneven(wanted: Wanted) -> str:
    """That a head_dim is none of a fused kernel; else ""."""
    for head_dim in (wanted.head_dim, *wanted.head_dims):
        if head_dim % _HEAD_DIM_BLOCK:
            return f"fused kernels are for a head_dim that is a multiple of {_HEAD_DIM_BLOCK}, not {head_dim}"
    return ""


def what_prevents_compiling() -> str:
    """What prevents the compilation of a kernel here, or "". Raises ValueError for a wrong setting."""
    compiles = compiles_at_first_use()
    stem = STATE.about["stem"]
    instead = f"`rnncc build {stem} --hidden … --heads … --dtype …` makes a package with fused ones"
    if not compiles:
        return f"RNNCC_COMPILE=0 keeps a fused one from being compiled; {instead}"
    try:
        importlib.import_module("rnncc.on_demand")
    except Exception as error:  # another module may have the name rnncc, and fail in any way: the layer runs without it
        return f"rnncc, which compiles fused ones at first use, cannot be imported ({error}); {instead}"
    return ""


def family_names(wanted: Wanted, heads: tuple[int, ...] | None) -> str:
    """The families of the kernels that run batches with these numbers of heads (None: with any number), as `forward
    gather, backward grid or stepwise from batch 64 on`. "" where there is none."""
    found = []
    for program in wanted.programs:
        families: dict[str, int] = {}
        for table, able in _tables(wanted, program, heads):
            for batch, kernels in table.rows:
                for kernel in [each for each in kernels if each in able][:1]:
                    families[kernel.family] = min(batch, families.get(kernel.family, batch))
        if families:
            own = (name + (f" from batch {batch} on" if batch > 1 else "") for name, batch in families.items())
            found.append(f"{_WORDS[program.removeprefix('masked_')]} {' or '.join(own)}")
    return ", ".join(found)


def _tables(
    wanted: Wanted, program: str, heads: tuple[int, ...] | None, folders: Sequence[Tables] | None = None
) -> Iterator[tuple[Table, tuple[Kernel, ...]]]:
    """The tables of a program at that size in the folders (None: in all), for all GPUs, and which of their kernels this
    one runs."""
    size = f"{wanted.segment}_{program}", DTYPES.get(wanted.dtype, ("", ""))[0], wanted.head_dim
    for folder in STATE.folders if folders is None else folders:
        for table in folder.tables:
            if (table.program, table.dtype, table.head_dim) == size and (heads is None or table.heads in heads):
                # Kernels for the heads of all directions run these side by side.
                directions = wanted.directions if table.heads == wanted.made_for[-1] else 1
                yield table, folder.run_on(wanted.gpu, table, directions)
