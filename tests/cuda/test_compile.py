"""The kernels compile, without spills, and use the tensor cores where weights have 16 bits. Needs nvcc, no GPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rnncc.stages.build.nvcc import find_nvcc, nvcc_release
from tests.cuda.sources import write_sources

pytestmark = pytest.mark.skipif(nvcc_release() is None, reason="no nvcc")


@pytest.mark.parametrize(
    ("cell", "dtype", "architecture"), [("lstm", "bf16", "sm_90a"), ("lstm", "f32", "sm_80"), ("gru", "f16", "sm_80")]
)
def test_no_spills(cell: str, dtype: str, architecture: str, tmp_path: Path) -> None:
    bundle = write_sources(cell, tmp_path)
    nvcc = find_nvcc((architecture,), required=True)
    assert nvcc is not None
    unit = next(unit for unit in bundle.device_units if unit.name == f"{cell}_{dtype}")
    (tmp_path / "cuda").mkdir()
    command = nvcc.command(unit, architecture, bundle.include)
    done = subprocess.run(
        [*command.arguments, "-Xptxas", "-v", "--keep"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    kernels = re.findall(r"Compiling entry function '(\w+)'", done.stderr)
    assert sorted(kernels) == sorted(
        f"{cell}_0{variant}_{direction}" for variant in ("", "_masked") for direction in ("forward", "backward")
    )
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) >= 4 and set(spills) == {("0", "0", "0")}
    assert "warning" not in done.stderr
    assert (tmp_path / command.output).stat().st_size < 1 << 20
    ptx = next(tmp_path.glob("*.ptx")).read_text(encoding="utf-8")
    instruction = {"bf16": "m16n8k16.row.col.f32.bf16.bf16.f32", "f16": "m16n8k16.row.col.f32.f16.f16.f32"}.get(dtype)
    assert instruction is None or instruction in ptx
    assert instruction is not None or "mma.sync" not in ptx
