"""What the command line says of itself: help with examples, mistakes in one line, completion."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import rnncc
from rnncc.cli import cli
from rnncc.cli.completion import SHELLS, complete_file, complete_file_or_code

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = list(cli.commands)


def run(*arguments: str, **options: Any) -> Result:
    """The command in this process; anything but an exit code is an error of the test."""
    result = CliRunner().invoke(cli, list(arguments), prog_name="rnncc", **options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def examples(text: str) -> list[str]:
    """The examples of a page of help: the first lines that are commands."""
    lines = [line.strip() for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("rnncc ") and not line.endswith("."))
    return [line for line in lines[first : first + lines[first:].index("")] if line.startswith("rnncc ")]


# help


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_s_help_begins_with_examples(name: str) -> None:
    text = run(name, "--help").stdout
    usage, rest = text.split("\n\n", 1)
    assert usage.startswith(f"Usage: rnncc {name}")
    summary, *_ = rest.split("\n\n", 1)
    assert len(summary.strip().splitlines()) == 1
    shown = examples(rest)
    # Nothing but the summary stands before them, and each is a command line that is understood.
    assert rest.partition(shown[0])[0].split("\n\n")[1:] == ["  "] and rest.index(shown[0]) < rest.index("Options:")
    for line in shown:
        words = shlex.split(line.split("   ")[0])
        assert words[1] == name
        cli.commands[name].make_context(name, words[2:], resilient_parsing=False)


def test_the_first_page_begins_with_examples() -> None:
    text = run("--help").stdout
    shown = examples(text)
    assert len(shown) >= 5 and text.index(shown[0]) < text.index("Options:")
    assert {shlex.split(line)[1] for line in shown} <= set(COMMANDS)
    # Without arguments it is the same page.
    empty = run()
    assert empty.exit_code == 2 and empty.stderr == text


def test_help_of_the_module_begins_with_an_example() -> None:
    assert rnncc.__doc__ is not None
    summary, imports, example, *_ = rnncc.__doc__.split("\n\n")
    assert "import torch, rnncc" in imports and "rnncc.load" in example and "\n" not in summary
    exec(textwrap.dedent(rnncc.__doc__[rnncc.__doc__.index("    import") : rnncc.__doc__.index("On the command")]), {})
    for name in rnncc.__all__:
        assert name in ("__version__", "Diagnostic", "InternalError", "RnnccError") or getattr(rnncc, name).__doc__


# mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("buld lstm", "'buld' is no command; did you mean 'build'? (rnncc --help)"),
        ("Verify", "'Verify' is no command; did you mean 'verify'? (rnncc --help)"),
        ("lstm", "'lstm' is no command, but a cell; did you mean 'rnncc explain lstm'? (rnncc --help)"),
        ("my.rnn", "'my.rnn' is no command, but a cell; did you mean 'rnncc explain my.rnn'? (rnncc --help)"),
        ("xyzzy", "'xyzzy' is no command (rnncc --help)"),
        ("--hiden 3", "no such option '--hiden'"),
        ("build", "missing argument 'FILE...' (rnncc build --help)"),
        ("build lstm --hiden 3", "no such option '--hiden'"),
        ("explain lstm --hidden 0", "invalid value for '--hidden': 0 is not in the range x>=1 (rnncc explain --help)"),
        ("build lstm --heads 3", "--heads and --dtype belong to --hidden"),
        ("explain RNN999", "there is no diagnostic RNN999 (rnncc explain --help)"),
        ("show lstm --stage optimise", "invalid value for '--stage': 'optimise' is not one of"),
        *(
            (f"bench lstm {option}={value}", f"invalid value for '{option}': ")
            for option in ("--seconds", "--compile-limit")
            for value in ("nan", "inf", "-inf", "-1", "1e300", "soon")
        ),
        ("bench lstm --seconds 0", "invalid value for '--seconds': 0.0 is not in the range 0<x<=86400"),
        ("bench lstm --hidden 99999999999999999999", "invalid value for '--hidden': 99999999999999999999 is not in"),
        ("bench lowrankrnn --size R__rank=3", "invalid value for --size: LowRankRNN: no size 'R__rank'"),
        ("completion tcsh", "invalid value for '[SHELL]': 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_command_line_is_one_line_with_a_code(words: str, said: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith("error[RNN612]: ") and result.stderr.count("\n") == 1
    assert said in result.stderr


def test_a_mistake_in_the_command_line_is_json_where_that_was_asked_for() -> None:
    result = run("explain", "--json", "lstm", "--cell", "Gru")
    (diagnostic,) = json.loads(result.stdout)["diagnostics"]
    assert (result.exit_code, diagnostic["code"], result.stderr) == (2, "RNN612", "")


def test_a_mistake_in_a_program_is_none_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another kind still shows where it comes from."""

    @click.command()
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(cli.commands, "broken", broken)
    result = CliRunner().invoke(cli, ["broken"])
    assert isinstance(result.exception, RuntimeError)


def test_new_says_what_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("new", "mine").exit_code == 0
    again = run("new", "mine")
    assert (again.exit_code, again.stderr) == (1, "error[RNN603]: mine.rnn exists already; nothing was written\n")
    nowhere = run("new", "no/mine")
    assert (nowhere.exit_code, nowhere.stderr) == (
        1,
        "error[RNN605]: cannot write no/mine.rnn: there is no folder 'no'\n",
    )


# completion


def values(found: list[Any]) -> list[str]:
    """What is offered, without what the shell completes by itself."""
    return [item.value for item in found if item.type == "plain"]


def test_cells_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lstmine.rnn").touch()
    (tmp_path / "lstm.txt").touch()
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "two.rnn").touch()
    context, argument = click.Context(cli.commands["check"]), cli.commands["check"].params[0]
    found = values(complete_file(context, argument, "lstm"))
    assert found[0] == "lstmine.rnn" and {"lstm", "lstmp"} <= set(found) and "lstm.txt" not in found
    assert values(complete_file(context, argument, "cells/")) == ["cells/two.rnn"]
    assert values(complete_file(context, argument, "./lstm")) == ["./lstmine.rnn"]
    assert values(complete_file(context, argument, "no/such/")) == []
    # Folders are the shell's.
    assert [item.value for item in complete_file(context, argument, "ce") if item.type == "dir"] == ["ce"]
    codes = values(complete_file_or_code(context, argument, "rnn20"))
    assert "RNN203" in codes and all(code.startswith("RNN20") for code in codes)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("new", "completion")])
def test_every_file_argument_completes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = [each for each in cli.commands[name].params if isinstance(each, click.Argument)]
    for argument in arguments:
        context = click.Context(cli.commands[name])
        # A shipped cell is not there to be formatted.
        typed, offered = (
            ("tests/fixtures/spars", "tests/fixtures/sparselstm.rnn") if name == "format" else ("lst", "lstm")
        )
        assert offered in values(argument.shell_complete(context, typed))


def in_a_shell(words: str, place: int, tmp_path: Path) -> list[str]:
    """What bash would offer for the word at a place."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {"_RNNCC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", "from rnncc.__main__ import main; main()"], env=os.environ | given, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line.startswith("plain,")]


def test_a_shell_asks_by_an_environment_variable(tmp_path: Path) -> None:
    assert in_a_shell("rnncc b", 1, tmp_path) == ["build", "bench"]
    assert "lstm" in in_a_shell("rnncc check lst", 2, tmp_path)
    assert in_a_shell("rnncc bench lstm --dev", 3, tmp_path) == ["--device"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).stdout
    assert f"_RNNCC_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        path = tmp_path / "script"
        path.write_text(script, encoding="utf-8")
        checked = subprocess.run([program, "-n", str(path)], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "path"),
    [
        ("bash", ".local/share/bash-completion/completions/rnncc"),
        ("zsh", ".zfunc/_rnncc"),
        ("fish", ".config/fish/completions/rnncc.fish"),
    ],
)
def test_it_is_installed_where_the_shell_looks(
    shell: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    result = run("completion", "--install")
    assert result.exit_code == 0 and result.stdout.startswith(f"wrote {tmp_path / path}; ")
    assert (tmp_path / path).read_text(encoding="utf-8") == run("completion", shell).stdout
    (tmp_path / path).chmod(0o400)
    monkeypatch.setattr(Path, "write_text", _refuses)
    refused = run("completion", "--install")
    assert refused.exit_code == 1 and "permission denied" in refused.stderr


def _refuses(*_: Any, **__: Any) -> int:
    raise PermissionError(13, "Permission denied")


def test_an_unknown_shell_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = run("completion")
    assert result.exit_code == 2 and "name a shell, one of bash, zsh, fish: $SHELL is '/bin/tcsh'" in result.stderr
