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
from rnncc.machine import gpus, targets
from rnncc.runtime.kernels.kernels import Kernels
from rnncc.stages.build import Product, nvrtc
from tests.compilers import replace_nvrtc


def test_names_and_architectures() -> None:
    assert targets.architectures("cpu") == ()
    assert targets.architectures("H200") == ("sm_90a",)
    assert targets.architectures("a100, rtx4090,cpu,a100") == ("sm_80", "sm_89")
    assert targets.architectures("sm_86,sm_100a") == ("sm_100a", "sm_86")
    assert targets.architectures("auto") == tuple(sorted({gpu.architecture for gpu in gpus.here()}))
    assert targets.architectures("compute_80, rtx4090 ,SM_86") == ("compute_80", "sm_86", "sm_89")
    assert targets.known_gpus("compute_80,sm_87,h200") == (GPUS["a100"].with_ptx(), GPUS["h200"])


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
    [("cpu", "--target cpu"), ("sm_87", "--target sm_87"), ("a100,sm_87,compute_89", "sm_87"), ("h200,b200", None)],
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
    needed = "fused kernels need NVRTC and a GPU whose sizes are known"
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
    def described(request: Request, *rest: object, **more: object) -> Path:
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
    def described(request: Request, *rest: object, **more: object) -> Path:
        (tmp_path / "_rnncc.json").write_text(json.dumps(driver.make_product(request).about), encoding="utf-8")
        return tmp_path

    monkeypatch.setattr(driver, "_build", described)
    monkeypatch.setattr(gpus, "here", lambda: (GPUS["h200"],))
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
        "table program=lstm_0_forward dtype=bf16 head_dim=64 heads=1 architecture=sm_90a\n"
        "row batch=1 kernels= pass_ns=\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(driver, "_build", lambda *given: tmp_path)
    monkeypatch.setattr("rnncc.stages.build.install", lambda package, out: package)
    lines: list[str] = []
    problems = (Problem(64, 1, "bf16"), Problem(765, 2, "fp16"))
    driver.build_package(replace(read_request("lstm"), problems=problems), tmp_path / "out", target, lines.append)
    assert all(line.startswith("no fused kernel for this size") for line in lines)
    assert "--target h200 --hidden 1530 --heads 2 --dtype fp16" in lines[-1]
    assert ["--target a100 --hidden 64 " in line for line in lines] == (
        [False] if target == "h200" else [True, False, False]
    )


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_what_is_known_of_a_gpu_agrees_with_its_architecture(gpu: Target) -> None:
    assert gpu.has_clusters is has_clusters(gpu.architecture)
    assert gpus.architecture_of(*map(int, gpu.capability.split("."))) == gpu.architecture
    assert dict(gpu.clusters)[1] == gpu.sms
    for ctas, count in gpu.clusters:
        assert ctas * count <= gpu.sms
    # Half the rate of a GeForce card, but for Hopper's and its successors', whose mma.sync is slower than their best.
    assert (gpu.product_cycles == 32) is (gpu.name.startswith("rtx") or gpu.name == "gb10")


def facts(target: Target, **changed: int) -> dict[str, int]:
    """What a driver says of a GPU."""
    major, minor = map(int, target.capability.split("."))
    said = {"major": major, "minor": minor, "sms": target.sms, "shared_bytes": target.shared_bytes}
    said |= {"l2_bytes": target.l2_mb << 20, "threads": target.threads, "ctas": target.ctas, "clock_khz": 0}
    said |= {"memory_bytes": target.memory_gb * 10**9, "memory_clock_khz": 0, "memory_bus_bits": 0}
    return said | changed


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB10", "gb10"),
    ],
)
def test_known_gpus_are_known_by_name_and_size(name: str, known: str) -> None:
    assert gpus.describe(name, facts(GPUS[known])) is GPUS[known]
    # A part of it is another GPU.
    part = gpus.describe(f"{name} MIG 3g.40gb", facts(GPUS[known], sms=42))
    assert (part.name, part.sms, part.architecture) == (f"{name} MIG 3g.40gb", 42, GPUS[known].architecture)
    assert all(ctas * count <= 42 for ctas, count in part.clusters)


def test_other_gpus_are_what_the_driver_says() -> None:
    said = {"sms": 76, "clock_khz": 2_505_000, "memory_clock_khz": 11_201_000, "memory_bus_bits": 256}
    rtx4080 = gpus.describe("NVIDIA GeForce RTX 4080", facts(GPUS["l4"], l2_bytes=64 << 20, **said))
    assert (rtx4080.architecture, rtx4080.sms, rtx4080.clusters) == ("sm_89", 76, ((1, 76),))
    assert (rtx4080.clock_mhz, rtx4080.l2_mb, rtx4080.memory_gb_s) == (2505, 64, 716)
    assert rtx4080.product_cycles == 32 and not rtx4080.is_measured  # a GeForce card
    assert rtx4080.l2_gb_s == pytest.approx(GPUS["rtx4090"].l2_gb_s * 76 * 2505 / (128 * 2520), abs=1)
    a40 = gpus.describe("NVIDIA A40", facts(GPUS["a10"], sms=84))
    assert a40.product_cycles == 16 and a40.shared_bytes == 101_376
    # The chip of an H200 with other memory, and a name that ends in a known one.
    gh200 = gpus.describe("NVIDIA GH200 480GB", facts(GPUS["h200"]))
    assert gh200.name == "NVIDIA GH200 480GB" and gh200.has_clusters and gh200.has_warpgroups
    # A generation that nobody knew when this was written.
    new = gpus.describe("NVIDIA X1", facts(GPUS["gb10"], major=13, minor=0, sms=200, shared_bytes=300_000))
    assert (new.architecture, new.sms, new.shared_bytes, new.has_warpgroups) == ("sm_130", 200, 300_000, False)


def test_a_gpu_that_no_driver_describes_is_the_first_known_one() -> None:
    assert gpus.at((8, 6), 10**6) == GPUS["a10"]
    assert gpus.at((8, 7), 10**6) == replace(GPUS["a10"], architecture="sm_87")


def test_a_setting_names_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "here", lambda: (GPUS["h200"],))
    monkeypatch.setenv(targets.SETTING, "RTX4090")
    assert targets.architectures("auto") == ("compute_89",)
    wanted = replace(GPUS["rtx4090"], architecture="compute_89")
    assert targets.known_gpus("auto") == (wanted,) and targets.planned("auto") == wanted
    assert targets.gpu_at((9, 0), 0) == wanted
    monkeypatch.setattr(gpus, "here", lambda: ())
    assert targets.architectures("auto") == ()
    monkeypatch.setenv(targets.SETTING, "sm_89")
    with pytest.raises(RnnccError, match="RNNCC_TARGET is 'sm_89'") as caught:
        targets.known_gpus("auto")
    assert caught.value.diagnostics[0].code == "RNN606"


def test_what_is_made_for_a_gpu_that_nvrtc_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned as PTX: with its own limits, and without what PTX does not have."""
    asked: list[Request] = []

    def made(request: Request, *rest: object) -> Product:
        asked.append(request)
        raise ZeroDivisionError

    monkeypatch.setattr(driver, "make_product", made)
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path / "cache"))
    replace_nvrtc(tmp_path, monkeypatch, "exit 1", version="echo 12.6 50 80 90")
    wanted = replace(read_request("lstm"), problems=(Problem(64, 1, "bf16"),))
    with pytest.raises(ZeroDivisionError):
        driver.build_package(wanted, tmp_path / "out", "rtx5090,h200")
    (request,) = asked
    assert request.gpus == (replace(GPUS["rtx5090"], architecture="compute_90"), GPUS["h200"])
    assert not request.gpus[0].has_warpgroups and request.gpus[0].shared_bytes == 101_376
