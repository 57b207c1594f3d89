"""With RNNCC_SPIN_BUDGET every wait of every family is counted, without it none is. Needs NVRTC, no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.ir.family import BLOCKS, FAMILIES, FUSED, GRID, SPARSE, WIDE, Family, Scope
from tests.cuda import kernels, nvrtc
from tests.cuda.sources import write_files, write_sources

# The head_dim by the scope: clusters of several CTAs; a grid whose lanes ask for few words of 16 bytes.
HEAD_DIM = {Scope.CLUSTER: 256, Scope.GRID: 64}
# How many words of 16 bytes a lane asks for there: the terms of 64 units, in parts of eight warps or two warpgroups.
WORDS = {GRID: 1, WIDE: 2, SPARSE: 1, BLOCKS: 1}
# The LSTM's step is the same with sparse matrices, for which alone there are shapes of some families.
CELLS = {SPARSE: kernels.SPARSE_LSTM, BLOCKS: kernels.BLOCK_LSTM}
# The families whose CTAs wait for each other.
CASES = [kernels.Case("lstm", family, "bf16", "sm_90a", masked=False) for family in FUSED if family.scope in HEAD_DIM]


def kernel_of(case: kernels.Case) -> str:
    """The source of a family's kernel for the forward loop."""
    head_dim = HEAD_DIM[case.family.scope]
    planned = replace(case, cell=CELLS.get(case.family, case.cell))
    (kernel,) = (each for name, each in kernels.forced(planned, head_dim).kernels if name.endswith("lstm_0_forward"))
    name, arguments = case.family.name, ", ".join(map(str, (head_dim, *kernel.shape)))
    return (
        f'#include "rnncc/cuda/fused/families/{name}.cuh"\n#include "lstm_steps.cuh"\n'
        f"using {name} = rnncc::{case.family.shape}<rnncc::lstm_0_forward_step<rnncc::bfloat16>, {arguments}>;\n"
        f"__global__ void {name}_kernel(const __grid_constant__ rnncc::FusedCall<{name}::Step> call) {{\n"
        f"  rnncc::fused_{name}<{name}>(call, call.directions[0]);\n}}\n"
    )


FUSED_KERNELS = "".join(map(kernel_of, CASES))
ALTERNATING_KERNEL = (
    '#include "rnncc/cuda/sequence.cuh"\n#include "lstm_device.cuh"\n'
    "__global__ void alternating_kernel(const __grid_constant__ rnncc::Arguments<rnncc::lstm_0_forward::Loop> plan) {\n"
    "  rnncc::run_sequence<rnncc::lstm_0_forward::Loop, rnncc::bfloat16>(plan);\n}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources that the kernels include."""
    found = tmp_path_factory.mktemp("spin")
    write_sources("lstm", found)
    write_files(kernels.sources(CASES[0])[0].files, found)
    return found


def compiled(folder: Path, source: str, *flags: str) -> dict[Family, str]:
    """The PTX of every kernel of a source, by its family."""
    (folder / "kernels.cu").write_text(source, encoding="utf-8")
    include = (folder / "src", folder / "src" / "include")
    made = nvrtc.compiled(folder / "kernels.cu", "compute_90a", include, *flags)
    assert "warning" not in made.log
    parts = made.ptx.split(".visible .entry ")[1:]
    return {next(f for f in FAMILIES if f"{f.name}_kernel" in part.split("(")[0]): part for part in parts}


@pytest.mark.long
def test_no_wait_is_counted_unless_asked_for(folder: Path) -> None:
    found = compiled(folder, FUSED_KERNELS)
    assert set(found) == {case.family for case in CASES}
    for text in found.values():
        assert "trap;" not in text
    # The CTAs of a wide kernel read and write tensors without a ring, so they wait for words alone.
    assert {family for family, text in found.items() if "mbarrier.try_wait" not in text} == {WIDE}


@pytest.mark.long
def test_every_wait_has_its_trap(folder: Path) -> None:
    flag = "-DRNNCC_SPIN_BUDGET=1000"
    found = compiled(folder, FUSED_KERNELS, flag) | compiled(folder, ALTERNATING_KERNEL, flag)
    waits = {family: text.count("mbarrier.test_wait") + text.count("ld.acquire.gpu") for family, text in found.items()}
    for family in waits:
        if family in FUSED and family.scope is Scope.GRID:
            waits[family] += 1  # the words of the exchange, which are asked for, and asked for again
            assert found[family].count("ld.relaxed.gpu") == 2 * WORDS[family]
    assert all(waits.values())
    assert {family: text.count("trap;") for family, text in found.items()} == waits
