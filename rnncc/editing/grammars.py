"""The colours of a cell's text: a TextMate grammar (VS Code, Sublime Text, GitHub), a syntax file of Vim, and the rules
of the Pygments lexer.

All are made of one list of rules, with the words of `rnncc.language.words`. `python benchmarks/report.py` writes the
files to docs/editors.
"""

from __future__ import annotations

import json
import plistlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from rnncc.language.names import FUNCTIONS
from rnncc.language.surrogates import SURROGATES
from rnncc.language.words import (
    EVERYWHERE,
    GROUPS,
    INITIALISERS,
    LEARNED,
    NUM_HEADS,
    NUMBERS,
    OF,
    PER,
    PLACE,
    SEQUENCE,
    SIZES,
    STATEMENTS,
    STEP,
    TYPES,
)

# What is called in an equation or an initialiser; `σ` is the sigmoid.
CALLED = (*sorted({*FUNCTIONS, *SURROGATES, *(name for name, count in INITIALISERS.items() if count)}), "σ")
# Names that the language gives a meaning.
GIVEN = (*GROUPS, *STEP, *SIZES, NUM_HEADS)
VALUES = (*NUMBERS, "π", LEARNED, *(name for name, count in INITIALISERS.items() if not count))
# A statement's first word may also be the name of a value, `output = …`. What `cell` and `def` name is coloured too.
OPENING = tuple(word for word in STATEMENTS if word not in ("cell", "def", *EVERYWHERE))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a piece of text is, in the words of TextMate, Pygments and Vim."""

    scope: str
    token: str
    group: str


COMMENT = Kind("comment.line.number-sign", "Comment.Single", "Comment")
STATEMENT = Kind("keyword.declaration", "Keyword.Declaration", "Statement")
CELL_NAME = Kind("entity.name.class", "Name.Class", "Structure")
FUNCTION_NAME = Kind("entity.name.function", "Name.Function", "Function")
CONTROL = Kind("keyword.control", "Keyword", "Conditional")
WORD = Kind("keyword.other", "Keyword.Reserved", "Keyword")
TYPE = Kind("storage.type", "Keyword.Type", "Type")
FUNCTION = Kind("support.function", "Name.Builtin", "Function")
GIVEN_NAME = Kind("variable.language", "Name.Builtin.Pseudo", "Identifier")
VALUE = Kind("constant.language", "Keyword.Constant", "Constant")
NUMBER = Kind("constant.numeric", "Literal.Number", "Number")
NAME = Kind("variable.other", "Name", "")
OPERATOR = Kind("keyword.operator", "Operator", "Operator")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern within a line, and what its groups are; group 0 is all of it. The first rule that matches counts."""

    pattern: str
    kinds: dict[int, Kind]


def any_of(words: Iterable[str]) -> str:
    """A pattern of one of the words."""
    return rf"\b(?:{'|'.join(sorted(words, key=lambda word: (-len(word), word)))})\b"


_AT_START = r"(?:^|(?<=;))[ \t]*"
RULES = (
    Rule("#.*$", {0: COMMENT}),
    Rule(rf"{_AT_START}(cell)[ \t]+(\w+)", {1: STATEMENT, 2: CELL_NAME}),
    Rule(rf"{_AT_START}(def)[ \t]+(\w+)", {1: STATEMENT, 2: FUNCTION_NAME}),
    Rule(rf"{_AT_START}({any_of(OPENING)})(?![ \t]*[=,\[(])", {1: STATEMENT}),
    Rule(rf"\b(in)[ \t]+({PLACE}[ \t]+{OF})\b", {1: CONTROL, 2: WORD}),
    Rule(any_of(EVERYWHERE), {0: CONTROL}),
    Rule(rf"\b{PER}[ \t]+{SEQUENCE}\b", {0: WORD}),
    Rule(rf"(?<=:)[ \t]*({any_of(TYPES)})", {1: TYPE}),
    Rule(rf"{any_of(CALLED)}(?=[ \t]*\()", {0: FUNCTION}),
    Rule(r"\b[^\W\d]\w*(?=[ \t]*\()", {0: FUNCTION_NAME}),
    Rule(any_of(GIVEN), {0: GIVEN_NAME}),
    Rule(any_of(VALUES), {0: VALUE}),
    # Other names, so that no rule matches within one.
    Rule(r"\b[^\W\d]\w*", {0: NAME}),
    Rule(r"(?:[0-9]+(?:\.(?!\.)[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", {0: NUMBER}),
    Rule(r"->|\*\*|//|\.\.|[<>=!]=|[-+*/@<>=⊙·]", {0: OPERATOR}),
)


def textmate() -> dict[str, Any]:
    """The TextMate grammar."""
    patterns: list[dict[str, Any]] = []
    for rule in RULES:
        names = {str(group): {"name": f"{kind.scope}.rnn"} for group, kind in rule.kinds.items()}
        found = names["0"] if set(names) == {"0"} else {"captures": names}
        patterns.append({"match": rule.pattern, **found})
    return {"name": "rnncc cell", "scopeName": "source.rnn", "fileTypes": ["rnn"], "patterns": patterns}


_VIM = r"""" Colours of rnncc's cells. Written by benchmarks/report.py.
if exists("b:current_syntax")
  finish
endif
syntax case match
syntax match rnnOperator "\v[-+*/@<>=!⊙·]|\.\."
syntax match rnnNumber "\v<[0-9]+(\.\.@!)?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?"
syntax match rnnName "\v<[0-9]@!\k+>"
syntax match rnnValue "\v<({values})>"
syntax match rnnGiven "\v<({given})>"
syntax match rnnOwn "\v<[0-9]@!\k+>\ze\s*\("
syntax match rnnFunction "\v<({called})>\ze\s*\("
syntax match rnnType "\v:\s*\zs<({types})>"
syntax match rnnWord "\v<{per}\s+{sequence}>"
syntax match rnnControl "\v<({everywhere})>"
syntax match rnnWord "\v<in\s+\zs{place}\s+{of}>"
syntax match rnnStatement "\v(^|;)\s*\zs<({opening})>(\s*[=,[(])@!"
syntax match rnnStatement "\v(^|;)\s*\zs<cell>(\s+\k)@=" nextgroup=rnnCell skipwhite
syntax match rnnStatement "\v(^|;)\s*\zs<def>(\s+\k)@=" nextgroup=rnnOwn skipwhite
syntax match rnnCell "\v<[0-9]@!\k+>" contained
syntax match rnnComment "#.*$"
{links}
let b:current_syntax = "rnn"
"""
_VIM_GROUPS = {
    "rnnOperator": OPERATOR, "rnnNumber": NUMBER, "rnnValue": VALUE, "rnnGiven": GIVEN_NAME, "rnnOwn": FUNCTION_NAME,
    "rnnFunction": FUNCTION, "rnnType": TYPE, "rnnWord": WORD, "rnnControl": CONTROL, "rnnStatement": STATEMENT,
    "rnnCell": CELL_NAME, "rnnComment": COMMENT,
}  # fmt: skip


def vim() -> str:
    """A syntax file of Vim and Neovim, whose patterns are written otherwise. The last rule that matches counts."""
    lists = {
        "values": VALUES, "given": GIVEN, "called": CALLED, "types": TYPES, "everywhere": EVERYWHERE,
        "opening": OPENING,
    }  # fmt: skip
    links = "\n".join(f"highlight default link {name} {kind.group}" for name, kind in _VIM_GROUPS.items())
    text = _VIM.replace("{links}", links).replace("{per}", PER).replace("{sequence}", SEQUENCE)
    text = text.replace("{place}", PLACE).replace("{of}", OF)
    for name, words in lists.items():
        text = text.replace(f"{{{name}}}", "|".join(words))
    return text


_PACKAGE = {
    "name": "rnncc",
    "displayName": "rnncc cells",
    "description": "Colours for recurrent cells written as equations",
    "version": "0.1.0",
    "publisher": "rnncc",
    "license": "Apache-2.0",
    "engines": {"vscode": "^1.70.0"},
    "categories": ["Programming Languages"],
    "contributes": {
        "languages": [
            {
                "id": "rnn",
                "aliases": ["rnncc cell", "rnn"],
                "extensions": [".rnn"],
                "configuration": "./language-configuration.json",
            }
        ],
        "grammars": [{"language": "rnn", "scopeName": "source.rnn", "path": "./rnn.tmLanguage.json"}],
    },
}
_CONFIGURATION = {
    "comments": {"lineComment": "#"},
    "brackets": [["(", ")"], ["[", "]"]],
    "autoClosingPairs": [["(", ")"], ["[", "]"]],
    "surroundingPairs": [["(", ")"], ["[", "]"]],
    "wordPattern": {"pattern": r"[\p{L}_][\p{L}\p{N}_]*", "flags": "u"},
    "indentationRules": {"increaseIndentPattern": r"^\s*for\b.*:\s*(#.*)?$", "decreaseIndentPattern": r"^(?!)"},
}


def files() -> dict[PurePosixPath, str]:
    """What editors read, by its path under docs/editors."""
    folder = PurePosixPath("vscode")
    return {
        folder / "package.json": _json(_PACKAGE),
        folder / "language-configuration.json": _json(_CONFIGURATION),
        folder / "rnn.tmLanguage.json": _json(textmate()),
        PurePosixPath("sublime/rnn.tmLanguage"): plistlib.dumps(textmate(), sort_keys=False).decode(),
        PurePosixPath("vim/syntax/rnn.vim"): vim(),
        PurePosixPath("vim/ftdetect/rnn.vim"): "autocmd BufRead,BufNewFile *.rnn setfiletype rnn\n",
        PurePosixPath("vim/ftplugin/rnn.vim"): "setlocal commentstring=#\\ %s expandtab shiftwidth=4\n",
    }


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
