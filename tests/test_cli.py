"""The command line: what it prints, its exit codes, and what it keeps from importing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rnncc.cli import cli
from rnncc.machine.paths import cells_dir, locate, shipped_cells
from rnncc.pipeline import STAGES
from tests.shared_objects import keep_for_every_processor

ROOT = Path(__file__).resolve().parents[1]
GOOD = "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n"
BAD = "cell Elman\nstate h\nh[t] = tahn(W@x + R@h + b)\n"
# The command, in a process that has failed if it imported torch.
WITHOUT_TORCH = (
    "import sys; from rnncc.cli import cli; cli(sys.argv[1:], standalone_mode=False); sys.exit('torch' in sys.modules)"
)
TWO = GOOD + "\n" + GOOD.replace("Elman", "Relu").replace("tanh", "relu")


def run(*arguments: str | Path) -> Result:
    """The command in this process; anything but an exit code is an error of the test."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another Python with rnncc importable."""
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def write(folder: Path, text: str, name: str = "elman.rnn") -> Path:
    """A `.rnn` file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# new


@pytest.mark.parametrize(
    ("name", "file", "cell"), [("my_cell", "my_cell.rnn", "MyCell"), ("LIF2.rnn", "LIF2.rnn", "LIF2")]
)
def test_new_writes_a_cell_without_faults(tmp_path: Path, name: str, file: str, cell: str) -> None:
    assert run("new", tmp_path / name).exit_code == 0
    text = (tmp_path / file).read_text()
    assert f"\ncell {cell}\n" in text
    checked = run("check", "--json", tmp_path / file)
    assert json.loads(checked.stdout)["files"][0]["diagnostics"] == []


def test_new_says_what_a_shipped_name_means(tmp_path: Path) -> None:
    said = run("new", tmp_path / "LSTM").stderr
    assert f"'LSTM' alone still means the cell that rnncc ships; this one is '{tmp_path / 'LSTM.rnn'}'" in said
    assert not run("new", tmp_path / "lstm2").stderr


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = run("new", path)
    assert result.exit_code == 1
    assert "exists already" in result.stderr
    assert path.read_text() == GOOD


def test_new_names_a_folder_that_is_missing(tmp_path: Path) -> None:
    result = run("new", tmp_path / "sub" / "abc")
    assert result.exit_code == 1
    assert f"there is no folder '{tmp_path / 'sub'}'" in result.stderr


def test_new_refuses_what_is_no_name(tmp_path: Path) -> None:
    for name in ("two words", "class", "_cell"):
        assert "RNN604" in run("new", tmp_path / name).stderr
        assert not (tmp_path / f"{name}.rnn").exists()
    assert not list(tmp_path.iterdir())


# check


def test_check_of_a_good_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = run("check", path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{path}: ok\n", "")


def test_check_of_standard_input() -> None:
    command = [sys.executable, "-m", "rnncc", "check", "/dev/stdin"]
    found = subprocess.run(command, input=GOOD, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "/dev/stdin: ok\n", "")


def test_check_reports_everything_and_exits_1(tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    result = run("check", path)
    assert result.exit_code == 1
    assert "error[RNN203]" in result.stdout
    assert "error[RNN201]" in result.stdout
    assert f"--> {path}:3:8" in result.stdout
    assert result.stdout.endswith(f"{path}: 2 errors\n")
    assert "\x1b" not in result.stdout


def test_check_json_holds_places(tmp_path: Path) -> None:
    good, bad = write(tmp_path, GOOD, "good.rnn"), write(tmp_path, BAD, "bad.rnn")
    result = run("check", "--json", good, bad)
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert report["ok"] is False
    assert [entry["ok"] for entry in report["files"]] == [True, False]
    first = report["files"][1]["diagnostics"][0]
    assert (first["code"], first["severity"], first["line"], first["column"]) == ("RNN203", "error", 3, 8)
    assert first["file"] == str(bad)
    assert (first["end_line"], first["end_column"]) == (3, 12)
    assert "tanh" in first["help"]


def test_check_goes_on_after_a_file_that_is_missing(tmp_path: Path) -> None:
    result = run("check", tmp_path / "missing.rnn", write(tmp_path, GOOD))
    assert result.exit_code == 1
    assert "RNN101" in result.stdout
    assert "elman.rnn: ok" in result.stdout


def test_pedantic_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace(" + b", ""))
    assert "RNN258" not in run("check", path).stdout
    assert "RNN258" in run("check", "--pedantic", path).stdout


NONSENSE = {
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "zeros": b"\x00" * 100,
    "half a header": b"cell",
    "open brackets": b"(" * 5000,
    "deep": b"cell A\nstate h\nh[t] = " + b"-" * 100_000 + b"h[t-1]\n",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE.keys())
@pytest.mark.parametrize("command", ["check", "explain", "show --stage=render", "build"])
def test_nonsense_is_a_diagnostic_and_no_traceback(tmp_path: Path, data: bytes, command: str) -> None:
    path = tmp_path / "nonsense.rnn"
    path.write_bytes(data)
    result = run(*command.split(), path)
    assert result.exit_code == 1
    assert "error[RNN1" in result.stdout + result.stderr


def test_a_folder_is_no_cell(tmp_path: Path) -> None:
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "RNN101" in result.stdout


# show, explain


@pytest.mark.parametrize("stage", STAGES)
def test_show_prints_every_stage(stage: str) -> None:
    result = run("show", "lstm", "--stage", stage)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) > (0 if stage in ("classify", "schedule") else 5)


def test_show_of_an_unknown_stage_is_a_usage_error() -> None:
    result = run("show", "lstm", "--stage", "optimise")
    assert result.exit_code == 2
    assert "differentiate" in result.stderr


def test_explain_json_has_the_keys_of_the_plan() -> None:
    facts = json.loads(run("explain", "lstm", "--json").stdout)
    assert facts["cell"] == "LSTM"
    assert [state["name"] for state in facts["states"]] == ["h", "c"]
    assert facts["classes"][0]["class"] == "DENSE"
    assert facts["phases"] == 1
    keys = {"streams", "saved", "outputs", "family", "scope", "tiles", "registers", "shared_bytes", "kernels"}
    assert keys | {"predicted_us_per_step", "solve_ms", "rejected"} <= set(facts)


def test_explain_names_the_states_of_the_text_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "cell Late\nstate h\nh[t] = tanh(W@x + R@h[t-3] + b)\n")
    assert json.loads(run("explain", "--json", path).stdout)["classes"][0]["states"] == ["h"]
    assert "segment 0: h: DENSE: R@h[t-3] mixes the units" in run("explain", path).stdout


def test_explain_json_is_a_list_for_several_cells(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    assert [facts["cell"] for facts in json.loads(run("explain", "--json", path).stdout)] == ["Elman", "Relu"]
    assert json.loads(run("explain", "--json", "--cell", "Relu", path).stdout)["cell"] == "Relu"
    unknown = run("explain", "--cell", "Gelu", path)
    assert unknown.exit_code == 2
    assert "Elman, Relu" in unknown.stderr


def test_explain_of_a_bad_file_with_json_prints_json(tmp_path: Path) -> None:
    result = run("explain", "--json", write(tmp_path, BAD))
    assert result.exit_code == 1
    assert {row["code"] for row in json.loads(result.stdout)["diagnostics"]} == {"RNN201", "RNN203"}


def test_an_unknown_target_is_refused_alike(tmp_path: Path) -> None:
    for command in ("explain", "build"):
        result = run(command, write(tmp_path, GOOD), "--target", "banana")
        assert result.exit_code == 1
        assert "RNN606" in result.stderr and "auto, cpu" in result.stderr


def test_explain_lists_what_the_sizes_must_fulfil(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("W@x", "x"))
    assert "sizes must fulfil: I == H (line 3)" in run("explain", path).stdout
    assert "I == H" in json.loads(run("explain", "--json", path).stdout)["constraints"]


def test_explain_of_a_code() -> None:
    text = run("explain", "rnn203").stdout
    assert text.startswith("RNN203: ")
    assert "cell " in text
    assert json.loads(run("explain", "RNN203", "--json").stdout)["code"] == "RNN203"
    assert run("explain", "RNN999").exit_code == 2


def test_infinite_numbers_are_valid_json() -> None:
    facts = json.loads(run("explain", "slstm", "--json").stdout, parse_constant=pytest.fail)
    assert {state["name"]: state["initial"] for state in facts["states"]}["m"] == "-inf"


# cells, env, names


def test_cells_lists_every_shipped_cell() -> None:
    rows = json.loads(run("cells", "--json").stdout)["cells"]
    assert [row["file"] for row in rows] == [path.stem for path in shipped_cells()]
    assert all(row["citation"] and row["kinds"] for row in rows)
    lines = run("cells").stdout.splitlines()
    assert len(lines) == len(rows) + 1


def test_an_existing_file_goes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("lstm") == cells_dir() / "lstm.rnn"
    assert locate("LSTM") == cells_dir() / "lstm.rnn"
    # A folder is what `rnncc build lstm` leaves.
    Path("lstm").mkdir()
    assert locate("lstm") == cells_dir() / "lstm.rnn"
    Path("lstm").rmdir()
    Path("lstm").write_text(GOOD)
    assert locate("lstm") == Path("lstm")


def test_a_misspelt_name_gets_a_suggestion() -> None:
    assert "'lstm'" in run("explain", "lsmt").stderr


# build, verify


def test_build_without_a_compiler_exits_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path / "cache"))
    result = run("build", write(tmp_path, GOOD), "-o", tmp_path / "out")
    assert result.exit_code == 3
    assert "RNN601" in result.stderr
    assert "apt install g++" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["json", "1x", "torch", "class"])
def test_build_refuses_a_name_that_cannot_be_imported(tmp_path: Path, name: str) -> None:
    result = run("build", write(tmp_path, GOOD), "-o", tmp_path / "out", "--name", name)
    assert result.exit_code == 1
    assert "RNN604" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def objects() -> None:
    keep_for_every_processor()


@pytest.mark.usefixtures("objects")
def test_build_makes_a_package_that_needs_no_rnncc(tmp_path: Path, cell_cache: Path) -> None:
    path = write(tmp_path, TWO, "two.rnn")
    environment = {"RNNCC_CACHE_DIR": str(cell_cache)}
    built = python("-c", WITHOUT_TORCH, "build", str(path), "-o", "out", cwd=tmp_path, **environment)
    assert built.returncode == 0, built.stderr
    assert built.stdout == f"{Path('out', 'two')}\n"
    assert "compiling" in built.stderr

    # A second build finds the first: fast, and without any of the heavy libraries.
    program = (
        "import sys; from rnncc.cli import cli; cli(sys.argv[1:], standalone_mode=False); "
        "sys.exit(any(name in sys.modules for name in ('lark', 'sympy', 'jinja2', 'torch')))"
    )
    again = python("-c", program, "build", str(path), "-o", "out", cwd=tmp_path, **environment)
    assert again.returncode == 0, again.stderr
    assert "compiling" not in again.stderr

    # Alone in a folder of its own, with rnncc out of reach.
    use = (
        "import sys; sys.modules['rnncc'] = None\n"
        "import torch, two\n"
        "for layer in (two.Elman, two.Relu):\n"
        "    output, h = layer(3, 5)(torch.ones(4, 2, 3))\n"
        "    assert output.shape == (4, 2, 5) and torch.equal(output[-1], h[0])\n"
        "assert not any(name in sys.modules for name in ('lark', 'sympy', 'jinja2'))\n"
    )
    alone = python("-c", use, cwd=tmp_path / "out")
    assert alone.returncode == 0, alone.stderr


def test_verify_compares_every_gradient() -> None:
    result = run("verify", "elman", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report
    assert report["passed"] is True
    quantities = {row["quantity"] for row in report["rows"]}
    assert {"output", "h_n", "d_x", "d_h0", "d_W_h", "d_R_h", "d_b_h"} <= quantities


def test_verify_fails_where_the_op_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from rnncc import verify

    def wrong(*_: Any, **__: Any) -> verify.Report:
        row = verify.Row("output", "float64", float("nan"), 1e-10)
        return verify.Report((row,), {"float64": verify.Runner("cpu")})

    monkeypatch.setattr(verify, "verify", wrong)
    result = run("verify", "elman")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout


# cost


# `build` is one of them: test_build_makes_a_package_that_needs_no_rnncc.
@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["new", "check", "explain", "show"])
def test_commands_on_text_never_import_torch(tmp_path: Path, command: str) -> None:
    extra = ["--stage", "render"] if command == "show" else []
    argument = "fresh" if command == "new" else str(cells_dir() / "elman.rnn")
    result = python("-c", WITHOUT_TORCH, command, argument, *extra, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_check_imports_the_stages_that_it_runs_and_no_others(tmp_path: Path) -> None:
    program = (
        "import sys; from rnncc.cli import cli; cli(sys.argv[1:], standalone_mode=False); "
        "print(*(name for name in sys.modules if name.startswith('rnncc')))"
    )
    result = python("-c", program, "check", str(write(tmp_path, GOOD)), cwd=tmp_path)
    names = set(result.stdout.splitlines()[-1].split())
    assert {name.split(".")[2] for name in names if name.count(".") > 1 and name.startswith("rnncc.stages.")} == {
        "parse", "check", "partition",
    }  # fmt: skip
    assert not names & {"rnncc.machine.cache", "rnncc.cli.environment", "rnncc.verify", "rnncc.stages.schedule.kernels"}


def test_output_has_colour_on_a_terminal_alone(tmp_path: Path) -> None:
    import pty

    path = write(tmp_path, BAD)
    controller, terminal = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    command = [sys.executable, "-m", "rnncc", "check", str(path)]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=terminal, stderr=terminal, timeout=60, check=False)
    os.close(terminal)
    seen = os.read(controller, 100_000).decode()
    os.close(controller)
    assert "\x1b[1;31merror[RNN203]\x1b[0m" in seen
