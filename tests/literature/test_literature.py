"""What people wrote for recurrences of the literature, and what README.md says of each file: it compiles and `rnncc
verify` passes, or it is refused by one error that names the nearest form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rnncc
from rnncc import verify
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from tests.compiling import cell_of

HERE = Path(__file__).parent


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of README.md, without the heading of the table."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


VERIFIED = [row[0] for row in rows("Compile and verify")]
REFUSED = {row[0]: [cell.strip("`") for cell in row[2:]] for row in rows("Refused by one error")}


def named(file: str) -> tuple[str, str]:
    """A name for the cell of a file that no other file's cell has, and the text with that name."""
    name = f"File{file.removesuffix('.rnn').strip('_')}"
    text = (HERE / file).read_text(encoding="utf-8")
    return name, re.sub(r"^cell \w+", f"cell {name}", text, count=1, flags=re.MULTILINE)


def test_each_file_has_one_row() -> None:
    listed = [*VERIFIED, *REFUSED]
    assert sorted(listed) == sorted(path.name for path in HERE.glob("*.rnn"))
    assert not [row[0] for row in rows("Not here") if any((HERE / name).exists() for name in row[0].split(", "))]


@pytest.mark.one_in(28)
@pytest.mark.parametrize("file", VERIFIED)
def test_it_compiles_and_verifies(file: str) -> None:
    name, text = named(file)
    report = verify.verify(getattr(rnncc.compile(text, name.lower()), name), cell_of(text, file))
    assert report.rows
    assert [row for row in report.rows if not row.passed] == []
    assert report.passed


@pytest.mark.parametrize("file", REFUSED)
def test_one_error_names_the_cause_and_the_nearest_form(file: str) -> None:
    code, at, nearest = REFUSED[file]
    source = Source(file, (HERE / file).read_text(encoding="utf-8"))
    with pytest.raises(RnnccError) as raised:
        cell_of(source.text, file)
    (error,) = raised.value.diagnostics
    assert error.code == code
    assert source.text[error.span.start : error.span.end] == at
    assert nearest in error.help
