"""Loading a finished package, and what a built package needs."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rnncc
from rnncc.compiler import build_package
from rnncc.diagnostics import RnnccError
from rnncc.paths import cells_dir, locate
from rnncc.stages.load import load

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, folder: Path) -> str:
    """Run Python code in a fresh process with `folder` as its first path, without rnncc on it; its stdout."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(package: Path) -> dict[str, Any]:
    """What a package says of itself."""
    about: dict[str, Any] = json.loads((package / "_rnncc.json").read_text())
    return about


def test_ops_have_one_name_whichever_processors_a_package_is_for(tmp_path: Path) -> None:
    """What was exported with a loaded cell runs with the package that is shipped."""
    loaded, built = described(Path(rnncc.load("lstm").__path__[0])), described(build_package(locate("lstm"), tmp_path))
    assert loaded["fingerprint"] != built["fingerprint"]
    assert loaded["namespace"] == built["namespace"] != described(Path(rnncc.load("gru").__path__[0]))["namespace"]


def test_a_built_package_needs_torch_alone(tmp_path: Path) -> None:
    package = build_package(cells_dir() / "lstm.rnn", tmp_path)
    assert json.loads((package / "_rnncc.json").read_text())["library"] == "liblstm.so"
    out = run(
        "import os; os.environ['PATH'] = ''\n"
        "import lstm, torch\n"
        "layer = lstm.LSTM(3, 4)\n"
        "output, (h, c) = layer(torch.randn(5, 2, 3))\n"
        "output.sum().backward()\n"
        "print(tuple(output.shape), 'CPU kernels' in layer.explain(), layer.weight_hh_l0.grad is not None)\n"
        "print([name for name in ('rnncc', 'lark', 'jinja2') if name in sys.modules])\n",
        tmp_path,
    )
    assert out.splitlines() == ["(5, 2, 4) True True", "[]"]


def test_importing_a_package_brings_in_nothing_beside_what_torch_does(tmp_path: Path) -> None:
    build_package(cells_dir() / "lstm.rnn", tmp_path)
    out = run(
        "import torch\nbefore = set(sys.modules)\nimport lstm\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))",
        tmp_path,
    )
    assert set(eval(out)) <= {"lstm", "ctypes", "_ctypes"}


def test_layers_of_a_built_package_pickle_by_name(tmp_path: Path) -> None:
    build_package(cells_dir() / "lstm.rnn", tmp_path)
    run(
        "import pickle, torch, lstm\n"
        "layer = lstm.LSTM(3, 4)\nagain = pickle.loads(pickle.dumps(layer))\nx = torch.randn(5, 2, 3)\n"
        "assert torch.equal(again(x)[0], layer(x)[0]) and type(again) is lstm.LSTM\n",
        tmp_path,
    )


def test_a_damaged_library_is_a_warning_and_the_reference_runs(tmp_path: Path) -> None:
    package = build_package(cells_dir() / "lstm.rnn", tmp_path)
    (package / "liblstm.so").write_bytes(b"not a library")
    out = run(
        "import warnings, torch\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n    import lstm\n"
        "print(['could not be loaded' in str(w.message) for w in caught])\n"
        "layer = lstm.LSTM(3, 4)\nprint(layer(torch.randn(5, 2, 3))[0].shape[0], 'reference' in layer.explain())\n",
        tmp_path,
    )
    assert out.splitlines() == ["[True]", "5 True"]


def test_two_versions_of_a_cell_live_in_one_process() -> None:
    text = "cell Decay\nstate h\nh[t] = {}*h[t-1] + x\n"
    half, quarter = rnncc.compile(text.format("0.5"), "decay"), rnncc.compile(text.format("0.25"), "decay")
    import torch

    x = torch.ones(2, 1, 3)
    assert half.Decay(3, 3)(x)[0][1, 0, 0] == 1.5
    assert quarter.Decay(3, 3)(x)[0][1, 0, 0] == 1.25
    assert rnncc.compile(text.format("0.5"), "decay") is half


def test_loading_twice_gives_the_same_module() -> None:
    assert rnncc.load("lstm") is rnncc.load(cells_dir() / "lstm.rnn")


def test_threads_share_one_import(tmp_path: Path) -> None:
    package = tmp_path / "slow"
    package.mkdir()
    (package / "_rnncc.json").write_text('{"fingerprint": "f", "cells": []}')
    (package / "__init__.py").write_text("import time\ntime.sleep(0.3)\nready = True\n")
    with ThreadPoolExecutor(4) as pool:
        modules = list(pool.map(lambda _: load(package).ready, range(4)))
    assert modules == [True] * 4


def test_classes_derived_from_a_layer() -> None:
    import torch

    derived: Any = type("Derived", (rnncc.load("lstm").LSTM,), {"__module__": __name__})
    layer = derived(3, 4)
    again = copy.deepcopy(layer)
    assert type(again) is derived and torch.equal(again.weight_hh_l0, layer.weight_hh_l0)
    assert again.weight_hh_l0 is not layer.weight_hh_l0
    deeper: Any = type("Deeper", (rnncc.load("rhn").RHN,), {})
    with pytest.raises(ValueError, match="another program"):
        deeper(3, 4, L=3)


def test_a_folder_that_is_no_package_is_a_diagnostic(tmp_path: Path) -> None:
    with pytest.raises(RnnccError) as caught:
        load(tmp_path)
    assert caught.value.diagnostics[0].code == "RNN712"


def test_without_a_compiler_load_runs_the_reference(tmp_path: Path) -> None:
    code = (
        "import os\nos.environ['PATH'] = ''\nos.environ.pop('CXX', None)\n"
        f"os.environ['RNNCC_CACHE_DIR'] = {str(tmp_path / 'cache')!r}\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import rnncc, torch\nlayer = rnncc.load('lstm').LSTM(3, 4)\n"
        "print(layer(torch.randn(5, 2, 3))[0].shape[0])\nprint(layer.explain().splitlines()[0])\n"
    )
    out = run(code, tmp_path).splitlines()
    assert out[0] == "5"
    assert out[1].startswith("LSTM: the reference") and "no C++ compiler" in out[1]
