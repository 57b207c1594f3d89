"""What the stages make of nine cells, and the packages of three, as text, in tests/golden/<cell>/.

A change that only moves code leaves these files as they are. One that means to change what is generated shows what it
changed in their diff: run `pytest tests/test_golden.py --update-golden` and read it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.driver import make_product
from rnncc.ir.artifact import File
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.show.stage import stage_text
from tests.conftest import Golden

GOLDEN = Path(__file__).parent / "golden"
# Products in one phase, in two, with heads, and with norms; a scan of one state, and of several in two segments; a
# fixed matrix; the example's own cell; and a matrix that changes with the step.
CELLS = (
    "lstm",
    "gruv3",
    "slstm",
    "layernormlstm",
    "mingru",
    "rwkv4",
    "lmu",
    "examples/mycell.rnn",
    "tests/fixtures/gateddeltanet.rnn",
)
# A loop with products, one with norms, and a scan.
PACKAGES = ("lstm", "layernormlstm", "mingru")
# A cluster, a larger one, a grid, and a size that only the stepwise and the alternating kernels take.
SIZES = (
    *(Problem(units, heads, "bf16") for units, heads in ((64, 12), (512, 1), (768, 1), (2048, 1))),
    Problem(768, 1, "fp32"),
)
# These differ from a file that is kept by a dtype, an instruction set or the form of a scan, or are the same for every
# cell.
REPEATED = re.compile(
    r"_(v3|v4)_|_(vectorised|narrow)_bf16\.cu|_f64\.|_(f32|f16)(_scans)?\.cu|_(f32|f16)_\d+_|src/_|src/include/"
)


def sizes_of(cell: str) -> tuple[Problem, ...]:
    """The sizes that a cell's kernels are for."""
    (made,) = compile_cells(read_request(cell), "partition").cells
    return tuple(size for size in SIZES if size.heads == 1 or not made.cell.single_head_because)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("stage", ["check", "partition", "classify", "differentiate", "lower", "schedule"])
def test_what_a_stage_makes(cell: str, stage: str, golden: Golden) -> None:
    request = read_request(cell)
    if stage == "schedule":
        text = "\n\n".join(stage_text(request, stage, (size, GPUS["h200"])) for size in sizes_of(cell))
    else:
        text = stage_text(request, stage)
    golden(GOLDEN / Path(cell).stem / f"{stage}.txt", text + "\n")


@pytest.mark.parametrize("cell", PACKAGES)
def test_the_files_of_a_package(cell: str, golden: Golden) -> None:
    """One of each kind as it is; of all of them, their sums."""
    files, folder = package_files(cell), GOLDEN / Path(cell).stem / "package"
    kept = [file for file in files if not REPEATED.search(file.path)]
    for file in kept:
        golden(folder / f"{file.path}.golden", file.text)
    own = (file for file in files if not file.path.startswith("src/include/"))
    golden(folder / "sums.txt", "".join(f"{digest(file)} {file.path}\n" for file in own))
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.golden")} == {
        f"{file.path}.golden" for file in kept
    }


def package_files(cell: str) -> list[File]:
    """All files of a package with kernels for CPUs and GPUs, before it is compiled."""
    product = make_product(
        replace(
            read_request(cell), architectures=("sm_90a",), gpus=(GPUS["h200"],), problems=sizes_of(cell), newton=True
        )
    )
    assert product.bundle is not None
    return sorted([*product.files, *product.bundle.files], key=lambda file: file.path)


def digest(file: File) -> str:
    """The first digits of a sum of a file's text."""
    return hashlib.sha256(file.text.encode()).hexdigest()[:16]
