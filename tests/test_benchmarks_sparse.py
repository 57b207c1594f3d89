"""The logic of benchmarks/gpu_sparse.py, which needs no GPU: what is measured, by which kernels, compared with what,
resumed, printed and drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_sparse")


@pytest.fixture
def cases(sparse: Any) -> Any:
    return import_module("sparse_cases")


def rows_of(sparse: Any, wanted: list[Any]) -> list[dict[str, Any]]:
    """Made-up rows: a step of dense kernels takes 10 us, of what is chosen 5, of kernels for zeros 100 times the
    density; with backward twice as much. torch's loop takes 300."""
    rows = []
    for case in wanted:
        step = {"dense": 10.0, "rnncc": 5.0, "forced": 100 * case.density, "csr": 300.0}[case.who]
        ms = step * (1 + (case.run == "fw+bw")) * case.steps / 1e3
        own = {} if case.who == "csr" else {"kernels": "some"}
        queued = None if case.who == "csr" else ms
        rows.append(sparse.row_of(case, **own, call_ms=ms if queued is None else ms + 0.1, queued_ms=queued, repeats=5))
    return rows


def test_words_choose_cases(sparse: Any, cases: Any) -> None:
    full, quick = sparse.select([], quick=False), sparse.select([], quick=True)
    assert set(quick) < set(full) and len(full) == len(set(full))
    assert {case.who for case in full} == set(cases.WHO)
    targets = sparse.select(["targets"], quick=True)
    assert {cases.target_of(case) is not None for case in targets if case.who == "dense"} == {False}
    asked = [case for case in targets if cases.target_of(case)]
    assert {case.shape for case in asked} == set(cases.TARGETS) and len(asked) == 2 * len(cases.TARGETS)
    # Each is beside the dense kernel of the same size, in the same pass and over as many steps.
    assert {case.dense for case in full} - set(full) == set()
    assert all(case.dense.steps == case.steps for case in full if case.who != "csr")
    crossover = sparse.select(["crossover", "rnncc"], quick=False)
    points = {(c.hidden, c.density) for c in crossover if c.batch == 4}
    assert len(points) == 3 * 7 + 3 and {c.hidden for c in crossover if c.batch == 16} == {1024, 2048, 4096}
    with pytest.raises(ValueError, match="nix"):
        sparse.select(["nix"], quick=True)


@pytest.mark.parametrize(
    ("shape", "run", "for_zeros", "forced_reason"),
    [
        (("lstm", 1024, 4, 0.3), "fw", [False], ""),
        # The dense kernel fits on chip here: kernels for zeros are not expected to be enough faster, but for the fewest
        # elements.
        (("lstm", 2048, 4, 0.05), "fw", [False], ""),
        (("lstm", 2048, 16, 0.01), "fw", [True], ""),
        (("lstm", 2304, 4, 0.1), "fw", [True], ""),
        (("lstm", 4096, 4, 0.02), "fw+bw", [True, True], ""),
        # The alternating kernel is not among the fused ones.
        (("lstm", 4096, 4, 0.5), "fw", [], "inference: not sparse"),
        (("lstm", 4096, 16, 0.1, 16), "fw", [True], ""),
        (("lstm", 4096, 16, 1.0, 1, 256), "fw", [False], None),
    ],
    ids=str,
)
def test_which_kernels_a_case_has(
    shape: tuple[Any, ...], run: str, for_zeros: list[bool], forced_reason: str | None, sparse: Any, cases: Any
) -> None:
    packages, shape_ = import_module("sparse_packages"), cases.Shape(*shape)
    chosen, forced = (cases.case_of_shape(who, shape_, run) for who in ("rnncc", "forced"))
    text = shape_.text("Some")
    plan = compile_cells(Request(Source("some.rnn", text), "some"), "lower").cells[0].plan
    assert [kernel.family.for_zeros for _, kernel in packages.plan_case(chosen, plan).kernels] == for_zeros
    if forced_reason is None:
        return
    found = packages.plan_case(forced, plan)
    assert found.impossible.startswith(forced_reason) and bool(found.impossible) == bool(forced_reason)
    assert len(found.kernels) == (0 if forced_reason else 1 if run == "fw" else 2)
    assert all(kernel.family.for_zeros and kernel.launches(shape_.batch) for _, kernel in found.kernels)


def test_a_package_has_the_alternating_kernels_that_run_its_cases(sparse: Any, cases: Any) -> None:
    """Those of bfloat16 without lengths and resets, and none for cells that have others."""
    packages = import_module("sparse_packages")
    few, many = cases.Shape("lstm", 4096, 4, 0.01), cases.Shape("lstm", 4096, 4, 0.5)
    wanted = [cases.case_of_shape("rnncc", shape, run) for shape in (few, many, many.dense) for run in ("fw", "fw+bw")]
    texts = {packages.cell_name(case): case.shape.text(packages.cell_name(case)) for case in wanted}
    request = Request(Source("some.rnn", "\n".join(texts.values())), "some", architectures=("sm_90a",))
    made = compile_cells(request)
    plans = {cell.name: cell.plan for cell in made.cells}
    found = [packages.plan_case(case, plans[packages.cell_name(case)]) for case in wanted]
    names = {f"{packages.cell_name(case).lower()}_0_forward_bf16" for case in wanted[2:]}
    assert {name for planned in found for name in planned.alternating} == names
    assert [len(planned.alternating) for planned in found] == [0, 0, 1, 1, 1, 1]
    assert {unit.name for unit in packages.units_of(made.bundle.device_units, sorted(names))} == {"_core", *names}
    with pytest.raises(ValueError, match="no kernels are called rnncc_bf16"):
        packages.units_of(made.bundle.device_units, ["rnncc_bf16"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "shape",
    [
        ("lstm", 32, 3, 0.25),
        ("elman", 32, 2, 0.1),
        ("lstm", 32, 2, 0.25, 16),
        ("lstm", 32, 2, 1.0, 1, 4),
        ("elman", 32, 2),
    ],
    ids=str,
)
def test_results_are_compared(shape: tuple[Any, ...], sparse: Any, cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, own = import_module("sparse_calls"), cases.Shape(*shape)
    module = rnncc.compile(own.text("Some"), "sparse_bench_some")
    monkeypatch.setattr(calls, "op_of", lambda case: (module.some, module.Some))
    numbers = calls.Numbers(own, "cpu", torch.float32)
    if numbers.mask is not None:
        per_row = numbers.mask.sum(1)
        assert (per_row == max(1, round(own.density * own.hidden / own.block)) * own.block).all()
        assert (numbers.weights[0][~numbers.mask] == 0).all()
    right = calls.known(numbers)
    for run in ("fw", "fw+bw"):
        case = cases.case_of_shape("rnncc", own, run)
        found = calls.errors(case, numbers, right)
        assert all(error < 1e-5 for error in found.values()) and len(found) == (
            1 if run == "fw" else 2 + len(numbers.weights)
        )
        monkeypatch.setattr(calls, "CHECKED_STEPS", 4)
        calls.timed(case, numbers)()
        # A kernel that is off by a few percent is wrong.
        monkeypatch.setattr(calls, "run_op", lambda case, inputs, run_op=calls.run_op: 1.03 * run_op(case, inputs))
        with pytest.raises(calls.WrongError, match=r"output is off by 0\.03"):
            calls.errors(case, numbers, right)
        monkeypatch.undo()
        monkeypatch.setattr(calls, "op_of", lambda case: (module.some, module.Some))


def test_a_package_that_was_not_built_is_named(sparse: Any, cases: Any) -> None:
    calls = import_module("sparse_calls")
    case = cases.case_of_shape("rnncc", cases.Shape("lstm", 1024, 4, 0.1), "fw")
    with pytest.raises(ValueError, match="no package sparse_bench_lstm_4 with Rnncc_sparse_density_0_1 was built"):
        calls.op_of(case)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_the_loop_of_csr_products_is_the_cell(sparse: Any, cases: Any) -> None:
    calls, shape = import_module("sparse_calls"), cases.Shape("lstm", 32, 2, 0.25)
    numbers = calls.Numbers(shape, "cpu")
    case = cases.case_of_shape("csr", shape, "fw")
    torch.manual_seed(1)
    loop = calls.csr_loop(case, numbers)
    torch.manual_seed(1)
    exact = [each.float() for each in numbers.inputs(case.steps, trained=False)]
    torch.testing.assert_close(loop(), calls.reference(numbers, exact))


def test_a_run_goes_on_where_it_stopped(sparse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = sparse.select(["targets", "elman"], quick=True)
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "impossible.json").write_text("[]")
    asked: list[Any] = []

    def measure(case: Any, *_: Any) -> dict[str, Any]:
        asked.append(case)
        (row,) = rows_of(sparse, [case])
        return row

    monkeypatch.setattr(sparse, "measure", measure)
    monkeypatch.setattr(sparse, "Numbers", lambda shape: None)
    monkeypatch.setattr(sparse, "known", lambda numbers: None)
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    monkeypatch.syspath_prepend(str(folder))
    results = sparse.Results(tmp_path / "rows.json", {"gpu": "none"})
    for row in rows_of(sparse, wanted[:3]):
        results.add(row)
    # What failed is measured again.
    results.add(sparse.row_of(wanted[3], error="RuntimeError: this package has no kernels"))
    sparse.run(wanted, results, folder, 3)
    assert set(asked) == set(wanted[3:]) and len(results.rows) == len(wanted)
    assert not [row for row in results.rows if "error" in row]
    reason = "inference: no room"
    monkeypatch.setattr(sparse, "impossible_cases", lambda path: {wanted[0]: reason})
    results = sparse.Results(tmp_path / "others.json", {"gpu": "none"})
    sparse.run(wanted[:1], results, folder, 3)
    assert [row["error"] for row in results.rows] == [reason] and len(asked) == len(wanted) - 3
    # What no kernel can run stays so.
    sparse.run(wanted[:1], results, folder, 3)
    assert len(results.rows) == 1 and len(asked) == len(wanted) - 3


def test_the_table_compares(sparse: Any, cases: Any) -> None:
    wanted = sparse.select([], quick=False)
    rows = rows_of(sparse, wanted)
    lines = list(sparse.table(rows))
    line = next(line for line in lines if line.startswith("rnncc     lstm  4096   4 sparse(density=0.05)"))
    # 5 us of 10, 60 times as quick as torch's loop; 4.0 must be reached.
    assert line.split()[4:] == [
        "sparse(density=0.05)",
        "fw",
        "5.00",
        "10.00",
        "0.50",
        "60",
        "4.0",
        "2.5",
        "MISS",
        "some",
    ]
    said = list(sparse.verdict(rows))
    assert said[0].startswith("worst ratio of what is chosen to dense: 0.500, ")
    assert not [line for line in said if line.startswith("FAILED")]
    assert "MISS: 5.00 us, must 4.0: rnncc lstm 4096 B=4 sparse(density=0.05) fw" in said

    case = cases.case_of_shape("rnncc", cases.Shape("lstm", 1024, 4, 0.1), "fw+bw")
    place = wanted.index(case)
    rows[place]["queued_ms"] *= 2.07
    said = list(sparse.verdict(rows))
    assert said[0].endswith("1.035, lstm 1024 B=4 sparse(density=0.1) fw+bw")
    failed = [line for line in said if line.startswith("FAILED")]
    assert failed == ["FAILED: slower than dense, 1.035: lstm 1024 B=4 sparse(density=0.1) fw+bw: some"]
    # What is wrong fails. What no kernel can run does not.
    rows[place] = sparse.row_of(case, error="wrong: output is off by 0.5")
    rows[place + 1] = sparse.row_of(wanted[place + 1], impossible=True, error="inference: no room")
    said = list(sparse.verdict(rows))
    assert [line for line in said if line.startswith("FAILED")] == [
        f"FAILED: rnncc {case.shape} fw+bw: {rows[place]['error']}"
    ]
    assert sum("cannot run: inference: no room" in line for line in sparse.table(rows)) == 1


@pytest.mark.long
def test_the_picture_is_drawn(sparse: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "rows.json"
    results = sparse.Results(path, {"gpu": "none"})
    wanted = sparse.select(["crossover"], quick=False)
    results.rows = rows_of(sparse, wanted[:-1])
    results.add(sparse.row_of(wanted[-1], impossible=True, error="no room"))
    drawn = import_module("sparse_table").lines(results.rows, "fw", 2048, 4)
    percent = [1, 2, 5, 10, 20, 30, 50]
    assert [density for density, _ in drawn["forced"]] == pytest.approx(percent)
    assert [time for _, time in drawn["forced"]] == pytest.approx(percent)
    assert [time for _, time in drawn["dense"]] == pytest.approx([10] * 7)
    assert sparse.main(["--show", str(path), "--plot", str(tmp_path / "made" / "sparse.png")]) == 0
    assert (tmp_path / "made" / "sparse.png").read_bytes().startswith(b"\x89PNG")
    assert "worst ratio" in capsys.readouterr().out


@pytest.mark.long
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """Also where its modules are found by the script's folder alone."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / "gpu_sparse.py"), "--packages", str(tmp_path), "--out", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("gpu_sparse: there is no CUDA device; ") and not (tmp_path / "a").exists()


def test_what_is_compared_is_in_one_shard(sparse: Any, cases: Any) -> None:
    every = cases.select([], quick=False)
    shards = [sparse.shard_of(every, f"{i}/4") for i in range(1, 5)]
    assert sorted(map(repr, (case for own in shards for case in own))) == sorted(map(repr, every))
    for own in shards:
        assert own and {case.dense for case in own if case.who == "rnncc"} <= set(own)
    with pytest.raises(ValueError, match="a part like"):
        sparse.shard_of(every, "5/4")
