"""Loading a finished package, and what a built package needs."""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import rnncc
from rnncc.cli import cli
from rnncc.driver import build_package
from rnncc.language.diagnostics import RnnccError
from rnncc.language.packages import is_package_name
from rnncc.language.read import read_request
from rnncc.machine.paths import cells_dir
from rnncc.stages.load import _SHARED, load
from tests.fresh import run_fresh
from tests.packages import ONE_LIBRARY, build_one_library

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, folder: Path) -> str:
    """Run Python code in a process that has torch and not rnncc, with `folder` as its first path; its stdout."""
    done = run_fresh(f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(package: Path) -> dict[str, Any]:
    """What a package says of itself."""
    about: dict[str, Any] = json.loads((package / "_rnncc.json").read_text())
    return about


@pytest.mark.long
def test_ops_have_one_name_whichever_processors_a_package_is_for(tmp_path: Path) -> None:
    """What was exported with a loaded cell runs with the package that is shipped."""
    loaded = described(Path(rnncc.load("lstm").__path__[0]))
    built = described(build_package(read_request("lstm"), tmp_path))
    assert loaded["fingerprint"] != built["fingerprint"]
    assert loaded["namespace"] == built["namespace"] != described(Path(rnncc.load("gru").__path__[0]))["namespace"]


def in_new_cache(code: str, cache: Path) -> tuple[int, str, str]:
    """The exit status, stdout and stderr of a Python program that finds a cache without packages."""
    environment = {**os.environ, "RNNCC_CACHE_DIR": str(cache), "RNNCC_LOG": "error"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_torch_is_imported_while_the_compilers_run(cell_cache: Path) -> None:
    code = """
import importlib, subprocess, sys, types
import rnncc
from rnncc import driver
from rnncc.stages.build import processes

begun = []

class Popen(subprocess.Popen):
    def __init__(self, arguments, **options):
        begun.append(str(arguments[0]))
        super().__init__(arguments, **options)

def import_module(name):
    while not any("ninja" in program for program in begun):
        pass
    print("torch" in sys.modules, importlib.import_module(name).__name__, "torch" in sys.modules)

processes.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": Popen})
driver.importlib = types.SimpleNamespace(import_module=import_module)
rnncc.load("elman")
rnncc.load("elman")
"""
    assert in_new_cache(code, cell_cache) == (0, "False rnncc.stages.load True\n", "")


@pytest.mark.long
def test_a_built_package_needs_torch_alone(tmp_path: Path) -> None:
    package = build_package(read_request("lstm"), tmp_path)
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
    build_package(replace(read_request("lstm"), **ONE_LIBRARY), tmp_path)
    code = (
        "import sys, torch\nbefore = set(sys.modules)\nimport lstm\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True).stdout
    assert set(eval(out)) <= {"lstm", "ctypes", "_ctypes"}


def test_layers_of_a_built_package_pickle_by_name(tmp_path: Path) -> None:
    build_package(replace(read_request("lstm"), **ONE_LIBRARY), tmp_path)
    run(
        "import pickle, torch, lstm\n"
        "layer = lstm.LSTM(3, 4)\nagain = pickle.loads(pickle.dumps(layer))\nx = torch.randn(5, 2, 3)\n"
        "assert torch.equal(again(x)[0], layer(x)[0]) and type(again) is lstm.LSTM\n",
        tmp_path,
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "stem",
    [
        "my-cell",
        "gru.v2",
        "ünï",
        "2fast",
        "class",
        'quo"""ted"',
        "two\nlines",
        "back\\new",
        os.fsdecode(b"latin\xfc"),
        "long" * 60,
    ],
    ids=ascii,
)
def test_every_file_name_loads(tmp_path: Path, stem: str, recwarn: pytest.WarningsRecorder) -> None:
    """No user has typed the package's name: one is made of the file's, which C++ has beside every equation."""
    path = tmp_path / f"{stem}.rnn"
    path.write_text("cell Leak\nstate h\nh[t] = 0.5*h[t-1] + x\n")
    module = rnncc.load(path)
    layer = module.Leak(3, 3)
    assert "CPU kernels" in layer.explain() and not recwarn.list
    x = torch.randn(4, 2, 3)
    torch._dynamo.reset()
    compiled: Any = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    assert is_package_name(Path(module.__path__[0]).name)
    assert module._cell_leak.SPEC.source_name == path.name
    assert ast.literal_eval(module._cell_leak.__doc__.partition(" from ")[2].strip().removesuffix(".")) == path.name


def test_a_damaged_library_is_a_warning_and_the_reference_runs(tmp_path: Path) -> None:
    package = build_package(replace(read_request("lstm"), **ONE_LIBRARY), tmp_path)
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
    (package / "_rnncc.json").write_text("{}")
    out = run("try: import lstm\nexcept ImportError as error: print(error)\n", tmp_path)
    assert "is damaged: '_rnncc.json' is not what was written; build it again [RNN712]" in out


def test_with_an_older_torch_a_warning_says_so_and_the_reference_runs(tmp_path: Path) -> None:
    build_package(replace(read_request("mingru"), **ONE_LIBRARY), tmp_path)
    out = run(
        "import warnings, torch\ntorch.__version__ = '2.9.1+cpu'\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n    import mingru\n"
        "print(caught[0].message)\n"
        "layer = mingru.minGRU(3, 4)\nprint(layer(torch.randn(5, 2, 3))[0].shape[0], 'reference' in layer.explain())\n",
        tmp_path,
    )
    said = "mingru: its kernels need torch 2.10 or later, this is 2.9.1+cpu [RNN711]; the slow reference runs instead"
    assert out.splitlines() == [said, "5 True"]


@pytest.mark.parametrize("number", [10**400, -(10**5000)], ids=["long", "longer"])
def test_a_constant_beyond_every_float_is_refused(number: int) -> None:
    text = "cell Grow\nconst n = 1.0\nstate h\nh[t] = n*h[t-1] + x\n"
    with pytest.raises(
        RnnccError, match="the constant 'n' must be a number, not an integer beyond every float"
    ) as caught:
        rnncc.compile(text, "grow", n=number)
    assert caught.value.diagnostics[0].code == "RNN235"
    with pytest.raises(ValueError, match="n is an integer beyond the range of float64"):
        rnncc.compile(text, "grow").Grow(3, 3, n=number)


def test_a_text_with_half_a_surrogate_pair_is_refused() -> None:
    text = "# one\n# \ud83d\ncell Leak\nstate h\nh[t] = 0.5*h[t-1] + x\n"
    with pytest.raises(RnnccError, match=r"'<leak>' is not text: U\+D83D in line 2") as caught:
        rnncc.compile(text, "leak")
    assert caught.value.diagnostics[0].code == "RNN101"


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


def test_a_package_in_an_archive_says_so(tmp_path: Path) -> None:
    build_package(replace(read_request("lstm"), **ONE_LIBRARY), tmp_path / "out")
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "out")
    out = run(
        f"sys.path.insert(0, {str(tmp_path / 'packed.zip')!r})\n"
        "try: import lstm\nexcept ImportError as error: print(error)\n",
        tmp_path,
    )
    assert "packed.zip/lstm' lies in an archive" in out and "unpack it" in out


def test_a_package_for_regularised_layers_needs_torch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_one_library(monkeypatch)
    arguments = ["build", "lstm", "-o", str(tmp_path), "--zoneout", "c", "--zoneout", "h", "--recurrent-dropout"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    out = run(
        "sys.modules['rnncc'] = None\n"
        "import lstm, torch\n"
        "torch.manual_seed(0)\n"
        "theirs, x = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3)\n"
        "h, c = torch.randn(1, 2, 4), torch.randn(1, 2, 4)\n"
        "def make(p, q, drop): return lstm.LSTM.from_torch(theirs, zoneout={'h': p, 'c': q}, recurrent_dropout=drop)\n"
        "print('CPU kernels' in make(0.1, 0.2, 0.3).explain())\n"
        "layer = make(0.5, 0.25, 0.3).eval()\n"
        "output, (new_h, new_c) = theirs(x[:1], (h, c))\n"
        "own, (own_h, own_c) = layer(x[:1], (h, c))\n"
        "print(torch.allclose(own_h, (h + new_h) / 2), torch.allclose(own_c, c / 4 + 3 * new_c / 4))\n"
        "layer.zoneout = None\n"
        "print(torch.allclose(layer(x)[0], theirs(x)[0], atol=1e-6))\n"
        "step = lstm.LSTMCell(3, 4, zoneout={'h': 0, 'c': 0})\n"
        "step.load_state_dict({k.removesuffix('_l0'): v for k, v in layer.state_dict().items()})\n"
        "print(torch.allclose(step(x[0], (h[0], c[0]))[0], output[0], atol=1e-6))\n"
        "try: lstm.LSTM(3, 4)\n"
        "except ValueError as error: print(error)\n",
        tmp_path,
    ).splitlines()
    assert out[:4] == ["True", "True True", "True", "True"]
    assert out[4] == (
        "this package holds LSTM with zoneout of h, c and recurrent dropout; with no zoneout and no recurrent dropout "
        "it is another program, for which rnncc must be installed; `rnncc build` makes a package of it"
    )


def test_a_package_says_which_build_a_regularised_layer_needs(tmp_path: Path) -> None:
    for name in ("gru", "rhn"):
        build_package(replace(read_request(name), **ONE_LIBRARY), tmp_path)
    code = (
        "sys.modules['rnncc'] = None\nimport gru, rhn\n"
        "for make in (lambda: gru.GRU(3, 4, zoneout={'h': 0.1}), lambda: rhn.RHN(3, 4, L=3)):\n"
        "    try: make()\n    except ValueError as error: print(error)\n"
    )
    out = run(code, tmp_path).splitlines()
    assert out == [
        "this package holds GRU with no zoneout and no recurrent dropout; with zoneout of h and no recurrent dropout "
        "it is another program, for which rnncc must be installed; `rnncc build --zoneout h` makes a package of it",
        "this package holds RHN with L=2; with L=3 it is another program, for which rnncc must be installed",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("lstm", "--zoneout", "q"), "--zoneout: lstm.rnn has no cell with a state 'q'"),
        (("mingru", "--recurrent-dropout"), "--recurrent-dropout: no matrix product of minGRU reads an earlier value"),
    ],
)
def test_what_cannot_be_regularised_is_not_built(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(cli, ["build", *options, "-o", str(tmp_path)])
    assert done.exit_code == 2 and message in done.output and not list(tmp_path.iterdir())


def test_cells_of_a_text_have_zoneout_of_the_states_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_one_library(monkeypatch)
    (tmp_path / "both.rnn").write_text(
        "cell One\nstate h\nh[t] = tanh(W@x + R@h[t-1])\n"
        "cell Two\nstate h, c\nc[t] = 0.5*c[t-1] + W@x\nh[t] = tanh(R@h[t-1] + c[t])\n"
    )
    arguments = ["build", str(tmp_path / "both.rnn"), "-o", str(tmp_path), "--zoneout", "h", "--zoneout", "c"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    code = (
        "sys.modules['rnncc'] = None\nimport both\n"
        "print(both.One(3, 4, zoneout={'h': 0.1}), both.Two(3, 4, zoneout={'c': 0.1, 'h': 0}))\n"
    )
    assert run(code, tmp_path).strip() == "One(3, 4, zoneout={'h': 0.1}) Two(3, 4, zoneout={'h': 0.0, 'c': 0.1})"


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


def test_without_a_compiler_load_says_what_to_install_and_the_reference_trains(tmp_path: Path) -> None:
    code = """
import rnncc, torch
layer = rnncc.load("lstm").LSTM(3, 4)
print(layer.explain().splitlines()[0])
x, optimizer = torch.randn(5, 2, 3), torch.optim.SGD(layer.parameters(), 0.1)
losses = []
for _ in range(3):
    loss = layer(x)[0].pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(losses[0] > losses[1] > losses[2])
"""
    environment = {**os.environ, "PATH": "", "RNNCC_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("CXX", None)
    done = run_fresh(code, folder=tmp_path, environment=environment)
    explained, falls = done.stdout.splitlines()
    assert explained.startswith("LSTM: the eager fallback") and "no C++ compiler" in explained
    assert falls == "True"
    first = done.stderr.splitlines()[0]
    assert first.startswith("rnncc: RNN601: no C++ compiler found") and "apt install g++" in first


def test_what_packages_share_imports_nothing_that_they_do_not() -> None:
    first, second = rnncc.load("elman"), rnncc.load("nn_gru")
    assert type(first.Elman.spec) is type(second.nn_GRU.spec)
    names = {module.__name__.rpartition(".")[2] for module in _SHARED}
    for module in _SHARED:
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert set(re.findall(r"^\s*from \.(\S*) import", text, re.MULTILINE)) <= names
        name = module.__name__.rpartition(".")[2]
        assert getattr(import_module(f"{first.__name__}._runtime"), name) is module
