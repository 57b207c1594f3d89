"""Random chains of phases: what is drawn, that it is checked and planned, and that the program for a GPU goes on where
it stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.target import GPUS
from tests.generated import gpu_chains
from tests.generated.chain_runs import families_of, planned, run_of, why_not_fused
from tests.generated.chains import FEATURES, MOST_PHASES, OTHERS, chain
from tests.generated.harness import judge, make
from tests.generated.results import Results
from tests.seeds import drawn

SEEDS = drawn(4)
# A loop behind the others may be elementwise and no scan: it has values of several widths, such as a number per batch
# entry.
ALONE = "a step has no product and no reduction"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_torch_code_of_a_chain(seed: int) -> None:
    cell = chain(seed, others=seed % 4 == 3).cell
    package, cells = make([cell], compiled=False)
    outcome = judge(cell, package, cells[cell.name])
    assert (outcome.kind, outcome.detail) == ("ok", "")


def test_a_seed_is_a_chain_and_a_size() -> None:
    assert chain(5).cell.text == chain(5).cell.text
    assert run_of(5, 768) == run_of(5, 768)


def test_chains_have_all_features_and_any_number_of_phases() -> None:
    drawn = [chain(seed, others=others) for seed in range(150) for others in (False, True)]
    assert {feature for each in drawn for feature in each.features} == {*FEATURES, *OTHERS}
    assert {each.phases for each in drawn} == set(range(1, MOST_PHASES + 1))
    assert all(each.features.isdisjoint(OTHERS) for each in drawn[::2])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seeds", [range(8), range(48)], ids=str)
def test_chains_are_planned(seeds: range) -> None:
    """No search for a layout takes too long, and what may be fused is."""
    runs = [run_of(seed, 768) for seed in seeds]
    families = {run.seed: planned(run, GPUS["h200"]) for run in runs}
    reasons = {seed: {*why_not_fused({"planned": found})} - {ALONE} for seed, found in families.items()}
    assert {family for found in families.values() for family in found.values()} >= {"gather", "grid", "scatter"}
    assert all(families.values())  # also of chains without a product
    unfused = {run.seed: reasons[run.seed] for run in runs if reasons[run.seed]}
    assert all(chain(seed, others=True).features & set(OTHERS) for seed in unfused), unfused


@pytest.mark.long
def test_the_program_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RNNCC_NVRTC_FLAGS", os.environ.get("RNNCC_NVRTC_FLAGS", ""))
    out = tmp_path / "chains.json"
    arguments = ["--device", "cpu", "--largest", "8", "--jobs", "1", "--out", str(out)]

    def run(*more: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["gpu_chains", *arguments, *more])
        return gpu_chains.main(), capsys.readouterr().out

    assert run("--seeds", "0:1", "--minutes", "0")[0] == 2
    status, printed = run("--seeds", "0:1")
    assert (status, "1 chains: 1 ok" in printed, "0 left" in printed) == (0, True, True), printed
    status, printed = run("--seeds", "0:1", "--minutes", "0")
    assert (status, "seed 0" in printed) == (0, False), printed


@pytest.mark.long
def test_a_process_that_ends_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = gpu_chains.Runner("no such device")
    run = run_of(0, 8)
    assert runner.judged(run, "no such folder")["kind"] == "error"
    monkeypatch.setattr(gpu_chains, "_SECONDS", 0.0)
    assert runner.judged(run, "no such folder")["kind"] == "hung"
    assert runner.process is None


def test_what_was_wrong_runs_again_at_another_version(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    about: dict[str, Any] = {"device": "cpu"}
    first = Results(path, "one", about)
    first.add(1, {"kind": "ok"})
    first.add(2, {"kind": "wrong"})
    first.write()
    assert [Results(path, "one", about).is_done(seed) for seed in (1, 2, 3)] == [True, True, False]
    assert [Results(path, "two", about).is_done(seed) for seed in (1, 2, 3)] == [True, False, False]
    with pytest.raises(SystemExit, match="another kind of run"):
        Results(path, "one", {"device": "cuda"})


def test_kernels_tell_how_a_chain_ran() -> None:
    symbols = {
        "chain3_0_forward_bf16_64_gather_1_2", "chain3_0_masked_backward", "chain3_1_forward_narrow", "gemm",
        "chain30_0_forward",
    }  # fmt: skip
    assert families_of(symbols, "chain3") == ["alternating", "gather"]
    assert why_not_fused({"planned": {"0 forward": "grid"}, "ran": ["grid"]}) == []
    assert why_not_fused({"planned": {"0 forward": "grid", "0 backward": "not so"}}) == ["so"]
    assert "alternating one ran" in why_not_fused({"planned": {"0 forward": "grid"}, "ran": ["alternating"]})[0]
    rows = list(gpu_chains.table({"1": {"kind": "ok", "planned": {"0 forward": "not so"}}, "2": {"kind": "wrong"}}))
    assert rows[:3] == ["2 chains: 1 ok, 1 wrong", "1 fused, 1 not, or not all loops", "     1  so"]
