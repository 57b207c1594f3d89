"""`rnncc draw` as a command: where the picture goes, and what is refused."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from rnncc.cli import cli
from rnncc.show.draw import draw
from tests.test_draw import TEXTS, shipped


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["draw", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command(tmp_path: Path) -> None:
    code, output = run("elman")
    assert code == 0
    assert output == draw(shipped("elman"))
    target = tmp_path / "gru.svg"
    assert run("gru", "-o", str(target), "--theme", "dark") == (0, f"wrote {target}\n")
    assert target.read_text(encoding="utf-8") == draw(shipped("gru"), "dark")
    assert run("gru", "--theme", "blue")[0] == 2
    both = tmp_path / "both.rnn"
    both.write_text("cell One\nstate h\nh[t] = W@x\n\ncell Two\nstate h\nh[t] = tanh(W@x)\n")
    code, output = run(str(both))
    assert (code, "one of One, Two" in output) == (2, True)
    assert "One step of Two" in run(str(both), "--cell", "Two")[1]
    both.write_text("cell One\nstate h\nh[t] = tahn(x)\n")
    assert run(str(both))[0] == 1


def test_the_cell_itself_is_not_overwritten(tmp_path: Path) -> None:
    cell = tmp_path / "lstm.rnn"
    cell.write_text(TEXTS["lstm"], encoding="utf-8")
    code, output = run(str(cell), "-o", str(cell))
    assert code == 2 and "is the cell itself" in output
    assert cell.read_text(encoding="utf-8") == TEXTS["lstm"]
    assert run(str(cell), "-o", str(tmp_path / "none" / "lstm.svg"))[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["lstm.rnn"]
