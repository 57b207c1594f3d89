"""The registration of a package's ops: the table of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rnncc.analysis.recurrent import recurrent_reads
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.artifact import File
from rnncc.ir.cell import Cell, Segment, value_table
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.dim import Dim, multiply, total
from rnncc.ir.request import Request
from rnncc.ir.structure import stored_columns
from rnncc.stages.render.gpu_ops import gpu_ops
from rnncc.stages.render.notation import cpp_dim
from rnncc.stages.render.python.whole import whole_product
from rnncc.stages.render.segments import (
    has_matrices,
    saved_names,
    saved_rounded,
    saved_sequence,
    saved_state,
    segment_name,
)
from rnncc.stages.render.templates import text
from rnncc.version import VERSION


@dataclass(frozen=True, slots=True)
class LoopBinding:
    """One loop in the table: counts, and the C++ lines that fill its arrays of widths. `device_functions` are
    declarations of its functions for a GPU, and `device_pointers` set the members that hold these."""

    prefix: str
    weights: int
    saved: int
    saved_sequence: str
    saved_state: str
    saved_rounded: str
    weight_elements: tuple[str, ...]
    saved_widths: tuple[str, ...]
    device_functions: tuple[str, ...]
    device_pointers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SegmentBinding:
    """One segment in the table. `borders`: training keeps states at borders alone. `whole`: it has the ops of a whole
    layer, too."""

    name: str
    sizes: int
    constants: int
    streams: int
    states: int
    sequences: int
    clips: str
    borders: str
    stream_widths: tuple[str, ...]
    state_widths: tuple[str, ...]
    sequence_widths: tuple[str, ...]
    plain: LoopBinding
    masked: LoopBinding
    whole: bool


def binding_file(request: Request, cells: Sequence[CompiledCell]) -> tuple[File, ...]:
    """`src/binding.cpp`, where there are kernels."""
    segments = [
        _segment(compiled, index, request.is_for_gpus)
        for compiled in cells
        if compiled.adjoints
        for index in range(len(compiled.cell.segments))
    ]
    if not segments:
        return ()
    content = text(
        "cpp/binding.cpp.j2",
        package=request.name,
        version=VERSION,
        segments=segments,
        # Whether ops take CUDA tensors, and those that take no others.
        on_gpus=request.is_for_gpus,
        device_ops=[name for ops in gpu_ops(request, cells) for name in ops.names],
    )
    return (File("src/binding.cpp", content),)


def _segment(compiled: CompiledCell, index: int, cuda: bool) -> SegmentBinding:
    cell, segment = compiled.cell, compiled.cell.segments[index]
    masked = compiled.masked.segments[index]
    table = value_table(cell)
    sizes = ("I", "H", *(size.name for size in cell.sizes))

    def widths(dims: Sequence[Dim]) -> tuple[str, ...]:
        return tuple(cpp_dim(dim, sizes) for dim in dims)

    def loop(prefix: str, of: Cell, part: Segment, adjoint: Adjoint) -> LoopBinding:
        values = value_table(of) | {value.name: value for value in adjoint.values}
        directions = ("forward", "backward")
        return LoopBinding(
            prefix=prefix,
            weights=len(part.weights),
            saved=len(saved_names(adjoint)),
            saved_sequence=", ".join(str(i) for i in saved_sequence(part, adjoint)),
            saved_state=", ".join(str(i) for i in saved_state(part, adjoint)),
            saved_rounded=", ".join(str(rounded).lower() for rounded in saved_rounded(adjoint)),
            weight_elements=widths([_elements(of, weight.members) for weight in part.weights]),
            saved_widths=widths([values[name].width for name in saved_names(adjoint)]),
            device_functions=tuple(
                f"void {prefix}_{d}_cuda(const rnncc_{d}_call*, int32_t, int32_t);" for d in directions if cuda
            ),
            device_pointers=tuple(f".device_{d} = {prefix}_{d}_cuda" for d in directions if cuda),
        )

    name = segment_name(cell, index)
    plain = loop(name, cell, segment, compiled.adjoints[index])
    if cuda:
        asked = f"bool {name}_single_cuda(const rnncc_single_question*);"
        pointers = (*plain.device_pointers, f".device_single = {name}_single_cuda")
        plain = replace(plain, device_functions=(*plain.device_functions, asked), device_pointers=pointers)
    return SegmentBinding(
        name=name,
        sizes=len(sizes),
        constants=len(segment.constants),
        streams=len(segment.streams),
        states=len(segment.states),
        sequences=len(segment.sequences),
        clips=str(bool(recurrent_reads(segment).aliases)).lower(),
        borders=str(has_matrices(cell, segment)).lower(),
        stream_widths=widths([total([table[m].width for m in stream.members]) for stream in segment.streams]),
        state_widths=widths([table[state].width for state in segment.states]),
        sequence_widths=widths([table[value].width for value in segment.sequences]),
        plain=plain,
        masked=loop(f"{name}_masked", compiled.masked, masked, compiled.masked_adjoints[index]),
        whole=whole_product(cell) is not None,
    )


def _elements(cell: Cell, members: Sequence[str]) -> Dim:
    """How many elements a weight has: its rows times what is stored of each."""
    table = value_table(cell)
    rows = total([table[member].width for member in members])
    first = table[members[0]]
    if first.columns is None:
        return rows
    return multiply(rows, stored_columns(first.columns, first.structure))
