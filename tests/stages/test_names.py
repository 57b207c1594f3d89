"""Names that a package makes of its cells' never meet: those of its files, kernels and modules."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.ir.artifact import Bundle, File
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.parse import parse
from rnncc.stages.schedule.kernels import fused_kernels
from tests.compiling import lowered
from tests.rendering import for_gpus

# A loop with a product and one without, so that there are files of every kind.
TEXT = "cell {}\nstate c, h\nf = sigmoid(W@x + b)\nc[t] = f*c[t-1] + W@x\nh[t] = tanh(W@c[t] + R@h[t-1] + b)\n"


def rendered(plan: LoweredCell, names: Sequence[str]) -> Bundle:
    """Everything native of a package with cells of these names, all of one plan, for one size."""
    (laid_out,) = fused_kernels(plan, [Problem(64, 1, "bf16")], GPUS["h200"])
    plans = [replace(plan, cell=name) for name in names]
    fused = []
    for name in names:
        own = ((program.replace(plan.cell.lower(), name.lower(), 1), table) for program, table in laid_out.tables)
        fused.append([replace(laid_out, tables=tuple(own))])
    return for_gpus(plans, fused)


@pytest.mark.long
def test_files_and_kernels_of_cells_never_meet() -> None:
    plan = lowered(Source("a.rnn", TEXT.format("A")))
    bare = {file.path for file in rendered(plan, []).files}
    stems = {Path(file.path).stem for file in rendered(plan, ["A"]).files if file.path not in bare}
    kernels = {"a_0_forward_narrow_f32", "a_1_masked_backward_bf16"}
    assert {"a_tables", "a_cuda", "a_v4_f64", "a_device", "a_steps", *kernels} <= stems
    # Cells that are called like the others' files, and like those that every package has.
    own = {Path(path).stem.lstrip("_") for path in bare if path.startswith("src/_")} | {"binding", "include"}
    names = [name.upper() for name in sorted(stems | own) if "__" not in name and name.startswith(("a_", *own))]
    parse(Source("all.rnn", "\n".join(TEXT.format(name) for name in names)))
    bundle = rendered(plan, ["A", *names])
    for found in (
        [file.path for file in bundle.files] + ["src/binding.cpp"],
        [Path(unit.path).stem for unit in bundle.units] + ["binding"],
        [unit.name for unit in bundle.device_units],
    ):
        assert len(found) == len(set(found)) > len(names)


def test_modules_of_cells_are_no_others() -> None:
    def imported(text: str) -> set[str]:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        modules = {(node.module or "").partition(".")[0] for node in nodes if node.level}
        return modules | {alias.asname or alias.name for node in nodes for alias in node.names}

    def modules(*names: str) -> list[File]:
        source = Source("all.rnn", "\n".join(TEXT.format(name) for name in names))
        return list(compile_cells(Request(source, "package", instructions="")).files)

    bare = [file for file in modules("OWN") if file.path != "_cell_own.py"]
    taken = {Path(file.path).stem for file in bare}.union(*(imported(file.text) for file in bare))
    taken -= {"__init__", "_cell_own", "OWN", "OWNCell", "own", ""}
    assert {"_reference", "_runtime", "_package"} <= taken
    names = [name.strip("_").upper() for name in sorted(taken)]
    files = [file.path for file in modules(*names)]
    assert len(files) == len(set(files)) == len(bare) + len(names)
    assert len({Path(file).stem for file in files} - taken - {"__init__"}) == len(names)
