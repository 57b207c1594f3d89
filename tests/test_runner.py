"""What is judged or timed, and whether kernels ran: `rnncc verify`, `rnncc bench` and what they are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.cli.environment import environment
from rnncc.ir.cell import Cell
from rnncc.language.source import Source
from rnncc.verify.runner import Runner, runner_of, together
from tests.compiling import front
from tests.test_cli import GOOD, python, run, write

SMALL = ("--hidden", "8", "--batch", "2", "--steps", "3", "--seconds", "1e-9", "--without", "compiled,nn,eager")
COMMANDS = {"verify": ("verify",), "bench": ("bench", *SMALL)}
DAMAGED = "its kernels could not be loaded: 'libelman.so' is not what was written; build the package again [RNN712]"


@pytest.fixture(scope="module")
def cell() -> Cell:
    return front(Source("elman.rnn", GOOD))[0][0]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose package has a library that cannot be opened."""
    path = write(tmp_path, GOOD)
    package: Any = rnncc.load(path)._package._PACKAGE
    monkeypatch.setattr(package, "kernels", None)
    monkeypatch.setattr(package, "missing", DAMAGED)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_compiler_nothing_is_judged_and_nothing_timed(
    command: str, no_compiler: None, tmp_path: Path
) -> None:
    result = run(*COMMANDS[command], write(tmp_path, GOOD))
    assert result.exit_code == 3 and "error[RNN601]: no C++ compiler found" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_package_whose_library_cannot_be_opened_is_not_judged_either(command: str, damaged: Path) -> None:
    result = run(*COMMANDS[command], damaged)
    assert result.exit_code == 3 and f"error[RNN613]: Elman: no kernels run on cpu: {DAMAGED}" in result.stderr
    assert "--allow-fallback" in result.stderr and result.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_without_torch_it_is_one_line(command: str, tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from rnncc.cli import cli; cli(sys.argv[1:])"
    done = python("-c", program, *COMMANDS[command], str(write(tmp_path, GOOD)), cwd=tmp_path)
    expected = f"error[RNN611]: rnncc {command} needs torch, which is not installed: pip install torch\n"
    assert (done.returncode, done.stderr, done.stdout) == (3, expected, "")


def test_without_torch_loading_fails_before_anything_is_compiled(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; import rnncc; rnncc.load('elman')"
    done = python("-c", program, cwd=tmp_path, RNNCC_CACHE_DIR=str(tmp_path / "cache"))
    assert "loading elman needs torch, which is not installed: pip install torch" in done.stderr
    assert "compiling" not in done.stderr and not (tmp_path / "cache").exists()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("path", ["no_compiler", "damaged"])
def test_who_allows_the_fallback_is_told_that_it_ran(path: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    given = request.getfixturevalue(path) or write(tmp_path, GOOD)
    said = run("verify", given, "--quiet", "--allow-fallback")
    assert (said.exit_code, said.stdout) == (0, "Elman by the eager fallback: all within their bounds\n")
    assert json.loads(run("verify", given, "--allow-fallback", "--json").stdout)["kernels"] == "fallback"
    made = tmp_path / "made.json"
    said = run("bench", given, *SMALL, "--allow-fallback", "--json", made)
    assert said.exit_code == 0 and "no kernels ran: " in said.stdout and "over fallback" in said.stdout
    assert "measuring fallback\n" in said.stderr
    (timed,) = json.loads(made.read_text(encoding="utf-8"))["cells"]
    assert timed["kernels"] == "fallback" and {row["who"] for row in timed["rows"]} == {"fallback"}
    assert {row["over_rnncc"] for row in timed["rows"]} == {None}
    assert "rnncc" not in {word for line in said.stdout.splitlines()[:4] for word in line.split()}


def test_where_kernels_ran_the_output_says_which(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert json.loads(run("verify", path, "--json").stdout)["kernels"] == "cpu"
    made = tmp_path / "made.json"
    assert "rnncc runs CPU kernels\n" in run("bench", path, *SMALL, "--json", made).stdout
    (timed,) = json.loads(made.read_text(encoding="utf-8"))["cells"]
    assert timed["kernels"] == "cpu" and {row["who"] for row in timed["rows"]} == {"rnncc"}


def test_a_report_of_the_fallback_is_not_passed(cell: Cell) -> None:
    module = rnncc.compile(GOOD, "elman")

    class Slow(module.Elman):  # type: ignore[name-defined, misc]
        """A layer that asks for eager torch."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, backend="reference", **keywords)

    case = (verify.Case(3, 2),)
    report = verify.verify(Slow, cell, dtypes=(torch.float32,), cases=case)
    assert report.runners["float32"].is_fallback and "was asked for" in report.runners["float32"].why
    assert (report.passed, report.failed) == (False, False)
    assert report.rows and not any(row.judged for row in report.rows)
    allowed = verify.verify(Slow, cell, dtypes=(torch.float32,), cases=case, allow_fallback=True)
    assert allowed.passed and allowed.runners["float32"].is_fallback
    right = verify.verify(module.Elman, cell, dtypes=(torch.float32,), cases=case)
    assert right.passed and right.runners == {"float32": Runner("cpu")}


def test_a_layer_that_loses_its_kernels_on_the_way_is_an_error(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    module = rnncc.compile(GOOD, "elman")
    package: Any = module._package._PACKAGE
    kernels = package.kernels

    class Lost(module.Elman):  # type: ignore[name-defined, misc]
        """A layer whose calls would run eager torch, after it said that they run kernels."""

        def forward(self, *arguments: Any, **keywords: Any) -> Any:
            monkeypatch.setattr(package, "kernels", None)
            try:
                return super().forward(*arguments, **keywords)
            finally:
                monkeypatch.setattr(package, "kernels", kernels)

    with pytest.raises(RuntimeError, match="backend='cpu' cannot run"):
        verify.verify(Lost, cell, dtypes=(torch.float32,), cases=(verify.Case(3, 2),))


def test_nothing_compared_is_nothing_passed() -> None:
    assert not verify.Report((), {}).passed


def test_on_a_gpu_the_kernels_of_each_loop_are_named() -> None:
    class Layer:
        """A layer on a GPU."""

        @staticmethod
        def _in_use() -> tuple[str, tuple[str, ...], str]:
            return "cuda", ("fused (forward gather, backward grid)", "alternating"), "one launch a loop"

    runner = runner_of(Layer)
    assert str(runner) == "cuda: fused (forward gather, backward grid); alternating"
    assert runner.words == "GPU kernels (fused (forward gather, backward grid); alternating)"
    assert together([runner, runner]) == runner


@pytest.mark.parametrize("has_compiler", [True, False])
def test_env_says_where_kernels_run(has_compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_compiler:
        monkeypatch.setenv("CXX", "/no/such/compiler")
    assert ("cpu" in environment()["kernels"]) is has_compiler
