"""With RNNCC_SPIN_BUDGET every wait of every family is counted, without it none is. Needs nvcc, no GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rnncc.stages.build.nvcc import FLAGS, nvcc_release
from tests.cuda import kernels
from tests.cuda.sources import write_files, write_sources

RELEASE = nvcc_release()
pytestmark = pytest.mark.skipif(RELEASE is None, reason="no nvcc")

SHAPES = {"gather": "64, 2, 4, 1, 1, 1, 2", "scatter": "64, 2, 32, 4, 1, 1, 2", "grid": "64, 2, 8, 1, 2"}
FUSED = "".join(
    f'#include "rnncc/cuda/fused/{family}.cuh"\n#include "lstm_steps.cuh"\n'
    f"using {family} = rnncc::{family.capitalize()}Shape<rnncc::lstm_0_inference_step<rnncc::bfloat16>, {arguments}>;\n"
    f"__global__ void {family}_kernel(const __grid_constant__ rnncc::FusedCall<{family}::Step> call) {{\n"
    f"  rnncc::fused_{family}<{family}>(call, call.directions[0]);\n}}\n"
    for family, arguments in SHAPES.items()
)
ALTERNATING = (
    '#include "lstm_device.cuh"\n'
    "__global__ void alternating_kernel(const __grid_constant__ rnncc::Arguments<rnncc::lstm_0_forward> plan) {\n"
    "  rnncc::run_sequence<rnncc::lstm_0_forward, rnncc::bfloat16>(plan);\n}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources that the kernels include."""
    found = tmp_path_factory.mktemp("spin")
    write_sources("lstm", found)
    write_files(kernels.sources(kernels.Case("lstm", "gather", "bf16", "sm_90a"))[0].files, found)
    return found


def compiled(folder: Path, source: str, *flags: str) -> dict[str, str]:
    """The PTX of every kernel of a source, by its family."""
    assert RELEASE is not None
    (folder / "kernels.cu").write_text(source, encoding="utf-8")
    own = (flag for flag in FLAGS if flag != "-cubin")
    command = [RELEASE[0], "-ptx", *own, "-arch=sm_90a", "-Isrc", "-Isrc/include", *flags, "kernels.cu"]
    done = subprocess.run([*command, "-o", "kernels.ptx"], cwd=folder, capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr
    parts = (folder / "kernels.ptx").read_text(encoding="utf-8").split(".visible .entry ")[1:]
    return {next(f for f in (*SHAPES, "alternating") if f"{f}_kernel" in part.split("(")[0]): part for part in parts}


def test_no_wait_is_counted_unless_asked_for(folder: Path) -> None:
    found = compiled(folder, FUSED)
    assert set(found) == set(SHAPES)
    for text in found.values():
        assert "trap;" not in text
        assert "mbarrier.try_wait" in text


def test_every_wait_has_its_trap(folder: Path) -> None:
    flag = "-DRNNCC_SPIN_BUDGET=1000"
    found = compiled(folder, FUSED, flag) | compiled(folder, ALTERNATING, flag)
    waits = {family: text.count("mbarrier.test_wait") + text.count("ld.acquire.gpu") for family, text in found.items()}
    assert all(waits.values())
    waits["grid"] += 1  # words of the exchange, one batch of them: asked for, and asked for again
    assert found["grid"].count("ld.relaxed.gpu") == 2
    assert {family: text.count("trap;") for family, text in found.items()} == waits
