"""Puts statements together: cells by their headers, loops by their indentation."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field

from lark.exceptions import UnexpectedToken

from rnncc.ir.syntax import DEEPEST, CellDecl, ForDecl
from rnncc.ir.syntax import Statement as Decl
from rnncc.language.diagnostics import Diagnostic, Label
from rnncc.language.source import NOWHERE, Span, line_and_column
from rnncc.stages.parse.build import Header, Loop, build
from rnncc.stages.parse.complain import complain
from rnncc.stages.parse.lexer import Lexed, Statement, comment_lines, span_of
from rnncc.stages.parse.walk import findings


@dataclass(slots=True)
class _Block:
    """A level of indentation: the cell's own, a loop's body, or (`loop` None) a run of lines indented by mistake."""

    indent: str
    statements: list[Decl]
    loop: Loop | None = None
    span: Span = NOWHERE


@dataclass(slots=True)
class _OpenCell:
    """The cell being read."""

    name: str
    span: Span
    name_span: Span
    comment: str
    statements: list[Decl] = field(default_factory=list)


class Reader:
    """Reads the statements of a text in order; `diagnostics` are what is wrong, those of the lexer included."""

    def __init__(self, lexed: Lexed, most_errors: int) -> None:
        self.lexed = lexed
        self.source = lexed.source
        self.most_errors = most_errors
        self.diagnostics = list(lexed.diagnostics)
        self.done: list[CellDecl] = []
        self.names: dict[str, Span] = {}
        self.open: _OpenCell | None = None
        self.homeless = False
        self.blocks: list[_Block] = [_Block("", [])]
        # A loop's header whose body has to follow.
        self.waiting: tuple[Loop | None, Span] | None = None

    def cells(self) -> tuple[CellDecl, ...]:
        """All cells; only to be used where `diagnostics` stayed empty."""
        if not self.lexed.statements and not self.diagnostics:
            self._report("RNN103", "the text holds no cell", NOWHERE, "no cell here", "a cell begins with `cell NAME`")
        for statement in self.lexed.statements:
            if len(self.diagnostics) >= self.most_errors:
                return ()
            self._take(statement)
        self._close_cell()
        return tuple(self.done)

    def _report(self, code: str, message: str, span: Span, label: str = "", help: str = "", *notes: Label) -> None:
        self.diagnostics.append(Diagnostic(code, message, span, label, help, notes, source=self.source))

    def _take(self, statement: Statement) -> None:
        first = statement.tokens[0].type
        if first == "CELL":
            self._start_cell(statement)
            return
        self._indent(statement)
        built = self._build(statement)
        if self.open is None and not self.homeless and built is not None:
            self.homeless = True
            help = "begin with `cell NAME`, where the name has an upper-case letter"
            self._report("RNN104", "a statement before the first cell", statement.span, "belongs to no cell", help)
        if first == "FOR":
            self.waiting = (built if isinstance(built, Loop) else None, statement.span)
        elif isinstance(built, tuple):
            self.blocks[-1].statements.extend(built)

    def _build(self, statement: Statement) -> Header | Loop | tuple[Decl, ...] | None:
        if statement.broken:
            return None
        try:
            built = build(statement.tokens)
        except UnexpectedToken as error:
            self.diagnostics.append(complain(self.source, statement, error))
            return None
        wrong = findings(built, self.source)
        self.diagnostics.extend(wrong)
        return None if wrong else built

    def _indent(self, statement: Statement) -> None:
        """Opens and closes blocks so that the statement belongs to the last one."""
        indent = statement.indent
        span = Span(statement.span.start, statement.span.start + 1)
        level = self.blocks[-1].indent
        if not (indent.startswith(level) or level.startswith(indent)):
            help = "indent with spaces only, all lines of a loop's body alike"
            self._report("RNN114", "tabs and spaces are mixed", span, "indented differently", help)
            self.waiting = None
            return
        if self.waiting is not None:
            loop, header = self.waiting
            self.waiting = None
            if len(indent) > len(level):
                if len(self.blocks) == DEEPEST + 1:
                    self._report("RNN116", f"loops are nested more than {DEEPEST} deep", header, f"loop {DEEPEST + 1}")
                self.blocks.append(_Block(indent, [], loop, header))
                return
            if loop is not None:
                self._no_body(header)
        dedented = len(indent) < len(level)
        while len(self.blocks) > 1 and len(indent) < len(self.blocks[-1].indent):
            self._close_block()
        level = self.blocks[-1].indent
        if indent == level:
            return
        if dedented or len(self.blocks) > 1:
            help = "the lines of one loop's body begin in the same column"
            self._report("RNN114", "the indentation fits no line before it", span, "unexpected column", help)
        else:
            help = "only the body of a `for` is indented; other statements begin in the first column"
            self._report("RNN114", "the line is indented", span, "unexpected indentation", help)
        # The lines that follow in this column are not reported again.
        self.blocks.append(_Block(indent, self.blocks[-1].statements))

    def _no_body(self, header: Span) -> None:
        help = "the equations of the loop stand on the next lines, indented"
        self._report("RNN115", "the loop has no body", header, "nothing is indented below it", help)

    def _close_block(self) -> None:
        block = self.blocks.pop()
        if block.loop is not None:
            end = block.statements[-1].span.end if block.statements else block.span.end
            loop = block.loop
            body = tuple(block.statements)
            decl = ForDecl(loop.variable, loop.first, loop.last, body, Span(loop.span.start, end))
            self.blocks[-1].statements.append(decl)

    def _start_cell(self, statement: Statement) -> None:
        self._close_cell()
        if statement.indent:
            span = Span(statement.span.start, statement.span.start + 1)
            self._report(
                "RNN114", "a cell's header is indented", span, "unexpected indentation", "begin in the first column"
            )
        built = self._build(statement)
        name = built.name if isinstance(built, Header) else None
        name_span = span_of(name) if name is not None else statement.span
        if name is not None:
            self._check_name(str(name), name_span)
        self.open = _OpenCell(str(name), statement.span, name_span, self._comment(statement))
        self.blocks = [_Block("", self.open.statements)]

    def _check_name(self, name: str, span: Span) -> None:
        lower = name.lower()
        if name == lower:
            better = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
            message = f"the cell's name '{name}' has no upper-case letter"
            help = f"the name in lower case is the cell's function: call the cell `{better}`" if better != name else ""
            self._report("RNN106", message, span, "all lower case", help)
        elif keyword.iskeyword(name) or keyword.iskeyword(lower):
            message = f"'{name}' cannot name a cell: '{name if keyword.iskeyword(name) else lower}' is a word of Python"
            self._report("RNN105", message, span, "reserved in Python", f"for example `{name}Cell`")
        elif "__" in name:
            self._report("RNN105", f"'{name}' cannot name a cell", span, "names with '__' are reserved")
        elif name.startswith("_"):
            self._report("RNN105", f"'{name}' cannot name a cell", span, "names that begin with '_' are reserved")
        elif name == "SPEC":
            self._report("RNN105", f"'{name}' cannot name a cell", span, "every generated module has this name")
        if lower in self.names:
            message = f"a second cell is named '{name}'"
            note = Label(self.names[lower], "the first one")
            help = "the functions of the two would have the same name: rename one"
            self._report("RNN107", message, span, "name taken", help, note)
        for step in (f"{lower}cell", lower.removesuffix("cell")):
            # `LSTM` brings the class `LSTMCell`.
            if step != lower and step in self.names:
                message = f"'{name}' meets another cell: the single step of a cell X is the class XCell"
                note = Label(self.names[step], "the other one")
                self._report("RNN107", message, span, "name taken", "rename one", note)
        self.names.setdefault(lower, span)

    def _comment(self, statement: Statement) -> str:
        """The whole-line comments directly above the header, or else those behind and directly below it."""
        alone, trailing = self.lexed.comments, self.lexed.trailing_comments
        lines = comment_lines(self.lexed, line_and_column(self.source, statement.span.start)[0])
        return "\n".join(alone[line] if line in alone else trailing[line] for line in lines)

    def _close_cell(self) -> None:
        if self.waiting is not None:
            loop, header = self.waiting
            if loop is not None:
                self._no_body(header)
            self.waiting = None
        while len(self.blocks) > 1:
            self._close_block()
        if self.open is not None:
            cell = self.open
            end = cell.statements[-1].span.end if cell.statements else cell.span.end
            span = Span(cell.span.start, max(end, cell.span.end))
            statements = tuple(cell.statements)
            self.done.append(CellDecl(cell.name, statements, self.source, cell.comment, span, cell.name_span))
        self.open = None
