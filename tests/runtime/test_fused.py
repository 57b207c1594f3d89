"""Fused kernels at first use: which are compiled, and what is said where there are none."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import rnncc
from rnncc.analysis.by_head import HEAD_TILES
from rnncc.ir.target import GPUS
from rnncc.machine.targets import planned
from rnncc.runtime.kernels import first_use, fused
from rnncc.runtime.kernels.fused import Answer, Outcome
from rnncc.runtime.kernels.index import read_index
from tests.compilers import quick_nvrtc
from tests.runtime.first_use import H200, settled, wanted

RUNS = Answer(Outcome.RUNS)


def test_a_missing_kernel_is_compiled_once_for_all(spied: Any, capfd: pytest.CaptureFixture[str], cache: Path) -> None:
    assert "the first call of several steps" in fused.explain(wanted(), None)
    assert settled(wanted()) == RUNS
    # Where it takes long, others tell how far it has come.
    lines = [line for line in capfd.readouterr().err.splitlines() if " files compiled" not in line]
    whats = [f"LSTM {program} for 1 head with head_dim 64, bf16, sm_90a" for program in ("forward", "backward")]
    assert lines[::2] == [f"rnncc: compiling {what}" for what in whats] and len(lines) == 4
    for what, line in zip(whats, lines[1::2], strict=True):
        assert re.fullmatch(rf"rnncc: compiled {what} in [\d.]+ s", line)
    # The library and the package know the same kernels, each in a file of its own.
    indices = sorted(cache.glob("packages/*/lstm/cuda/fused.txt"))
    names = [kernel.name for index in indices for table in read_index(index) for kernel in table.kernels]
    assert len(indices) == 2 and spied.added == len(names) >= 2
    cubins = [path.name for index in indices for path in index.parent.glob("*.cubin")]
    assert sorted(cubins) == sorted(f"{name}_sm_90a.cubin" for name in names)
    said = fused.explain(wanted(), "")
    assert said.startswith(
        "fused (forward gather, backward scatter or gather from batch 385 on), made for 1 head with "
    )
    assert fused.kernels_for(wanted(), "")[0].startswith("fused (forward gather, backward scatter or gather from")
    assert fused.kernels_for(wanted(head_dims=(64, 2)), "")[0] == "alternating"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fused.STATE.about, "scans", {wanted().segment: "forward walk, backward scan"})
        assert fused.kernels_for(wanted(), None)[0] == "forward walk, backward scan"
    # They run no call in which another value has a width that no fused kernel takes.
    uneven = fused.explain(wanted(head_dims=(64, 2)), "")
    assert uneven.startswith("alternating") and uneven.endswith("a head_dim that is a multiple of 8, not 2")
    assert settled(wanted()) == RUNS and spied.added == len(names)
    # Another process: found in the cache, without a word.
    fused.attach(indices[0].parent, spied, fused.STATE.about)
    fused.STATE.folders.clear()
    assert settled(wanted()) == RUNS and spied.added == 2 * len(names)
    # Another loop of the cell, for which nothing was found.
    fused.STATE.about["fused"]["lstm_1"] = ""
    said = "no fused kernel for 1 head with head_dim 64, bfloat16 fits this loop"
    assert settled(wanted(segment="lstm_1")) == Answer(Outcome.NONE, said)
    assert capfd.readouterr().err == ""
    # Kernels for one number of heads serve others, where there are no better ones.
    assert "made for another number of heads" in fused.explain(wanted(heads=2), "no NVRTC")
    assert fused.explain(wanted(gpu=fused.Gpu((10, 0), 148, 232_448)), "no NVRTC").startswith("alternating")


def test_kernels_of_calls_without_gradients_are_told(spied: Any) -> None:
    """Such a call compiles no more than it takes."""
    assert settled(wanted(programs=("inference",))) == RUNS
    said = fused.explain(wanted(), None)
    assert said.startswith(
        "fused (without gradients gather), made for 1 head with head_dim 64, bfloat16; with gradients"
    )
    assert "the first call of several steps compiles a fused one" in said
    assert settled(wanted()) == RUNS and fused.explain(wanted(), "").startswith("fused (forward gather, back")


def test_a_package_built_with_kernels_for_one_pass_is_not_asked_for_the_other(spied: Any, tmp_path: Path) -> None:
    """`rnncc build` plans all programs of a size: where it made none for one, none fits."""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "fused.txt").write_text(GOOD, encoding="utf-8")
    fused.attach(tmp_path, spied, fused.STATE.about)
    backward = wanted(programs=("backward",))
    said = Answer(Outcome.NONE, "no fused kernel for 1 head with head_dim 64, bfloat16 fits this loop")
    assert settled(wanted(programs=("forward",))) == RUNS and settled(backward) == said
    assert fused.explain(wanted(), said.reason) == (
        f"fused (forward grid), made for 1 head with head_dim 64, bfloat16; the other pass alternates: {said.reason}"
    )
    # Both directions fit in no launch of the backward's, and its kernels run one after the other.
    table = GOOD.replace("_forward", "_backward")
    (tmp_path / "cuda" / "fused.txt").write_text(GOOD.replace("heads=1", "heads=2") + GOOD + table, encoding="utf-8")
    fused.attach(tmp_path, spied, fused.STATE.about)
    pair = wanted(directions=2)
    assert settled(pair) == RUNS
    assert fused.explain(pair, "").startswith(
        "fused (forward grid, backward grid), made for 1 head with head_dim 64 in"
    )
    (tmp_path / "cuda" / "fused.txt").write_text(GOOD, encoding="utf-8")
    fused.attach(tmp_path, spied, fused.STATE.about)
    # What was compiled at first use is for one program, and another GPU has none of these kernels.
    for unlike in (wanted(programs=("masked_forward",)), wanted(programs=("inference",)), wanted(heads=2)):
        assert not fused.is_built_without(replace(unlike, programs=unlike.programs[-1:]))
    assert not fused.is_built_without(replace(backward, gpu=fused.Gpu((8, 0), 108, 166_912)))
    fused.STATE.folders[:] = [replace(folder, gpu=H200) for folder in fused.STATE.folders]
    assert not fused.is_built_without(backward)


def test_what_comes_later_begins_once_compilers_run(without_code: None, spied: Any) -> None:
    began: list[int] = []
    forward = wanted(72, programs=("forward",))
    for _ in range(2):
        assert first_use.settle(forward, lambda: began.append(spied.added)) == RUNS
        fused.STATE.folders.clear()
    assert began == [0] and spied.added > 0  # the second time they were in the cache


@pytest.fixture
def without_code(spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cubins have no kernels: what is compiled is never run here."""
    quick_nvrtc(tmp_path, monkeypatch)


def test_both_directions_get_kernels_for_the_heads_of_both(
    without_code: None, capfd: pytest.CaptureFixture[str], cache: Path
) -> None:
    """Those of 6 heads fill a GPU: of 12 side by side, the same kernels would run half after the other half."""
    pair = wanted(128, heads=6, directions=2)
    assert settled(wanted(128, heads=6)) == RUNS
    assert fused.explain(pair, None).startswith("fused (forward gather, backward scatter or gather from batch ")
    assert "), made for one direction: the first call" in fused.explain(pair, None)
    assert settled(pair) == RUNS
    assert "compiling LSTM backward for 6 and 12 heads with head_dim 128, bf16, sm_90a" in capfd.readouterr().err
    assert {table.heads for folder in fused.STATE.folders for table in folder.tables} == {6, 12}
    assert fused.explain(pair, "").endswith("made for 6 heads with head_dim 128 in both directions, bfloat16")
    tables = [table for path in cache.glob("packages/*/lstm/cuda/fused.txt") for table in read_index(path)]
    sms = {
        (table.heads, kernel.family, kernel.sms)
        for table in tables
        for kernel in table.kernels
        if (table.program, table.head_dim) == ("lstm_0_backward", 128)
    }
    assert {(6, "scatter", 8), (12, "scatter", 4)} <= sms


def test_kernels_for_one_direction_run_no_two(without_code: None, cache: Path) -> None:
    """Those of a layer with two heads are not for both directions of a layer with one."""
    pair = wanted(96, heads=1, directions=2)
    assert settled(wanted(96, heads=2)) == RUNS
    own = {kernel for folder in fused.STATE.folders for table in folder.tables for kernel in table.kernels}
    assert {kernel.directions for kernel in own} == {1} and all(kernel.name.endswith("_one") for kernel in own)
    assert not fused.has_kernel(pair) and settled(pair) == RUNS and fused.has_kernel(pair)
    # What is made for both runs one as well.
    fused.STATE.folders[:] = [each for each in fused.STATE.folders if each.tables[0].kernels[0] not in own]
    assert fused.has_kernel(wanted(96, heads=2)) and fused.has_kernel(wanted(96, heads=1))


def test_where_both_directions_fit_no_launch_there_are_kernels_for_one(without_code: None) -> None:
    pair = wanted(2048, heads=1, directions=2)
    assert settled(pair) == RUNS
    assert {table.heads for folder in fused.STATE.folders for table in folder.tables} == {1}
    families = "forward grid or stepwise from batch 97 on, backward grid or stepwise from batch 49 on"
    assert (
        fused.explain(pair, "")
        == f"fused ({families}), made for 1 head with head_dim 2048 in both directions, bfloat16"
    )


def test_a_batch_is_run_by_what_the_library_chooses(spied: Any, tmp_path: Path) -> None:
    text = ctypes.create_string_buffer(1024)
    given = (b"lstm_0_forward", b"bf16", *map(ctypes.c_int64, (8, 1, 16)), 1, 0, 0, text, ctypes.c_int64(1024))
    # No test makes kernels of that size; or there is no GPU to ask about them.
    assert spied.library.rnncc_choose_kernel(*given) == (0 if torch.cuda.is_available() else -1)
    assert bool(text.value) is not torch.cuda.is_available()

    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "fused.txt").write_text(GOOD, encoding="utf-8")
    asked: list[tuple[Any, ...]] = []

    def choose(program: bytes, dtype: bytes, head_dim: Any, heads: Any, batch: Any, directions: int, *rest: Any) -> int:
        asked.append((program, dtype, head_dim.value, heads.value, batch.value, directions, *rest[:2]))
        rest[2].value = b"lstm_0_forward_bf16_64_grid" if program == b"lstm_0_forward" else b""
        return 2 if program == b"lstm_0_forward" else 0

    fused.attach(tmp_path, SimpleNamespace(rnncc_choose_kernel=choose), fused.STATE.about)  # type: ignore[arg-type]
    said = fused.chosen(wanted(heads=3, directions=2), 16, 1, denser=True)
    assert said == "forward grid in 2 launches, backward alternating, without gradients alternating"
    assert asked[0] == (b"lstm_0_forward", b"bf16", 64, 3, 16, 2, 1, 1) and len(asked) == 3


def test_what_fits_nowhere_is_said(spied: Any, capfd: pytest.CaptureFixture[str]) -> None:
    gpu = planned("auto") or GPUS["h100"]
    for _ in range(2):  # planned, then known
        answer = settled(wanted(8192, heads=2))
        said = answer.reason
        assert answer.outcome is Outcome.NONE and "no fused kernel for 2 heads with head_dim 8192 fits" in said
        assert f"rnncc explain lstm --target {gpu.name} --hidden 16384 --heads 2 --dtype bf16" in said
    assert spied.added == 0 and capfd.readouterr().err == ""
    assert fused.explain(wanted(8192, heads=2), said) == f"alternating, one launch per sequence at every size: {said}"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": torch.float64}, "float32, bfloat16 and float16, not torch.float64"),
        ({"head_dim": 60}, "a head_dim that is a multiple of 8, not 60"),
        ({"head_dims": (64, 20)}, "a head_dim that is a multiple of 8, not 20"),
    ],
)
def test_what_has_no_fused_kernel_is_not_compiled(changed: dict[str, Any], reason: str, spied: Any) -> None:
    answer = settled(wanted(**changed))
    assert answer.outcome is Outcome.NONE and reason in answer.reason
    assert reason in fused.explain(wanted(**changed), None)


def test_a_kernel_is_made_for_the_widest_value() -> None:
    layer = rnncc.load("lstmp").LSTMP(5, 24, P=64, num_heads=2)
    (segment,) = layer.spec.segments
    assert segment.fused_head_dims({"I": 5, "H": 24, "P": 64, "num_heads": 2}) == [12, 32]
    (segment,) = rnncc.load("lstm").LSTM.spec.segments
    assert segment.fused_head_dims({"I": 5, "H": 24, "num_heads": 2}) == [12]


def test_a_loop_without_a_fused_form_says_so(spied: Any, tmp_path: Path) -> None:
    fused.attach(
        tmp_path,
        spied,
        {"fused": {"lstm_0": "a step takes the mean of a row"}, "scans": {}, "by_head": [], "newton": []},
    )
    said = "its loop has no fused form: a step takes the mean of a row"
    assert settled(wanted()) == Answer(Outcome.NONE, said)
    # No other width would help, so no width is named.
    for head_dim in (64, 20):
        assert fused.explain(wanted(head_dim=head_dim), None).endswith(said)


def test_a_loop_whose_heads_have_a_cta_each_says_so(spied: Any, tmp_path: Path) -> None:
    about = {"fused": {"lstm_0": "a matrix"}, "scans": {}, "by_head": ["lstm_0"], "newton": []}
    fused.attach(tmp_path, spied, about)
    largest = HEAD_TILES[-1]
    size = f"{256 // largest.lanes * largest.rows} x {largest.lanes * largest.columns}"
    said = fused.explain(wanted(), None)
    assert said.startswith("by head, one launch per sequence") and f"a head of more than {size}," in said


def test_a_loop_without_products_has_its_kernels(spied: Any, tmp_path: Path) -> None:
    fused.attach(
        tmp_path,
        spied,
        {"fused": {"lstm_0": "none"}, "scans": {"lstm_0": "forward walk, backward scan"}, "by_head": [], "newton": []},
    )
    for changed in ({}, {"head_dim": 7}, {"gpu": fused.Gpu((8, 0), 108, 166_912)}):
        assert settled(wanted(**changed)) == Answer(Outcome.NONE, "its loop has kernels for every size")
        said = fused.explain(wanted(**changed), "its loop has kernels for every size")
        assert said.startswith("forward walk, backward scan, one launch per sequence at every size")


def test_the_setting(spied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    assert settled(wanted()).outcome is Outcome.PREVENTED
    assert "RNNCC_COMPILE=0" in settled(wanted()).reason and "rnncc build lstm" in fused.explain(wanted(), None)
    monkeypatch.setenv("RNNCC_COMPILE", "no")
    with pytest.raises(ValueError, match="RNNCC_COMPILE is 'no'"):
        settled(wanted())


def test_the_setting_is_read_on_every_machine() -> None:
    # In a process of its own: a package that is loaded stays so.
    command = [sys.executable, "-c", "import rnncc; rnncc.load('elman')"]
    done = subprocess.run(command, env=os.environ | {"RNNCC_COMPILE": "2"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error[RNN607]: RNNCC_COMPILE is '2'\n  = help: set it to 0 or 1" in done.stderr


@pytest.mark.parametrize("what", ["nothing", "a bare folder", "another module", "one that fails"])
def test_what_is_called_rnncc_may_be_of_no_use(
    what: str, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("rnncc")
    (tmp_path / "rnncc").mkdir()
    monkeypatch.delitem(sys.modules, "rnncc.on_demand", raising=False)
    if what in ("a bare folder", "one that fails"):
        module.__path__ = [str(tmp_path / "rnncc")]
    if what == "one that fails":
        (tmp_path / "rnncc" / "on_demand.py").write_text("1 / 0\n")
    sys_modules: Any = sys.modules
    monkeypatch.setitem(sys_modules, "rnncc", None if what == "nothing" else module)
    answer = settled(wanted())
    assert (
        answer.outcome is Outcome.PREVENTED
        and "cannot be imported" in answer.reason
        and "rnncc build lstm" in answer.reason
    )
    assert fused.explain(wanted(), None).endswith(answer.reason)


def test_kernels_of_another_rnncc_are_not_mixed(spied: Any, tmp_path: Path) -> None:
    fused.attach(tmp_path, spied, {**fused.STATE.about, "code": "0"})
    answer = settled(wanted())
    assert answer.outcome is Outcome.PREVENTED
    assert "another rnncc" in answer.reason and "[RNN609]; build the package again" in answer.reason


NAME = "lstm_0_forward_bf16_64_grid"
GOOD = (
    "table program=lstm_0_forward dtype=bf16 head_dim=64 heads=1 architecture=sm_90a\n"
    f"kernel name={NAME} family=grid scope=grid ctas=8 cluster=1 threads=256 shared_bytes=0 group_batch=8 multiple=1 "
    "concurrent_groups=16 exchange_steps=64 relayed_head_dim=0 for_zeros=0 directions=2\n"
    f"row batch=1 kernels={NAME} pass_ns=540\n"
)


def test_kernels_of_other_gpus_do_not_count(spied: Any, tmp_path: Path) -> None:
    """A package for an A100 and an H200 on other GPUs: what each runs of it, and what it does not."""
    forward = GOOD.replace("sm_90a", "sm_80")
    backward = forward.replace("forward", "backward").replace("shared_bytes=0", "shared_bytes=150000")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "fused.txt").write_text(GOOD + forward + backward, encoding="utf-8")
    fused.attach(tmp_path, spied, fused.STATE.about)
    for gpu, has in {
        fused.Gpu((8, 0), 108, 166_912): True,
        fused.Gpu((8, 0), 4, 166_912): False,  # it has too few SMs
        fused.Gpu((8, 6), 82, 101_376): False,  # the backward takes more shared memory than it has
        H200: False,  # no backward
        fused.Gpu((10, 0), 148, 232_448): False,
    }.items():
        assert fused.has_kernel(wanted(gpu=gpu)) is has, gpu
        is_forward = gpu.sms > 8 and gpu.capability < (10, 0)
        assert ("forward grid" in fused.explain(wanted(gpu=gpu), "no NVRTC")) is is_forward, gpu


@pytest.mark.parametrize(
    "bad",
    [
        GOOD.replace(old, new)
        for old, new in (
            ("row batch=1", "kernel batch=1"),
            (" ctas=8", " ctas=0"),
            (" ctas=8", " ctas=8 ctas=8"),
            (" ctas=8", ""),
            (" ctas=8", " 8"),
            (" cluster=1", " cluster=3"),
            ("for_zeros=0", "for_zeros=2"),
            ("directions=2", "directions=3"),
            ("directions=2", "directions=0"),
            ("exchange_steps=64", "exchange_steps=-1"),
            ("exchange_steps=64", "exchange_steps=0"),
            ("concurrent_groups=16", "concurrent_groups=0"),
            ("scope=grid", "scope=tile"),
            ("batch=1 ", "batch=2 "),
            ("row", "rows"),
            ("pass_ns=540", "pass_ns=0.54"),
            ("pass_ns=540", "pass_ns="),
            (f"kernels={NAME}", "kernels=other"),
            ("sm_90a", "sm_90b"),
            ("sm_90a", "compute_9"),
            ("540\n", "540"),
            ("540\n", "540\n\n"),
            ("family=grid", "family=gr\xefd"),
        )
    ],
)
def test_a_bad_index_is_one_of_no_kernels(bad: str, spied: Any, tmp_path: Path) -> None:
    index = tmp_path / "cuda" / "fused.txt"
    index.parent.mkdir()
    index.write_text(GOOD, encoding="utf-8")
    fused.attach(tmp_path, spied, fused.STATE.about)
    assert fused.explain(wanted(), None) == "fused (forward grid), made for 1 head with head_dim 64, bfloat16"
    index.write_text(GOOD + bad, encoding="latin-1")
    fused.attach(tmp_path, spied, fused.STATE.about)
    assert "index of fused kernels cannot be read; the first call" in fused.explain(wanted(), None)
