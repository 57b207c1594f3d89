"""The documents as data: their headings, fenced blocks and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FEATURES = ROOT / "tests" / "docs" / "features.md"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", FEATURES, *sorted(DOCS.glob("*.md")))
# A program prints these whole: what is in them is its output.
PRINTED = ("pipeline.md", "errors.md")


@dataclass(frozen=True)
class Block:
    """A fenced block: the word behind the fence, or nothing; and its text."""

    language: str
    text: str


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, in order; only those of a language, where one is given."""
    pattern = re.compile(r"^( *)```([\w+]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
    found = [Block(word, text) for _, word, text in pattern.findall(read(path))]
    return [block for block in found if language in (None, block.language)]


def prose(path: Path) -> str:
    """A page without its fenced blocks and without comments."""
    text = re.sub(r"^( *)```.*?^\1```$", "", read(path), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def headings(path: Path) -> list[str]:
    """The titles of a page's sections."""
    return re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The names by which links reach a page's sections, as GitHub makes them."""
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in headings(path))
    return {title.replace(" ", "-") for title in kept}


def links(path: Path) -> list[str]:
    """Where a page's links lead, but for other sites."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)) if "://" not in target]
