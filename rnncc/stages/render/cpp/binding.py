"""The registration of a package's ops: the table of its segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    single_name,
)
from rnncc.stages.render.templates import text
from rnncc.version import VERSION


@dataclass(frozen=True, slots=True)
class LoopBinding:
    """One loop in the table: `variant` is the member that holds it; counts, and the C++ lines that fill its arrays of
    widths. `device_functions` are declarations of its functions for a GPU, and `device_pointers` set the members that
    hold these."""

    variant: str
    prefix: str
    directions: tuple[str, ...]
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
class OpBinding:
    """An op of a segment: what follows the segment's name in its own, and the kernel that takes tensors of a GPU."""

    name: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class SegmentBinding:
    """One segment in the table, or a cell's single step. `borders`: training keeps states at borders alone. `reads_x`,
    `further`: the last streams are x itself and so many further inputs."""

    name: str
    sizes: int
    constants: int
    streams: int
    states: int
    sequences: int
    clips: str
    borders: str
    reads_x: str
    further: int
    stream_widths: tuple[str, ...]
    state_widths: tuple[str, ...]
    sequence_widths: tuple[str, ...]
    loops: tuple[LoopBinding, ...]
    ops: tuple[OpBinding, ...]


def binding_file(request: Request, cells: Sequence[CompiledCell]) -> tuple[File, ...]:
    """`src/binding.cpp`, where there are kernels."""
    segments = [
        segment for compiled in cells if compiled.adjoints for segment in _segments(compiled, request.is_for_gpus)
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


def _segments(compiled: CompiledCell, cuda: bool) -> Iterator[SegmentBinding]:
    for index in range(len(compiled.cell.segments)):
        yield _segment(compiled, index, cuda)
    if compiled.plan.single is not None:
        assert compiled.single is not None
        yield _single(*compiled.single)


def _segment(compiled: CompiledCell, index: int, cuda: bool) -> SegmentBinding:
    cell, segment = compiled.cell, compiled.cell.segments[index]
    name = segment_name(cell, index)
    plain = _loop("plain", name, cell, segment, compiled.adjoints[index], cuda)
    if cuda:
        asked = f"bool {name}_single_cuda(const rnncc_single_question*);"
        pointers = (*plain.device_pointers, f".device_single = {name}_single_cuda")
        plain = replace(plain, device_functions=(*plain.device_functions, asked), device_pointers=pointers)
    masked, adjoint = compiled.masked.segments[index], compiled.masked_adjoints[index]
    loops = plain, _loop("masked", f"{name}_masked", compiled.masked, masked, adjoint, cuda)
    own = [("forward", "forward"), ("backward", "backward")]
    if whole_product(cell):
        own += [
            ("whole_forward", "whole_forward_on_gpu"),
            ("whole_layout", ""),
            ("whole_backward", "whole_backward_on_gpu"),
        ]
    ops = tuple(OpBinding(op, device if cuda else "") for op, device in own)
    return _bound(name, cell, index, loops, ops)


def _single(cell: Cell, adjoint: Adjoint) -> SegmentBinding:
    """The step of a cell that `single` made."""
    name = single_name(cell.name)
    (segment,) = cell.segments
    loop = replace(_loop("plain", name, cell, segment, adjoint, False), directions=("forward",))
    given = [stream.name for stream in segment.streams[1:]]
    reads_x = cell.inputs[0].name in given
    bound = _bound(name, cell, 0, (loop,), (OpBinding("whole_forward"), OpBinding("whole_layout")))
    further = len(given) - reads_x
    return replace(bound, clips="false", borders="false", reads_x=str(reads_x).lower(), further=further)


def _loop(variant: str, prefix: str, cell: Cell, part: Segment, adjoint: Adjoint, cuda: bool) -> LoopBinding:
    values = value_table(cell) | {value.name: value for value in adjoint.values}
    sizes = _sizes(cell)
    directions = ("forward", "backward")
    return LoopBinding(
        variant=variant,
        prefix=prefix,
        directions=directions,
        weights=len(part.weights),
        saved=len(saved_names(adjoint)),
        saved_sequence=", ".join(str(i) for i in saved_sequence(part, adjoint)),
        saved_state=", ".join(str(i) for i in saved_state(part, adjoint)),
        saved_rounded=", ".join(str(rounded).lower() for rounded in saved_rounded(adjoint)),
        weight_elements=_widths([_elements(cell, weight.members) for weight in part.weights], sizes),
        saved_widths=_widths([values[name].width for name in saved_names(adjoint)], sizes),
        device_functions=tuple(
            f"void {prefix}_{d}_cuda(const rnncc_{d}_call*, int32_t, int32_t);" for d in directions if cuda
        ),
        device_pointers=tuple(f".device_{d} = {prefix}_{d}_cuda" for d in directions if cuda),
    )


def _bound(
    name: str, cell: Cell, index: int, loops: tuple[LoopBinding, ...], ops: tuple[OpBinding, ...]
) -> SegmentBinding:
    segment, table, sizes = cell.segments[index], value_table(cell), _sizes(cell)
    return SegmentBinding(
        name=name,
        sizes=len(sizes),
        constants=len(segment.constants),
        streams=len(segment.streams),
        states=len(segment.states),
        sequences=len(segment.sequences),
        clips=str(bool(recurrent_reads(segment).aliases)).lower(),
        borders=str(has_matrices(cell, segment)).lower(),
        reads_x="false",
        further=0,
        stream_widths=_widths([total([table[m].width for m in stream.members]) for stream in segment.streams], sizes),
        state_widths=_widths([table[state].width for state in segment.states], sizes),
        sequence_widths=_widths([table[value].width for value in segment.sequences], sizes),
        loops=loops,
        ops=ops,
    )


def _sizes(cell: Cell) -> tuple[str, ...]:
    return ("I", "H", *(size.name for size in cell.sizes))


def _widths(dims: Sequence[Dim], sizes: Sequence[str]) -> tuple[str, ...]:
    return tuple(cpp_dim(dim, sizes) for dim in dims)


def _elements(cell: Cell, members: Sequence[str]) -> Dim:
    """How many elements a weight has: its rows times what is stored of each."""
    table = value_table(cell)
    rows = total([table[member].width for member in members])
    first = table[members[0]]
    if first.columns is None:
        return rows
    return multiply(rows, stored_columns(first.columns, first.structure))
