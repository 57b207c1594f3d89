"""What the documents say is so: their programs run, their commands print what they show, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnncc.cli import cli
from rnncc.language.source import Source
from tests.compiling import front
from tests.conftest import Golden
from tests.docs.pages import DOCS, FEATURES, PAGES, PRINTED, ROOT, anchors, blocks, headings, links, prose, read

RUN = {"python.md": 10, "torch.md": 4, "from_torch.md": 2, "from_flashrnn.md": 2, "from_haste.md": 2, "gpu.md": 1}
# Programs in shells, but for rnncc's own commands and make, pytest and the benchmarks, whose arguments are checked.
PROGRAMS = {"cp", "mkdir", "pip", "torchrun", "export", "chmod", "python", "cmake", "deployed/build/run"}


def named(pages: tuple[Path, ...] | list[Path]) -> dict[str, object]:
    """The pages as parameters of a test."""
    return {"argnames": "path", "argvalues": pages, "ids": [path.name for path in pages]}


# The examples of torch.md compile and export for half a minute.
@pytest.mark.always(page=[page for page in RUN if page != "torch.md"])
@pytest.mark.parametrize(("page", "count"), RUN.items())
def test_the_examples_of_a_page_run_one_after_the_other(
    page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some of them write files
    programs = blocks(DOCS / page, "python")
    assert len(programs) >= count
    # Classes that examples define want to know their module.
    names: dict[str, object] = {"__name__": page}
    for program in programs:
        exec(compile(program.text, page, "exec"), names)


@pytest.mark.parametrize(**named([page for page in PAGES if page.name not in PRINTED]))  # type: ignore[arg-type]
def test_every_block_is_run_or_checked_or_output(path: Path) -> None:
    for block in blocks(path):
        match block.language:
            case "python":
                # The README's and ConstrINT's have tests of their own; tests/clients run those of clients.md.
                assert path.name in (*RUN, "README.md", "constrint.md", "clients.md")
            case "rnn" | "":
                assert front(Source(path.name, block.text)), "a block without a language is a cell"
            case "console":
                assert block.text.startswith("$ ")
            case "c++":
                # Each call stands in a program that a test runs, with the program's arguments in place of names.
                program = read(ROOT / "examples" / "deploy_cpp" / "main.cpp")
                calls = re.findall(r"[\w.:]+(?: \w+)?\(.*?\)", re.sub(r'"[^"]*"', "given[]", block.text))
                assert calls and not [c for c in calls if c not in re.sub(r"given\[\w\]", "given[]", program)]
            case "sh":
                for line in block.text.splitlines():
                    check_command(line)
            case language:
                assert language == "text", f"{path.name}: a block of '{language}'"


def test_each_section_about_a_library_has_a_test_that_runs_its_examples() -> None:
    """Where the libraries are, which they need not be here."""
    texts = "".join(read(path) for path in (ROOT / "tests" / "clients").glob("test_*.py"))
    sections = headings(DOCS / "clients.md")[1:]
    assert len(sections) == 9 and [name for name in sections if f'example("{name}")' not in texts] == []


def check_command(line: str) -> None:
    """A command that a page names, and does not run, is one: its options exist."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    match program:
        case "rnncc":
            name, *rest = arguments
            command = cli.get_command(None, name)  # type: ignore[arg-type]
            assert command is not None, line
            command.make_context(name, rest)
        case "make":
            assert re.search(rf"^{arguments[0]}:", read(ROOT / "Makefile"), re.MULTILINE), line
        case "python" if arguments[0].startswith("benchmarks/"):
            script = read(ROOT / arguments[0])
            known = script + read(ROOT / "benchmarks" / "gpu_run.py")
            assert not [word for word in arguments if word.startswith("--") and f'"{word}"' not in known], line
        case "pytest":
            paths = [word for word in arguments if word.startswith("tests/")]
            assert all((ROOT / path).exists() for path in paths), line
        case _:
            assert program in PROGRAMS or program.startswith(".venv/bin/"), line


@pytest.mark.parametrize(**named([page for page in PAGES if blocks(page, "console")]))  # type: ignore[arg-type]
def test_commands_print_what_a_page_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """One after the other, in a folder of their own with the examples' cell. A last line of `…`: there is more."""
    shutil.copy(ROOT / "examples" / "mycell.rnn", tmp_path)
    monkeypatch.chdir(tmp_path)
    golden(path, re.sub(r"(?<=^```console\n)(.*?)(?=^```$)", rerun, read(path), flags=re.DOTALL | re.MULTILINE))


def rerun(block: re.Match[str]) -> str:
    """The block with what its command prints now."""
    command, *shown = block[1].splitlines()
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "rnncc"
    lines = CliRunner().invoke(cli, arguments).output.splitlines()
    if shown[-1:] == ["…"]:
        lines = [*lines[: len(shown) - 1], "…"]
    return "\n".join((command, *lines)) + "\n"


@pytest.mark.parametrize(**named(list(PAGES)))  # type: ignore[arg-type]
def test_links_lead_to_pages_and_sections(path: Path) -> None:
    for target in links(path):
        file, _, section = target.partition("#")
        page = (path.parent / file) if file else path
        assert page.exists(), target
        assert not section or section in anchors(page), target


def texts() -> list[Path]:
    """Everything that may cite a page: code, headers, templates and the pages."""
    folders = ("rnncc", "templates", "tests", "benchmarks", "examples")
    endings = {".py", ".h", ".cuh", ".j2", ".lark", ".cpp", ".cu"}
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in endings]
    return [*found, *PAGES]


def test_sections_that_are_cited_are_there() -> None:
    """`docs/language.md, "Heads"` and `[language.md](language.md), "Heads"`."""
    cited = re.compile(r'\b([a-z_]+\.md)\)?,\s+(?://\s*|#\s*)?"([^"\n]+)"')
    count = 0
    for path in texts():
        for page, title in cited.findall(read(path)):
            assert any(title == heading or heading.startswith(title) for heading in headings(DOCS / page)), (
                path,
                title,
            )
            count += 1
    assert count > 5


def test_pages_that_are_named_are_there() -> None:
    for path in texts():
        for page in re.findall(r"docs/([a-z_]+\.md)", read(path)):
            assert (DOCS / page).is_file(), (path, page)


@pytest.mark.parametrize(**named(list(PAGES)))  # type: ignore[arg-type]
def test_paths_in_a_page_are_there(path: Path) -> None:
    """Those that begin with a folder of the repository."""
    for found in re.findall(r"`((?:rnncc|templates|tests|benchmarks|cells|examples|docs)/[\w./{},-]+)`", prose(path)):
        for name in alternatives(found):
            assert (ROOT / name).exists(), found


def alternatives(path: str) -> list[str]:
    """`a/{b,c}.py` is a/b.py and a/c.py."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    return [f"{found[1]}{part}{found[3]}" for part in found[2].split(",")] if found else [path]


@pytest.mark.parametrize(**named([page for page in PAGES if page.parent == DOCS and page.name != "pipeline.md"]))  # type: ignore[arg-type]
def test_a_page_begins_with_its_question(path: Path) -> None:
    _, first, *_ = prose(path).split("\n\n")
    assert "?" in first.partition(". ")[0]


@pytest.mark.parametrize(**named([page for page in PAGES if page.parent == DOCS]))  # type: ignore[arg-type]
def test_a_page_is_listed_in_the_readme(path: Path) -> None:
    assert f"(docs/{path.name})" in read(ROOT / "README.md")


def test_every_row_of_features_names_tests_that_exist() -> None:
    rows = [line for line in read(FEATURES).splitlines() if line[0:2] == "| "]
    body = [row for row in rows if not row.endswith("| tests |")]
    assert len(body) > 40
    for row in body:
        _, what, here, tests, _ = row.split("|")
        found = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", tests)
        assert found or here.strip().startswith("no"), what
        for file, name in found:
            text = read(ROOT / "tests" / file)
            assert f"\ndef {name}(" in text if name else "\ndef test_" in text, f"{file}::{name}"
