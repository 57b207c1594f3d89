"""The picture as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from rnncc.show.draw.graph import LEGEND, Box, Graph, Kind
from rnncc.show.draw.labels import SMALL, plain, runs, width
from rnncc.show.draw.layers import Item, Layered
from rnncc.show.draw.route import Path, Routed
from rnncc.show.draw.sizes import FONT, NAME_FONT, STRIP, TILE, is_circle

_MARGIN = 16.0
_LEGEND_FONT = 11.5
_LEGEND_ROW = 20.0
# A matrix has a second border inside of the first.
_INSET, _MATRIX = 2.5, "point matrix"

Colours = Mapping[str, str | tuple[str, str]]
# Colours: of the paper, of text, of wires; then the fill and the edge of each kind of box.
_LIGHT: Colours = {
    "paper": "#ffffff", "ink": "#1b1f24", "soft": "#57606a", "wire": "#6e7781", "past": "#bc4c00", "in": "#0969da",
    "input": ("#ddf4ff", "#0969da"), "state": ("#fff1e5", "#bc4c00"), "next": ("#fff1e5", "#bc4c00"),
    "output": ("#dafbe1", "#1a7f37"), "product": ("#fbefff", "#8250df"), "tile": ("#fff8c5", "#9a6700"),
    "function": ("#fff8c5", "#9a6700"), "point": ("#f6f8fa", "#57606a"), "rows": ("#ffeff7", "#bf3989"),
}  # fmt: skip
_DARK: Colours = {
    "paper": "#0d1117", "ink": "#e6edf3", "soft": "#9da7b3", "wire": "#8b949e", "past": "#f0883e", "in": "#58a6ff",
    "input": ("#0c2d6b", "#58a6ff"), "state": ("#4d2000", "#f0883e"), "next": ("#4d2000", "#f0883e"),
    "output": ("#033a16", "#3fb950"), "product": ("#3c1e70", "#bc8cff"), "tile": ("#3b2300", "#d29922"),
    "function": ("#3b2300", "#d29922"), "point": ("#21262d", "#9da7b3"), "rows": ("#5e103e", "#f778ba"),
}  # fmt: skip


def svg(graph: Graph, made: Layered, routed: Routed, theme: str) -> str:
    """The picture of a graph whose items and wires have their places."""
    lefts = [item.x - item.extent.left for item in made.items]
    rights = [item.x + item.extent.right for item in made.items]
    kinds = [(kind.value, words) for kind, words in LEGEND.items() if any(box.kind is kind for box in graph.boxes)]
    if any(box.is_output and box.kind is Kind.NEXT for box in graph.boxes):
        kinds.append((f"{Kind.NEXT.value} out", "output"))
    if any(box.is_matrix for box in graph.boxes):
        kinds.append((_MATRIX, "matrix"))
    body_left, body_right = min(lefts), max(rights)
    inner = max(body_right - body_left, 250.0)
    entries = list(_legend_places(kinds, inner))
    legend_height = _LEGEND_ROW * (1 + max((row for _, _, row, _ in entries), default=0))
    total_width = inner + 2 * _MARGIN
    total_height = routed.height + legend_height + 3 * _MARGIN
    dx = _MARGIN - body_left + (inner - (body_right - body_left)) / 2
    dy = _MARGIN + routed.height
    name = f"rnncc-{graph.name}-{theme}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" role="img" aria-labelledby="{name}-title {name}-desc" '
        f'width="{_n(total_width)}" height="{_n(total_height)}" viewBox="0 0 {_n(total_width)} {_n(total_height)}" '
        'style="max-width: 100%; height: auto">',
        f'<title id="{name}-title">One step of {escape(graph.name)}</title>',
        f'<desc id="{name}-desc">{escape(_description(graph))}</desc>',
        f"<style>\n{_style(name, theme)}</style>",
        "<defs>",
        *(_arrow(name, kind) for kind in ("wire", "past", "in")),
        "</defs>",
        f'<rect class="paper" width="{_n(total_width)}" height="{_n(total_height)}" rx="8"/>',
        f'<g transform="translate({_n(dx)} {_n(dy)})">',
        *_wires(graph, routed, name),
        *(
            line
            for number, item in enumerate(made.items)
            if item.box is not None
            for line in _box(graph.boxes[number], item, routed)
        ),
        "</g>",
        *_legend(entries, total_height - legend_height - _MARGIN / 2),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _description(graph: Graph) -> str:
    """What the picture shows, in words: each box with what it reads."""
    names = [plain(_called(box)) for box in graph.boxes]
    read: dict[int, dict[str, None]] = {}
    for wire in graph.wires:
        read.setdefault(wire.target, {})[names[wire.source]] = None
    sentences = []
    for number, box in enumerate(graph.boxes):
        if reads := read.get(number):
            sentences.append(f"{names[number]} read{'' if len(box.tiles) > 1 else 's'} {', '.join(reads)}.")
        if box.kind is Kind.INPUT:
            sentences.append(f"{names[number]} is an input.")
    return " ".join(sentences)


def _called(box: Box) -> str:
    if box.tiles:
        return ", ".join(tile.name or tile.function for tile in box.tiles)
    return box.name or box.label


def _style(name: str, theme: str) -> str:
    font = "font-family: 'DejaVu Sans', Verdana, 'Segoe UI', Helvetica, Arial, sans-serif"
    fixed = (
        f".{name} text {{ {font}; font-size: {FONT:g}px; text-anchor: middle }}\n"
        f".{name} .name {{ font-size: {NAME_FONT:g}px }}\n"
        f".{name} .aside {{ font-size: {NAME_FONT:g}px; text-anchor: start }}\n"
        f".{name} .legend {{ font-size: {_LEGEND_FONT:g}px; text-anchor: start }}\n"
        f".{name} .mark {{ font-size: {NAME_FONT:g}px; font-weight: bold }}\n"
        f".{name} .strip {{ font-size: {FONT:g}px }}\n"
        f".{name} path {{ fill: none; stroke-width: 1.5 }}\n"
        f".{name} path.past {{ stroke-width: 2 }}\n"
        f".{name} .box {{ stroke-width: 1.4 }}\n"
        f".{name} .out {{ stroke-width: 3 }}\n"
    )
    if theme == "auto":
        dark = "".join(f"  {line}\n" for line in _colours(name, _DARK).splitlines())
        return fixed + _colours(name, _LIGHT) + f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
    return fixed + _colours(name, _DARK if theme == "dark" else _LIGHT)


def _colours(name: str, colours: Colours) -> str:
    lines = [
        f".{name} .paper {{ fill: {colours['paper']} }}",
        f".{name} text {{ fill: {colours['ink']} }}",
        f".{name} .aside, .{name} .legend {{ fill: {colours['soft']} }}",
    ]
    for wire in ("wire", "past", "in"):
        lines.append(f".{name} path.{wire} {{ stroke: {colours[wire]} }}")
        lines.append(f".{name} .dot.{wire}, .{name} .tip.{wire} {{ fill: {colours[wire]}; stroke: none }}")
    for kind, pair in colours.items():
        if isinstance(pair, tuple):
            lines.append(f".{name} .box.{kind} {{ fill: {pair[0]}; stroke: {pair[1]} }}")
    return "".join(f"{line}\n" for line in lines)


def _arrow(name: str, kind: str) -> str:
    return (
        f'<marker id="{name}-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip {kind}" d="M0 0.6 L8 4 L0 7.4 Z"/></marker>'
    )


def _wires(graph: Graph, routed: Routed, name: str) -> Iterator[str]:
    for path in routed.paths:
        kind = _wire_kind(graph, path.origin[0])
        arrow = "" if path.target is None else f' marker-end="url(#{name}-{kind})"'
        yield f'<path class="{kind}" d="{_rounded(path)}"{arrow}/>'
    for (origin, _), x, y in routed.dots:
        yield f'<circle class="dot {_wire_kind(graph, origin)}" cx="{_n(x)}" cy="{_n(y)}" r="2.6"/>'
    for path in routed.paths:
        if path.mark and path.target is not None and not graph.boxes[path.target].marks:
            x, y = path.points[-1]
            yield _text(path.mark, x + (-7 if path.points[0][0] <= x else 7), y + 11, "mark")


def _wire_kind(graph: Graph, origin: int) -> str:
    """What a wire carries: a state of the step before, an input, or a value of the step."""
    return {Kind.PAST: "past", Kind.INPUT: "in"}.get(graph.boxes[origin].kind, "wire")


def _rounded(path: Path) -> str:
    """The wire with round corners."""
    points = path.points
    text = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        into = min(5.0, (abs(x - before[0]) + abs(y - before[1])) / 2)
        out = min(5.0, (abs(after[0] - x) + abs(after[1] - y)) / 2)
        radius = min(into, out)
        text += f" L{_toward(x, y, before, radius)} Q{_n(x)} {_n(y)} {_toward(x, y, after, radius)}"
    return f"{text} L{_n(points[-1][0])} {_n(points[-1][1])}"


def _toward(x: float, y: float, to: tuple[float, float], length: float) -> str:
    dx, dy = to[0] - x, to[1] - y
    whole = abs(dx) + abs(dy) or 1.0
    return f"{_n(x + dx / whole * length)} {_n(y + dy / whole * length)}"


def _box(box: Box, item: Item, routed: Routed) -> Iterator[str]:
    x, y = item.x, routed.rows[item.layer]
    half, height = item.extent.drawn, item.extent.height
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    out = " out" if box.is_output else ""
    yield f"<g>{title}"
    if box.tiles:
        yield from _block(box, item, y)
    elif is_circle(box):
        yield f'<circle class="box {box.kind.value}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(half)}"/>'
        if box.is_matrix:
            yield f'<circle class="box {box.kind.value}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(half - _INSET)}"/>'
        yield _text(box.label, x, y + FONT * 0.36)
    else:
        round_ = height / 2 if box.kind in (Kind.PAST, Kind.NEXT, Kind.INPUT, Kind.OUTPUT) else 5
        yield _rectangle(f"box {box.kind.value}{out}", x - half, y - height / 2, 2 * half, height, round_)
        if box.is_matrix:
            left, top, inner = x - half + _INSET, y - height / 2 + _INSET, height - 2 * _INSET
            yield _rectangle(f"box {box.kind.value}", left, top, 2 * (half - _INSET), inner, round_ - _INSET)
        yield _text(box.label, x, y - 3 if box.marks else y + FONT * 0.36)
        for mark, slot in zip(box.marks, item.extent.slots, strict=True):
            yield _text(mark, x + slot, y + height / 2 - 6, "name")
    if box.name and not box.tiles:
        yield _text(box.name, x + half + 4, y + NAME_FONT * 0.36 - 8, "aside")
    yield "</g>"


def _block(box: Box, item: Item, y: float) -> Iterator[str]:
    """Tiles side by side on the strip of products that they are made of."""
    x, half, height = item.x, item.extent.drawn, item.extent.height
    tile = 2 * half / len(box.tiles)
    top = y - height / 2
    yield _rectangle(f"box {box.kind.value}", x - half, top + TILE, 2 * half, STRIP, 5)
    yield _text(box.label, x, top + TILE + STRIP / 2 + FONT * 0.36, "strip")
    for each, port in zip(box.tiles, item.extent.ports, strict=True):
        filled = "tile" if each.function else box.kind.value
        yield f"<g><title>{escape(each.title)}</title>" if each.title else "<g>"
        yield _rectangle(f"box {filled}", x + port - tile / 2, top, tile, TILE, 5)
        if each.function and each.name:
            yield _text(each.function, x + port, top + 16)
            yield _text(each.name, x + port, top + 31, "name")
        else:
            yield _text(each.function or each.name, x + port, top + TILE / 2 + FONT * 0.36)
        yield "</g>"


def _rectangle(kind: str, x: float, y: float, wide: float, high: float, round_: float) -> str:
    size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(high)}" rx="{_n(round_)}"'
    return f'<rect class="{kind}" {size}/>'


def _text(label: str, x: float, y: float, kind: str = "") -> str:
    """A label whose line is at y."""
    spans, height = "", 0.0
    for run in runs(label):
        wanted = {0: 0.0, -1: 3.5, 1: -5.0}[run.height]
        shift = f' dy="{_n(wanted - height)}"' if wanted != height else ""
        size = f' style="font-size: {SMALL:g}em"' if run.height else ""
        height = wanted
        spans += f"<tspan{shift}{size}>{escape(run.text)}</tspan>" if shift or size else escape(run.text)
    kinds = f' class="{kind}"' if kind else ""
    return f'<text{kinds} x="{_n(x)}" y="{_n(y)}">{spans}</text>'


def _legend_places(kinds: list[tuple[str, str]], inner: float) -> Iterator[tuple[str, str, int, float]]:
    """The class and the words of each entry of the legend, its row, and where it begins."""
    row, x = 0, 0.0
    for kind, words in kinds:
        wide = 20 + width(words, _LEGEND_FONT) + 8
        if x and x + wide > inner + 8:
            row, x = row + 1, 0.0
        yield kind, words, row, x
        x += wide


def _legend(entries: list[tuple[str, str, int, float]], top: float) -> Iterator[str]:
    for kind, words, row, x in entries:
        y = top + row * _LEGEND_ROW
        round_ = 2 if kind in (Kind.BLOCK.value, Kind.FUNCTION.value, Kind.ROWS.value) else 6
        yield _rectangle(f"box {kind}", _MARGIN + x, y, 14, 12, round_)
        if kind == _MATRIX:
            yield _rectangle(f"box {kind}", _MARGIN + x + _INSET, y + _INSET, 14 - 2 * _INSET, 12 - 2 * _INSET, 1)
        yield _text(words, _MARGIN + x + 19, y + 10, "legend")
