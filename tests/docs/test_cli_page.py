"""docs/cli.md has every command, option, setting and exit code, and no others."""

from __future__ import annotations

import re

import click
import pytest

from rnncc.cli import EXIT_BUG, cli, output
from rnncc.cli.environment import SETTINGS
from tests.docs.pages import DOCS, headings, read

PAGE = DOCS / "cli.md"
COMMANDS = sorted(cli.commands)


def section(command: str) -> str:
    """What the page says under a command's heading."""
    _, _, rest = read(PAGE).partition(f"\n## rnncc {command}\n")
    return rest.partition("\n## ")[0]


def options(command: str) -> set[str]:
    """All spellings of a command's options, but for --help."""
    found = (parameter for parameter in cli.commands[command].params if isinstance(parameter, click.Option))
    return {name for option in found for name in (*option.opts, *option.secondary_opts)}


def test_every_command_has_a_section() -> None:
    found = [title.removeprefix("rnncc ") for title in headings(PAGE) if title.startswith("rnncc ")]
    assert sorted(found) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_section_has_the_options_of_its_command(command: str) -> None:
    rows = [line for line in section(command).splitlines() if line.startswith("| `-")]
    listed = {name for row in rows for name in re.findall(r"(?<=[`\s])--?[a-z][a-z-]*", row.split("|")[1])}
    assert listed == options(command)


def test_options_that_are_mentioned_exist() -> None:
    known = {"--version", "--help", "-h"}.union(*map(options, COMMANDS))
    assert set(re.findall(r"(?<=[`\s])--?[a-z][a-z-]*(?=[`\s])", read(PAGE))) <= known


def test_settings_and_exit_codes() -> None:
    text = read(PAGE)
    assert not [name for name in SETTINGS if f"| `{name}` |" not in text]
    codes = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in row.split(", ")}
    assert codes == {int(code) for code in re.findall(r"^(\d+)  ", output.__doc__ or "", re.MULTILINE)} | {129, 143}
    assert {EXIT_BUG, output.EXIT_USER, output.EXIT_TOOLCHAIN, output.EXIT_NOT_JUDGED} < codes
