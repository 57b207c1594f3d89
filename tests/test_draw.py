"""`rnncc draw`: what a picture shows, and that nothing in it overlaps."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from rnncc.ir.term import names
from rnncc.ir.typed import Typed
from rnncc.language.diagnostics import RnnccError
from rnncc.show.draw import THEMES, draw
from rnncc.show.draw.blocks import graph
from rnncc.show.draw.graph import Box, Graph, Kind
from rnncc.show.draw.labels import SMALL, runs, width
from rnncc.show.draw.layers import Layered, crossings, layered
from rnncc.show.draw.place import place
from rnncc.show.draw.route import Routed, route
from rnncc.show.draw.sizes import FONT, NAME_FONT, extent, is_circle
from rnncc.show.draw.values import Values
from rnncc.show.typed import show_term
from tests.conftest import Golden
from tests.docs.pages import DOCS
from tests.generated.cells import generate
from tests.seeds import batches
from tests.shipped import COVERING, FOLDER, STEMS
from tests.test_latex import checked, everything

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = {stem: (FOLDER / f"{stem}.rnn").read_text(encoding="utf-8") for stem in STEMS}
Rectangle = tuple[float, float, float, float]


def literature() -> Iterator[str]:
    """The texts of tests/literature that have no mistakes."""
    for path in sorted((Path(__file__).parent / "literature").glob("*.rnn")):
        with suppress(RnnccError):
            checked(path.read_text(encoding="utf-8"))
            yield path.read_text(encoding="utf-8")


@cache
def others() -> tuple[Typed, ...]:
    """Cells with every construct of the language."""
    return tuple(cell.typed for text in [*everything(), *literature()] for cell in checked(text))


def shipped(stem: str) -> Typed:
    """The cell of a shipped file."""
    return checked(TEXTS[stem], stem)[0].typed


def laid_out(cell: Typed) -> tuple[Graph, Layered, Routed]:
    """A cell's picture before it is written."""
    drawn = graph(cell)
    made = layered(drawn)
    place(made)
    return drawn, made, route(made)


def rectangles(drawn: Graph, made: Layered, routed: Routed, *, names: bool) -> list[Rectangle]:
    """Left, top, right and bottom of each box; with the names beside them, or the shapes alone."""
    found = []
    for number in range(len(drawn.boxes)):
        item = made.items[number]
        left, right = (item.extent.left, item.extent.right) if names else (item.extent.drawn, item.extent.drawn)
        y = routed.rows[item.layer]
        found.append((item.x - left, y - item.extent.height / 2, item.x + right, y + item.extent.height / 2))
    return found


def segments(routed: Routed) -> Iterator[tuple[tuple[int, int], int | None, Rectangle]]:
    """Each straight part of a wire: whose value it is, the box at the wire's end, and from where to where."""
    for path in routed.paths:
        for (x0, y0), (x1, y1) in zip(path.points, path.points[1:], strict=False):
            assert x0 == x1 or y0 == y1, "wires are straight up or straight across"
            yield path.origin, path.target, (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))


def check_geometry(cell: Typed) -> None:
    """No boxes overlap, no wire passes a box that it has nothing to do with, and no two values share a wire."""
    drawn, made, routed = laid_out(cell)
    boxes = rectangles(drawn, made, routed, names=True)
    for number, a in enumerate(boxes):
        for b in boxes[number + 1 :]:
            assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
    shapes = rectangles(drawn, made, routed, names=False)
    pieces = list(segments(routed))
    for (origin, _), target, (left, top, right, bottom) in pieces:
        for number, shape in enumerate(shapes):
            inside = (
                left < shape[2] - 0.1 and right > shape[0] + 0.1 and top < shape[3] - 0.1 and bottom > shape[1] + 0.1
            )
            assert not inside or number in (origin, target), (drawn.boxes[number], (left, top, right, bottom))
    for index, (value, _, one) in enumerate(pieces):
        for other, _, two in pieces[index + 1 :]:
            if value == other:
                continue
            upright = one[0] == one[2] and two[0] == two[2] and abs(one[0] - two[0]) < 2
            across = one[1] == one[3] and two[1] == two[3] and abs(one[1] - two[1]) < 2
            assert not (upright and min(one[3], two[3]) - max(one[1], two[1]) > 0.1), (value, other, one, two)
            assert not (across and min(one[2], two[2]) - max(one[0], two[0]) > 0.1), (value, other, one, two)


@pytest.mark.always(stem=COVERING[::3])
@pytest.mark.parametrize("stem", STEMS)
def test_nothing_overlaps_in_a_shipped_cell(stem: str) -> None:
    check_geometry(shipped(stem))


@pytest.mark.long
@pytest.mark.parametrize("part", range(6))
def test_nothing_overlaps_in_any_construct(part: int) -> None:
    assert len(others()) > 20
    for cell in others()[part::6]:
        check_geometry(cell)


@pytest.mark.long
@pytest.mark.parametrize("seeds", batches(20, 20), ids=str)
def test_nothing_overlaps_in_generated_cells(seeds: range) -> None:
    for seed in seeds:
        for cell in (made.typed for made in checked(generate(seed).text)):
            check_geometry(cell)


def check_titles(cell: Typed) -> None:
    """The titles of a picture's boxes say each equation of the output, and of what depends on an input or a state,
    once."""
    drawn = {*Values(cell).drawn, cell.output}
    said = [title for box in graph(cell).boxes for title in box.title.split("; ") if " = " in title]
    written = {each.target: f"{each.written} = {show_term(each.term)}" for each in cell.equations}
    assert sorted(said) == sorted(text for target, text in written.items() if target in drawn), cell.name


@pytest.mark.always(stem=COVERING)
@pytest.mark.parametrize("stem", STEMS)
def test_every_equation_of_a_shipped_cell_is_in_a_title(stem: str) -> None:
    check_titles(shipped(stem))


def test_every_equation_of_any_construct_is_in_a_title() -> None:
    for cell in others():
        check_titles(cell)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 150, 25)])
def test_every_equation_of_generated_cells_is_in_a_title(seeds: range) -> None:
    for seed in seeds:
        for cell in (made.typed for made in checked(generate(seed).text)):
            check_titles(cell)


def labels(*lines: str) -> list[str]:
    """The labels of the boxes, and the names of their tiles, of a cell with these lines."""
    given = ("cell Drawn", "state h", "weights p: vector", "param A: matrix", *lines, "h[t] = f + z + W@x", "")
    (cell,) = checked("\n".join(given))
    return [label for box in graph(cell.typed).boxes for label in (box.label, *(tile.name for tile in box.tiles))]


def test_gates_that_differ_in_parameters_have_boxes_of_their_own() -> None:
    assert [label for label in labels("f = p*relu(h[t-1])", "z = p*relu(h[t-1])") if "p" in label] == [
        "p_{f}·ReLU(h_{t−1})",
        "p_{z}·ReLU(h_{t−1})",
    ]
    assert {"max(p_{f}, h_{t−1})", "max(p_{z}, h_{t−1})"} <= {*labels("f, z = max(p, h[t-1])")}
    # A group with one parameter alone needs no subscript, as in LaTeX.
    assert "p·ReLU(h_{t−1})" in labels("f = p*relu(h[t-1])", "z = h[t-1]")
    # Functions of one matrix that differ in what no label shows.
    rows, columns = (f"softmax(A + T(A) + 0.5*eye(H), axis={axis})@h[t-1]" for axis in ("rows", "columns"))
    assert [label for label in labels(f"f = {rows}", f"z = {columns}") if label in ("f", "z")] == ["f", "z"]


def test_values_of_different_widths_have_boxes_of_their_own() -> None:
    found = labels("local f: 1, z: H", "f = mean(h[t-1])", "z = mean(h[t-1])")
    assert found.count("mean") == 2
    assert labels("local f: 1, z: 1", "f = mean(h[t-1])", "z = mean(h[t-1])").count("mean") == 1


def reached(drawn: Graph, box: int) -> set[str]:
    """The labels of the inputs and of the values of earlier steps that a box depends on."""
    sources = {
        number: [wire.source for wire in drawn.wires if wire.target == number] for number in range(len(drawn.boxes))
    }
    found, left = set[int](), [box]
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left += sources[number]
    first = (drawn.boxes[number] for number in found if not sources[number])
    return {given.label for given in first if given.kind in (Kind.INPUT, Kind.PAST)}


def depends(cell: Typed, name: str) -> set[str]:
    """The values of the text that a value depends on: inputs and those of earlier steps, as the labels have them."""
    equations = {equation.target: equation.term for equation in cell.equations}
    found, left = set[str](), [name]
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            left += names(equations[value]) if value in equations else []
    inputs = {given.name for given in cell.inputs}
    return {value for value in found - {*equations} if value in inputs or re.search(r"__\d+$", value)}


@pytest.mark.always(stem=COVERING)
@pytest.mark.parametrize("stem", STEMS)
def test_a_state_depends_on_what_the_equations_say(stem: str) -> None:
    cell = shipped(stem)
    drawn = graph(cell)
    results = [number for number, box in enumerate(drawn.boxes) if box.kind in (Kind.NEXT, Kind.OUTPUT)]
    told = [*(state.name for state in cell.states)]
    told += [cell.output] if cell.output not in told else []
    assert len(results) == len(told)
    for number, name in zip(results, told, strict=True):
        assert len(reached(drawn, number)) == len(depends(cell, name)), name


def blocks(stem: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The products of a cell's picture, with their gates."""
    drawn = graph(shipped(stem))
    return [
        (box.label, sorted((tile.function, tile.name) for tile in box.tiles))
        for box in drawn.boxes
        if box.kind is Kind.BLOCK
    ]


def test_the_gates_of_an_lstm_share_one_product() -> None:
    assert blocks("lstm") == [
        ("W x_{t} + R h_{t−1} + b", [("tanh", "g"), ("σ", "f"), ("σ", "i"), ("σ", "o")]),
    ]
    assert blocks("lem") == [
        ("W x_{t} + R h_{t−1} + b", [("dt σ", "d_{1}"), ("dt σ", "d_{2}"), ("tanh", "nz")]),
        ("W x_{t} + R z_{t} + b", [("tanh", "nh")]),
    ]
    assert ("W x_{t} + b", [("", "n"), ("σ", "z")]) in blocks("mingru")
    assert ("R s^{(1)} + b", [("tanh", "n^{(2)}"), ("σ", "g^{(2)}")]) in blocks("rhn")
    assert [label for label, _ in blocks("lowrankrnn")] == ["R • + W x_{t}"]


def positions(stem: str) -> dict[str, tuple[float, float]]:
    """The middle of each box of a kind that is at a side, by its label."""
    drawn, made, routed = laid_out(shipped(stem))
    sides = (Kind.INPUT, Kind.PAST, Kind.NEXT, Kind.OUTPUT)
    return {
        box.label: (made.items[number].x, routed.rows[made.items[number].layer])
        for number, box in enumerate(drawn.boxes)
        if box.kind in sides
    }


@pytest.mark.parametrize("stem", ["lstm", "lem", "rhn", "mogrifierlstm", "mingru"])
def test_time_goes_to_the_right_and_values_go_up(stem: str) -> None:
    found = positions(stem)
    before = [x for label, (x, _) in found.items() if "t−1" in label]
    after = [x for label, (x, _) in found.items() if label.endswith("_{t}") and not label.startswith("x")]
    x, y = found["x_{t}"]
    assert max(before) < x < min(after)
    assert y == max(other for _, other in found.values()), "inputs are at the bottom"
    _, made, routed = laid_out(shipped(stem))
    assert all(path.points[0][1] > path.points[-1][1] for path in routed.paths)
    assert crossings(made) <= {"lstm": 1, "mingru": 1, "rhn": 2, "mogrifierlstm": 5, "lem": 4}[stem]
    width_ = float(re.search(r'width="([\d.]+)"', draw(shipped(stem)))[1])  # type: ignore[index]
    assert width_ < 390, "a narrow screen shows it at its own size"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stems", [COVERING, STEMS], ids=["covering", "all"])
def test_labels_are_no_wider_than_is_thought(stems: Sequence[str]) -> None:
    """In DejaVu Sans, the font that is named first; with that, labels are inside of their boxes."""
    font = FT2Font(findfont(FontProperties(family="DejaVu Sans")))
    font.set_size(100, 72)

    def measured(label: str, size: float) -> float:
        total = 0.0
        for run in runs(label):
            font.set_text(run.text, 0)
            total += font.get_width_height()[0] / 64 / 100 * size * (SMALL if run.height else 1)
        return total

    seen = 0
    for cell in (*map(shipped, stems), *others()):
        for box in graph(cell).boxes:
            for label, size, room in _labels(box, extent(box).drawn):
                assert measured(label, size) <= width(label, size) + 1, label
                assert measured(label, size) <= room, (cell.name, label)
                seen += 1
    assert seen > 1000


def _labels(box: Box, half: float) -> Iterator[tuple[str, float, float]]:
    """Each label within the shape of a box, its size, and the room that it has."""
    if is_circle(box):
        yield box.label, FONT, 2 * half
        return
    yield box.label, FONT, 2 * half - 4
    for tile in box.tiles:
        yield tile.function, FONT, 2 * half / len(box.tiles) - 4
        yield tile.name, NAME_FONT, 2 * half / len(box.tiles) - 4


@pytest.mark.parametrize("theme", THEMES)
def test_it_is_svg_that_says_what_it_shows(theme: str) -> None:
    text = draw(shipped("lstm"), theme)
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    described = (root.get("aria-labelledby") or "").split()
    assert [element.tag for element in root.iter() if element.get("id") in described] == [f"{SVG}title", f"{SVG}desc"]
    description = root.findtext(f"{SVG}desc") or ""
    assert "i, f, g, o read x_t, h_t−1." in description
    assert ("prefers-color-scheme: dark" in text) == (theme == "auto")
    titles = {element.text for element in root.iter(f"{SVG}title")}
    assert "c[t] = sigmoid(f) * c[t-1] + sigmoid(i) * tanh(g)" in titles
    words = " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
    assert "matrix product" in words
    assert "across units" not in words, "the legend has what the picture has"


def test_pictures_of_one_page_do_not_change_each_other() -> None:
    """Every rule of a style sheet, and every id, begins with the picture's own name."""
    style = re.search(r"<style>\n(.*)</style>", draw(shipped("gru"), "auto"), re.DOTALL)
    assert style is not None
    rules = [line for line in style[1].splitlines() if "{" in line and "@media" not in line]
    assert rules
    assert all(part.strip().startswith(".rnncc-GRU-auto ") for rule in rules for part in rule.split("{")[0].split(","))


def test_the_same_cell_gives_the_same_picture() -> None:
    assert draw(shipped("slstm")) == draw(shipped("slstm"))


def test_the_picture_of_the_page_is_the_one_that_is_made(golden: Golden) -> None:
    golden(DOCS / "lstm.svg", draw(shipped("lstm")))


def test_a_matrix_has_a_second_border_and_what_multiplies_it_reads_it() -> None:
    text = (Path(__file__).parent / "fixtures" / "gateddeltanet.rnn").read_text(encoding="utf-8")
    (cell,) = (made.typed for made in checked(text))
    drawn = graph(cell)
    assert {box.label for box in drawn.boxes if box.is_matrix and box.kind in (Kind.PAST, Kind.NEXT)} == {
        "S_{t−1}",
        "S_{t}",
    }
    read = {
        (drawn.boxes[wire.source].label, wire.mark) for wire in drawn.wires if drawn.boxes[wire.target].label == "@"
    }
    assert {("+", "left"), ("W x_{t}", "right")} <= read, "y = S[t]@q"
    after = next(box for box in drawn.boxes if box.kind is Kind.NEXT)
    assert after.title == "state S after the step, H x K in num_heads blocks"
    picture = draw(cell, "light")
    both = re.findall(r'class="box state" x="[^"]*" y="[^"]*" width="([^"]*)"', picture)
    assert len(both) == 3 and float(both[0]) == float(both[1]) + 5, "two borders, and the legend's"
    assert ">matrix</text>" in picture
    assert "matrix" not in draw(shipped("lstm"), "light").replace("matrix product", "")
