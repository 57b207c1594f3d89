"""What a built site must not have: links that lead nowhere, anchors that are not there, anything from another host."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that make a browser fetch something by itself.
_FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}


class _Page(HTMLParser):
    """The names that links of a page may end in, and the links: (tag, attribute, address)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[tuple[str, str, str]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        self.links += [(tag, key, given[key]) for key in ("href", "src") if key in given]


def problems(site: Path) -> list[str]:
    """What is wrong with a site, a line each; none where all is well."""
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site}: no page"]
    return [problem for path, page in pages.items() for problem in _of_page(path, page, pages, site)]


def _of_page(path: Path, page: _Page, pages: dict[Path, _Page], site: Path) -> Iterator[str]:
    here = path.relative_to(site)
    for tag, key, address in page.links:
        parts = urlsplit(address)
        if parts.scheme in ("mailto", "data", "javascript"):
            continue
        if parts.scheme or parts.netloc:
            if (tag, key) in _FETCHED or tag == "link":
                yield f"{here}: <{tag}> fetches {address}"
            continue
        target = _target(path, unquote(parts.path), site)
        if not target.is_file():
            yield f"{here}: {address} is not there"
        elif target in pages and unquote(parts.fragment) not in pages[target].names | {""}:
            yield f"{here}: {address} has no such section"


def _target(path: Path, address: str, site: Path) -> Path:
    if not address:
        return path
    folder = site if address.startswith("/") else path.parent
    target = (folder / address.lstrip("/")).resolve()
    return target / "index.html" if target.is_dir() else target
