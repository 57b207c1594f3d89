"""The repository's pages as the site's: the same words, with links that lead to the site's pages.

A page links others by their places in the repository, so that its links work where the repository is read. Here each
such place gets an address of the site: a page, the gallery's page of a cell, or a copy of a file under `files/`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages outside of docs/, and what they are called on the site.
_OTHERS = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Files that a browser would not show as text, or not in colour: they get a page with their text.
_LANGUAGES = {".py": "python", ".rnn": "rnn", ".cff": "yaml"}
# Above a page that has no neighbours in the menu.
_ALONE = "---\nhide: [navigation]\n---\n\n"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+://)([^)#\s]+)(?=[)#])")
_BLOCK = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_CELL = re.compile(r"^## (\w+)$", re.MULTILINE)


def sources() -> dict[Path, Path]:
    """The repository's pages, and their places in the site's source."""
    found = {ROOT / name: Path(place) for name, place in _OTHERS.items()}
    return found | {path: Path(path.name) for path in sorted(DOCS.glob("*.md"))}


class Site:
    """The site's source as it is put together: texts of pages, and files that are copied as they are."""

    def __init__(self) -> None:
        self.texts: dict[Path, str] = {}
        self.copies: dict[Path, Path] = {}
        self._places = sources()

    def add_pages(self) -> None:
        """All of the repository's pages, and what they link."""
        for path, place in self._places.items():
            text = self.linked(path.read_text(encoding="utf-8"), path)
            if path.name == "cells.md":
                text = _CELL.sub(_with_gallery, text)
            self.texts[place] = f"{_ALONE}{text}" if path.name in ("README.md", "results.md") else text
        self.copies[Path("site.css")] = DOCS / "site" / "site.css"
        self.texts[Path("api.md")] = (DOCS / "site" / "api.md").read_text(encoding="utf-8")

    def linked(self, text: str, path: Path) -> str:
        """The text of the page at `path` with the site's links. Blocks stay as they are."""
        parts = _BLOCK.split(text)
        parts[::2] = [_LINK.sub(lambda found: self._address(found[1], path), part) for part in parts[::2]]
        return "".join(parts)

    def _address(self, link: str, path: Path) -> str:
        """The address that stands for a link of a page. Raises FileNotFoundError where it leads nowhere."""
        target = Path(os.path.normpath(path.parent / link))
        from_ = self._places.get(path, Path()).parent
        return os.path.relpath(self._place(target), from_)

    def _place(self, target: Path) -> Path:
        if (place := self._places.get(target)) is not None:
            return place
        if target == ROOT / "cells":
            return Path("gallery/index.md")
        if target.parent == ROOT / "cells":
            return Path("gallery") / f"{target.stem}.md"
        inside = target.relative_to(ROOT)
        if target.is_dir():
            return self._folder(target, Path("files") / inside / "index.md")
        if (language := _LANGUAGES.get(target.suffix)) is not None:
            place = Path("files") / inside.with_name(f"{target.name}.md")
            self.texts[place] = _listing(str(inside), language, target.read_text(encoding="utf-8"))
            return place
        if not target.is_file():
            raise FileNotFoundError(target)
        self.copies[Path("files") / inside] = target
        return Path("files") / inside

    def _folder(self, folder: Path, place: Path) -> Path:
        """A page that lists a folder's files."""
        lines = []
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            copy = place.parent / path.relative_to(folder)
            self.copies[copy] = path
            lines.append(f"- [{path.relative_to(folder)}]({path.relative_to(folder)})")
        self.texts[place] = _page(str(folder.relative_to(ROOT)), "\n".join(lines))
        return place

    def write(self, folder: Path) -> None:
        """Write all of it. What has not changed keeps its time."""
        for place, text in self.texts.items():
            _write(folder / place, text.encode())
        for place, path in self.copies.items():
            _write(folder / place, path.read_bytes())
        kept = {folder / place for place in (*self.texts, *self.copies)}
        for path in folder.rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()


def _with_gallery(heading: re.Match[str]) -> str:
    return f"{heading[0]}\n\n[Equations, picture, parameters and times](gallery/{heading[1]}.md)"


def _page(title: str, text: str) -> str:
    return f"---\nsearch:\n  exclude: true\n---\n\n# {title}\n\n{text}\n"


def _listing(title: str, language: str, text: str) -> str:
    return _page(title, f"````{language}\n{text.rstrip()}\n````")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_bytes() != content:
        path.write_bytes(content)
