"""Messages of long work: who gets them, how often, and as what."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rnncc import progress
from rnncc.language.diagnostics import RnnccError
from rnncc.progress import Bar, Count, Lines, Pace, debug, said_if_slow, say, shown

ROOT = Path(__file__).resolve().parents[1]
LOUD = "cell Loud\nstate h\nh[t] = tanh(W@x + R@h[t-1])\n"


def python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another Python, in which nobody has configured anything."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {key: value for key, value in os.environ.items() if key != "RNNCC_LOG"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False,
        env=given | {"PYTHONPATH": path} | environment,
    )  # fmt: skip


def test_a_count_is_a_message() -> None:
    assert Count(3, 12) == "3 of 12 files compiled"
    assert Count(3, 12, 19.7) == "3 of 12 files compiled, about 20 s left"
    assert Count(3, 12, 185.0) == "3 of 12 files compiled, about 3 min left"
    assert (Count(3, 12, 1.0).done, Count(3, 12, 1.0).total, Count(3, 12).left) == (3, 12, None)


def test_lines_count_after_a_second_and_then_less_often(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines()
    lines("compiling lstm (LSTM)")
    for place in range(12):
        now[0] += 1.0
        lines(Count(place, 12))
    lines(Count(12, 12))
    lines(Count(3, 3))  # the next work, which took no time
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "rnncc: compiling lstm (LSTM)",
        "rnncc: 0 of 12 files compiled",
        "rnncc: 2 of 12 files compiled",
        "rnncc: 7 of 12 files compiled",
        "rnncc: 12 of 12 files compiled",
    ]


def test_a_count_that_is_no_news_is_said_less_often(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines()
    lines("compiling s6 (S6)")
    for _ in range(9):
        now[0] += 1.0
        lines(Count(1, 8))
    said = capsys.readouterr().err.splitlines()
    assert said == ["rnncc: compiling s6 (S6)", "rnncc: 1 of 8 files compiled", "rnncc: 1 of 8 files compiled"]


def test_the_time_left_follows_from_the_last_file(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(12, 2)
    seen = []
    for later, done in ((1, 0), (4, 1), (5, 2), (3, 2), (2, 3), (50, 3), (1, 12)):
        now[0] += later
        seen.append(pace.count(done).left)
    # Two files in 10 s are twelve in 60; three in 15 s are as quick.
    assert seen == [None, None, 50.0, 47.0, 45.0, None, None]
    assert Pace(1, 8).count(1).left is None


def test_a_message_for_what_is_slow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "TELL_SECONDS", (0.05,))
    with said_if_slow("quick"):
        pass
    with said_if_slow("slow"):
        for _ in range(100):
            time.sleep(0.05)
            if said := capsys.readouterr().err:
                break
    assert said == "rnncc: slow\n"
    assert capsys.readouterr().err == ""


SAYS = "from rnncc.progress import say, debug; say('hello'); debug('details')"


def test_without_a_log_messages_are_lines() -> None:
    assert python(SAYS).stderr == "rnncc: hello\n"


def test_a_program_with_a_log_gets_them_there_alone() -> None:
    configured = (
        f"import logging; logging.basicConfig(level='INFO', format='%(name)s %(levelname)s %(message)s'); {SAYS}"
    )
    assert python(configured).stderr == "rnncc INFO hello\n"
    quiet = f"import logging; logging.basicConfig(); {SAYS}"
    assert python(quiet).stderr == ""
    own = f"import logging; logging.getLogger('rnncc').addHandler(logging.NullHandler()); {SAYS}"
    assert python(own).stderr == ""


@pytest.mark.parametrize(
    ("level", "lines"),
    [("debug", "rnncc: hello\nrnncc: details\n"), ("info", "rnncc: hello\n"), ("warning", ""), ("error", "")],
)
def test_a_setting_says_how_much_is_shown(level: str, lines: str) -> None:
    assert python(SAYS, RNNCC_LOG=level).stderr == lines
    # It is asked for by hand, so a log changes nothing.
    assert python(f"import logging; logging.basicConfig(level='DEBUG'); {SAYS}", RNNCC_LOG=level).stderr == lines


def test_a_setting_without_a_meaning_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RNNCC_LOG", "loud")
    with pytest.raises(RnnccError, match="RNNCC_LOG is 'loud'") as caught:
        say("hello")
    assert caught.value.diagnostics[0].code == "RNN607"
    (tmp_path / "loud.rnn").write_text(LOUD, encoding="utf-8")
    command = "import sys; from rnncc.__main__ import main; main()"
    done = python(command, "build", str(tmp_path / "loud.rnn"), "-o", str(tmp_path / "out"), RNNCC_LOG="loud")
    assert done.returncode == 1 and done.stderr.startswith("error[RNN607]: RNNCC_LOG is 'loud'")
    assert "Traceback" not in done.stderr


def test_records_of_a_log_have_levels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("RNNCC_LOG")
    with caplog.at_level(logging.DEBUG, logger="rnncc"):
        say("100 % done")
        debug("details")
    assert caplog.record_tuples == [("rnncc", logging.INFO, "100 % done"), ("rnncc", logging.DEBUG, "details")]


def test_a_command_shows_them_whatever_a_log_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RNNCC_LOG")
    with caplog.at_level(logging.DEBUG, logger="rnncc"):
        with shown():
            say("hello")
        say("bye")
    assert capsys.readouterr().err == "rnncc: hello\n"
    assert [record.getMessage() for record in caplog.records] == ["bye"]


def test_importing_rnncc_brings_none_of_it() -> None:
    done = python("import sys, rnncc; print([n for n in ('logging', 'rich', 'rnncc.progress') if n in sys.modules])")
    assert done.stdout == "[]\n"


# bars


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From now on standard error is a terminal, on which rich draws."""
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_a_terminal_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with shown():
        say("compiling lstm (LSTM)")
        for done in (1, 6, 11):
            say(Count(done, 12, 30.0 - done))
            assert progress._shown_by_a_command is not None
            drawn: Any = progress._shown_by_a_command
            drawn._drawn.refresh()
        say("a line [between]")
        say(Count(12, 12))
        assert drawn._drawn is None
        say("done")
    text = terminal.getvalue()
    assert text.startswith("rnncc: compiling lstm (LSTM)\n") and text.endswith("rnncc: done\n")
    assert "1 of 12 files, about 29 s left" in text and "11 of 12 files, about 19 s left" in text and "━" in text
    assert "rnncc: a line [between]\n" in text


def test_a_bar_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), shown():
        say(Count(1, 12))
        bar: Any = progress._shown_by_a_command
        assert isinstance(bar, Bar) and bar._drawn is not None
        raise KeyboardInterrupt
    assert bar._drawn is None and progress._shown_by_a_command is None
    # The cursor is shown again.
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


def test_without_rich_a_terminal_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "is_installed", lambda library: False)
    with shown():
        assert isinstance(progress._shown_by_a_command, Lines)
