"""Rules that stand in Python and in C++ (docs/design.md, "Which rules are written twice?") say the same in both."""

from __future__ import annotations

import re

from rnncc.analysis.norms import NORMS
from rnncc.ir.cell import RowOperator
from rnncc.ir.step import Table
from rnncc.machine.paths import templates_dir
from rnncc.runtime.kernels import choice
from rnncc.runtime.kernels.first_use import Event
from rnncc.stages.build import TORCH_ABI
from rnncc.stages.lower import slots
from rnncc.stages.schedule import expect, lanes, scan


def header(name: str) -> str:
    return (templates_dir() / "include" / "rnncc" / name).read_text(encoding="utf-8")


def members(text: str, enum: str) -> list[str]:
    """The names of an enum, in order."""
    found = re.search(rf"{enum} : int8_t \{{(.*?)\}}", text, re.DOTALL)
    assert found is not None
    return re.findall(r"^  (\w+)", found[1], re.MULTILINE)


def constants(name: str) -> dict[str, int]:
    """The numbers that a header gives names to."""
    lines = re.findall(r"constexpr int(?:64_t)? ([^;]*);", header(name))
    return {key: int(value) for line in lines for key, value in re.findall(r"(\w+) = (\d+)", line)}


def test_tables_of_a_loop() -> None:
    text = header("core/tables.h")
    assert members(text, "enum Table") == [*(table.value for table in Table), "TABLES"]
    # Loops have the parts of norms.
    in_loops = [operator.value for operator in RowOperator if operator not in NORMS]
    assert members(text, "enum class RowOperator") == ["none", *in_loops]
    # Numbers in the tables have 16 bits.
    tables, _, _ = text.partition("struct LoopInfo")
    assert slots.MOST == 2**15 - 1 and "int16_t" in tables and not re.search(r"int(32|64)_t", tables)


def test_the_oldest_torch() -> None:
    """shim.h has the version as torch's functions take it: a byte for each number."""
    found = re.search(r"rnncc_torch_abi = 0x(\w\w)(\w\w)", header("torch/shim.h"))
    assert found is not None
    assert f"{int(found[1], 16)}.{int(found[2], 16)}" == TORCH_ABI


def test_the_steps_of_a_long_call() -> None:
    assert constants("cuda/fused/host/first_use.h")["LONG_CALL_STEPS"] == choice.LONG_CALL_STEPS


def test_products_of_heads() -> None:
    found = constants("cuda/heads.h")
    assert found["HEAD_SUMS"] * found["HEAD_ROWS"] == expect._DEALT_ROWS
    assert (found["HEAD_TILE"], found["HEAD_TILES"]) == (expect._TILE, expect._DEALT_TILES)
    assert constants("cuda/head_products_call.h")["HEAD_TILE_ROWS"] == expect._TILE_ROWS


def test_rows_of_a_lane() -> None:
    """The C++ rule is a chain of conditions."""
    found = re.search(
        r"rows_of_lane\(int halves, int most\) \{\s*return (.*?);", header("cuda/fused/device/resident.cuh")
    )
    assert found is not None
    *chain, last = found[1].split(" : ")
    for halves in range(1, 9):
        for most in lanes.LANE_ROWS:
            known = {"halves": halves, "most": most}
            pairs = (part.replace("&&", "and").split(" ? ") for part in chain)
            value = next((value for condition, value in pairs if eval(condition, known.copy())), last)
            assert eval(value, known.copy()) == lanes.rows_of_lane(halves, most)


def test_ctas_that_share_the_steps_of_a_scan() -> None:
    assert constants("cuda/scan/share.h")["MOST_SCAN_CTAS"] == scan.MOST_CTAS


def test_events_of_a_first_call() -> None:
    events = re.search(r"enum KernelEvent : int32_t \{(.*?)\}", header("core/handler.h"))
    assert events is not None
    found = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", events[1])}
    assert found == {event.name: event.value for event in Event}
