"""The text of a package, decided: what the Python and binding templates print, line by line."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell
from rnncc.ir.recurrence import Recurrence


@dataclass(frozen=True, slots=True)
class CompiledCell:
    """A cell with what the stages made of it: one recurrence class and one adjoint for each segment.

    The adjoints (`masked` is `mask(cell)` with its own) are empty where no kernels are built: the package then holds
    the reference path alone."""

    cell: Cell
    masked: Cell
    recurrences: tuple[Recurrence, ...]
    adjoints: tuple[Adjoint, ...] = ()
    masked_adjoints: tuple[Adjoint, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentText:
    """One segment: `<name>_batched` and `<name>_make_step` in `_reference.py`, its SegmentSpec in the cell's module."""

    name: str
    batched: tuple[str, ...]
    unpack: tuple[str, ...]
    step: tuple[str, ...]
    result: str
    states: tuple[str, ...]
    streams: tuple[str, ...]
    sequences: tuple[str, ...]
    needed: str
    constants: str
    clips: bool
    initials: str
    learned: str
    plain: str
    masked: str


@dataclass(frozen=True, slots=True)
class CellText:
    """One cell's module. Every tuple holds lines that are complete Python (or constructor arguments), but for
    `description`: lines of a docstring, as `source_in_docstring` is part of one."""

    name: str
    function: str
    module: str
    heading: str
    description: tuple[str, ...]
    sizes: tuple[str, ...]
    constants: tuple[str, ...]
    inputs: tuple[str, ...]
    masks: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    constraints: tuple[str, ...]
    regularisation: tuple[str, ...]
    classes: tuple[str, ...]
    segments: tuple[SegmentText, ...]
    derive: tuple[str, ...]
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    output: str
    output_width: str
    input_delays: tuple[str, ...]
    single_head_because: str
    source_name: str
    source_in_docstring: str


@dataclass(frozen=True, slots=True)
class LoopText:
    """One loop in the binding's table: counts, and the C++ lines that fill its arrays of widths. `device_functions`
    declare its functions for a GPU, `device_pointers` name them (null pointers where there are none)."""

    prefix: str
    weights: int
    saved: int
    saved_sequence: str
    saved_state: str
    saved_rounded: str
    weight_elements: tuple[str, ...]
    saved_widths: tuple[str, ...]
    device_functions: tuple[str, ...]
    device_pointers: str


@dataclass(frozen=True, slots=True)
class SegmentBinding:
    """One segment in the binding's table."""

    name: str
    sizes: int
    constants: int
    streams: int
    states: int
    sequences: int
    clips: str
    stream_widths: tuple[str, ...]
    state_widths: tuple[str, ...]
    sequence_widths: tuple[str, ...]
    plain: LoopText
    masked: LoopText


@dataclass(frozen=True, slots=True)
class PackagePlan:
    """A package: its cells, and the binding of their kernels. `on_device`: whether ops take CUDA tensors, in C++;
    `device_ops`: those that take no others."""

    stem: str
    version: str
    cells: tuple[CellText, ...]
    segments: tuple[SegmentBinding, ...]
    on_device: str
    device_ops: tuple[str, ...]
