"""A lexer of Pygments: Sphinx, mkdocs and whatever else colours by it know ```rnn once rnncc is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pygments.lexer import Lexer
from pygments.token import Punctuation, Text, string_to_tokentype

from rnncc.editing.grammars import RULES, Kind


def _tokens(kinds: Mapping[int, Kind]) -> dict[int, Any]:
    return {group: string_to_tokentype(kind.token) for group, kind in kinds.items()}


_RULES = [(re.compile(rule.pattern, re.MULTILINE), _tokens(rule.kinds)) for rule in RULES]
_SPACE = re.compile(r"\s+")


class RnnLexer(Lexer):  # type: ignore[misc]  # Pygments has no types
    """Cells as `rnncc` reads them. What the language does not have is text, never an error."""

    name = "rnncc cell"
    aliases: ClassVar = ["rnn"]
    filenames: ClassVar = ["*.rnn"]

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        """Every piece of the text with its offset and its type."""
        at = 0
        while at < len(text):
            for pattern, tokens in _RULES:
                if (found := pattern.match(text, at)) is not None and found.end() > at:
                    yield from _groups(found, tokens)
                    at = found.end()
                    break
            else:
                space = _SPACE.match(text, at)
                # Line by line, so that a rule that begins with a line finds it.
                end = at + 1 if space is None else text.find("\n", at, space.end()) + 1 or space.end()
                yield at, Text if space else Punctuation, text[at:end]
                at = end


def _groups(found: re.Match[str], tokens: dict[int, Any]) -> Iterator[tuple[int, Any, str]]:
    at = found.start()
    for group, token in tokens.items():
        if found.start(group) > at:
            yield at, Text, found.string[at : found.start(group)]
        yield found.start(group), token, found[group]
        at = found.end(group)
