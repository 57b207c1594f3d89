"""Rules that stand in Python and in C++ (docs/design.md, "Which rules are written twice?") say the same in both."""

from __future__ import annotations

import re

from rnncc.analysis.norms import NORMS
from rnncc.ir.row_operator import BATCHED_ONLY, RowOperator
from rnncc.ir.step import Table
from rnncc.machine.paths import templates_dir
from rnncc.runtime.spec import BORDER_STEPS
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
    in_loops = [operator.value for operator in RowOperator if operator not in NORMS | BATCHED_ONLY]
    assert members(text, "enum class RowOperator") == ["none", *in_loops, "elements"]
    # Numbers in the tables have 16 bits.
    tables, _, _ = text.partition("struct LoopInfo")
    assert slots.MOST == 2**15 - 1 and "int16_t" in tables and not re.search(r"int(32|64)_t", tables)


def test_products_of_heads() -> None:
    found = constants("cuda/heads.h")
    assert found["HEAD_SUMS"] * found["HEAD_ROWS"] == expect._DEALT_ROWS
    assert (found["HEAD_TILE"], found["HEAD_TILES"]) == (expect._TILE, expect._DEALT_TILES)
    assert constants("cuda/head_products_call.h")["HEAD_TILE_ROWS"] == expect._TILE_ROWS


def test_steps_between_borders() -> None:
    assert constants("torch/borders.h")["border_steps"] == BORDER_STEPS


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
