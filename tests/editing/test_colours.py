"""What editors and Pygments colour is what the parser reads."""

from __future__ import annotations

import json
import plistlib
import re
import shutil
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rnncc.editing import grammars
from rnncc.editing.grammars import CALLED, VALUES, files, textmate
from rnncc.language.names import FUNCTIONS
from rnncc.language.source import Source
from rnncc.language.words import EVERYWHERE, GROUPS, INITIALISERS, NUMBERS, SIZES, STATEMENTS, STEP, TYPES
from rnncc.machine.paths import shipped_cells
from rnncc.stages.parse.lexer import lex
from tests.docs.pages import ROOT
from tests.generated.cells import generate
from tests.long import runs_all

pygments = pytest.importorskip("pygments")

EDITORS = ROOT / "docs" / "editors"
SHIPPED = shipped_cells()
GREEK = ROOT / "tests" / "literature" / "greek.rnn"


def coloured(text: str) -> list[tuple[int, str, str]]:
    """The pieces of a text, each with its offset and the name of its token."""
    from rnncc.editing.pygments_lexer import RnnLexer

    return [
        (at, str(token).removeprefix("Token."), piece) for at, token, piece in RnnLexer().get_tokens_unprocessed(text)
    ]


def kinds_at(text: str) -> dict[int, str]:
    return {at + i: kind for at, kind, piece in coloured(text) for i in range(len(piece))}


def check(text: str) -> None:
    """The colours of every token that the parser sees."""
    kinds = kinds_at(text)
    assert "".join(piece for _, _, piece in coloured(text)) == text
    for statement in lex(Source("cell", text)).statements:
        for index, token in enumerate(statement.tokens):
            written = text[token.start_pos : token.end_pos]
            following = statement.tokens[index + 1].type if index + 1 < len(statement.tokens) else ""
            found = {kinds[at] for at in range(token.start_pos or 0, token.end_pos or 0)}
            match token.type:
                case "NUMBER":
                    wanted = "Literal.Number"
                case "IF" | "ELSE" | "IN" | "FOR":
                    wanted = "Keyword"
                case "PER" | "SEQUENCE":
                    wanted = "Keyword.Reserved"
                case "NAME" if following == "LPAR" and statement.tokens[index - 1].type != "COLON":
                    wanted = "Name.Builtin" if written in CALLED else "Name.Function"
                case "NAME" if index and statement.tokens[0].type == "CELL":
                    wanted = "Name.Class"
                case "NAME":
                    in_type = index and statement.tokens[index - 1].type == "COLON" and written in TYPES
                    given = written in (*GROUPS, *STEP, *SIZES, "num_heads")
                    value = written in VALUES
                    wanted = "Keyword.Type" if in_type else "Name.Builtin.Pseudo" if given else "Name"
                    wanted = "Keyword.Constant" if value and not in_type else wanted
                case kind if kind.lower() in STATEMENTS:
                    wanted = "Keyword.Declaration"
                case "LPAR" | "RPAR" | "LSQB" | "RSQB" | "COMMA" | "COLON":
                    wanted = "Punctuation"
                case _:
                    wanted = "Operator"
            assert found == {wanted}, (written, statement.tokens)


@pytest.mark.parametrize("path", [*SHIPPED, GREEK], ids=lambda path: path.stem)
def test_shipped_cells(path: Path) -> None:
    check(path.read_text(encoding="utf-8"))


def test_generated_cells() -> None:
    for seed in range(100 if runs_all() else 40):
        check(generate(seed).text)


def test_a_statement_s_word_may_be_a_name_and_comments_are_no_code() -> None:
    check("cell A; state h  # cell B\nstate output, x1\noutput = (W@x  # state y\n  + 2e-5)\ninput, per = output\n")
    check("cell A\nfor l in 1..3:\n\tinit = 1\n")
    kinds = kinds_at("cell A # state h")
    assert {kinds[at] for at in range(7, 16)} == {"Comment.Single"}
    assert coloured("ö$ é") and "".join(piece for _, _, piece in coloured("\n\n  $?\x00\u2028")) == "\n\n  $?\x00\u2028"


def test_the_entry_point_is_the_lexer() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    value = re.search(r'\[project.entry-points."pygments.lexers"\]\nrnn = "(.+)"', project)
    assert value is not None
    lexer = EntryPoint("rnn", value[1], "pygments.lexers").load()
    assert (lexer.aliases, lexer.filenames) == (["rnn"], ["*.rnn"])
    html = pygments.highlight("cell A\n", lexer(), pygments.formatters.get_formatter_by_name("html"))
    assert '<span class="kd">cell</span> <span class="nc">A</span>' in html


def test_every_word_of_the_language_has_a_colour() -> None:
    text = json.dumps(textmate(), ensure_ascii=False)
    words = {*STATEMENTS, *EVERYWHERE, *TYPES, *INITIALISERS, *FUNCTIONS, *GROUPS, *STEP, *SIZES, *NUMBERS, "learned"}
    for written in (text, grammars.vim()):
        assert not [word for word in words if not re.search(rf"(?<![A-Za-z_]){word}(?!\w)", written)]


@pytest.mark.parametrize("name", files(), ids=str)
def test_the_files_of_editors_are_up_to_date(name: Path) -> None:
    """`python benchmarks/report.py` writes them."""
    assert (EDITORS / name).read_text(encoding="utf-8") == files()[name]  # type: ignore[index]


def test_there_are_no_other_files() -> None:
    found = {path.relative_to(EDITORS).as_posix() for path in EDITORS.rglob("*") if path.is_file()}
    assert found == {name.as_posix() for name in files()}


def test_the_grammar_of_sublime_text_is_that_of_vs_code() -> None:
    grammar = json.loads((EDITORS / "vscode" / "rnn.tmLanguage.json").read_text(encoding="utf-8"))
    assert plistlib.loads((EDITORS / "sublime" / "rnn.tmLanguage").read_bytes()) == grammar
    package = json.loads((EDITORS / "vscode" / "package.json").read_text(encoding="utf-8"))
    assert package["contributes"]["grammars"][0]["scopeName"] == grammar["scopeName"]


VIM = r"""
set nocompatible encoding=utf-8
set runtimepath^={editors}/vim
filetype plugin on
syntax on
edit {file}
let rows = []
for line in range(1, line('$'))
  let text = getline(line)
  call add(rows, map(range(strchars(text)), {{_, at -> synIDattr(synID(g:line, byteidx(g:text, at) + 1, 1), 'name')}}))
endfor
call writefile([json_encode([&commentstring, rows])], '{out}')
qall!
"""


@pytest.mark.skipif(shutil.which("vim") is None, reason="needs vim")
@pytest.mark.parametrize("path", [GREEK, *SHIPPED[::16]], ids=lambda path: path.stem)
def test_vim_colours_the_same(path: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "script.vim", tmp_path / "out.json"
    script.write_text(VIM.format(editors=EDITORS, file=path, out=out), encoding="utf-8")
    command = ["vim", "-es", "-u", "NONE", "-N", "-S", str(script)]
    subprocess.run(command, timeout=60, check=False, stdin=subprocess.DEVNULL)
    comment, rows = json.loads(out.read_text(encoding="utf-8"))
    assert comment == "# %s"
    text = path.read_text(encoding="utf-8")
    groups = {kind.token: name for name, kind in grammars._VIM_GROUPS.items()}
    kinds, at = kinds_at(text), 0
    for line, row in zip(text.split("\n"), rows, strict=False):
        for offset, character in enumerate(line):
            if not character.isspace():
                assert groups.get(kinds[at + offset], "rnnName") == (row[offset] or "rnnName"), (line, character)
        at += len(line) + 1
