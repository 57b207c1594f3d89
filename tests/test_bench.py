"""`rnncc bench`: what it measures, what it leaves out and says so, and what it draws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import rnncc
from rnncc.bench import measure as measuring
from rnncc.bench import timing
from rnncc.bench.limit import TooLong, time_limit
from rnncc.bench.measure import Measured, Spread, spread
from rnncc.bench.parties import COMPILED, EAGER, NAMES, OURS, PEERS
from rnncc.bench.report import number
from rnncc.cli import cli
from tests.test_bench_parts import gpu_report

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("--hidden", "8", "--batch", "2", "--steps", "3", "--seconds", "1e-9")
# A second input, one per sequence, one with a default, and two cells.
CELLS = """\
cell Gap
input gap: 1 = 1
input context: 3 per sequence
weights U: matrix
state h
h[t] = tanh(W@x + gap*(R@h[t-1]) + U@context + b)

cell Plain
state h
h[t] = tanh(W@x + R@h[t-1])
"""


def run(*arguments: str | Path) -> Result:
    """The command in this process; anything but an exit code is an error of the test."""
    result = CliRunner().invoke(cli, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_it_measures_everybody_in_both_passes(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    result = run("elman", *SMALL, "--compile-limit", "0", "--json", path)
    assert result.exit_code == 0, result.output
    made = json.loads(path.read_text(encoding="utf-8"))
    assert made["machine"]["rnncc"] == rnncc.__version__ and "commit" not in made["machine"]
    (cell,) = made["cells"]
    assert (cell["cell"], cell["hidden"], cell["input"], cell["dtype"], cell["complete"]) == (
        "Elman",
        8,
        8,
        "fp32",
        True,
    )
    parties = [name for name in NAMES if name != COMPILED]
    assert [(row["pass"], row["who"]) for row in cell["rows"]] == [
        (way, name) for way in ("forward", "training") for name in parties
    ]
    for row in cell["rows"]:
        call = row["call"]
        assert 0 < call["low_ms"] <= call["median_ms"] <= call["high_ms"] and call["rounds"] == timing.LEAST_ROUNDS
        assert row["queued"] is None and (row["over_rnncc"] == 1) is (row["who"] == OURS)
    assert {(each["pass"], each["who"]) for each in cell["left_out"]} == {("forward", COMPILED), ("training", COMPILED)}
    # What is printed is what was measured.
    for row in cell["rows"]:
        line = next(line for line in result.stdout.splitlines() if f" {row['who']} " in line and row_is(line, row))
        assert f" {number(row['over_rnncc'])}x" in line
    assert {each["reason"] for each in cell["left_out"]} == {"not asked for"} and "left out" not in result.stdout
    assert [each["schedule_ms"] for each in cell["expected"]] == [None, None]
    assert cell["roofs"]["flops_per_s"] > 1e9 and "roofline training: " in result.stdout


def row_is(line: str, row: dict[str, Any]) -> bool:
    """Whether a line of the table has the row's median."""
    return f" {number(row['call']['median_ms'])} " in line


def test_passes_and_parties_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    result = run("elman", *SMALL, "--pass", "training", "--without", "nn,compiled", "--json", path)
    assert result.exit_code == 0
    (cell,) = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert [(row["pass"], row["who"]) for row in cell["rows"]] == [("training", OURS), ("training", EAGER)]


@pytest.mark.long
def test_inputs_of_a_cell_s_own_and_several_cells(tmp_path: Path) -> None:
    path = tmp_path / "two.rnn"
    path.write_text(CELLS, encoding="utf-8")
    result = run(path, *SMALL, "--without", "nn,compiled,eager", "--json", tmp_path / "made.json")
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    assert [cell["cell"] for cell in made["cells"]] == ["Gap", "Plain"]
    one = run(path, *SMALL, "--without", "nn,compiled,eager", "--cell", "Plain")
    assert "Plain (" in one.stdout and "Gap" not in one.stdout


def test_sizes_of_a_cell_s_own() -> None:
    assert "needs the keyword argument P" in run("lstmp", *SMALL).stderr
    result = run("lstmp", *SMALL, "--size", "P=4", "--without", "nn,compiled,eager")
    assert result.exit_code == 0 and "1 head, P 4, batch 2" in result.stdout


@pytest.mark.long
def test_a_size_is_for_the_cells_that_declare_it(tmp_path: Path) -> None:
    path, made = tmp_path / "two.rnn", tmp_path / "made.json"
    wide = "cell Wide\ndim D\ninput x, k: D\nweights V: matrix\nstate h\nh[t] = tanh(W@x + V@k + R@h[t-1])\n"
    path.write_text(f"{CELLS}\n{wide}", encoding="utf-8")
    given = (path, *SMALL, "--without", "nn,compiled,eager", "--json", made)
    # Said before the first cell is measured, whose times would be lost.
    result = run(*given)
    assert result.exit_code == 2 and "the keyword argument D" in result.stderr and not result.stdout
    assert run(*given, "--size", "D=5", "--steps", "1").exit_code == 0
    cells = json.loads(made.read_text(encoding="utf-8"))["cells"]
    assert [(cell["cell"], cell["own"]) for cell in cells] == [("Gap", {}), ("Plain", {}), ("Wide", {"D": 5})]


def test_a_layer_that_has_no_room_is_said_in_one_line() -> None:
    result = run("lstm", "--hidden", "10000000", "--without", "nn,compiled,eager")
    assert result.exit_code == 2
    assert "error[RNN612]: a layer of these sizes does not fit into memory" in result.stderr


def test_a_size_that_no_cell_declares() -> None:
    result = run("lstm", *SMALL, "--size", "Q=3")
    assert result.exit_code == 2 and "--size: LSTM: no size 'Q'" in result.stderr


def test_json_goes_to_what_is_no_file_and_through_links(tmp_path: Path) -> None:
    given = ("elman", *SMALL, "--without", "nn,compiled,eager", "--pass", "forward", "--steps", "1")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    result = run(*given, "--json", pipe)
    reader.join(10)
    assert result.exit_code == 0 and pipe.is_fifo() and json.loads(read[0])["cells"]
    assert ", 1 step, " in result.stdout
    file, link = tmp_path / "made.json", tmp_path / "link.json"
    link.symlink_to(file)
    assert run(*given, "--json", link).exit_code == 0
    assert link.is_symlink() and json.loads(file.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--json", ""), "is not the name of a file"),
        (("--heads", "3"), "RNN702"),
        (("--size", "P"), "'P' is not NAME=N"),
        (("--size", "Q=3"), "Q"),
        (("--pass", "forward,backward"), "backward: not one of forward, training"),
        (("--without", "cudnn"), "cudnn: not one of eager, compiled, nn"),
        (("--pass", ","), "give some of forward, training"),
        (("--plot", "made.svg"), "'made.svg' would not be what its name says: it is written as .png"),
        (("--json", "made.png"), "'made.png' would not be what its name says: it is written as .json"),
        (("--cell", "Gru"), "no cell 'Gru', only LSTM"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_command_line_is_said_before_the_work(options: tuple[str, ...], said: str) -> None:
    result = run("lstm", *SMALL, *options)
    assert result.exit_code == 2 and said in result.stderr and not result.stdout


def test_a_folder_that_is_not_there_is_said_before_the_work() -> None:
    result = run("lstm", *SMALL, "--json", "no/such/folder/made.json")
    expected = "error[RNN605]: 'no/such/folder/made.json' cannot be written: no such file or directory"
    assert result.exit_code == 1 and expected in result.stderr and not result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    result = run("lstm", *SMALL, "--device", "cuda")
    assert result.exit_code == 3 and "RNN613" in result.stderr and "finds no CUDA device" in result.stderr


def test_a_dtype_that_a_party_lacks_leaves_it_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Refusing(torch.nn.LSTM):
        def forward(self, *_: Any) -> Any:
            raise NotImplementedError("'addmm' is not there for 'Half'\nC++ stack …")

    monkeypatch.setattr("rnncc.bench.parties.PEERS", {**PEERS, "nn.LSTM": (Refusing, 4)})
    result = run("elman", *SMALL, "--without", "compiled,eager", "--json", tmp_path / "made.json")
    assert "left out: nn.LSTM (forward, training): 'addmm' is not there for 'Half'\n" in result.stdout
    (cell,) = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))["cells"]
    assert {row["who"] for row in cell["rows"]} == {OURS, "nn.GRU", "nn.RNN"}


# torch.compile


@pytest.mark.long
def test_the_compiled_loop_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[dict[str, Any]] = []
    true = torch.compile

    def recorded(function: Any, **options: Any) -> Any:
        compiled.append(options)
        return true(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", recorded)
    result = run("elman", *SMALL, "--without", "nn,eager")
    assert result.exit_code == 0
    assert result.stdout.count(" compiled loop ") == 2 and "left out: compiled" not in result.stdout
    assert compiled == [{"fullgraph": True}]
    assert "rnncc: forward: torch.compile of the loop, for at most 60 s\n" in result.stderr


@pytest.mark.long
def test_a_compiler_that_takes_too_long_is_stopped_and_said() -> None:
    """In a process of its own: what torch.compile started must not go on after it."""
    program = (
        "import os, pathlib, sys; from rnncc.cli import cli; cli(sys.argv[1:], standalone_mode=False);"
        "found = [path.read_text().rpartition(') ')[2].split() for path in pathlib.Path('/proc').glob('[0-9]*/stat')];"
        "print([state for state, parent, *_ in found if int(parent) == os.getpid()])"
    )
    arguments = ["bench", "elman", *SMALL, "--steps", "40", "--without", "nn,eager", "--compile-limit", "1.5"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300,
        check=False, env=os.environ | {"PYTHONPATH": path, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reason = "torch.compile, which unrolls the 40 steps, did not end in 1.5 s"
    assert f"left out: compiled loop (forward, training): {reason}\n" in done.stdout
    # What is too long for one pass is not tried for the other, which takes longer.
    assert done.stderr.count("torch.compile of the loop") == 1
    assert done.stdout.endswith("[]\n")


def test_a_time_limit_ends_the_work() -> None:
    begin = time.monotonic()
    with pytest.raises(TooLong), time_limit(0.05):
        while time.monotonic() < begin + 30:
            pass
    assert time.monotonic() < begin + 10
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # nothing comes later


# Python says that it lost the first exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_time_limit_survives_a_swallowed_exception() -> None:
    class Swallows:
        def __del__(self) -> None:
            time.sleep(0.2)

    with pytest.raises(TooLong), time_limit(0.05):
        each = Swallows()
        del each
        time.sleep(30)


def test_another_thread_has_no_limit() -> None:
    ended: list[str] = []

    def work() -> None:
        with time_limit(0.01):
            time.sleep(0.1)
        ended.append("ended")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended


# interrupts


def test_an_interrupt_prints_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    true = timing.rounds

    def stops(timers: Any, **options: Any) -> Any:
        for place, each in enumerate(true(timers, **options)):
            if place == 2:
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr(measuring, "rounds", stops)
    path = tmp_path / "made.json"
    result = run("elman", *SMALL, "--without", "compiled", "--json", path)
    assert result.exit_code == 130
    (cell,) = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cell["complete"] is False and {row["pass"] for row in cell["rows"]} == {"forward"}
    assert {row["call"]["rounds"] for row in cell["rows"]} == {2}
    assert cell["roofs"] is None and not cell["expected"]
    assert "interrupted: these are the rounds that were measured until then" in result.stdout
    assert result.stderr.endswith("rnncc: interrupted\n")


def test_half_a_round_does_not_count() -> None:
    found = Measured()
    found.times = {("forward", OURS, False): [0.001, 0.002, 0.5], ("forward", EAGER, False): [0.004, 0.008]}
    ours, eager = found.rows()
    assert (ours.call.rounds, ours.over, eager.over) == (2, 1.0, 4.0) and ours.call.high < 3
    assert Measured(times={("forward", OURS, False): []}).rows() == []
    assert spread([0.002]) == Spread(2.0, 2.0, 2.0, 1)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from rnncc.bench.plot import plot

    machine = {"processor": "a processor", "threads": 2, "torch": "2", "rnncc": "0", "gpu": "a GPU"}
    empty = gpu_report(rows=[], work={}, roofs=None, expected=[])
    interrupted = gpu_report(work={}, roofs=None, expected=[], complete=False)
    path = tmp_path / "made.png"
    plot([gpu_report(), empty, interrupted], machine, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    result = run("elman", *SMALL, "--without", "compiled,eager", "--plot", tmp_path / "cpu.png")
    assert result.exit_code == 0 and (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "cpu.png", path]


def test_without_matplotlib_it_says_so_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("elman", *SMALL, "--plot", tmp_path / "made.png")
    assert result.exit_code == 3 and "pip install 'rnncc[plot]'" in result.stderr and not result.stdout


@pytest.mark.long
@pytest.mark.parametrize("has_rich", [True, False])
def test_a_terminal_gets_a_drawn_table(has_rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_rich:
        pytest.importorskip("rich")
    import pty

    without = "import sys; sys.modules['rich'] = None; " if not has_rich else ""
    program = f"{without}import sys; from rnncc.__main__ import main; main()"
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", program, "bench", "elman", *SMALL, "--without", "compiled,eager,nn"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path}):
        os.close(terminal)
        seen = b""
        while True:
            try:
                data = os.read(controller, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            seen += data
    os.close(controller)
    assert ("┏" in seen.decode()) is has_rich and "forward + backward" in seen.decode()
