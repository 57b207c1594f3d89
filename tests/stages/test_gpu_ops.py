"""Which ops on GPUs a package has, besides its loops: those that its layers call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.driver import make_product
from rnncc.ir.artifact import OF_EVERY_PACKAGE
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.machine.cache import Cache, default_root, digest
from rnncc.runtime.kernels.kernels import Kernels
from rnncc.stages.build import Job, Product, build, find_toolchain, own_code
from rnncc.stages.load import load
from rnncc.stages.render.python.functions import cell_functions, norms_heads
from tests.compilers import quick_nvrtc
from tests.packages import ONE_LIBRARY
from tests.shipped import STEMS, cells

NORMS = ("head_norm", "head_norm_backward")
CELL = "cell {name}\nstate h\n{lines}\nh[t] = tanh(v + R@h[t-1])\n"
PLAIN = CELL.format(name="Plain", lines="v = W@x")
NORMED = CELL.format(name="Normed", lines="v = layernorm(W@x)")
WRITTEN_OUT = CELL.format(name="WrittenOut", lines="u = W@x\nd = u - mean(u)\nv = d/sqrt(mean(d*d) + 0.001)")
IN_THE_LOOP = CELL.format(name="InTheLoop", lines="v = layernorm(W@x + h[t-1])")
AT_THE_END = "cell AtTheEnd\nstate h\nh[t] = tanh(W@x + R@h[t-1])\ny = layernorm(h[t])\noutput y\n"
OTHER_NORM = CELL.format(name="OtherNorm", lines="v = rmsnorm(W@x)")
# Heads cannot divide the state of one number.
ONE_HEAD = CELL.format(name="OneHead", lines="state s: 1\ns[t] = tanh(W@x + R@h[t-1])\nv = layernorm(W@x)")


def product(text: str, architectures: tuple[str, ...] = ("sm_90a",)) -> Product:
    """The package of a text before it is compiled, by default for GPUs too."""
    source = Source("cells.rnn", text)
    return make_product(Request(source, "cells", architectures=architectures, **ONE_LIBRARY))


def ops_of(made: Product) -> set[str]:
    """The ops that take tensors of GPUs alone. Kernels, host side and registration are all there or none is."""
    assert made.bundle is not None
    binding = next(file.text for file in made.files if file.path == "src/binding.cpp")
    device = {unit.name: unit.path for unit in made.bundle.device_units if unit.name.startswith("_")}
    assert {unit.name for unit in made.bundle.device_units if unit.shared} == set(device)
    products = [device.pop(file, None) for file in OF_EVERY_PACKAGE if file != "_core"]
    assert all(products) if device else not any(products), "the products that every cell has"
    files = {file.path: file.text for file in made.bundle.files}
    hosts = {unit.path for unit in made.bundle.units if unit.path.endswith("_cuda.cpp") and unit.shared}
    loops = {"src/_loops_cuda.cpp"} if device else set()
    assert hosts == {f"src/{name}_cuda.cpp" for name in device} | loops
    assert hosts | set(device.values()) <= set(files)
    names = {name for name in ("permute_rows", *NORMS) if f'.name = "{name}"' in binding}
    assert names == {
        name for name in ("permute_rows", *NORMS) if any(f"void rnncc_{name}_op(" in files[path] for path in hosts)
    }
    assert ("permute_rows" in names) == ("_core" in device) and bool(names & {*NORMS}) == ("_head_norm" in device)
    assert not any("RNNCC_HEAD_NORM" in files[path] for name, path in device.items() if name != "_head_norm")
    return names


@pytest.mark.parametrize("text", [PLAIN, IN_THE_LOOP, OTHER_NORM, ONE_HEAD])
def test_a_cell_that_calls_no_norm_has_none(text: str) -> None:
    assert ops_of(product(text)) == {"permute_rows"}


@pytest.mark.parametrize("text", [NORMED, WRITTEN_OUT, AT_THE_END])
def test_a_cell_with_a_norm_outside_its_loop_has_it(text: str) -> None:
    assert ops_of(product(text)) == {"permute_rows", *NORMS}


def test_one_of_several_cells_is_enough() -> None:
    for text in (f"{PLAIN}\n{NORMED}", f"{NORMED}\n{PLAIN}"):
        assert ops_of(product(text)) == {"permute_rows", *NORMS}
    assert ops_of(product(f"{PLAIN}\n{IN_THE_LOOP}")) == {"permute_rows"}


def test_packages_that_run_on_no_gpu_have_none() -> None:
    assert ops_of(product(NORMED, architectures=())) == set()
    reference = make_product(Request(Source("cells.rnn", NORMED), "cells", instructions=""))
    assert reference.bundle is None
    assert not any("src/" in file.path for file in reference.files)


@pytest.mark.parametrize("stem", STEMS)
def test_the_functions_of_a_shipped_cell_say_whether_they_call_it(stem: str) -> None:
    for cell in cells(stem):
        functions = cell_functions(cell)
        over_all_steps = [*functions.epilogue, *(line for segment in functions.segments for line in segment.batched)]
        calls = any("tools.layer_norm(" in line for line in over_all_steps)
        assert norms_heads(cell) == (calls and not cell.single_head_because)


def opened(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """What a package for GPUs gives its layers. Its kernels are empty."""
    folder.mkdir()
    nvrtc = quick_nvrtc(folder, monkeypatch)
    job = Job("0" * 32, "cells", Cache(default_root()), find_toolchain(), nvrtc)
    kernels: Kernels | None = load(
        build(replace(job, key=digest(text, own_code())[:32]), lambda: product(text))
    )._package.kernels()[0]
    assert kernels is not None
    return kernels


@pytest.mark.long
def test_a_package_loads_with_those_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = opened(PLAIN, tmp_path / "without", monkeypatch)
    both = opened(f"{PLAIN}\n{NORMED}", tmp_path / "both", monkeypatch)
    assert {"permute_rows", "head_norm"} & without.ops.keys() == {"permute_rows"}
    assert {"permute_rows", "head_norm"} <= both.ops.keys()
    assert without.head_norm_units == 0 < both.head_norm_units and without.long_call_steps == both.long_call_steps > 1
    assert without.ops.keys() == without.calls.keys() and both.ops.keys() == both.calls.keys()
