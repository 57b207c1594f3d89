"""A row stands for what NVRTC makes of its own text, and of no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit, File
from tests.cuda import inspected
from tests.cuda.inspected import Inspected, Record, Text, Usage

FOUND = Inspected({"one": Usage(0, 4, 8, 32, 0), "two": None}, frozenset({"st.async"}))


def text(name: str = "lstm", included: str = "") -> Text:
    """A file of kernels that includes another."""
    files = (File("src/a.cu", '#include "a.cuh"'), File("src/a.cuh", included))
    return Text(name, DeviceUnit("src/a.cu", "a"), Bundle(files, (), ()), "sm_90a", True)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows are; nothing is compiled."""
    monkeypatch.setattr(Text, "compile", lambda self, folder: FOUND)
    return tmp_path / "rows.jsonl"


def test_a_text_that_was_compiled_is_not_compiled_again(path: Path, tmp_path: Path) -> None:
    writer = Record(path, writes=True)
    assert writer.inspect(text(), tmp_path) == FOUND and (writer.answered, writer.compiled) == (0, 1)
    reader = Record(path)
    assert reader.inspect(text(), tmp_path) == FOUND and (reader.answered, reader.compiled) == (1, 0)
    strict = Record(path, compiles_all=True)
    assert strict.inspect(text(), tmp_path) == FOUND and (strict.answered, strict.compiled) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        text(included="// another header"),
        text(name="gru"),
        replace(text(), architecture="sm_80"),
        replace(text(), is_code=False),
    ],
    ids=["include", "name", "architecture", "ptx"],
)
def test_another_text_is_compiled_and_wants_a_row(other: Text, path: Path, tmp_path: Path) -> None:
    Record(path, writes=True).inspect(text(), tmp_path)
    record = Record(path)
    with pytest.raises(pytest.fail.Exception, match=f"{other.name} is not what was compiled before"):
        record.inspect(other, tmp_path)
    assert (record.answered, record.compiled) == (0, 1)
    Record(path, writes=True).inspect(other, tmp_path)
    assert Record(path).inspect(other, tmp_path) == FOUND


def test_a_row_that_is_wrong_is_found(path: Path, tmp_path: Path) -> None:
    Record(path, writes=True).inspect(text(), tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("32, 0]", "31, 0]"), encoding="utf-8")
    with pytest.raises(AssertionError, match="is wrong about lstm"):
        Record(path, compiles_all=True).inspect(text(), tmp_path)


def test_another_compiler_compiles_everything(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Record(path, writes=True).inspect(text(), tmp_path)
    monkeypatch.setattr(inspected, "identity", lambda library: "another NVRTC")
    record = Record(path)
    assert record.inspect(text(), tmp_path) == FOUND == record.inspect(text("gru"), tmp_path)
    assert (record.answered, record.compiled) == (0, 2)
    # Its rows take the place of the others.
    Record(path, writes=True).inspect(text("gru"), tmp_path)
    assert "lstm" not in path.read_text(encoding="utf-8")


def test_workers_write_side_by_side(path: Path, tmp_path: Path) -> None:
    names = [f"cell{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Record(path, writes=True).inspect(text(name), tmp_path), names))
    record = Record(path)
    assert [record.inspect(text(name), tmp_path) for name in names] == [FOUND] * 40 and record.compiled == 0


def test_the_run_says_how_many_texts_were_answered(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(look): assert look")
    pytester.makeconftest(
        "from tests.cuda.inspected import Record\n"
        "record = Record(answered=3, compiled=1)\n"
        "def pytest_configure(config): config.pluginmanager.register(record)\n"
    )
    pytester.syspathinsert(Path(inspected.__file__).parents[2])
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["GPU kernels: 3 files are those that NVRTC compiled before (nvrtc.jsonl), 1 were compiled"]
    )
