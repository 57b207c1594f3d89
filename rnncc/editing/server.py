"""A server of the language server protocol: `rnncc lsp`. The text in the editor goes before the file on the disk.

All work on texts is done by one thread, in the order in which it was asked for; the loop of events stays free. A bug of
rnncc that a text meets is reported as a diagnostic, and ends nothing.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlparse

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from rnncc.editing.analysis import Analysis, analyse
from rnncc.editing.formatting import format_bytes
from rnncc.editing.hover import describe
from rnncc.editing.names import CellNames, Mention, Symbol
from rnncc.editing.positions import Positions
from rnncc.editing.rename import RefusedError, can_be_renamed, rename
from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity
from rnncc.language.names import FUNCTIONS
from rnncc.language.source import NOWHERE, Span
from rnncc.language.words import EVERYWHERE, STATEMENTS
from rnncc.version import VERSION

# Seconds that a text rests before it is checked: less than between two keys.
_PAUSE = 0.02
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.NOTE: types.DiagnosticSeverity.Information,
}
_SYMBOLS = {
    "cell": types.SymbolKind.Class, "state": types.SymbolKind.Field, "input": types.SymbolKind.Variable,
    "dim": types.SymbolKind.Number, "constant": types.SymbolKind.Constant, "parameter": types.SymbolKind.Property,
    "buffer": types.SymbolKind.Property, "group": types.SymbolKind.Property, "function": types.SymbolKind.Function,
    "value": types.SymbolKind.Variable,
}  # fmt: skip
_COMPLETIONS = {
    "function": types.CompletionItemKind.Function, "constant": types.CompletionItemKind.Constant,
    "function of the language": types.CompletionItemKind.Function, "state": types.CompletionItemKind.Field,
}  # fmt: skip


class _Server:
    """The features of the server, over what the editor has opened."""

    def __init__(self) -> None:
        self.server = LanguageServer("rnncc", VERSION, types.TextDocumentSyncKind.Full)
        self.worker = ThreadPoolExecutor(1)
        # Only the worker touches these: what it found of each text last.
        self.analyses: dict[str, Analysis] = {}
        self.open: set[str] = set()
        rename_options = types.RenameOptions(prepare_provider=True)
        features: list[tuple[str, Callable[[Any], Awaitable[Any]], Any]] = [
            (types.TEXT_DOCUMENT_DID_OPEN, self.opened, None),
            (types.TEXT_DOCUMENT_DID_CHANGE, self.changed, None),
            (types.TEXT_DOCUMENT_DID_CLOSE, self.closed, None),
            (types.TEXT_DOCUMENT_HOVER, self.hover, None),
            (types.TEXT_DOCUMENT_DEFINITION, self.definition, None),
            (types.TEXT_DOCUMENT_REFERENCES, self.references, None),
            (types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, self.highlights, None),
            (types.TEXT_DOCUMENT_PREPARE_RENAME, self.prepare_rename, None),
            (types.TEXT_DOCUMENT_RENAME, self.rename, rename_options),
            (types.TEXT_DOCUMENT_FORMATTING, self.format, None),
            (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, self.symbols, None),
            (types.TEXT_DOCUMENT_COMPLETION, self.complete, None),
        ]
        for name, method, options in features:
            self.server.feature(name, options)(_as_function(method))

    def _text(self, uri: str) -> str:
        """The text as the editor has it, saved or not."""
        return str(self.server.workspace.get_text_document(uri).source)

    def _positions(self, text: str) -> Positions:
        return Positions(text, types.PositionEncodingKind(self.server.workspace.position_encoding or "utf-16").value)

    async def _work(self, task: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, task, *arguments)

    def _analyse(self, uri: str, text: str) -> Analysis:
        known = self.analyses.get(uri)
        if known is None or known.source.text != text:
            name = PurePosixPath(unquote(urlparse(uri).path)).name or "<text>"
            known = self.analyses[uri] = analyse(name, text)
        return known

    async def _analysis(self, uri: str) -> Analysis:
        found: Analysis = await self._work(self._analyse, uri, self._text(uri))
        return found

    async def _at(self, params: Any) -> tuple[Analysis, Positions, Mention | None]:
        """What is known of the text, and the name at the place that the editor asks for."""
        analysis = await self._analysis(params.text_document.uri)
        positions = self._positions(analysis.source.text)
        offset = positions.offset(params.position.line, params.position.character)
        return analysis, positions, analysis.index.at(offset)

    # Diagnostics

    async def opened(self, params: types.DidOpenTextDocumentParams) -> None:
        self.open.add(params.text_document.uri)
        await self._check(params.text_document.uri)

    async def changed(self, params: types.DidChangeTextDocumentParams) -> None:
        text = self._text(params.text_document.uri)
        await asyncio.sleep(_PAUSE)
        if self._is_current(params.text_document.uri, text):
            await self._check(params.text_document.uri)

    async def closed(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self.open.discard(uri)
        await self._work(self.analyses.pop, uri, None)
        self.server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def _is_current(self, uri: str, text: str) -> bool:
        return uri in self.open and self._text(uri) == text

    async def _check(self, uri: str) -> None:
        version = self.server.workspace.get_text_document(uri).version
        analysis = await self._analysis(uri)
        # A text that has changed meanwhile is checked after its own change.
        if self._is_current(uri, analysis.source.text):
            if analysis.crash:
                message = types.LogMessageParams(types.MessageType.Error, analysis.crash)
                self.server.window_log_message(message)
            found = list(self._diagnostics(uri, analysis))
            self.server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, version))

    def _diagnostics(self, uri: str, analysis: Analysis) -> Iterator[types.Diagnostic]:
        positions = self._positions(analysis.source.text)
        if analysis.crash:
            message = "internal error of rnncc: please report it with this text; the log of the server has the details"
            error = types.DiagnosticSeverity.Error
            yield types.Diagnostic(_range(positions, NOWHERE), message, severity=error, source="rnncc")
        for each in analysis.diagnostics:
            yield self._diagnostic(uri, positions, each)

    def _diagnostic(self, uri: str, positions: Positions, found: Diagnostic) -> types.Diagnostic:
        place = _range(positions, found.span)
        notes = [(found.span, f"help: {found.help}")] if found.help else []
        notes += [(note.span, note.text) for note in found.notes]
        message = found.message
        related = None
        if self._knows_related():
            made = [(types.Location(uri, _range(positions, span)), text) for span, text in notes]
            related = [types.DiagnosticRelatedInformation(*each) for each in made]
        else:
            message = "\n".join([message, *(text for _, text in notes)])
        severity = _SEVERITIES[found.severity]
        return types.Diagnostic(
            place, message, severity=severity, code=found.code, source="rnncc", related_information=related
        )

    def _knows_related(self) -> bool:
        document = self.server.client_capabilities.text_document
        published = None if document is None else document.publish_diagnostics
        return published is not None and bool(published.related_information)

    # Names

    async def hover(self, params: types.HoverParams) -> types.Hover | None:
        analysis, positions, mention = await self._at(params)
        if mention is None:
            return None
        text = await self._work(describe, analysis, mention)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), _range(positions, mention.span))

    async def definition(self, params: types.DefinitionParams) -> types.Location | None:
        _, positions, mention = await self._at(params)
        if mention is None or mention.symbol.definition is None:
            return None
        return types.Location(params.text_document.uri, _range(positions, mention.symbol.definition))

    async def references(self, params: types.ReferenceParams) -> list[types.Location]:
        _, positions, mention = await self._at(params)
        places = [] if mention is None else sorted(mention.symbol.mentions)
        if mention is not None and not params.context.include_declaration:
            places = [place for place in places if place != mention.symbol.definition]
        return [types.Location(params.text_document.uri, _range(positions, place)) for place in places]

    async def highlights(self, params: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
        _, positions, mention = await self._at(params)
        places = [] if mention is None else sorted(mention.symbol.mentions)
        return [types.DocumentHighlight(_range(positions, place)) for place in places]

    async def prepare_rename(self, params: types.PrepareRenameParams) -> types.Range | None:
        _, positions, mention = await self._at(params)
        return _range(positions, mention.span) if mention is not None and can_be_renamed(mention) else None

    async def rename(self, params: types.RenameParams) -> types.WorkspaceEdit:
        analysis, positions, mention = await self._at(params)
        try:
            if mention is None:
                raise RefusedError("there is no name here")
            places = await self._work(rename, analysis, mention, params.new_name)
        except RefusedError as error:
            raise JsonRpcException(str(error), types.LSPErrorCodes.RequestFailed) from error
        edits = [types.TextEdit(_range(positions, place), params.new_name) for place in places]
        return types.WorkspaceEdit({params.text_document.uri: edits})

    # Texts

    async def format(self, params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        text = self._text(params.text_document.uri)
        try:
            made = await self._work(format_bytes, "<text>", text.encode("utf-8", "surrogatepass"))
        except RnnccError:
            # The diagnostics say what is wrong.
            return None
        before, after = self._positions(text), self._positions(made.decode())
        return list(_edits(before, after))

    async def symbols(self, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        analysis = await self._analysis(params.text_document.uri)
        positions = self._positions(analysis.source.text)
        return [found for cell in analysis.index.cells if (found := _outline(cell, positions)) is not None]

    async def complete(self, params: types.CompletionParams) -> list[types.CompletionItem]:
        analysis = await self._analysis(params.text_document.uri)
        positions = self._positions(analysis.source.text)
        cell = analysis.index.cell_at(positions.offset(params.position.line, params.position.character))
        items = dict.fromkeys((*STATEMENTS, *EVERYWHERE), types.CompletionItemKind.Keyword)
        items |= dict.fromkeys(sorted(FUNCTIONS), types.CompletionItemKind.Function)
        for symbol in (*cell.symbols.values(), *cell.locals) if cell is not None else ():
            written = _written(symbol, analysis)
            items[written] = _COMPLETIONS.get(symbol.kind, types.CompletionItemKind.Variable)
        return [types.CompletionItem(word, kind=kind) for word, kind in items.items()]


def _as_function(method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """pygls marks what it registers, which a method does not allow."""

    async def call(params: Any) -> Any:
        return await method(params)

    return call


def _range(positions: Positions, span: Span) -> types.Range:
    start, end = positions.span(span)
    return types.Range(types.Position(*start), types.Position(*end))


def _written(symbol: Symbol, analysis: Analysis) -> str:
    """A name as the text spells it."""
    span = symbol.definition
    return symbol.name if span is None else analysis.source.text[span.start : span.end]


def _outline(cell: CellNames, positions: Positions) -> types.DocumentSymbol | None:
    """A cell with what it defines, in the order of the text."""
    header = next((symbol for symbol in cell.locals if symbol.kind == "cell"), None)
    if header is None:
        return None
    children = []
    for symbol in sorted(cell.symbols.values(), key=lambda symbol: symbol.definition or NOWHERE):
        if symbol.definition is not None:
            place = _range(positions, symbol.definition)
            name = positions.text[symbol.definition.start : symbol.definition.end]
            detail = "gate" if symbol.kind == "value" else symbol.kind
            children.append(types.DocumentSymbol(name, _SYMBOLS[symbol.kind], place, place, detail=detail))
    assert header.definition is not None
    own = _range(positions, header.definition)
    return types.DocumentSymbol(cell.name, types.SymbolKind.Class, _range(positions, cell.span), own, children=children)


def _edits(before: Positions, after: Positions) -> Iterator[types.TextEdit]:
    """What turns a text into another, line by line."""
    old, new = before.lines(), after.lines()
    starts = [*before.starts, len(before.text)]
    for what, first, last, begin, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what != "equal":
            yield types.TextEdit(_range(before, Span(starts[first], starts[last])), "".join(new[begin:end]))


def serve() -> None:
    """Answer an editor over standard input and output until it says that it is done."""
    # What goes wrong is told to the editor.
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    _Server().server.start_io()
