"""What `rnncc verify` compares and says, and `rnncc build` of several files."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.analysis.kinks import branches
from rnncc.ir.cell import Cell
from rnncc.ir.expr import Ref, apply
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import locate
from rnncc.verify.problem import Problem
from rnncc.verify.runner import Runner
from tests.awkward import AWKWARD
from tests.compiling import front
from tests.packages import build_one_library, float64_package, text_of
from tests.test_cli import GOOD, python, run, write

ON_CPU = {"float64": Runner("cpu")}
LEARNED = "cell Learned\nstate h = learned\nh[t] = tanh(W@x + R@h[t-1] + b)\n"


@pytest.mark.long
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
    assert quiet == "Elman by CPU kernels: all within their bounds\n"


@pytest.mark.long
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
    """A relu turned over in one step of one batch entry is an error of a tenth: a bound that lets it pass proves
    little."""
    ((cell, _),) = front(read_source(locate("nn_rnn_relu")))
    module = rnncc.load("nn_rnn_relu")
    case = verify.Case(7, 3)
    monkeypatch.setattr(verify.cases, "CASES", (case,))
    problem = Problem(module.nn_RNN_relu, cell, case, torch.bfloat16, "cpu")
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


def test_batch_entries_that_stay_undecided_are_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ((cell, _),) = front(read_source(locate("nn_rnn_relu")))
    layer_class, case = rnncc.load("nn_rnn_relu").nn_RNN_relu, verify.Case(7, 3)
    monkeypatch.setattr(verify.cases, "CASES", (case,))
    assert verify.verify(layer_class, cell, dtypes=(torch.bfloat16,)).doubts == ()
    monkeypatch.setattr(verify.problem, "ROUNDS", 0)
    left = int((~Problem(layer_class, cell, case, torch.bfloat16, "cpu").decided).sum())
    report = verify.verify(layer_class, cell, dtypes=(torch.float32, torch.bfloat16))
    (doubt,) = report.doubts
    assert (doubt.dtype, doubt.entries, doubt.of, doubt.why) == ("bfloat16", left, 3, verify.ROUNDING) and left > 0
    monkeypatch.setattr(verify, "verify", lambda *_, **__: report)
    shown = (run("verify", *options, "nn_rnn_relu").stdout for options in ((), ("-q",)))
    text = f"bfloat16: rounding may turn a relu, comparison or spike over in {left} of 3 batch entries"
    assert all(text in said for said in shown)
    said = json.loads(run("verify", "nn_rnn_relu", "--json").stdout)
    assert [(entry["dtype"], entry["entries"], entry["of"]) for entry in said["doubts"]] == [("bfloat16", left, 3)]


@cache
def awkward(name: str) -> tuple[Any, Cell]:
    """The layer class and the cell of that name. Each cell is compiled alone: a run is of some of them."""
    text = text_of(name, AWKWARD)
    ((cell, _),) = front(Source("awkward.rnn", text))
    return getattr(float64_package(text, "awkward"), name), cell


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["Counter", "NoGradient", "Ternary", "Threshold", "Fives", "Cancelling", "Parts", "Joined"]
)
def test_verify_passes_cells_that_made_it_stumble(name: str) -> None:
    report = verify.verify(*awkward(name))
    assert [row for row in report.rows if not row.passed] == []
    assert not any(doubt.left_out for doubt in report.doubts)


@pytest.mark.long
def test_what_overflows_in_the_eager_loop_too_is_left_out() -> None:
    report = verify.verify(*awkward("Growing"), dtypes=(torch.float64, torch.float16))
    assert report.passed
    assert {doubt.why for doubt in report.doubts} == {verify.RANGE} and all(doubt.left_out for doubt in report.doubts)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["Huge", "Tiny"])
def test_numbers_whose_squares_leave_the_range_are_compared(name: str) -> None:
    """The norm of 1e170 must not be infinite, nor that of 1e-170 zero."""
    layer_class, cell = awkward(name)

    class Wrong(layer_class):  # type: ignore[misc, valid-type]
        """A layer that is off by a thousandth."""

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any:
            output, final = super().forward(input, hx, **options)
            return output * 1.001, final

    right = verify.verify(layer_class, cell, dtypes=(torch.float64,))
    assert right.passed and right.doubts == ()
    wrong = verify.verify(Wrong, cell, dtypes=(torch.float64,), cases=(verify.Case(7, 3),))
    (output,) = (row for row in wrong.rows if row.quantity == "output")
    assert output.failed and output.error == pytest.approx(1e-3)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("wrong", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("name", ["Growing", "Undecided", "Chaotic", "Amplifying", "Tiny"])
def test_what_is_no_number_where_the_reference_is_one_fails(name: str, wrong: float) -> None:
    """Also in a batch entry that would be left out, and where the bound is larger than the values."""
    layer_class, cell = awkward(name)

    class Wrong(layer_class):  # type: ignore[misc, valid-type]
        """A layer whose first output is no number."""

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any:
            output, final = super().forward(input, hx, **options)
            first = torch.zeros_like(output)
            first[0, 0, 0] = wrong
            return output + first, final

    # In float16 the eager loops of the others overflow, which is left out.
    half = {"Tiny": (), "Undecided": (torch.float16,), "Amplifying": (torch.float16,)}.get(name, (torch.bfloat16,))
    dtypes = (torch.float64, *half)
    report = verify.verify(Wrong, cell, dtypes=dtypes, cases=(verify.Case(7, 3),))
    assert {row.dtype for row in report.rows if row.failed and row.quantity == "output"} == {
        row.dtype for row in report.rows
    }


@pytest.mark.parametrize("largest", [1.0, 1e-170, 1e170, 1e-310, 1e308])
def test_a_relative_error_has_no_unit(largest: float) -> None:
    exact = torch.tensor([largest, -largest / 2, 0.0], dtype=torch.float64)
    assert verify.relative_error(exact, exact) == 0
    assert verify.relative_error(exact * (1 - 2**-10), exact) == pytest.approx(2**-10, rel=1e-2)
    assert verify.relative_error(torch.zeros(3), exact) == pytest.approx(1)
    assert not verify.relative_error(exact * math.inf, exact) <= 1e300
    assert not verify.relative_error(exact, exact * math.inf) <= 1e300


@pytest.mark.long
def test_what_is_chaotic_in_float64_too_is_judged_by_its_first_steps() -> None:
    report = verify.verify(*awkward("Chaotic"), dtypes=(torch.float64, torch.bfloat16))
    assert report.passed and all(row.cases > 1 for row in report.rows)


def test_numbers_that_the_eager_loop_alone_cannot_hold_prove_nothing() -> None:
    """The eager loop in float16 makes an infinity of 1e6. The kernel computes in float32."""
    report = verify.verify(*awkward("Numbers"), dtypes=(torch.float32, torch.float16))
    assert not report.failed and all(row.passed for row in report.rows if row.dtype == "float32")
    assert [(doubt.dtype, doubt.why, doubt.left_out) for doubt in report.doubts] == [("float16", verify.RANGE, True)]


@pytest.mark.parametrize(("name", "dtype"), [("Undecided", torch.float64), ("Overflowing", torch.float16)])
def test_what_cannot_be_judged_is_neither_right_nor_wrong(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_class, cell = awkward(name)

    class Wrong(layer_class):  # type: ignore[misc, valid-type]
        """A layer that nobody can tell to be wrong."""

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any:
            output, final = super().forward(input, hx, **options)
            return output + 1e9, final

    monkeypatch.setattr(verify.cases, "CASES", (verify.Case(7, 3),))
    report = verify.verify(Wrong, cell, dtypes=(dtype,))
    assert not report.passed and not report.failed
    assert all(not row.judged and not row.failed for row in report.rows)
    monkeypatch.setattr(verify, "verify", lambda *_, **__: report)
    result = run("verify", "elman")
    assert result.exit_code == 4
    assert "NOT JUDGED in" in result.stdout and "which are left out" in result.stdout
    said = json.loads(run("verify", "elman", "--json").stdout)
    assert (said["passed"], said["failed"]) == (False, False)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["Growing", "Ternary", "Threshold", "Cancelling", "Counter", "Chaotic"])
def test_a_wrong_kernel_of_such_a_cell_fails(name: str) -> None:
    """In all dtypes: its gradients are off by a tenth, or its zeros are not zero."""
    layer_class, cell = awkward(name)

    class Wrong(layer_class):  # type: ignore[misc, valid-type]
        """A layer whose gradients are too large."""

        def gate_parameters(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().gate_parameters(*arguments, **keywords)
            grad = keywords.get("grad", False)
            return {key: 1.1 * value + 1e-2 if grad and value is not None else value for key, value in found.items()}

    report = verify.verify(Wrong, cell)
    wrong = {(row.quantity, row.dtype) for row in report.rows if row.failed}
    gradients = {(row.quantity, row.dtype) for row in report.rows if row.quantity in {"d_W_h", "d_W_q", "d_u", "d_V_Q"}}
    assert gradients and gradients <= wrong


def test_branches_are_what_relus_comparisons_and_spikes_look_at() -> None:
    text = "cell Branches\nstate h\nz = tanh(W@x)\nh[t] = relu(z + R@h[t-1]) + max(z, 0.5) + heaviside(z, grad=atan(2))"
    found = branches(front(Source("branches.rnn", text))[0][0])
    assert [branch.points for branch in found] == [(0.0,)] * 3
    assert branches(front(Source("elman.rnn", GOOD))[0][0]) == ()


@pytest.mark.long
def test_a_maximum_is_a_branch_where_a_gradient_passes_it() -> None:
    text = "cell Largest\nstate h\nv = W@x + R@h[t-1]\na = max(v)\nu = tanh(W@x)\ne = max(u)\n"
    text += "h[t] = softmax(v) + a*u + exp(u - detach(e))\n"
    ((cell, _),) = front(Source("largest.rnn", text))
    assert [(branch.value, branch.points) for branch in branches(cell)] == [(apply("sub", Ref("v"), Ref("a")), (0.0,))]
    assert verify.verify(rnncc.compile(text, "largest").Largest, cell).passed


def test_verify_calls_weak_what_hardly_proves_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (verify.Row("output", "bfloat16", 0.3, 0.5), verify.Row("h_n", "bfloat16", 0.01, 0.02))
    monkeypatch.setattr(verify, "verify", lambda *_, **__: verify.Report(rows, ON_CPU))
    shown = run("verify", "elman").stdout
    assert "weak: the eager bfloat16 loop is off by as much" in shown
    assert "1 of 2 rows prove little" in shown
    assert [row["weak"] for row in json.loads(run("verify", "elman", "--json").stdout)["rows"]] == [True, False]


def test_verify_says_where_rows_fail_that_rounding_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (verify.Row("output", "float32", math.nan, 10.0), verify.Row("h_n", "bfloat16", 0.5, 0.02))
    monkeypatch.setattr(verify, "verify", lambda *_, **__: verify.Report(rows, ON_CPU))
    shown = run("verify", "elman").stdout
    assert "FAILED in 2 of 2 rows" in shown
    assert "  float32: where rows FAILED, the eager loop is off" in shown
    assert "  bfloat16:" not in shown


def test_build_takes_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_one_library(monkeypatch)
    first, second = write(tmp_path, GOOD), write(tmp_path, LEARNED, "learned.rnn")
    result = run("build", first, second, "-o", tmp_path / "out")
    assert result.stdout.split() == [str(tmp_path / "out" / "elman"), str(tmp_path / "out" / "learned")]
    assert run("build", first, second, "--name", "both", "-o", tmp_path / "out").exit_code == 2
    assert "would become the package 'elman'" in run("build", first, first, "-o", tmp_path / "out").stderr


@pytest.mark.long
def test_a_missing_numpy_is_no_news(tmp_path: Path) -> None:
    program = "import sys; sys.modules['numpy'] = None; from rnncc.cli import cli; cli(sys.argv[1:])"
    done = python("-c", program, "verify", "--quiet", "elman", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NumPy" not in done.stderr


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_steps_with_derivatives_of_their_own(dtype: torch.dtype) -> None:
    """The jumps of `round` and `floor` are at every whole number: what rounding may turn over is not compared."""
    text = (
        "cell Steps\nstate h, m\nu = round(2*(W@x), grad=1)\n"
        "a = sigmoid(W@x + floor(R@h[t-1], grad=u0 -> exp(-u0**2)))\n"
        "h[t] = a*h[t-1] + (1 - a)*tanh(u)\nm[t] = 0.5*detach(m[t-1]) + a*detach(h[t]) + 0.1*m[t-1]\n"
    )
    ((cell, _),) = front(Source("steps.rnn", text))
    result = verify.verify(rnncc.compile(text, "steps").Steps, cell, dtypes=(dtype,))
    assert result.passed
    assert any(row.quantity == "d_R_a" for row in result.rows)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sparse(density=0.3)", "sparse(density=0.5, block=2)", "mask(density=0.3)"])
def test_what_a_mask_leaves_out_has_no_gradient(kind: str) -> None:
    text = f"cell Masked\nstate h\nweights R: {kind}, W: sparse(density=0.5)\nh[t] = tanh(W@x + R@h[t-1] + b)\n"
    ((cell, _),) = front(Source("masked.rnn", text))
    module = rnncc.compile(text, "masked")
    assert verify.verify(module.Masked, cell, dtypes=(torch.float64, torch.bfloat16)).passed

    class Wrong(module.Masked):  # type: ignore[name-defined, misc]
        """A layer whose matrices have gradients in all elements."""

        def gate_masks(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().gate_masks(*arguments, **keywords)
            return {name: torch.ones_like(mask) for name, mask in found.items()}

    wrong = verify.verify(Wrong, cell, dtypes=(torch.float64,)).rows
    assert {"d_W_h", "d_R_h"} & {row.quantity for row in wrong if not row.passed}
