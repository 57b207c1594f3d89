"""docs/design.md: its map has every folder, its list of rules names files that are there, its glossary is short."""

from __future__ import annotations

import re

from rnncc.machine.paths import templates_dir
from tests.docs.pages import DOCS, ROOT, read

PAGE = DOCS / "design.md"


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    _, _, rest = read(PAGE).partition(f"\n## {title}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_the_map_has_every_folder() -> None:
    named = {path for row in rows("Where is what?") for path in re.findall(r"`([\w./]+/)`", row[0])}
    assert not [path for path in named if not (ROOT / path).is_dir()]
    folders = [ROOT / "rnncc", templates_dir(), templates_dir() / "include" / "rnncc"]
    found = {
        path.relative_to(ROOT).as_posix() + "/" for folder in folders for path in folder.iterdir() if path.is_dir()
    }
    assert {path for path in found if "__pycache__" not in path} - named == {"templates/include/"}


def test_rules_that_are_written_twice_are_where_the_page_says() -> None:
    found = rows("Which rules are written twice?")
    assert len(found) > 10
    for rule, python, cpp, test in found:
        for path in re.findall(r"`([\w./]+)`", python + test):
            assert (ROOT / path).is_file(), (rule, path)
        for path in re.findall(r"`([\w./]+)`", cpp):
            assert (templates_dir() / "include" / "rnncc" / path).is_file(), (rule, path)
        assert "`" in python and "`" in cpp and ("`" in test or test.startswith("none"))


def test_the_glossary_is_short() -> None:
    assert 20 < len(rows("What do the words mean?")) <= 30
