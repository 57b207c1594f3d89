"""Targets: names of GPUs and architectures, and what a missing NVRTC means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc import driver
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS, Target, has_clusters
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import read_request
from rnncc.machine import targets
from rnncc.runtime.kernels import Kernels
from rnncc.stages.build import nvrtc


def test_names_and_architectures() -> None:
    assert targets.architectures("cpu") == ()
    assert targets.architectures("H200") == ("sm_90a",)
    assert targets.architectures("a100, rtx4090,cpu,a100") == ("sm_80", "sm_89")
    assert targets.architectures("sm_86,sm_100a") == ("sm_100a", "sm_86")
    assert targets.architectures("auto") == targets.present()


@pytest.mark.parametrize("name", ["abacus", "sm_75", "sm_9", "", "h200;a100"])
def test_unknown_targets(name: str) -> None:
    with pytest.raises(RnnccError) as caught:
        targets.architectures(name)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "RNN606" and diagnostic.help is not None and "h200" in diagnostic.help


def test_a_missing_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    assert nvrtc.find_nvrtc((), required=True) is None
    assert nvrtc.find_nvrtc(("sm_80",), required=False) is None
    with pytest.raises(RnnccError, match="need NVRTC") as caught:
        nvrtc.find_nvrtc(("sm_80",), required=True)
    assert caught.value.diagnostics[0].code == "RNN608"


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        (("sm_90a",), (9, 0), True),
        (("sm_90a",), (10, 0), False),
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80", "sm_90"), (9, 0), True),
        (("compute_80",), (8, 0), True),
        (("compute_80",), (12, 0), True),
        (("compute_86", "sm_90a"), (8, 0), False),
        ((), (9, 0), False),
    ],
)
def test_which_gpus_a_package_runs_on(built: tuple[str, ...], capability: tuple[int, int], runs: bool) -> None:
    assert Kernels("space", {}, built).run_on(*capability) is runs


@pytest.mark.parametrize(
    ("target", "said"),
    [("cpu", "--target cpu"), ("a100", "--target a100"), ("a100,sm_86,h200", "sm_80, sm_86"), ("h200,b200", None)],
)
def test_a_build_says_which_gpus_take_no_fused_kernels(
    target: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    def stop(*given: object) -> None:
        raise Enough

    monkeypatch.setattr(driver, "_build", stop)
    lines: list[str] = []
    with pytest.raises(Enough):
        wanted = replace(read_request("lstm"), problems=(Problem(64, 1, "bf16"),))
        driver.build_package(wanted, tmp_path, target, lines.append)
    needed = "fused kernels need NVRTC and a GPU of compute capability 9.0 or more"
    assert lines == ([] if said is None else [f"{needed}: none for {said}"])


@pytest.mark.parametrize(
    ("cell", "target", "said"),
    [
        ("indrnn", "cpu", "for GPUs of compute capability 9.0 or more: of no use for --target cpu"),
        ("indrnn", "a100", "for GPUs of compute capability 9.0 or more: of no use for --target a100"),
        ("indrnn", "a100,h200", "for GPUs of compute capability 9.0 or more: of no use for sm_80"),
        ("indrnn", "h200", None),
        ("mingru", "h200", "changes nothing"),  # a scan
        ("lstm", "h200", "changes nothing"),
    ],
)
def test_a_build_says_where_newton_is_of_no_use(
    cell: str, target: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described(request: Request, *rest: object) -> Path:
        """What a package says of itself, without one."""
        (tmp_path / "_rnncc.json").write_text(json.dumps(driver.make_product(request).about), encoding="utf-8")
        return tmp_path

    monkeypatch.setattr(driver, "_build", described)
    monkeypatch.setattr("rnncc.stages.build.install", lambda package, out: package)
    lines: list[str] = []
    driver.build_package(replace(read_request(cell), newton=True), tmp_path / "out", target, lines.append)
    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]


@pytest.mark.parametrize(("cell", "said"), [("indrnn", ""), ("mingru", "changes nothing: mingru has no loop")])
def test_loading_says_where_newton_is_of_no_use(
    cell: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def described(request: Request, *rest: object) -> Path:
        (tmp_path / "_rnncc.json").write_text(json.dumps(driver.make_product(request).about), encoding="utf-8")
        return tmp_path

    monkeypatch.setattr(driver, "_build", described)
    monkeypatch.setattr(driver, "present", lambda: ("sm_90a",))
    monkeypatch.setattr("rnncc.stages.load.load", lambda package, origin: package)
    driver.load_file(cell, {"newton": True})
    told = capsys.readouterr().err
    assert said in told and bool(told) == bool(said)


@pytest.mark.parametrize("target", ["h200", "a100, h200"])
def test_a_build_says_which_size_has_no_fused_kernel(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "fused.txt").write_text(
        "lstm_0_forward bf16 64 1 gather cluster 1 256 1 8 1 0 0 1 0 1 0 name\n", encoding="utf-8"
    )
    monkeypatch.setattr(driver, "_build", lambda *given: tmp_path)
    monkeypatch.setattr("rnncc.stages.build.install", lambda package, out: package)
    lines: list[str] = []
    problems = (Problem(64, 1, "bf16"), Problem(765, 2, "fp16"))
    driver.build_package(replace(read_request("lstm"), problems=problems), tmp_path / "out", target, lines.append)
    line = lines[-1]
    assert len(lines) == (1 if target == "h200" else 2)
    assert "no fused kernel for this size" in line and "--target h200 --hidden 1530 --heads 2 --dtype fp16" in line


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_what_is_known_of_a_gpu_agrees_with_its_architecture(gpu: Target) -> None:
    assert gpu.has_clusters is has_clusters(gpu.architecture)
    assert targets.architecture_of(*map(int, gpu.capability.split("."))) == gpu.architecture
