"""`lower`: what is merged into one product, one pass, one tensor; where threads wait."""

from __future__ import annotations

import pytest

from rnncc.ir.dim import HEADS, HIDDEN_SIZE, ONE, constant, scale
from rnncc.ir.kernel import Program, StoredSlot, ViewSlot
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.step import Access, Edge, MatrixStage, Outer, Place, Read, RowStage, Table, TileStage, Zero
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir
from rnncc.stages.lower import slots
from tests.compiling import lowered
from tests.shipped import COVERING, STEMS

NOTHING = constant(0)


def plan_of(text: str) -> LoweredCell:
    return lowered(Source("some/folder/cell.rnn", text))


def shipped(name: str) -> LoweredCell:
    return plan_of((cells_dir() / f"{name}.rnn").read_text(encoding="utf-8"))


def tiles(program: Program) -> list[TileStage]:
    return [stage for stage in program.stages if isinstance(stage, TileStage)]


def test_lstm_forward_is_one_product_and_one_pass() -> None:
    plan = shipped("lstm")
    assert (plan.cell, plan.source, plan.sizes) == ("LSTM", "cell.rnn", ("I", "H"))
    assert [(loop.segment, loop.masked) for loop in plan.loops] == [(0, False), (0, True)]
    program = plan.loops[0].forward
    (stage,) = tiles(program)
    (product,) = stage.products
    assert product.operand == "h__1"
    assert product.matrices == ("R_i", "R_f", "R_g", "R_o")
    assert (product.first, product.transposed, product.accumulate) == (0, False, False)
    assert stage.accumulators == ("i__R", "f__R", "g__R", "o__R")
    assert (stage.width, stage.blocks, program.barriers) == (HIDDEN_SIZE, HEADS, (True,))
    slots = {slot.name: slot for slot in program.slots}
    edge = slots["h__1"]
    assert edge == Edge("h__1", HIDDEN_SIZE, "h", Place(Table.STATES, 0, NOTHING))
    # h goes to the returned sequence and, where that is not given, to the saved state.
    new = slots["h"]
    assert isinstance(new, StoredSlot)
    assert new.destinations == (Place(Table.SEQUENCES, 0, NOTHING), Place(Table.ROUNDED, 4, NOTHING))
    assert slots["f__x"] == Read("f__x", HIDDEN_SIZE, Place(Table.STREAMS, 0, HIDDEN_SIZE))
    assert [final.edge for final in program.step.finals] == ["h__1", "c__1"]
    # Values that only their own pass reads have no address.
    assert not {"i", "f", "g", "o", "c__tanh"} & set(slots)


def test_lstm_backward_sums_products_in_one_accumulator() -> None:
    program = shipped("lstm").loops[0].backward
    first, second = tiles(program)
    assert not first.products
    assert program.barriers == (False, True)
    assert len(second.accumulators) == 1
    assert {product.operand for product in second.products} == {"d_i", "d_f", "d_g", "d_o"}
    assert [product.accumulate for product in second.products] == [False, True, True, True]
    assert all(product.transposed for product in second.products)
    assert program.step.outers == tuple(Outer(f"R_{gate}", f"d_{gate}", "h__1", 1) for gate in "ifgo")
    slots = {slot.name: slot for slot in program.slots}
    cotangent = slots["d_g"]
    assert isinstance(cotangent, StoredSlot) and "d_g" in program.step.kept
    assert cotangent.destinations == (Place(Table.D_STREAMS, 0, scale(HIDDEN_SIZE, 2)),)
    # The operand of the outer products is the saved sequence, one step earlier in time: one later in the loop.
    assert slots["h__1"] == Edge("h__1", HIDDEN_SIZE, "h", Place(Table.STATES, 0, NOTHING), ahead=True)
    # What goes on to the step before is the sum, clipped.
    clipped = "d_h__1__recurrent__clipped"
    assert [statement.target for statement in second.statements] == ["d_h__1__recurrent", clipped]
    assert slots["d_h__carry"] == Edge("d_h__carry", HIDDEN_SIZE, clipped, Place(Table.D_FINAL, 0, NOTHING))


def test_two_phases_are_two_passes_with_a_barrier_each() -> None:
    program = shipped("gruv3").loops[0].forward
    first, second = tiles(program)
    assert [product.matrices for product in first.products] == [("R_r", "R_z")]
    assert [product.matrices for product in second.products] == [("R_n",)]
    # h[t-1] and r*h[t-1] were both written by all threads.
    assert program.barriers == (True, True)
    # z waits for the second pass; r goes to the saved values.
    assert first.stored == ("r", "z", second.products[0].operand)


def test_no_barrier_without_products() -> None:
    for name in ("indrnn", "mingru", "hgrn", "rwkv4"):
        for loop in shipped(name).loops:
            assert not any((*loop.forward.barriers, *loop.backward.barriers))


def test_products_of_two_operands_share_an_accumulator() -> None:
    (first, *_) = tiles(shipped("cornn").loops[0].forward)
    assert first.accumulators == ("z__R",)
    assert [(product.matrices, product.accumulate) for product in first.products] == [
        (("R_z",), False),
        (("M_z",), True),
    ]


def test_rows_and_slices() -> None:
    program = shipped("layernormlstm").loops[0].forward
    operators = [stage.operator for stage in program.stages if isinstance(stage, RowStage)]
    assert operators == [RowOperator.MEAN, RowOperator.VARIANCE] * 2
    both = zip(program.stages, program.barriers, strict=True)
    # The deviations of the units wait for the mean already, in the stage before.
    assert [waits for stage, waits in both if isinstance(stage, RowStage)] == [True, False] * 2
    views = {slot.name: slot for slot in program.slots if isinstance(slot, ViewSlot)}
    assert views["o"] == ViewSlot("o", HIDDEN_SIZE, "v", scale(HIDDEN_SIZE, 3))
    means = [
        load for stage in tiles(program) if stage.width == scale(HIDDEN_SIZE, 4) for load in stage.loads
        if load.access is Access.HEAD
    ]  # fmt: skip
    assert means


def test_masked_streams_have_no_gradient() -> None:
    masked = shipped("lstm").loops[1]
    assert masked.masked
    assert masked.backward.step.zeros == (
        Zero(Place(Table.D_STREAMS, 1, NOTHING), ONE),
        Zero(Place(Table.D_STREAMS, 2, NOTHING), ONE),
    )
    loads = {load.name: load.access for stage in tiles(masked.forward) for load in stage.loads}
    assert loads["reset__"] is Access.ONE


def test_a_state_that_only_delays_is_copied() -> None:
    program = plan_of("cell Late\nstate h\nh[t] = tanh(W@x + R@h[t-2] + b)\n").loops[0].forward
    slots = {slot.name: slot for slot in program.slots}
    assert slots["h__delay1"] == StoredSlot("h__delay1", HIDDEN_SIZE, slots["h__delay1"].destinations)  # type: ignore[union-attr]
    (stage,) = tiles(program)
    assert stage.products[0].operand == "h__delay1__1"


def test_equal_dims_share_a_pass() -> None:
    # x stands beside the state, so I == H; the pass over H reads x unit by unit.
    program = shipped("sru").loops[0].backward
    assert len(program.stages) == 1
    (stage,) = tiles(program)
    assert {load.name: load.access for load in stage.loads}["x"] is Access.UNIT


@pytest.mark.always(stem=COVERING)
@pytest.mark.parametrize("stem", STEMS)
def test_every_name_has_a_slot_and_is_written_before_it_is_read(stem: str) -> None:
    plan = shipped(stem)
    for loop in plan.loops:
        for program in (loop.forward, loop.backward):
            slots = {slot.name: slot for slot in program.slots}
            assert len(slots) == len(program.slots)
            written: set[str] = set()
            for stage in program.stages:
                match stage:
                    case TileStage():
                        reads = [product.operand for product in stage.products]
                        reads += [load.name for load in stage.loads if load.name not in stage.accumulators]
                        writes = list(stage.stored)
                    case MatrixStage():
                        reads, writes = [load.name for load in stage.loads], list(stage.written)
                    case RowStage():
                        reads, writes = list(stage.operands), [stage.target]
                for name in reads:
                    slot = slots[name]
                    while isinstance(slot, ViewSlot):
                        slot = slots[slot.link]
                    assert not isinstance(slot, StoredSlot) or slot.name in written, (name, stage)
                written.update(writes)
            assert written == {slot.name for slot in program.slots if isinstance(slot, StoredSlot)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cell Big\nstate h\nv = sum(R@h[t-1])\nh[t] = W@x + sum(repeat(v, 40000))\n",
            "needs 40,000 repetitions, and their tables hold 32,767",
        ),
        (
            "cell Big\nstate h\nlocal v: 40000*H\nv = W@x + R@h[t-1]\na, c = split(v)\nh[t] = tanh(h[t-1]) + sum(a)\n",
            "needs 40,000 parts in a row",
        ),
    ],
)
def test_what_no_table_can_hold_is_a_diagnostic(text: str, message: str) -> None:
    with pytest.raises(RnnccError, match=message) as caught:
        plan_of(text)
    assert [found.code for found in caught.value.diagnostics] == ["RNN402"]


def test_every_count_of_a_table_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the largest number of what ONLSTM needs it is lowered, below that it is not."""
    loops = shipped("onlstm").loops
    most = max(count for loop in loops for p in (loop.forward, loop.backward) for count in slots._needs(p).values())
    monkeypatch.setattr(slots, "MOST", most)
    slots.check_limits("ONLSTM", loops)
    monkeypatch.setattr(slots, "MOST", most - 1)
    with pytest.raises(RnnccError, match=f"needs {most} .*, and their tables hold {most - 1}"):
        slots.check_limits("ONLSTM", loops)
    needs = slots._needs(loops[0].forward)
    assert set(needs) >= {
        "values",
        "widths",
        "stages of a step",
        "products",
        "matrices",
        "parts in a row",
        "repetitions",
    }
    assert needs["repetitions"] == 4 and needs["values"] == len(loops[0].forward.slots)
