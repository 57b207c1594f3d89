"""The site (`make site`): pages of cells say what is so, links lead somewhere, nothing comes from another host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rnncc.ir.dim import evaluate
from rnncc.language.read import read_request, read_source
from rnncc.machine.paths import cells_dir, shipped_cells
from rnncc.pipeline import compile_cells
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, read
from tests.packages import reference_package

STEMS = [path.stem for path in shipped_cells()]
SECTIONS = [
    "Equations",
    "A step as a picture",
    "In Python",
    "Parameters",
    "Speed",
    "Source",
    "What the compiler decides",
]


@pytest.fixture(scope="module")
def on_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.syspath_prepend(str(DOCS / "site"))
        yield


@pytest.fixture
def cells(on_path: None) -> Any:
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    return import_module("site_cells")


@pytest.fixture
def check(on_path: None) -> Any:
    return import_module("site_check")


def sections(path: Path) -> dict[str, str]:
    """A page's sections by their titles."""
    _, *found = re.split(r"^## (.+)\n\n", read(path), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.one_in(25)
@pytest.mark.parametrize("stem", STEMS)
def test_a_page_of_a_cell(stem: str, cells: Any, tmp_path: Path) -> None:
    """Its equations are MathML, its program runs, and its table lists the layer's parameters."""
    shipped = cells.shipped(stem)
    page = tmp_path / "page.md"
    page.write_text(cells.page(shipped, shipped.entry, shipped.entry), encoding="utf-8")
    assert "__rank" not in read(page)
    parts = sections(page)
    assert list(parts) == SECTIONS
    formulas = [ElementTree.fromstring(found) for found in re.findall(r"<math.*?</math>", read(page))]
    assert not [formula for formula in formulas if re.search(r"[\\$]", "".join(formula.itertext()))]
    rows = formulas[0].findall("mtable/mtr")
    assert rows and all(len(row) == 2 for row in rows)
    assert f"```rnn\n{read_source(cells_dir() / f'{stem}.rnn').text.strip()}\n```" in parts["Source"]

    (program,) = blocks(page, "python")
    module, (cell,) = reference_package(shipped.made.cell.source, stem)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnncc.load", {stem: module}.__getitem__)
        exec(program.text, names)
    assert names["output"].shape[:2] == names["x"].shape[:2]
    sizes = import_module("site_use").sizes_of(cell)
    # The mark of the order of gates is no parameter.
    entries = {name: value for name, value in names["layer"].state_dict().items() if not name.startswith("rnncc_")}
    assert {name: tuple(value.shape) for name, value in entries.items()} == {
        f"{parameter.attribute}_l0": tuple(evaluate(size, sizes) for size in cells.shape(parameter))
        for parameter in cell.parameters
    }
    assert re.findall(r"<tr><td><code>(\w+)</code>", parts["Parameters"]) == [
        f"{parameter.attribute}_l0" for parameter in cell.parameters
    ]


def test_the_page_of_the_lstm(cells: Any) -> None:
    shipped = cells.shipped("lstm")
    text = cells.page(shipped, shipped.entry, shipped.entry)
    rows = json.loads(read(ROOT / "benchmarks" / "results" / "gpu_cells.json"))["results"]
    forward, both = (
        next(
            row["queued_ms"]
            for row in rows
            if (row["cell"], row["head_dim"], row["heads"], row["run"]) == ("lstm", 768, 1, run)
        )
        for run in ("fw", "fw+bw")
    )
    shown = re.search(r"<td>768, one head</td><td>([\d.]+)</td><td>([\d.]+)</td>", text)
    assert shown is not None
    assert [float(each) for each in shown.groups()] == pytest.approx([forward, both], rel=0.005)
    assert "<strong>DENSE</strong>: R@h[t-1] mixes the units of a state (line 6)" in text
    assert "<td><code>[4*H, I]</code></td>" in text and "<td><code>[4*H, H//num_heads]</code></td>" in text
    # The forget gate's bias is the only one that starts at 1.
    assert "uniform, ±1/√H; <math><mrow><msub><mi>b</mi><mi>f</mi></msub></mrow></math>: 1" in text
    assert set(cells.pictures(shipped)) == set(re.findall(r"lstm\.\w+\.svg", text))


def test_formulas(cells: Any) -> None:
    math = import_module("site_math")
    text = (
        "\\begin{align}\n  \\mathit{lf}_t &= \\begin{cases} a & b \\\\ c & d \\end{cases} \\\\\n  y &= x\n\\end{align}"
    )
    first, second = ElementTree.fromstring(math.display(text)).findall("mtable/mtr")
    assert ["".join(side.itertext()) for side in first] == ["lft", "={abcd"]
    assert len(first.findall(".//mtable/mtr")) == 2
    assert ["".join(side.itertext()) for side in second] == ["y", "=x"]
    assert math.sentences("a < b, $x$") == "a &lt; b, <math><mrow><mi>x</mi></mrow></math>"
    assert "<mi>softplus</mi><mo" in math.inline(r"\operatorname{softplus}(v)")
    assert '<mi>log</mi><mspace width="0.167em"/><mi>' in math.inline(r"\log \sigma(v)")
    assert math.inline(r"\bigl(-1, -v\bigr)").count('<mo form="prefix">') == 2
    with pytest.raises(ValueError, match="unheardof"):
        math.inline(r"\unheardof x")
    with pytest.raises(ValueError, match="emph"):
        math.sentences(r"\emph{a}")


def test_the_index_has_every_cell_once(cells: Any) -> None:
    gallery = import_module("site_gallery")
    files = dict(gallery.files([cells.shipped(stem) for stem in STEMS[::12]]))
    index = files[Path("gallery/index.md")]
    assert sorted(re.findall(r'href="(\w+)\.html"', index)) == STEMS[::12]
    pictures = set(re.findall(r'src="([\w.]+)#only', index))
    assert {Path("gallery") / name for name in pictures} == {path for path in files if path.suffix == ".svg"}


@pytest.mark.long
def test_every_cell_has_its_place_in_the_index(on_path: None) -> None:
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    kinds = import_module("site_gallery")._KINDS
    for stem in STEMS:
        (made,) = compile_cells(read_request(stem), "classify").cells
        classes = frozenset(each.kind for each in made.recurrences)
        phases = max(each.phases for each in made.cell.segments)
        assert len([kind for kind in kinds if kind.takes(classes, phases)]) == 1, stem


def test_links_of_pages_lead_to_the_site(on_path: None) -> None:
    site = import_module("site_pages").Site()
    site.add_pages()
    there = {*site.texts, *site.copies, Path("gallery/index.md"), *(Path(f"gallery/{stem}.md") for stem in STEMS)}
    assert {path.name for path in PAGES if path.parent == DOCS} <= {str(place) for place in site.texts}
    count = 0
    for place, text in site.texts.items():
        for link in re.findall(r"\]\((?!\w+://|#)([^)#\s]+)", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)):
            assert Path(os.path.normpath(place.parent / link)) in there, (place, link)
            count += 1
    assert count > 200
    # What a block says stays as it is.
    for path in PAGES:
        place = Path({"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}.get(path.name, path.name))
        for block in blocks(path):
            assert block.text in site.texts[place], (path, block)


def test_a_link_that_leads_nowhere_is_an_error(on_path: None) -> None:
    site = import_module("site_pages").Site()
    assert site.linked("[a](gpu.md#b), [c](https://d), `e`", DOCS / "cli.md") == "[a](gpu.md#b), [c](https://d), `e`"
    assert site.linked("[a](docs/gpu.md), [b](cells/gru.rnn)", ROOT / "README.md") == "[a](gpu.md), [b](gallery/gru.md)"
    with pytest.raises(FileNotFoundError):
        site.linked("[a](nowhere.md)", DOCS / "cli.md")


def test_every_page_is_in_the_menu() -> None:
    text = read(DOCS / "mkdocs.yml")
    assert not [path.name for path in PAGES if path.parent == DOCS and f": {path.name}\n" not in text]


def test_what_the_checker_finds(check: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "two.html").write_text('<h1 id="top">x</h1><a href="../one.html#b c">x</a>', encoding="utf-8")
    good = (
        '<p id="b c"><a href="a/two.html#top">x</a><a href="https://elsewhere.org/x">x</a><img src="p.svg#only-light">'
    )
    (tmp_path / "one.html").write_text(good, encoding="utf-8")
    (tmp_path / "p.svg").write_text("<svg/>")
    assert check.problems(tmp_path) == []
    bad = (
        '<a href="a/three.html">x</a><a href="a/two.html#middle">x</a><script src="https://cdn.org/x.js"></script>'
        '<link href="//fonts.org/y.css"><img src="q.svg"><a href="#own">x</a>'
    )
    (tmp_path / "one.html").write_text(good + bad, encoding="utf-8")
    assert check.problems(tmp_path) == [
        "one.html: a/three.html is not there",
        "one.html: a/two.html#middle has no such section",
        "one.html: <script> fetches https://cdn.org/x.js",
        "one.html: <link> fetches //fonts.org/y.css",
        "one.html: q.svg is not there",
        "one.html: #own has no such section",
    ]
    assert check.problems(tmp_path / "empty") == [f"{tmp_path / 'empty'}: no page"]


def test_docstrings_with_names_beside_meanings(on_path: None) -> None:
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    with_lists = import_module("site_docstrings").with_lists
    text = "What.\n\nname    what it is\n        and more\n`a, b`\n        both\n\nRaises:\n    ValueError: for two"
    assert with_lists(text) == (
        "What.\n\n- `name`: what it is and more\n- `a, b`: both\n\nRaises:\n    ValueError: for two"
    )


@pytest.mark.docs
def test_the_whole_site(check: Any, tmp_path: Path) -> None:
    """As `make site` builds it: mkdocs has nothing to say, and no link is dead."""
    for library in ("latex2mathml", "material", "mkdocstrings"):
        pytest.importorskip(library, reason="the extra docs is not installed: pip install -e '.[docs]'")
    command = [sys.executable, str(DOCS / "site" / "make.py"), "--out", str(tmp_path)]
    paths = os.pathsep.join([str(ROOT / "benchmarks"), *sys.path])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    html = tmp_path / "html"
    assert check.problems(html) == []
    assert {path.stem for path in (html / "gallery").glob("*.html")} == {"index", *STEMS}
    lstm = read(html / "gallery" / "lstm.html")
    # The lexer colours cells, and the API has what docstrings say.
    assert '<span class="nb">sigmoid</span>' in lstm
    assert lstm.count("<math") > 10 and "<mtable" in lstm
    api = read(html / "api.html")
    assert 'id="rnncc.load"' in api and 'id="rnncc.runtime.modules.layer.RecurrentLayer.forward"' in api


@pytest.mark.parametrize("stem, file, steps", [("lstm", "cpu", 128), ("lem", "cpu", 128), ("mingru", "cpu_scan", 1024)])
def test_speeds_are_those_that_were_measured(stem: str, file: str, steps: int, cells: Any) -> None:
    def measured(name: str, **wanted: Any) -> list[dict[str, Any]]:
        rows = json.loads(read(ROOT / "benchmarks" / "results" / f"{name}.json"))["results"]
        return [row for row in rows if all(row[key] == value for key, value in wanted.items())]

    section = cells._speed(stem)
    lines = [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>(.*?)</tr>", section)]
    shown = {line[0]: [float(each) for each in line[1:3]] for line in lines if line}
    assert f"a batch of 16 over {steps} steps in float32" in section
    on_cpu = [row["rnncc_ms"] for row in measured(file, cell=stem, T=steps, B=16, H=128)]
    on_gpu = [row["queued_ms"] for row in measured("gpu_cells", cell=stem, head_dim=768, heads=1)]
    assert shown["rnncc"] == pytest.approx(on_cpu, rel=5e-3)
    assert shown["768, one head"] == pytest.approx(on_gpu, rel=5e-3)


def test_a_speed_that_nobody_knows(cells: Any) -> None:
    assert cells._speed("a_new_cell").startswith("Nobody has measured it yet.")


def test_factors_of_low_rank_are_called_by_their_matrix(cells: Any) -> None:
    table = cells._parameters(cells.shipped("lowrankrnn").made.cell)
    assert "left factor of <math>" in table and "[H, rank(R)//num_heads]" in table
    assert "__" not in table and "left_factor" not in table


@pytest.mark.docs
def test_sites_of_several_versions(on_path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make site-version`: a site stands beside those of other versions in a branch, and `latest` is the newest one."""
    for library in ("material", "mkdocstrings", "mike"):
        pytest.importorskip(library, reason="the extra docs is not installed: pip install -e '.[docs]'")
    make = import_module("make")
    subprocess.run(["git", "init", "--quiet", tmp_path / "repository"], check=True)
    who = {f"GIT_{role}_{key}": "test" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    for name, value in {"GIT_DIR": str(tmp_path / "repository" / ".git"), **who}.items():
        monkeypatch.setenv(name, value)

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout

    git("config", "user.name", "test")
    git("config", "user.email", "test@localhost")
    git("commit", "--quiet", "--allow-empty", "--message", "a version")
    page = tmp_path / "out" / "pages" / "index.md"
    page.parent.mkdir(parents=True)
    (page.parent / "site.css").write_text("")
    for version in ("0.1.0", "0.2.0", "0.2.1"):
        page.write_text(f"# rnncc\n\nThis is {version}.")
        monkeypatch.setattr(make, "VERSION", version)
        make.keep(tmp_path / "out", "sites")
    told = json.loads(git("show", "sites:versions.json"))
    assert [(each["version"], each["title"], each["aliases"]) for each in told] == [
        ("0.2", "0.2.1", ["latest"]), ("0.1", "0.1.0", []),
    ]  # fmt: skip
    assert "This is 0.1.0." in git("show", "sites:0.1/index.html")
    assert "This is 0.2.1." in git("show", "sites:0.2/index.html") and git("show", "sites:latest") == "0.2"
    assert "latest/" in git("show", "sites:index.html")
    # The theme shows the menu.
    assert '"version": {"provider": "mike"}' in git("show", "sites:0.2/index.html")
