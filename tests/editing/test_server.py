"""`rnncc lsp`, driven by a real client over a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pygls")

from rnncc.machine.paths import cells_dir
from tests.editing.client import Editor, after, edit, stop_all

CELL = """\
# A cell with a slow memory.
cell MyCell
state h, m
f, o = sigmoid(W@x + R@h[t-1] + b)
n = tanh(W@x + R@h[t-1] + b)
m[t] = f*m[t-1] + (1 - f)*n
h[t] = o*m[t] + (1 - o)*n
init b_f = 1
"""


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """They end in order."""
    yield
    stop_all()


def test_diagnostics_as_one_types() -> None:
    async def use(editor: Editor) -> None:
        assert await editor.open(CELL) == []
        (found,) = await editor.change(CELL.replace("n = tanh", "n = tahn"))
        assert (found.code, found.source, found.severity) == ("RNN203", "rnncc", 1)
        assert (found.range.start.line, found.range.start.character, found.range.end.character) == (4, 4, 8)
        (help,) = found.related_information
        assert "did you mean 'tanh'?" in help.message
        assert help.location.range == found.range
        twice = await editor.change(CELL.replace("state h, m\n", "state h, m\nstate h\n"))
        assert [each.code for each in twice] == ["RNN218"]
        assert [each.location.range.start.line for each in twice[0].related_information][-1] == 2
        assert [each.code for each in await editor.change(CELL.replace("init b_f = 1", "const k = 2"))] == ["RNN252"]
        assert await editor.change(CELL) == []

    edit(use)


def test_an_editor_without_related_information_reads_the_help_in_the_message() -> None:
    async def use(editor: Editor) -> None:
        (found,) = await editor.open(CELL.replace("tanh", "tahn"))
        assert found.related_information is None
        assert found.message.endswith("help: did you mean 'tanh'?")

    edit(use, related=False)


def test_hover() -> None:
    async def use(editor: Editor) -> None:
        await editor.open(CELL)
        gate = (await editor.ask("hover", 5, 7)).contents.value
        assert "**gate** `f`: H" in gate and "`W_f`: H x I" in gate and "d_f = d_m * (m__1 - n)" in gate
        assert "f, o = sigmoid(W@x + R@h[t-1] + b)" in gate
        assert "**state** `m`: H  \nstarts at 0" in (await editor.ask("hover", 2, 9)).contents.value
        assert "**parameter, the b of f** `b_f`: H" in (await editor.ask("hover", 7, 7)).contents.value
        assert "`R_n`: H x H" in (await editor.ask("hover", 3, 21)).contents.value
        assert "torch.tanh" in (await editor.ask("hover", 4, 6)).contents.value
        assert await editor.ask("hover", 0, 4) is None
        await editor.change(CELL.replace("tanh", "tahn"))
        assert "**gate** `f`" in (await editor.ask("hover", 5, 7)).contents.value

    edit(use)


def places(found: list[Any]) -> list[tuple[int, int]]:
    return [(each.range.start.line, each.range.start.character) for each in found]


def test_definition_references_and_symbols() -> None:
    async def use(editor: Editor) -> None:
        await editor.open(CELL)
        found = await editor.ask("definition", 7, 7)
        assert (found.uri, *places([found])) == (editor.uri, (3, 0))
        assert places([await editor.ask("definition", 6, 9)]) == [(2, 9)]
        assert await editor.ask("definition", 3, 15) is None
        assert places(await editor.ask("references", 4, 0)) == [(4, 0), (5, 26), (6, 24)]
        assert places(await editor.ask("highlight", 4, 0)) == [(4, 0), (5, 26), (6, 24)]
        (cell,) = await editor.symbols()
        assert cell.name == "MyCell"
        assert [(each.name, each.detail) for each in cell.children] == [
            ("h", "state"), ("m", "state"), ("f", "gate"), ("o", "gate"), ("n", "gate")
        ]  # fmt: skip
        names = {item.label for item in await editor.ask("complete", 5, 9)}
        assert {"h", "m", "f", "n", "sigmoid", "state", "W"} <= names

    edit(use)


def test_rename() -> None:
    async def use(editor: Editor) -> None:
        await editor.open(CELL)
        assert places([type("Found", (), {"range": await editor.ask("prepare", 5, 7)})]) == [(5, 7)]
        made = await editor.ask("rename", 5, 7, "forget")
        text = after(CELL, made.changes[editor.uri])
        assert (
            "forget, o = sigmoid" in text and "forget*m[t-1] + (1 - forget)*n" in text and "init b_forget = 1" in text
        )
        assert await editor.change(text) == []
        await editor.change(CELL)
        assert await editor.ask("prepare", 3, 15) is None
        for name, why in (
            ("n", "already"), ("tanh", "a function"), ("W", "a name of the language"), ("1a", "no name"),
            ("lambda", "keyword"), ("a b", "no name"), ("for", "no name"), ("é", "no name"), ("d_f", "compiler"),
        ):  # fmt: skip
            with pytest.raises(Exception, match=why):
                await editor.ask("rename", 5, 7, name)
        with pytest.raises(Exception, match="name of the language"):
            await editor.ask("rename", 3, 7, "s")

    edit(use)


def test_format() -> None:
    async def use(editor: Editor) -> None:
        ugly = CELL.replace("f*m[t-1] + (1 - f)*n", "f * m[ t-1 ]+(1-f) * n").rstrip("\n")
        await editor.open(ugly)
        edits = await editor.format()
        assert after(ugly, edits) == CELL
        # The cursor stays where no line changes.
        assert [each.range.start.line for each in edits] == [5, 7]
        await editor.change(CELL)
        assert not await editor.format()
        await editor.change(CELL.replace("(", "", 1))
        assert await editor.format() is None

    edit(use)


def test_the_unsaved_text_goes_before_the_file(tmp_path: Any) -> None:
    async def use(editor: Editor) -> None:
        path = tmp_path / "a.rnn"
        path.write_text(CELL.replace("tanh", "tahn"), encoding="utf-8")
        editor.uri = path.as_uri()
        assert await editor.open(CELL) == []
        await editor.change(CELL.replace("state h, m", "state h: 2*H, m"))
        assert "**state** `h`" in (await editor.ask("hover", 2, 6)).contents.value

    edit(use)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-8", "utf-32"])
def test_columns_are_those_of_the_encoding(encoding: str) -> None:
    text = "cell A\r\nstate h\r\nα = (  #\U0001f600\r\n  W@x)\r\nh[t] = α*σ(α)*missing\r\n# \u2028 😀\r\nh[t] = 1\r\n"

    async def use(editor: Editor) -> None:
        found = await editor.open(text)
        missing = next(each for each in found if each.code == "RNN202")
        more = 3 if encoding == "utf-8" else 0
        assert (missing.range.start.line, missing.range.start.character) == (4, 14 + more)
        at = 13 if encoding == "utf-8" else 11
        assert "α = (" in (await editor.ask("hover", 4, at)).contents.value
        assert editor.answer.capabilities.position_encoding == encoding

    edit(use, encoding=encoding)


def test_half_typed_text_never_ends_the_server() -> None:
    async def use(editor: Editor) -> None:
        await editor.open("")
        for name in ("lstm", "rhn", "egru"):
            text = (cells_dir() / f"{name}.rnn").read_text(encoding="utf-8")
            for end in range(text.index("cell "), len(text), 3):
                editor.type(text[:end])
                if end % 5 == 0:
                    await editor.ask("complete", 0, 0)
                    await editor.symbols()
                if end % 20 == 0:
                    await editor.diagnostics()
                    await editor.format()
            assert all(found.severity > 1 for found in await editor.change(text))
        assert editor.logged == []

    edit(use)


def test_a_bug_is_reported_and_ends_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import rnncc.pipeline\n"
        "compile_cells = rnncc.pipeline.compile_cells\n"
        "def broken(request, until):\n"
        "    assert 'boom' not in request.source.text\n"
        "    return compile_cells(request, until)\n"
        "rnncc.pipeline.compile_cells = broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    async def use(editor: Editor) -> None:
        (found,) = await editor.open(CELL + "# boom\n")
        assert "internal error" in found.message
        assert "AssertionError" in editor.logged[0]
        assert await editor.change(CELL) == []

    edit(use, alone=True)
