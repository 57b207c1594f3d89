"""What `rnncc verify` compares and says, and `rnncc build` of several files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.branches import branches
from rnncc.compiler import front
from rnncc.paths import locate
from rnncc.read import read_source
from rnncc.source import Source
from tests.test_cli import GOOD, python, run, write

LEARNED = "cell Learned\nstate h = learned\nh[t] = tanh(W@x + R@h[t-1] + b)\n"


def test_verify_compares_the_gradient_of_a_learned_start_and_of_what_is_passed_instead(tmp_path: Path) -> None:
    module = rnncc.compile(LEARNED)
    cell = front(Source("learned.rnn", LEARNED))[0][0]
    assert any(not case.given for case in verify.cases_of(cell))

    class Wrong(module.Learned):  # type: ignore[name-defined, misc]
        """A layer that loses the gradient of h0."""

        def gate_parameters(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().gate_parameters(*arguments, **keywords)
            return found | ({"h0": None} if keywords.get("grad") else {})

    right, wrong = (verify.verify(made, cell, dtypes=(torch.float64,)).rows for made in (module.Learned, Wrong))
    assert {"d_h0", "d_hx.h"} <= {row.quantity for row in right}
    assert [row.quantity for row in right if not row.passed] == []
    assert [row.quantity for row in wrong if not row.passed] == ["d_h0"]


def test_verify_says_what_it_compared() -> None:
    report = json.loads(run("verify", "elman", "--json").stdout)
    cases = report["scope"]["cases"]
    assert {case["heads"] for case in cases} == {1, 2}
    assert {True} == {any(case[key] for case in cases) for key in ("reverse", "masked")}
    assert report["scope"]["sizes"]["H"] == 12
    # LMU's u is one number, which no two heads can share.
    assert {case["heads"] for case in json.loads(run("verify", "lmu", "--json").stdout)["scope"]["cases"]} == {1}
    shown = run("verify", "elman").stdout
    assert "num_heads=2" in shown and "lengths and reset" in shown and "I=7 H=12" in shown
    quiet = run("verify", "--quiet", "elman").stdout
    assert quiet == "Elman: all within their bounds\n"


@pytest.mark.parametrize("wrong", ["reverse", "masked", "heads"])
def test_verify_fails_where_only_one_kind_of_call_is_wrong(wrong: str) -> None:
    module = rnncc.compile(GOOD)

    class Wrong(module.Elman):  # type: ignore[name-defined, misc]
        """A layer that is right in all other calls."""

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any:
            output, final = super().forward(input, hx, **options)
            found = {"reverse": self.bidirectional, "masked": "lengths" in options, "heads": self.num_heads > 1}
            return output * (2 if found[wrong] else 1), final

    cell = front(Source("elman.rnn", GOOD))[0][0]
    assert not verify.verify(Wrong, cell, dtypes=(torch.float64,)).passed


def test_in_16_bits_rounding_turns_no_relu_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relu turned over in one step of one column is an error of a tenth: a bound that lets it pass proves little."""
    ((cell, _),) = front(read_source(locate("nn_rnn_relu")))
    module = rnncc.load("nn_rnn_relu")
    case = verify.Case(7, 3)
    monkeypatch.setattr(verify, "CASES", (case,))
    problem = verify._Problem(module.nn_RNN_relu, cell, case, torch.bfloat16, "cpu")
    exact, eager = problem.reference(torch.float64), problem.reference(torch.bfloat16)
    assert {name for name, value in exact.items() if verify.relative_error(eager[name], value) > 1e-2} == set()

    class Wrong(module.nn_RNN_relu):  # type: ignore[name-defined, misc]
        """A layer that is off by a twentieth."""

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any:
            output, final = super().forward(input, hx, **options)
            return output * 1.05, final

    right, wrong = (verify.verify(made, cell, dtypes=(torch.bfloat16,)).rows for made in (module.nn_RNN_relu, Wrong))
    assert [row.quantity for row in right if not row.passed] == []
    assert {"output", "d_x", "d_W_h", "d_R_h", "d_b_h"} <= {row.quantity for row in wrong if not row.passed}


def test_steps_that_stay_undecided_are_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ((cell, _),) = front(read_source(locate("nn_rnn_relu")))
    layer_class, case = rnncc.load("nn_rnn_relu").nn_RNN_relu, verify.Case(7, 3)
    monkeypatch.setattr(verify, "CASES", (case,))
    assert verify.verify(layer_class, cell, dtypes=(torch.bfloat16,)).undecided == ()
    monkeypatch.setattr(verify, "ROUNDS", 0)
    problem = verify._Problem(layer_class, cell, case, torch.bfloat16, "cpu")
    left = int(problem._undecided(problem.inputs, problem.initial, branches(cell)).sum())
    report = verify.verify(layer_class, cell, dtypes=(torch.float32, torch.bfloat16))
    assert report.undecided == (verify.Undecided("bfloat16", left, 21),) and left > 0
    monkeypatch.setattr(verify, "verify", lambda *_, **__: report)
    shown = (run("verify", *options, "nn_rnn_relu").stdout for options in ((), ("-q",)))
    assert all(f"rounding to bfloat16 may decide {left} of 21 steps" in text for text in shown)
    said = json.loads(run("verify", "nn_rnn_relu", "--json").stdout)
    assert said["undecided"] == [{"dtype": "bfloat16", "steps": left, "of": 21}]


def test_branches_are_what_relus_comparisons_and_spikes_look_at() -> None:
    text = "cell Branches\nstate h\nz = tanh(W@x)\nh[t] = relu(z + R@h[t-1]) + max(z, 0.5) + heaviside(z, grad=atan(2))"
    found = branches(front(Source("branches.rnn", text))[0][0])
    assert [branch.points for branch in found] == [(0.0,)] * 3
    assert branches(front(Source("elman.rnn", GOOD))[0][0]) == ()


def test_verify_calls_weak_what_hardly_proves_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (verify.Row("output", "bfloat16", 0.3, 0.5), verify.Row("h_n", "bfloat16", 0.01, 0.02))
    monkeypatch.setattr(verify, "verify", lambda *_, **__: verify.Report(rows))
    shown = run("verify", "elman").stdout
    assert "weak: the eager bfloat16 loop is off by as much" in shown
    assert "1 of 2 rows prove little" in shown
    assert [row["weak"] for row in json.loads(run("verify", "elman", "--json").stdout)["rows"]] == [True, False]


def test_build_takes_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path, GOOD), write(tmp_path, LEARNED, "learned.rnn")
    result = run("build", first, second, "-o", tmp_path / "out")
    assert result.stdout.split() == [str(tmp_path / "out" / "elman"), str(tmp_path / "out" / "learned")]
    assert run("build", first, second, "--name", "both", "-o", tmp_path / "out").exit_code == 2
    assert "would become the package 'elman'" in run("build", first, first, "-o", tmp_path / "out").stderr


def test_a_missing_numpy_is_no_news(tmp_path: Path) -> None:
    program = "import sys; sys.modules['numpy'] = None; from rnncc.cli import cli; cli(sys.argv[1:])"
    done = python("-c", program, "verify", "--quiet", "elman", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NumPy" not in done.stderr
