"""`rnncc explain` and `rnncc show --stage schedule` for a size: what is planned for a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rnncc.ir.target import GPUS
from tests.test_cli import run

SIZES = ("--target", "h200", "--hidden", "768", "--heads", "12", "--dtype", "bf16")


def test_explain_plans_gpu_kernels_for_a_size() -> None:
    facts = json.loads(run("explain", "elman", "--json", *SIZES).stdout)
    assert (facts["family"], facts["scope"]) == ("gather", "cta")
    assert facts["tiles"]["ctas"] == 1
    assert 0 < facts["predicted_us_per_step"] < 1
    assert 0 < facts["shared_bytes"] <= 232_448
    assert 0 < facts["registers"] <= 255
    assert facts["solve_ms"] > 0
    assert set(facts["kernels"]) == {"forward", "backward"}
    assert facts["kernels"]["forward"]["tiles"] == facts["tiles"]
    slower = {entry["family"]: entry["predicted_us_per_step"] for entry in facts["rejected"]}
    assert set(slower) == {"scatter", "grid", "wide", "alternating"}
    assert min(slower.values()) >= facts["predicted_us_per_step"]
    words = run("explain", "elman", *SIZES).stdout
    assert "gather, scope cta" in words


def test_explain_says_what_rules_a_family_out() -> None:
    facts = json.loads(run("explain", "lstm", "--json", "--target", "h200", "--hidden", "1024").stdout)
    assert facts["family"] == "grid"
    (gather,) = (entry for entry in facts["rejected"] if entry["family"] == "gather")
    assert gather["limits"][0]["numbers"] == "768 >= 1024"
    assert {"registers", "shared memory"} <= {limit["name"] for limit in gather["limits"]}


def test_explain_plans_what_a_gpu_without_clusters_runs() -> None:
    facts = json.loads(run("explain", "lstm", "--json", "--target", "a100", *SIZES[2:]).stdout)
    assert (facts["family"], facts["scope"]) == ("gather", "cta")
    assert facts["predicted_us_per_step"] > 0.3 and not facts["is_measured"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("gpu", GPUS)
def test_predictions_say_whether_anything_was_measured_there(gpu: str) -> None:
    words = run("explain", "lstm", "--target", gpu, *SIZES[2:]).stdout
    facts = json.loads(run("explain", "lstm", "--json", "--target", gpu, *SIZES[2:]).stdout)
    is_said = f"times are the H200's, scaled to what is known of the {gpu}: none was measured there" in words
    assert is_said is (gpu != "h200") and facts["is_measured"] is (gpu == "h200")


def test_explain_says_where_weights_exceed_the_memory() -> None:
    facts = json.loads(run("explain", "lstm", "--json", "--target", "h200", "--hidden", "1000000").stdout)
    assert facts["family"] is None and facts["predicted_us_per_step"] is None
    assert facts["kernels"]["backward"]["after_us_per_step"] is None
    words = run("explain", "lstm", "--target", "h200", "--hidden", "1000000").stdout
    assert (
        "no kernel" in words and "not alternating: memory (8000 GB <= 141 GB)" in words and "us per step" not in words
    )


def test_a_family_may_be_for_large_batches_alone() -> None:
    words = run("explain", "lstm", "--target", "h200", "--hidden", "768").stdout
    assert "wide, scope grid: batches up to 128 per launch" in words and "not wide for batch 16: " in words


def test_explain_says_in_how_many_launches_a_batch_runs() -> None:
    four_heads = ("--target", "h200", "--hidden", "4096", "--heads", "4")
    facts = json.loads(run("explain", "lstm", "--json", *four_heads).stdout)
    for kernel in facts["kernels"].values():
        assert (kernel["family"], kernel["launches"]) == ("grid", 2)
        assert kernel["launch_batch"] == 8
    assert facts["predicted_us_per_step"] == facts["kernels"]["forward"]["predicted_us_per_step"] > 3
    words = run("explain", "lstm", *four_heads).stdout
    assert f"batch 16: 2 launches of grid with 32 CTAs, {facts['predicted_us_per_step']} us per step" in words
    once = json.loads(run("explain", "lstm", "--json", "--target", "h200", "--hidden", "1024").stdout)
    assert once["kernels"]["forward"]["launches"] == 1


def test_explain_prints_which_kernel_runs_which_batch() -> None:
    large = ("--target", "h200", "--hidden", "1024", "--dtype", "fp32")
    plan = json.loads(run("explain", "lstm", "--json", *large).stdout)["kernels"]["backward"]
    kernels = {kernel["name"]: kernel for kernel in (plan, *plan["other_batches"])}
    batches = [row["batch"] for row in plan["table"]]
    assert batches[0] == 1 and batches == sorted(batches) and len(batches) > 2
    assert {choice["name"] for row in plan["table"] for choice in row["kernels"]} == set(kernels)
    assert kernels["stepwise"]["tiles"] == {} and "stepwise" not in plan["table"][0]["kernels"][0]["name"]
    words = run("explain", "lstm", *large).stdout
    for row in plan["table"]:
        first, *others = row["kernels"] or [{"name": "alternating"}]
        names = " else ".join(choice["name"] for choice in (first, *others))
        time = f", {first['pass_us']} us per step and pass" if row["kernels"] else ""
        assert f"batches from {row['batch']} on: {names}{time}\n" in words


def test_explain_without_a_size_has_no_plan() -> None:
    plain = run("explain", "elman", "--json")
    assert json.loads(plain.stdout)["family"] is None
    assert not plain.stderr
    unsized = run("explain", "elman", "--json", "--target", "h200")
    assert unsized.stdout == plain.stdout
    assert "--hidden" in unsized.stderr
    assert "--target" in run("explain", "elman", "--hidden", "768", "--target", "cpu").stderr
    assert run("explain", "elman", "--hidden", "0").exit_code == 2
    assert run("explain", "elman", "--hidden", "768", "--heads", "7", "--target", "h200").exit_code == 2
    assert "RNN606" in run("explain", "elman", "--hidden", "768", "--target", "abacus").stderr
    assert "a plan is for one GPU" in run("explain", "elman", "--hidden", "768", "--target", "h200,b200").stderr


def test_explain_plans_scans_and_walks() -> None:
    facts = json.loads(run("explain", "indrnn", "--json", *SIZES).stdout)
    forward, backward = facts["kernels"]["forward"], facts["kernels"]["backward"]
    assert (facts["family"], forward["family"], backward["family"]) == ("walk", "walk", "scan")
    assert (forward["scope"], backward["scope"]) == ("cta", "cluster")
    assert forward["tiles"]["ctas"] == 1 < backward["tiles"]["ctas"]
    assert facts["tiles"]["depth"] > 1 == forward["narrow"]["tiles"]["depth"]
    assert 0 < facts["predicted_us_per_step"] < backward["predicted_us_per_step"] < 1
    words = run("explain", "indrnn", *SIZES).stdout
    assert "walk, single CTAs: any batch, at least" in words and "scan, clusters of" in words


def test_show_of_a_schedule_is_for_a_size() -> None:
    assert "forward walk, backward scan, target any GPU" in run("show", "indrnn", "--stage", "schedule").stdout
    assert "alternating" in run("show", "elman", "--stage", "schedule").stdout
    assert "gather, scope cta" in run("show", "elman", "--stage", "schedule", *SIZES).stdout


def test_explain_plans_a_step_of_reductions_alone(tmp_path: Path) -> None:
    """It has no recurrent matrix, so there are no gradients of such to be made after the loop."""
    path = tmp_path / "normed.rnn"
    path.write_text("cell Normed\nstate h\nh[t] = tanh(layernorm(h[t-1] + W@x))\n", encoding="utf-8")
    facts = json.loads(run("explain", str(path), "--json", *SIZES).stdout)
    for kernel in facts["kernels"].values():
        assert kernel["family"] == "gather"
    assert facts["kernels"]["backward"]["after_us_per_step"] is None
    scatter = next(entry for entry in facts["rejected"] if entry["family"] == "scatter")
    assert [limit["name"] for limit in scatter["limits"]] == ["reductions"]
    alternating = next(entry for entry in facts["rejected"] if entry["family"] == "alternating")
    assert alternating["predicted_us_per_step"] > facts["predicted_us_per_step"]
    words = run("explain", str(path), *SIZES).stdout
    assert "gather, scope cta: any batch" in words and "after the backward loop" not in words
    words = run("explain", str(path), *SIZES[:2], "--hidden", "20").stdout
    assert "not fused: head_dim (20 % 8 == 0)" in words


def test_a_cell_with_one_head_has_no_kernels_for_several(tmp_path: Path) -> None:
    for words in (("explain", "lmu", *SIZES), ("build", "lmu", *SIZES, "-o", str(tmp_path))):
        found = run(*words)
        assert found.exit_code == 1 and "RNN703" in found.stderr and "LMU takes one head only: 'u'" in found.stderr
    assert not list(tmp_path.iterdir())


def test_explain_says_rows_and_columns_of_matrices() -> None:
    file = "tests/fixtures/gateddeltanet.rnn"
    facts = json.loads(run("explain", file, "--json").stdout)
    assert facts["states"] == [{"name": "S", "width": "H x K", "initial": 0.0}]
    (found,) = facts["classes"]
    assert (found["class"], found["form"]) == ("MATRIX", "") and "S is a matrix, H x K (line 4)" in found["why"]
    assert {"name": "S", "width": "H x K", "state": True} in facts["saved"]
    words = run("explain", file).stdout
    assert "states S [H x K]; output y" in words and "segment 0: S: MATRIX: S is a matrix" in words
