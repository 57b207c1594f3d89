"""A text written differently: other spaces, line ends, empty lines and comments, but the same tokens."""

from __future__ import annotations

from random import Random

from rnncc.ir.syntax import CellDecl, ForDecl, Statement
from rnncc.language.source import Source
from rnncc.language.words import STATEMENTS
from rnncc.stages.parse import parse
from rnncc.stages.parse.lexer import lex


def _bodies(statements: tuple[Statement, ...]) -> list[ForDecl]:
    found = []
    for statement in statements:
        if isinstance(statement, ForDecl):
            found += [statement, *_bodies(statement.body)]
    return found


def _is_word(text: str) -> bool:
    return text[0].isalnum() or text[0] in "_."


class Scrambler:
    """Writes the statements of a text anew, by chance. Comments are `c1`, `c2`, …, in their order."""

    def __init__(self, text: str, seed: int, comments: bool) -> None:
        self.source = Source("cell", text)
        self.random = Random(seed)
        self.comments = comments
        self.count = 0
        cells: tuple[CellDecl, ...] = parse(self.source)
        self.loops = [loop.span for cell in cells for loop in _bodies(cell.statements)]
        self.indent = self.random.choice(("  ", "\t", "        "))

    def text(self) -> str:
        """The other text."""
        lines: list[str] = []
        deeper_before, loop_before = 0, False
        for statement in lex(self.source).statements:
            depth = sum(loop.start < statement.span.start < loop.end for loop in self.loops)
            written = self.statement([self.source.text[t.start_pos : t.end_pos] for t in statement.tokens])
            is_loop = statement.tokens[0].type == "FOR"
            joins = lines and depth == deeper_before and not is_loop and not loop_before and "#" not in lines[-1]
            if joins and statement.tokens[0].type != "CELL" and self.chance(0.1):
                lines[-1] += self.random.choice((";", " ; ")) + written
            else:
                lines += [self.comment() for _ in range(2) if self.comments and self.chance(0.15)]
                lines += [""] * self.random.choice((0, 0, 0, 1, 3))
                lines.append(self.indent * depth + written)
            if self.comments and self.chance(0.2):
                lines[-1] += self.space() + self.comment().strip()
            deeper_before, loop_before = depth, is_loop
        return "\n".join(lines) + self.random.choice(("", "\n", "\n\n  "))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def comment(self) -> str:
        self.count += 1
        return self.random.choice(("", "  ", "\t")) + self.random.choice(("#", "# ")) + f"c{self.count}  "

    def space(self) -> str:
        return self.random.choice(("", "", " ", "  ", "\t"))

    def statement(self, words: list[str]) -> str:
        """The tokens of a statement, with lines broken inside of its brackets."""
        depth, text = 0, ""
        for index, word in enumerate(words):
            text += word
            depth += (word in "([") - (word in ")]")
            following = words[index + 1] if index + 1 < len(words) else ""
            space = self.space()
            if depth and self.chance(0.05):
                note = self.comment().strip() if self.comments and self.chance(0.5) else ""
                alone = f"\n{self.comment()}" if self.comments and self.chance(0.2) else ""
                # What looks like the beginning of a statement would end the bracket.
                indent = "" if self.chance(0.5) else "      "
                space = f" {note}{alone}\n{indent}" if following and not self.begins(words[index:]) else space
            must = following and (_is_word(word) or word[-1] in ".") and _is_word(following)
            text += space or (" " if must or following in ("=", "->") else "") if following else ""
            text += " " if word in ("=", "->", "<", ">") and following else ""
        return text

    def begins(self, words: list[str]) -> bool:
        """Whether a line that begins after the first word could be taken for a statement."""
        return "=" in words[1:] or words[1] in STATEMENTS
