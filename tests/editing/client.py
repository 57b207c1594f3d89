"""A real client of the language server: pygls's, which talks to `rnncc lsp` in another process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.docs.pages import ROOT

# Seconds after which a test gives up.
PATIENCE = 60.0


class Editor:
    """An editor with one file open."""

    uri = "file:///home/me/a%20cell.rnn"

    def __init__(self, encoding: str = "utf-16", related: bool = True) -> None:
        self.client = LanguageClient("tests", "1")
        self.published: asyncio.Queue[Any] = asyncio.Queue()
        self.logged: list[str] = []
        self.version = 0
        self.encoding, self.related = types.PositionEncodingKind(encoding), related
        features = {
            types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS: lambda params: self.published.put_nowait(params),
            types.WINDOW_LOG_MESSAGE: lambda params: self.logged.append(params.message),
            types.WINDOW_SHOW_MESSAGE: lambda params: self.logged.append(params.message),
        }
        for name, use in features.items():
            self.client.feature(name)(use)

    async def start(self) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        await self.client.start_io(sys.executable, "-m", "rnncc", "lsp", env=os.environ | {"PYTHONPATH": path})
        published = types.PublishDiagnosticsClientCapabilities(related_information=self.related)
        general = types.GeneralClientCapabilities(position_encodings=[self.encoding])
        document = types.TextDocumentClientCapabilities(publish_diagnostics=published)
        capabilities = types.ClientCapabilities(text_document=document, general=general)
        self.answer: Any = await self.client.initialize_async(
            types.InitializeParams(capabilities, process_id=os.getpid())
        )
        self.client.initialized(types.InitializedParams())

    async def stop(self) -> int:
        """The exit status of the server."""
        await self.client.shutdown_async(None)
        self.client.exit(None)
        server: Any = self.client._server
        await asyncio.wait_for(server.wait(), PATIENCE)
        return int(server.returncode)

    async def open(self, text: str) -> list[Any]:
        """Open the file with a text; the diagnostics."""
        self.version += 1
        item = types.TextDocumentItem(self.uri, "rnn", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.diagnostics()

    def type(self, text: str) -> None:
        """Make the text another one."""
        self.version += 1
        item = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(item, [change]))

    def close(self) -> None:
        """Close the file. What the editor was told of it is forgotten."""
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(self.document))
        self.logged.clear()

    async def change(self, text: str) -> list[Any]:
        self.type(text)
        return await self.diagnostics()

    async def diagnostics(self) -> list[Any]:
        """The diagnostics of the newest version."""
        while True:
            found = await asyncio.wait_for(self.published.get(), PATIENCE)
            if found.version == self.version:
                return list(found.diagnostics)

    @property
    def document(self) -> Any:
        return types.TextDocumentIdentifier(self.uri)

    async def ask(self, what: str, line: int, character: int, *more: Any) -> Any:
        """`hover`, `definition`, … at a place."""
        kinds: dict[str, tuple[Any, Any]] = {
            "hover": (types.HoverParams, self.client.text_document_hover_async),
            "definition": (types.DefinitionParams, self.client.text_document_definition_async),
            "references": (types.ReferenceParams, self.client.text_document_references_async),
            "rename": (types.RenameParams, self.client.text_document_rename_async),
            "prepare": (types.PrepareRenameParams, self.client.text_document_prepare_rename_async),
            "complete": (types.CompletionParams, self.client.text_document_completion_async),
            "highlight": (types.DocumentHighlightParams, self.client.text_document_document_highlight_async),
        }
        make, request = kinds[what]
        place = types.Position(line, character)
        params = make(**_named(make, self.document, place, more))
        return await asyncio.wait_for(request(params), PATIENCE)

    async def symbols(self) -> Any:
        return await self.client.text_document_document_symbol_async(types.DocumentSymbolParams(self.document))

    async def format(self) -> Any:
        options = types.FormattingOptions(tab_size=4, insert_spaces=True)
        return await self.client.text_document_formatting_async(types.DocumentFormattingParams(self.document, options))


def _named(make: Any, document: Any, place: Any, more: tuple[Any, ...]) -> dict[str, Any]:
    given = {"text_document": document, "position": place}
    if make is types.ReferenceParams:
        given["context"] = types.ReferenceContext(include_declaration=True)
    if make is types.RenameParams:
        given["new_name"] = more[0]
    return given


# Editors whose servers run on between tests, by their options: to start a server takes a second.
_EDITORS: dict[tuple[tuple[str, Any], ...], Editor] = {}
_LOOP: list[asyncio.AbstractEventLoop] = []


def edit(use: Callable[[Editor], Awaitable[None]], *, alone: bool = False, **options: Any) -> None:
    """Run a test in an editor. `alone`: with a server of its own, which must end in order. Others end by `stop_all`."""
    if not _LOOP:
        _LOOP.append(asyncio.new_event_loop())
    key = tuple(sorted(options.items()))
    # After a failure nobody uses it again.
    known = None if alone else _EDITORS.pop(key, None)

    async def session() -> None:
        editor = known or Editor(**options)
        if known is None:
            await editor.start()
        await use(editor)
        if alone:
            assert await editor.stop() == 0
        else:
            editor.close()
            _EDITORS[key] = editor

    _LOOP[0].run_until_complete(session())


def stop_all() -> None:
    """End the servers that run on: all in order."""
    while _EDITORS:
        _, editor = _EDITORS.popitem()
        assert _LOOP[0].run_until_complete(editor.stop()) == 0
    while _LOOP:
        _LOOP.pop().close()


def after(text: str, edits: list[Any]) -> str:
    """A text of ASCII with edits made."""
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]

    def offset(place: Any) -> int:
        return int(starts[place.line] + place.character)

    for each in sorted(edits, key=lambda each: offset(each.range.start), reverse=True):
        text = text[: offset(each.range.start)] + each.new_text + text[offset(each.range.end) :]
    return text
