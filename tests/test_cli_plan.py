"""`rnncc explain` and `rnncc show --stage schedule` for a size: what is planned for a GPU."""

from __future__ import annotations

import json

from tests.test_cli import run

SIZES = ("--target", "h200", "--hidden", "768", "--heads", "12", "--dtype", "bf16")


def test_explain_plans_gpu_kernels_for_a_size() -> None:
    facts = json.loads(run("explain", "elman", "--json", *SIZES).stdout)
    assert (facts["family"], facts["scope"]) == ("gather", "block")
    assert facts["tiles"]["blocks"] == 1
    assert 0 < facts["predicted_us_per_step"] < 1
    assert 0 < facts["shared_bytes"] <= 232_448
    assert 0 < facts["registers"] <= 255
    assert facts["solve_ms"] > 0
    assert set(facts["kernels"]) == {"forward", "backward"}
    assert facts["kernels"]["forward"]["tiles"] == facts["tiles"]
    slower = {entry["family"]: entry["predicted_us_per_step"] for entry in facts["rejected"]}
    assert set(slower) == {"scatter", "grid", "alternating"}
    assert min(slower.values()) >= facts["predicted_us_per_step"]
    words = run("explain", "elman", *SIZES).stdout
    assert "gather, scope block" in words


def test_explain_says_what_rules_a_family_out() -> None:
    facts = json.loads(run("explain", "lstm", "--json", "--target", "h200", "--hidden", "1024").stdout)
    assert facts["family"] == "grid"
    (gather,) = (entry for entry in facts["rejected"] if entry["family"] == "gather")
    assert gather["limits"][0]["numbers"] == "768 >= 1024"
    assert {"registers", "shared memory"} <= {limit["name"] for limit in gather["limits"]}


def test_explain_plans_what_a_gpu_without_clusters_runs() -> None:
    facts = json.loads(run("explain", "lstm", "--json", "--target", "a100", *SIZES[2:]).stdout)
    assert (facts["family"], facts["scope"]) == ("alternating", "grid")
    assert facts["predicted_us_per_step"] > 3
    ((limit,),) = (entry["limits"] for entry in facts["rejected"])
    assert "compute capability 9.0" in limit["reason"]


def test_explain_says_where_weights_exceed_the_memory() -> None:
    facts = json.loads(run("explain", "lstm", "--json", "--target", "h200", "--hidden", "1000000").stdout)
    assert facts["family"] is None and facts["predicted_us_per_step"] is None
    assert facts["kernels"]["backward"]["after_us_per_step"] is None
    words = run("explain", "lstm", "--target", "h200", "--hidden", "1000000").stdout
    assert "no kernel" in words and "not alternating: memory (8000 GB <= 141 GB)" in words and "us a step" not in words


def test_a_family_may_be_for_many_columns_alone() -> None:
    words = run("explain", "lstm", "--target", "h200", "--hidden", "768").stdout
    assert "gather, scope cluster: any columns" in words and "not gather for 16 columns: " in words


def test_explain_says_in_how_many_launches_columns_run() -> None:
    four_heads = ("--target", "h200", "--hidden", "4096", "--heads", "4")
    facts = json.loads(run("explain", "lstm", "--json", *four_heads).stdout)
    for kernel in facts["kernels"].values():
        assert (kernel["family"], kernel["launches"]) == ("grid", 2)
        assert (kernel["most_columns"], kernel["most_columns_of_a_launch"]) == (None, 8)
    assert facts["predicted_us_per_step"] == facts["kernels"]["forward"]["predicted_us_per_step"] > 4
    words = run("explain", "lstm", *four_heads).stdout
    assert f"16 columns: 2 launches of grid with 32 blocks, {facts['predicted_us_per_step']} us a step" in words
    once = json.loads(run("explain", "lstm", "--json", "--target", "h200", "--hidden", "1024").stdout)
    assert once["kernels"]["forward"]["launches"] == 1


def test_explain_says_from_how_many_columns_on_a_launch_a_step_is_quicker() -> None:
    large = ("--target", "h200", "--hidden", "2048")
    plan = json.loads(run("explain", "lstm", "--json", *large).stdout)["kernels"]["backward"]
    (by_steps,) = (kernel for kernel in plan["other_columns"] if kernel["family"] == "stepwise")
    assert plan["fewest_columns"] == 1 and plan["most_columns"] < by_steps["fewest_columns"] and by_steps["tiles"] == {}
    words = run("explain", "lstm", *large).stdout
    assert f"stepwise, scope step: from {by_steps['fewest_columns']} columns on, " in words
    assert f"alternating: {plan['most_columns'] + 1} to {by_steps['fewest_columns'] - 1} columns" in words


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
    assert (forward["scope"], backward["scope"]) == ("block", "cluster")
    assert forward["tiles"]["blocks"] == 1 < backward["tiles"]["blocks"]
    assert facts["tiles"]["depth"] > 1 == forward["narrow"]["tiles"]["depth"]
    assert 0 < facts["predicted_us_per_step"] < backward["predicted_us_per_step"] < 1
    words = run("explain", "indrnn", *SIZES).stdout
    assert "walk, blocks by themselves: any columns, at least" in words and "scan, clusters of" in words


def test_show_of_a_schedule_is_for_a_size() -> None:
    assert "forward walk, backward scan, target any GPU" in run("show", "indrnn", "--stage", "schedule").stdout
    assert "alternating" in run("show", "elman", "--stage", "schedule").stdout
    assert "gather, scope block" in run("show", "elman", "--stage", "schedule", *SIZES).stdout
