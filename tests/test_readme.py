"""The README says what is true: its table, its example, its count of cells; and so do the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnncc import load
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.show.catalogue import catalogue, markdown
from tests.compiling import front
from tests.conftest import Golden

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "--update-golden` -->\n", "<!-- end of cells -->"


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a Markdown file that name that language (none: the plain ones)."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_table_of_cells(golden: Golden) -> None:
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    entries = tuple(entry for path in shipped_cells() for entry in catalogue(read_source(path)))
    golden(README, before + BEGIN + "\n" + markdown(entries) + "\n" + END + after)


def test_the_number_of_cells() -> None:
    found = re.search(r"the (\d+) shipped ones", README.read_text(encoding="utf-8"))
    assert found is not None
    assert int(found[1]) == len(shipped_cells())


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, program = blocks(README, "")[0], blocks(README, "python")[0]
    (tmp_path / "mycell.rnn").write_text(cell, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    assert tuple(names["output"].shape) == (100, 32, 256)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("page", "count"),
    [("python.md", 10), ("torch.md", 4), ("from_torch.md", 2), ("from_flashrnn.md", 2), ("from_haste.md", 2)],
)
def test_the_examples_of_a_page_run_one_after_the_other(page: str, count: int) -> None:
    programs = blocks(ROOT / "docs" / page, "python")
    assert len(programs) >= count
    # Classes that examples define want to know their module.
    names: dict[str, object] = {"__name__": page}
    for program in programs:
        exec(compile(program, page, "exec"), names)


def test_every_row_of_features_names_tests_that_exist() -> None:
    rows = [
        line for line in (ROOT / "docs" / "features.md").read_text(encoding="utf-8").splitlines() if line[0:2] == "| "
    ]
    body = [row for row in rows if not row.endswith("| tests |")]
    assert len(body) > 40
    for row in body:
        _, what, here, tests, _ = row.split("|")
        names = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", tests)
        assert names or here.strip().startswith("no"), what
        for file, name in names:
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in text if name else "\ndef test_" in text, f"{file}::{name}"


def test_the_shape_that_language_md_gives_for_heads() -> None:
    text = " ".join((ROOT / "docs" / "language.md").read_text(encoding="utf-8").split())
    assert "`weight_hh_l0` is [gates·H, H/N]" in text
    layer = load("gru").GRU(3, 8, num_heads=2)
    assert layer.weight_hh_l0.shape == (3 * 8, 8 // 2)
    assert layer.gate_parameters()["R_z"].shape == (2, 8 // 2, 8 // 2)


@pytest.mark.parametrize("path", [README, ROOT / "docs" / "language.md"], ids=lambda path: path.name)
def test_the_cells_in_the_documents_pass_the_check(path: Path) -> None:
    cells = [block for block in blocks(path, "") if block.startswith("cell ")]
    assert cells
    for cell in cells:
        assert front(Source(path.name, cell))


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
