"""The table of codes: complete, in order, used, and the source of docs/errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnncc.language.codes import CODES, Code
from rnncc.language.codes.check import CHECK
from rnncc.language.codes.declare import DECLARE
from rnncc.language.codes.later import LATER
from rnncc.language.codes.page import errors_page
from rnncc.language.codes.parse import PARSE
from rnncc.language.codes.warnings import WARNINGS
from rnncc.language.diagnostics import Severity
from tests.conftest import Golden

ROOT = Path(__file__).parents[2]
ROWS = (*PARSE, *CHECK, *DECLARE, *WARNINGS, *LATER)


def test_codes_are_unique_and_sorted() -> None:
    codes = [row.code for row in ROWS]
    assert codes == sorted(set(codes)) == list(CODES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_row(row: Code) -> None:
    assert re.fullmatch(r"RNN[123467]\d\d", row.code)
    assert row.title and not row.title.endswith(".")
    assert row.explanation.endswith(".") and "  " not in row.explanation
    expected = Severity.ERROR if not "RNN250" < row.code < "RNN300" else row.severity
    assert row.severity is expected
    assert row.mended is None or row.example is not None


def test_every_code_in_the_source_is_in_the_table_and_the_other_way_round() -> None:
    sources = [path for path in (ROOT / "rnncc").rglob("*.py") if "codes" not in path.parts]
    raised = {code for path in sources for code in re.findall(r'["[](RNN\d{3})["\]]', path.read_text(encoding="utf-8"))}
    assert raised - set(CODES) == set()
    assert set(CODES) - raised == set()


def test_errors_page_is_up_to_date(golden: Golden) -> None:
    golden(ROOT / "docs" / "errors.md", errors_page())
