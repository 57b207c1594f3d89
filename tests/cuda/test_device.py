"""The device code of programs: what is loaded when, what is published, what products read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnncc.ir.dim import HEADS
from rnncc.ir.step import TileStage
from rnncc.language.diagnostics import InternalError
from rnncc.stages.render.cuda.device import DeviceProgram, device_programs
from rnncc.stages.render.programs import Image, image_of, product_images, readers
from tests.compiling import plan_of


def device_code(cell: str, name: str) -> DeviceProgram:
    return next(program for program in device_programs(plan_of(cell)) if program.name == name)


def test_a_stage_waits_only_for_what_others_write() -> None:
    (stage,) = device_code("lstm", "lstm_0_forward").stages
    # Streams are the call's; the cell state of the step before is the thread's own.
    assert [field.name for field in stage.early] == ["i__x", "f__x", "g__x", "o__x", "c__1"]
    assert stage.late == ()
    assert [field.name for field in stage.results][-1] == "h"
    assert "const float i__R = sums__[0];" in stage.lines
    assert any("rnncc::publish<slot__::h>(run__, at__.entry, at__.unit, h);" in line for line in stage.lines)


def test_values_of_other_threads_are_late_and_shared() -> None:
    text = device_code("gru", "gru_0_backward")
    # d_h comes from the stage before, of the same units: the thread's own, but of this step.
    assert [field.name for field in text.stages[1].late] == ["d_h"]
    assert [field.name for field in text.stages[1].early] == ["z"]
    norm = plan_of("layernormlstm").loops[0].forward
    found = readers(norm)
    assert found["v__R"] and found["v__1__mean"], "row operators and their readers are other threads"
    assert not readers(plan_of("lstm").loops[0].forward)["c"]


def test_images_are_the_operands_of_products() -> None:
    backward = plan_of("lstm").loops[0].backward
    assert product_images(backward) == [Image(name, 1, HEADS) for name in ("d_o", "d_g", "d_f", "d_i")]
    forward = plan_of("lmu").loops[0].forward
    images = product_images(forward)
    assert {image.slot for image in images} == {"h", "m", "u"} and len(images) == len(set(images))


def test_an_operand_that_no_stage_makes_is_a_bug() -> None:
    forward = plan_of("lstm").loops[0].forward
    stage = forward.stages[0]
    assert isinstance(stage, TileStage)
    product = replace(stage.products[0], operand="i__x")
    with pytest.raises(InternalError, match="i__x"):
        image_of(forward, product)
