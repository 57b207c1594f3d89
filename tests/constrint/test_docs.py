"""The example of docs/constrint.md prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "constrint.md"


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(
        r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert example is not None
    exec(example[1], {})
    assert capsys.readouterr().out == example[2]
