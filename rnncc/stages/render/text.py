"""A KernelPlan as what its templates print: names, rows of tables, lines of functions. Templates only put them in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from rnncc.ir.dim import Dim, constant, show
from rnncc.ir.kernel import (
    EdgeSlot,
    KernelPlan,
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
from rnncc.stages.render.cpp import FunctionText, dim_text, function_text


@dataclass(frozen=True, slots=True)
class TableText:
    """A constant array: `type name[] = {rows}`. An empty one has no rows and is printed as a null pointer."""

    type: str
    name: str
    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramText:
    """One direction of a loop. `counts` are the numbers that end a Program, in its order."""

    name: str
    call: str
    dims: tuple[str, ...]
    tables: tuple[TableText, ...]
    functions: tuple[FunctionText, ...]
    counts: str


@dataclass(frozen=True, slots=True)
class CellText:
    """A cell's header and units."""

    cell: str
    name: str
    source: str
    programs: tuple[ProgramText, ...]


def cell_text(plan: KernelPlan) -> CellText:
    """Everything that a cell's files hold."""
    name = plan.cell.lower()
    programs = []
    for loop in plan.loops:
        prefix = f"{name}_{loop.segment}{loop.variant}"
        for direction, program in (("forward", loop.forward), ("backward", loop.backward)):
            programs.append(_Tables(plan, f"{prefix}_{direction}", direction, program).text())
    return CellText(plan.cell, name, plan.source, tuple(programs))


@dataclass(slots=True)
class _Tables:
    """Collects the dims of a program while its tables are written; a table names dims by their index."""

    plan: KernelPlan
    name: str
    direction: str
    program: Program
    dims: dict[Dim, int] = field(default_factory=dict)
    first: int = 0

    def text(self) -> ProgramText:
        """The program as text."""
        program = self.program
        # The driver finds the shapes of weights in two runs of dims, so these come first, repeated where they are equal.
        runs = [*(weight.rows for weight in program.weights), *(weight.columns for weight in program.weights)]
        self.first = len(runs)
        tables = self._tables()
        dims = [*runs, *self.dims]
        functions = tuple(
            function_text(f"{self.name}_{index}", stage, self._numbers(), program.constants, self.plan.source)
            for index, stage in enumerate(stage for stage in program.stages if isinstance(stage, TileStage))
        )
        counts = (
            len(dims),
            len(program.slots),
            len(program.matrices),
            sum(len(stage.products) for stage in program.stages if isinstance(stage, TileStage)),
            len(program.stages),
            len(program.finals),
            len(program.outers),
            len(program.sums),
            len(program.zeros),
            len(program.constants),
            len(program.weights),
            0,
            len(program.weights),
        )
        return ProgramText(
            self.name,
            self.direction,
            tuple(f"{dim_text(dim, self.plan.sizes)};  // {show(dim)}" for dim in dims),
            tables,
            functions,
            ", ".join(str(count) for count in counts),
        )

    def _dim(self, dim: Dim) -> int:
        return self.dims.setdefault(dim, self.first + len(self.dims))

    def _numbers(self) -> dict[str, int]:
        return {slot.name: index for index, slot in enumerate(self.program.slots)}

    def _tables(self) -> tuple[TableText, ...]:
        program, dim = self.program, self._dim
        numbers = self._numbers()
        matrices = {matrix.name: index for index, matrix in enumerate(program.matrices)}
        destinations: list[str] = []
        slots = [self._slot(slot, numbers, destinations) for slot in program.slots]
        products: list[str] = []
        product_matrices: list[str] = []
        stage_slots: list[str] = []
        stages: list[str] = []
        functions: list[str] = []
        for stage in program.stages:
            match stage:
                case TileStage():
                    first_stored = len(stage_slots)
                    written = [statement.target for statement in stage.statements if statement.stored]
                    stage_slots += [str(numbers[name]) for name in written]
                    tiles = numbers[stage.accumulators[0]] if stage.accumulators else 0
                    stages.append(
                        f"{{{_bool(stage.barrier)}, RowOperator::none, {dim(stage.width)}, {stage.parts}, {dim(stage.blocks)}, "
                        f"{len(products)}, {len(stage.products)}, {tiles}, {len(stage.accumulators)}, "
                        f"{first_stored}, {len(written)}, 0, 0, {dim(constant(0))}, 0, {len(functions)}}}"
                    )
                    for product in stage.products:
                        products.append(
                            f"{{{numbers[product.operand]}, {len(product_matrices)}, {product.first}, {len(product.matrices)}, "
                            f"{product.parts}, {_bool(product.transposed)}, {_bool(product.accumulate)}}}"
                        )
                        product_matrices += [str(matrices[name]) for name in product.matrices]
                    functions.append(f"{self.name}_{len(functions)}<T>")
                case RowStage():
                    first = len(stage_slots)
                    stage_slots += [str(numbers[name]) for name in (stage.target, *stage.operands)]
                    stages.append(
                        f"{{{_bool(stage.barrier)}, RowOperator::{stage.operator.value}, {dim(stage.width)}, 1, {dim(constant(1))}, "
                        f"0, 0, 0, 0, {first}, 1, {first + 1}, {len(stage.operands)}, {dim(stage.offset)}, {stage.times}, -1}}"
                    )
                case _:
                    assert_never(stage)
        tables = (
            ("SlotInfo", "slots", slots),
            ("Destination", "destinations", destinations),
            (
                "MatrixInfo",
                "matrices",
                [
                    f"{{{m.index}, {dim(m.offset)}, {dim(m.rows)}, {dim(m.columns)}, {dim(m.blocks)}, {m.parts}}}"
                    for m in program.matrices
                ],
            ),
            ("ProductInfo", "products", products),
            ("int16_t", "product_matrices", product_matrices),
            ("StageInfo", "stages", stages),
            ("int16_t", "stage_slots", stage_slots),
            ("Function<T>", "functions", functions),
            (
                "FinalInfo",
                "finals",
                [f"{{{numbers[f.slot]}, {f.place.table.value}, {f.place.index}}}" for f in program.finals],
            ),
            (
                "OuterInfo",
                "outers",
                [f"{{{matrices[o.matrix]}, {numbers[o.cotangent]}, {numbers[o.operand]}, {o.parts}}}" for o in program.outers],
            ),
            (
                "SumInfo",
                "sums",
                [f"{{{s.place.index}, {dim(s.place.offset)}, {dim(s.width)}, {numbers[s.slot]}}}" for s in program.sums],
            ),
            ("ZeroInfo", "zeros", [f"{{{self._place(z.place)}, {dim(z.width)}}}" for z in program.zeros]),
        )
        return tuple(
            TableText(kind, f"{self.name}_{name}", tuple(row if "//" in row else f"{row}," for row in rows))
            for kind, name, rows in tables
        )

    def _place(self, place: Place) -> str:
        return f"{place.table.value}, {place.index}, {self._dim(place.offset)}"

    def _slot(self, slot: Slot, numbers: dict[str, int], destinations: list[str]) -> str:
        """A row of SlotInfo: kind, table, kept, index, link, width, parts, offset, destinations."""
        width = f"{self._dim(slot.width)}, {row_parts(slot.width)}"
        nothing = self._dim(constant(0))
        match slot:
            case ReadSlot(name, _, place, kept):
                row = f"Kind::read, {place.table.value}, {_bool(kept)}, {place.index}, 0, {width}, {self._dim(place.offset)}, 0, 0"
            case EdgeSlot(name, _, link, place, ahead):
                kind = "next" if ahead else "previous"
                row = f"Kind::{kind}, {place.table.value}, false, {place.index}, {numbers[link]}, {width}, {nothing}, 0, 0"
            case VectorSlot(name, _, place):
                row = f"Kind::vector, {place.table.value}, false, {place.index}, 0, {width}, {self._dim(place.offset)}, 0, 0"
            case StoredSlot(name, _, places, kept):
                first = len(destinations)
                destinations.extend(f"{{{self._place(place)}}}" for place in places)
                row = f"Kind::stored, STREAMS, {_bool(kept)}, 0, 0, {width}, {nothing}, {first}, {len(places)}"
            case ViewSlot(name, _, link, offset):
                row = f"Kind::view, STREAMS, false, 0, {numbers[link]}, {width}, {self._dim(offset)}, 0, 0"
            case TileSlot(name):
                row = f"Kind::tile, STREAMS, false, 0, 0, {width}, {nothing}, 0, 0"
            case _:
                assert_never(slot)
        return f"{{{row}}},  // {numbers[name]} {name}"


def _bool(value: bool) -> str:
    return "true" if value else "false"
