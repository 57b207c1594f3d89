"""The tables of a program: what the drivers of a CPU and of a GPU read (templates/include/rnncc/core/tables.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import Dim, constant, show
from rnncc.ir.fused import FusedLoop, FusedWrite
from rnncc.ir.kernel import (
    EdgeSlot,
    Place,
    Program,
    ReadSlot,
    RowStage,
    Slot,
    StoredSlot,
    TileSlot,
    TileStage,
    VectorSlot,
    ViewSlot,
    row_parts,
)
from rnncc.ir.scan import ScanLoop
from rnncc.stages.render.notation import cpp_dim
from rnncc.stages.render.programs import Image, NamedProgram, image_of, product_images, readers


@dataclass(frozen=True, slots=True)
class Array:
    """A constant array: `type name[] = {rows}`. An empty one has no rows and is printed as a null pointer."""

    type: str
    name: str
    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexArray:
    """A constant array of indices; an empty one holds a single zero."""

    name: str
    rows: str


@dataclass(frozen=True, slots=True)
class LoopInfo:
    """A LoopInfo: its numbers, and the arrays that it points to."""

    tables: tuple[IndexArray, ...]
    counts: str
    names: str


@dataclass(frozen=True, slots=True)
class ProgramTables:
    """The tables of one direction of a loop. `counts` are the numbers that end a Tables, in its order."""

    name: str
    dims: tuple[str, ...]
    tables: tuple[Array, ...]
    counts: str
    info: LoopInfo | None


def program_tables(named: NamedProgram, sizes: Sequence[str]) -> ProgramTables:
    """A program's tables; `sizes` names the entries of a call's sizes."""
    return _Tables(named.name, named.program, named.form, sizes).text()


@dataclass(slots=True)
class _Tables:
    """Collects the dims of a program while its tables are written; a table names dims by their index."""

    name: str
    program: Program
    form: FusedLoop | ScanLoop | None
    sizes: Sequence[str]
    dims: dict[Dim, int] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
    first: int = 0

    def text(self) -> ProgramTables:
        """The program as text."""
        program = self.program
        # The driver finds the shapes of weights in two runs of dims, so these come first, repeated where they are
        # equal.
        runs = [*(weight.rows for weight in program.weights), *(weight.columns for weight in program.weights)]
        self.first = len(runs)
        tables = self._tables()
        dims = [*runs, *self.dims]
        products = [product for stage in program.stages if isinstance(stage, TileStage) for product in stage.products]
        counts = (
            len(dims),
            len(program.slots),
            sum(len(slot.destinations) for slot in program.slots if isinstance(slot, StoredSlot)),
            len(program.matrices),
            len(products),
            sum(len(product.matrices) for product in products),
            len(self.images),
            len(program.stages),
            len(program.finals),
            len(program.outers),
            len(program.sums),
            len(program.zeros),
            len(program.constants),
            len(program.weights),
            0,
            len(program.weights),
            str(program.masked).lower(),
            self._numbers().get(ACTIVE, -1),
        )
        return ProgramTables(
            self.name,
            tuple(f"{cpp_dim(dim, self.sizes)};  // {show(dim)}" for dim in dims),
            tables,
            ", ".join(str(count) for count in counts),
            self._info(),
        )

    def _info(self) -> LoopInfo | None:
        loop = self.form
        if loop is None:
            return None
        sums, operands, matrix_rows = (
            (loop.sums, loop.operands, loop.matrices) if isinstance(loop, FusedLoop) else ((), (), ())
        )
        totals = loop.totals if isinstance(loop, ScanLoop) else ()
        numbers = self._numbers()
        matrices = [matrix.name for matrix in self.program.matrices]
        finals = [final.slot for final in self.program.finals]
        slots = {slot.name: slot for slot in self.program.slots}

        def place_of(write: FusedWrite) -> int:
            slot = slots[write.value]
            return (
                -1 if write.place is None or not isinstance(slot, StoredSlot) else slot.destinations.index(write.place)
            )

        lists = (
            ("matrices", [matrices.index(name) for row in matrix_rows for name in row]),
            ("edge_slots", [numbers[edge.name] for edge in loop.edges]),
            ("edge_finals", [finals.index(edge.name) if edge.name in finals else -1 for edge in loop.edges]),
            ("read_slots", [numbers[read.name] for read in loop.reads]),
            ("row_slots", [numbers[row.name] for row in loop.rows]),
            ("vector_slots", [numbers[vector.name] for vector in loop.vectors]),
            ("write_slots", [numbers[write.value] for write in loop.writes]),
            ("write_places", [place_of(write) for write in loop.writes]),
            ("total_slots", [numbers[name] for name in totals]),
        )
        tables = tuple(
            IndexArray(f"{self.name}_info_{name}", ", ".join(str(entry) for entry in entries) or "0")
            for name, entries in lists
        )
        counts = (sums, operands, loop.edges, loop.reads, loop.rows, loop.vectors, loop.writes, totals, loop.kept)
        return LoopInfo(
            tables, ", ".join(str(len(count)) for count in counts), ", ".join(table.name for table in tables)
        )

    def _dim(self, dim: Dim) -> int:
        return self.dims.setdefault(dim, self.first + len(self.dims))

    def _numbers(self) -> dict[str, int]:
        return {slot.name: index for index, slot in enumerate(self.program.slots)}

    def _tables(self) -> tuple[Array, ...]:
        program, dim = self.program, self._dim
        numbers = self._numbers()
        matrices = {matrix.name: index for index, matrix in enumerate(program.matrices)}
        self.images = product_images(program)
        read_slots = readers(program)
        destinations: list[str] = []
        slots = [self._slot(slot, numbers, destinations, read_slots) for slot in program.slots]
        products: list[str] = []
        product_matrices: list[str] = []
        stage_slots: list[str] = []
        stages: list[str] = []
        functions = 0
        for stage in program.stages:
            first = len(stage_slots)
            match stage:
                case TileStage():
                    written = [statement.target for statement in stage.statements if statement.stored]
                    stage_slots += [str(numbers[name]) for name in written]
                    tiles = numbers[stage.accumulators[0]] if stage.accumulators else 0
                    shape = (dim(stage.width), stage.parts, dim(stage.blocks))
                    made = (len(products), len(stage.products), tiles, len(stage.accumulators), first, len(written))
                    unused = (0, 0, dim(constant(0)), 0)
                    stages.append(_row(stage.barrier, "RowOperator::none", *shape, *made, *unused, functions))
                    for product in stage.products:
                        image = self.images.index(image_of(program, product))
                        where = (numbers[product.operand], image, len(product_matrices), product.first)
                        flags = (product.transposed, product.accumulate)
                        products.append(_row(*where, len(product.matrices), product.parts, *flags))
                        product_matrices += [str(matrices[name]) for name in product.matrices]
                    functions += 1
                case RowStage():
                    stage_slots += [str(numbers[name]) for name in (stage.target, *stage.operands)]
                    shape = (dim(stage.width), 1, dim(constant(1)))
                    read = (first + 1, len(stage.operands), dim(stage.offset), stage.times)
                    operator = f"RowOperator::{stage.operator.value}"
                    stages.append(_row(stage.barrier, operator, *shape, 0, 0, 0, 0, first, 1, *read, -1))
                case _:
                    assert_never(stage)
        matrix_rows = [
            _row(m.index, dim(m.offset), dim(m.rows), dim(m.columns), dim(m.blocks), m.parts) for m in program.matrices
        ]
        finals = [_row(numbers[f.slot], f.place.table.value, f.place.index) for f in program.finals]
        outers = [_row(matrices[o.matrix], numbers[o.cotangent], numbers[o.operand], o.parts) for o in program.outers]
        sums = [_row(s.place.index, dim(s.place.offset), dim(s.width), numbers[s.slot]) for s in program.sums]
        zeros = [_row(*self._place(zero.place), dim(zero.width)) for zero in program.zeros]
        images = [_row(numbers[i.slot], i.parts, dim(i.blocks)) for i in self.images]
        # The order is that of Tables in tables.h.
        tables = (
            ("SlotInfo", "slots", slots),
            ("Destination", "destinations", destinations),
            ("MatrixInfo", "matrices", matrix_rows),
            ("ProductInfo", "products", products),
            ("int16_t", "product_matrices", product_matrices),
            ("ImageInfo", "images", images),
            ("StageInfo", "stages", stages),
            ("int16_t", "stage_slots", stage_slots),
            ("FinalInfo", "finals", finals),
            ("OuterInfo", "outers", outers),
            ("SumInfo", "sums", sums),
            ("ZeroInfo", "zeros", zeros),
        )
        return tuple(
            Array(kind, f"{self.name}_{name}", tuple(row if "//" in row else f"{row}," for row in rows))
            for kind, name, rows in tables
        )

    def _place(self, place: Place) -> tuple[str, int, int]:
        return place.table.value, place.index, self._dim(place.offset)

    def _slot(self, slot: Slot, numbers: dict[str, int], destinations: list[str], readers: Mapping[str, bool]) -> str:
        """A row of SlotInfo: kind, table, kept, index, link, width, parts, offset, first destination, destinations."""
        shape = (self._dim(slot.width), row_parts(slot.width))
        nothing = self._dim(constant(0))
        read = slot.name in readers, readers.get(slot.name, False)
        match slot:
            case ReadSlot(_, _, place, kept):
                table, index, offset = self._place(place)
                row = _row("Kind::read", table, kept, *read, index, 0, *shape, offset, 0, 0)
            case EdgeSlot(_, _, link, place, ahead):
                kind = "Kind::next" if ahead else "Kind::previous"
                row = _row(kind, place.table.value, False, *read, place.index, numbers[link], *shape, nothing, 0, 0)
            case VectorSlot(_, _, place):
                table, index, offset = self._place(place)
                row = _row("Kind::vector", table, False, *read, index, 0, *shape, offset, 0, 0)
            case StoredSlot(_, _, places, kept):
                first = len(destinations)
                destinations.extend(_row(*self._place(place)) for place in places)
                row = _row("Kind::stored", "STREAMS", kept, *read, 0, 0, *shape, nothing, first, len(places))
            case ViewSlot(_, _, link, offset_dim):
                row = _row("Kind::view", "STREAMS", False, *read, 0, numbers[link], *shape, self._dim(offset_dim), 0, 0)
            case TileSlot():
                row = _row("Kind::tile", "STREAMS", False, *read, 0, 0, *shape, nothing, 0, 0)
            case _:
                assert_never(slot)
        return f"{row},  // {numbers[slot.name]} {slot.name}"


def _row(*entries: str | int | bool) -> str:
    """A brace initialiser."""
    return "{" + ", ".join(str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in entries) + "}"
