"""The tables of a program: what the drivers of a CPU and of a GPU read (templates/include/rnncc/core/tables.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import HEADS, ONE, Dim, constant
from rnncc.ir.kernel import Program, Slot, StoredSlot, TileSlot, ViewSlot
from rnncc.ir.step import Edge, Matrix, MatrixStage, Place, Product, Read, RowStage, Sum, TileStage, Vector, row_parts
from rnncc.ir.structure import diagonal_blocks
from rnncc.stages.render.cpp.info import loop_info
from rnncc.stages.render.cpp.initialisers import Member, numbers, row, rows, struct
from rnncc.stages.render.cpp.names import enumerated, matrix_name, slot_name
from rnncc.stages.render.notation import cpp_dim, dim_name
from rnncc.stages.render.programs import NamedProgram, image_of, product_images, readers

# The members of a SlotInfo, in their order.
_SLOT_INFO = (
    "kind", "table", "lasting", "read", "shared", "index", "link", "width", "parts", "offset",
    "first_destination", "destinations",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProgramTables:
    """The tables of one direction of a loop, in the namespace `name`. `names`: enums of its slots and matrices;
    `dims`: the statements that compute them; `definitions`: the tables themselves."""

    name: str
    names: tuple[str, ...]
    dims: tuple[str, ...]
    definitions: tuple[str, ...]


def program_tables(named: NamedProgram, sizes: Sequence[str]) -> ProgramTables:
    """A program's tables; `sizes` names the entries of a call's sizes."""
    program = named.program
    dim = _Dims(program)
    arrays = _arrays(program, dim)
    info = tuple(loop_info(named.form, dim))
    return ProgramTables(
        named.name,
        tuple(enumerated(program)),
        tuple(f"dims[{index}] = {cpp_dim(dim, sizes)};  // {dim_name(dim)}" for index, dim in enumerate(dim.all())),
        (*arrays.values(), _tables(program, arrays, dim), *info),
    )


class _Dims:
    """The dims that tables name by their index. The first is 0. The weights' rows follow, from `rows` on, then their
    columns, from `columns` on. These are repeated where they are equal, because the driver counts through them."""

    def __init__(self, program: Program) -> None:
        weights = program.step.weights
        self.rows, self.columns = 1, 1 + len(weights)
        self._first = (constant(0), *(each.rows for each in weights), *(each.columns for each in weights))
        self._others: dict[Dim, int] = {}

    def all(self) -> tuple[Dim, ...]:
        """The dims, in order."""
        return (*self._first, *self._others)

    def __call__(self, dim: Dim) -> str | None:
        """The index of a dim with the dim as a comment; None for 0."""
        if dim == constant(0):
            return None
        return f"{self._others.setdefault(dim, len(self._first) + len(self._others))} /* {dim_name(dim)} */"

    def place(self, place: Place) -> dict[str, Member]:
        """The members that say where units of a tensor are."""
        return {"table": place.table.value, "index": place.index, "offset": self(place.offset)}


def dims_of(program: Program) -> Mapping[Dim, int]:
    """The places of a program's dims."""
    dim = _Dims(program)
    arrays = _arrays(program, dim)
    _tables(program, arrays, dim)
    return {each: index for index, each in enumerate(dim.all())}


def _arrays(program: Program, dim: _Dims) -> dict[str, str]:
    """The arrays that have entries, by their names in Tables."""
    slots, destinations = _slots(program, dim)
    stages, stage_slots = _stages(program, dim)
    matrices = [_matrix(matrix, program, dim) for matrix in program.step.matrices]
    sums = [_sum(each, program, dim) for each in program.step.sums]
    zeros = [row("", **dim.place(zero.place), width=dim(zero.width)) for zero in program.step.zeros]
    images = [
        row("", slot=slot_name(image.slot), parts=image.parts, blocks=dim(image.blocks))
        for image in product_images(program)
    ]
    finals = [
        row("", slot=slot_name(final.edge), table=final.place.table.value, index=final.place.index)
        for final in program.step.finals
    ]
    outers = [
        row(
            "",
            matrix=matrix_name(outer.matrix),
            cotangent=slot_name(outer.cotangent),
            operand=slot_name(outer.operand),
            parts=outer.parts,
        )
        for outer in program.step.outers
    ]
    factors = [matrix_name(name) for _, product in _products(program) for name in product.matrices]
    structs = {
        "slots": ("SlotInfo", slots),
        "destinations": ("Destination", destinations),
        "matrices": ("MatrixInfo", matrices),
        "products": ("ProductInfo", _product_rows(program)),
        "images": ("ImageInfo", images),
        "stages": ("StageInfo", stages),
        "finals": ("FinalInfo", finals),
        "outers": ("OuterInfo", outers),
        "sums": ("SumInfo", sums),
        "zeros": ("ZeroInfo", zeros),
    }
    indices = {"product_matrices": factors, "stage_slots": stage_slots}
    made = {name: rows(type, name, entries) for name, (type, entries) in structs.items() if entries}
    return made | {name: numbers(name, entries) for name, entries in indices.items() if entries}


def _tables(program: Program, arrays: Mapping[str, str], dim: _Dims) -> str:
    """The Tables: the arrays, their lengths, and what else the drivers must know."""
    in_order = (
        "slots", "destinations", "matrices", "products", "product_matrices", "images", "stages", "stage_slots",
        "finals", "outers", "sums", "zeros",
    )  # fmt: skip
    counts = {
        "dim": len(dim.all()),
        "slot": len(program.slots),
        "destination": sum(len(slot.destinations) for slot in program.slots if isinstance(slot, StoredSlot)),
        "matrix": len(program.step.matrices),
        "product": len(_products(program)),
        "product_matrix": sum(len(product.matrices) for _, product in _products(program)),
        "image": len(product_images(program)),
        "stage": len(program.stages),
        "final": len(program.step.finals),
        "outer": len(program.step.outers),
        "sum": len(program.step.sums),
        "zero": len(program.step.zeros),
        "constant": len(program.step.constants),
        "weight": len(program.step.weights),
    }
    return struct(
        "Tables",
        "tables",
        dims="dims",
        **{name: name if name in arrays else None for name in in_order},
        **{f"{name}_count": count or None for name, count in counts.items()},
        weight_rows=dim.rows,
        weight_columns=dim.columns,
        masked=program.step.masked,
        active=slot_name(ACTIVE) if any(slot.name == ACTIVE for slot in program.slots) else -1,
    )


def _weight(program: Program, index: int) -> str:
    return f"{index} /* {program.step.weights[index].name} */"


def _matrix(matrix: Matrix, program: Program, dim: _Dims) -> str:
    return row(
        matrix.name,
        index=_weight(program, matrix.index),
        row=dim(matrix.offset),
        rows=dim(matrix.rows),
        columns=dim(matrix.columns),
        blocks=dim(diagonal_blocks(matrix.structure)),
        parts=matrix.parts,
        sparse=program.step.weights[matrix.index].sparsity is not None or None,
    )


def _sum(each: Sum, program: Program, dim: _Dims) -> str:
    index, offset = _weight(program, each.place.index), dim(each.place.offset)
    return row("", index=index, offset=offset, width=dim(each.width), slot=slot_name(each.value))


def _products(program: Program) -> list[tuple[TileStage, Product]]:
    """All products, in order, each with its stage."""
    tiles = (stage for stage in program.stages if isinstance(stage, TileStage))
    return [(stage, product) for stage in tiles for product in stage.products]


def _product_rows(program: Program) -> list[str]:
    images, found, factors = product_images(program), [], 0
    for stage, product in _products(program):
        image = image_of(program, product)
        made = stage.accumulators[product.first : product.first + len(product.matrices)]
        found.append(
            row(
                ", ".join(made),
                operand=slot_name(product.operand),
                image=f"{images.index(image)} /* {image.slot} */",
                matrix=factors,
                first=product.first,
                count=len(product.matrices),
                parts=product.parts,
                transposed=product.transposed,
                accumulate=product.accumulate,
            )
        )
        factors += len(product.matrices)
    return found


def _stages(program: Program, dim: _Dims) -> tuple[list[str], list[str]]:
    """The rows of stages, and the slots that these name: what a stage writes, and a row operator's operands."""
    found: list[str] = []
    named: list[str] = []
    products = functions = 0
    for stage, waits in zip(program.stages, program.barriers, strict=True):
        first = len(named)
        match stage:
            case TileStage():
                found.append(
                    row(
                        "",
                        barrier=waits,
                        width=dim(stage.width),
                        parts=stage.parts,
                        blocks=dim(stage.blocks),
                        first_product=products,
                        products=len(stage.products),
                        first_accumulator=slot_name(stage.accumulators[0]) if stage.accumulators else None,
                        accumulators=len(stage.accumulators) or None,
                        first_stored=first,
                        stored=len(stage.stored),
                        function=functions,
                    )
                )
                products += len(stage.products)
                functions += 1
                named += stage.stored
            case MatrixStage():
                rows, columns = (dim(side) for side in stage.grid.sides)
                found.append(
                    row(
                        "",
                        barrier=waits,
                        row="RowOperator::elements",
                        width=dim(stage.grid.width),
                        parts=1,
                        blocks=dim(HEADS),
                        first_stored=first,
                        stored=len(stage.written),
                        function=functions,
                        matrix_rows=rows,
                        matrix_columns=columns,
                        column_sums=stage.of_columns(largest=False) or None,
                        column_maxima=stage.of_columns(largest=True) or None,
                    )
                )
                functions += 1
                named += stage.written
            case RowStage():
                found.append(
                    row(
                        stage.target,
                        barrier=waits,
                        row=f"RowOperator::{stage.operator.value}",
                        width=dim(stage.width),
                        parts=1,
                        blocks=dim(ONE),
                        first_stored=first,
                        stored=1,
                        first_operand=first + 1,
                        operands=len(stage.operands),
                        offset=dim(stage.offset),
                        times=stage.times or None,
                        function=-1,
                        matrix_rows=None if stage.grid is None else dim(stage.grid.rows),
                        matrix_columns=None if stage.grid is None else dim(stage.grid.columns),
                    )
                )
                named += [stage.target, *stage.operands]
            case _:
                assert_never(stage)
    return found, [slot_name(name) for name in named]


def _slots(program: Program, dim: _Dims) -> tuple[list[str], list[str]]:
    """The rows of slots and of the destinations of stored ones."""
    read_slots = readers(program)
    found: list[str] = []
    destinations: list[str] = []
    for slot in program.slots:
        members = _slot(slot, dim, read_slots, len(destinations))
        if isinstance(slot, Read | StoredSlot):
            members["lasting"] = slot.name in program.step.kept
        found.append(row(slot.name, **{name: members[name] for name in _SLOT_INFO if name in members}))
        if isinstance(slot, StoredSlot):
            destinations += [row(slot.name, **dim.place(place)) for place in slot.destinations]
    return found, destinations


def _slot(slot: Slot, dim: _Dims, read_slots: Mapping[str, bool], destinations: int) -> dict[str, Member]:
    """The members of a SlotInfo. `destinations` counts those of the slots before this one."""
    own: dict[str, Member] = {"width": dim(slot.width), "parts": row_parts(slot.width)}
    match slot:
        case Read(_, _, place):
            own |= {"kind": "Kind::read", **dim.place(place)}
        case Edge(_, _, link, place, ahead):
            own |= {"kind": "Kind::next" if ahead else "Kind::previous", "link": slot_name(link), **dim.place(place)}
        case Vector(_, _, place):
            own |= {"kind": "Kind::vector", **dim.place(place)}
        case StoredSlot(name, _, places):
            own |= {"kind": "Kind::stored", "read": name in read_slots, "shared": read_slots.get(name, False)}
            if places:
                own |= {"first_destination": destinations, "destinations": len(places)}
        case ViewSlot(_, _, link, offset):
            own |= {"kind": "Kind::view", "link": slot_name(link), "offset": dim(offset)}
        case TileSlot():
            own["kind"] = "Kind::tile"
        case _:
            assert_never(slot)
    return own
