"""The page of a shipped cell: all that the compiler, the file and the measurements say of it, and two pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import site_math
from gpu_cases import PASSES
from report_cells import cpu_rows, families_of
from report_text import known, machine, pair, ratios
from site_use import in_python

from rnncc.ir import dim as dims
from rnncc.ir.cell import Cell, Parameter
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.dim import Dim
from rnncc.ir.recurrence import Recurrence
from rnncc.ir.structure import BlockDiagonal
from rnncc.language.read import read_request
from rnncc.language.source import fenced
from rnncc.pipeline import compile_cells
from rnncc.show.catalogue import Entry, catalogue
from rnncc.show.draw import draw
from rnncc.show.explain import explain_words
from rnncc.show.latex.equations import align
from rnncc.show.latex.names import name as symbol
from rnncc.show.latex.scope import Names
from rnncc.show.latex.where import Where
from rnncc.show.values import show_constraint, show_initialiser, show_number

THEMES = ("light", "dark")
# How a parameter starts whose cell does not say it.
_DEFAULT = "uniform, ±1/√H"
# Both factors of a matrix of low rank: their product has elements as a matrix has that starts like the others.
_FACTORS = {"left_factor", "right_factor"}
_PRODUCT = "uniform, so that the product varies as others do"
# Who was timed on a CPU, and the key of the times.
_CPU_COLUMNS = (
    ("rnncc", "rnncc_ms"), ("eager loop", "eager_ms"), ("compiled loop", "compiled_ms"), ("nn.GRU", "nn.GRU_ms"),
    ("nn.LSTM", "nn.LSTM_ms"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shipped:
    """A shipped cell after the stages up to `lower`. Each file has one."""

    entry: Entry
    made: CompiledCell


def shipped(file: str) -> Shipped:
    """The cell of a file of cells/."""
    request = read_request(file)
    (entry,) = catalogue(request.source)
    return Shipped(entry, compile_cells(request, "lower").cells[0])


def pictures(cell: Shipped) -> dict[str, str]:
    """A step as SVG on white and on black, by the names of their files."""
    return {f"{cell.entry.file}.{theme}.svg": draw(cell.made.typed, theme) for theme in THEMES}


def image(file: str, words: str, *, loading: str = "eager") -> str:
    """The picture that goes with the reader's colours."""
    return "".join(
        f'<img src="{file}.{theme}.svg#only-{theme}" alt="{escape(words)}" loading="{loading}">' for theme in THEMES
    )


def page(cell: Shipped, before: Entry, after: Entry) -> str:
    """The page in Markdown. `before` and `after` are its neighbours in the gallery."""
    entry = cell.entry
    parts = [
        f"---\ntitle: {entry.cell}\nhide: [navigation]\n---",
        _neighbours(before, after),
        f"# {entry.cell}",
        f'<p class="citation">{escape(entry.citation)}.</p>',
        _facts(cell),
        "## Equations",
        _equations(cell),
        "## A step as a picture",
        f'<div class="picture">{image(entry.file, f"A step of {entry.cell}")}</div>',
        "## In Python",
        fenced("python", in_python(cell.made.cell, entry.file).rstrip()),
        "[The Python interface](../python.md) says what else a layer takes.",
        "## Parameters",
        _parameters(cell.made.cell),
        "## Speed",
        _speed(entry.file),
        "## Source",
        f"The file `cells/{entry.file}.rnn`; [the language](../language.md) says what it may say.",
        fenced("rnn", cell.made.cell.source.text.strip()),
        "## What the compiler decides",
        f"`rnncc explain {entry.file}` prints:",
        fenced("text", explain_words(cell.made)),
    ]
    return "\n\n".join(parts) + "\n"


def _neighbours(before: Entry, after: Entry) -> str:
    links = (
        f'<a href="{before.file}.html">← {escape(before.cell)}</a>',
        '<a href="index.html">all cells</a>',
        f'<a href="{after.file}.html">{escape(after.cell)} →</a>',
    )
    return f'<div class="neighbours">{"".join(links)}</div>'


def _facts(shipped: Shipped) -> str:
    cell = shipped.made.cell
    facts = [
        ("Class", "<br>".join(_classes(shipped.made.recurrences))),
        ("Phases", f"{shipped.entry.phases} in each step" if shipped.entry.phases else ""),
        ("GPU kernels", escape(families_of(shipped.made))),
        ("Inputs", ", ".join(_input(each.name, each.width, each.per_sequence) for each in cell.inputs)),
        ("States", ", ".join(_code(each.name, each.width) for each in cell.states if each.delay_of is None)),
        ("Output", f"<code>{cell.output}</code>"),
        ("Keywords", ", ".join(_keywords(cell))),
        ("Sizes", ", ".join(f"<code>{escape(show_constraint(each))}</code>" for each in cell.constraints)),
    ]
    rows = "".join(f"<tr><th>{head}</th><td>{text}</td></tr>" for head, text in facts if text)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _classes(recurrences: Sequence[Recurrence]) -> Iterator[str]:
    """A line for each class of loops; loops of the same class and reason share it."""
    lines = [_class(each) for each in recurrences]
    for line in dict.fromkeys(lines):
        count = lines.count(line)
        yield f"{count} loops, each {line}" if count > 1 else line


def _class(recurrence: Recurrence) -> str:
    form = f", {recurrence.form}" if recurrence.form else ""
    return f"<strong>{recurrence.kind.value}</strong>{escape(form)}: {escape(recurrence.why)}"


def _code(name: str, width: Dim) -> str:
    return f"<code>{escape(name)} [{dims.show(width)}]</code>"


def _input(name: str, width: Dim, per_sequence: bool) -> str:
    return _code(name, width) + (", the same at all steps" if per_sequence else "")


def _keywords(cell: Cell) -> Iterator[str]:
    """Keywords of the layer's constructor that are the cell's own."""
    for constant in cell.constants:
        value = constant.value if isinstance(constant.value, str) else show_number(constant.value)
        yield f"<code>{constant.name}={value}</code>"
    for size in cell.sizes:
        if "__" not in size.name and size.solved is None:
            yield f"<code>{size.name}{'' if size.default is None else f'={size.default}'}</code>"


def _equations(cell: Shipped) -> str:
    names, used = Names(cell.made.declaration, cell.made.typed), set[str]()
    rows = align(names, used)
    # The table below says what is trained.
    said = [each for each in Where(names, used).sentences() if not each.startswith("Trained: ")]
    words = " ".join(f"{site_math.sentences(each)}." for each in said)
    return f'<div class="equations">{site_math.display(rows)}</div>\n\n<p class="where">{words}</p>'


def shape(parameter: Parameter) -> tuple[Dim, ...]:
    """The shape of a parameter's tensor."""
    if parameter.grid is not None:
        return dims.HEADS, *(dims.floor_divide(side, dims.HEADS) for side in parameter.grid.sides)
    rows = dims.total(member.width for member in parameter.members)
    if parameter.columns is None:
        return (rows,)
    if isinstance(parameter.structure, BlockDiagonal):
        return rows, dims.floor_divide(parameter.columns, parameter.structure.blocks)
    return rows, parameter.columns


def _size(size: Dim) -> str:
    """`H//num_heads` for `(H//num_heads)`."""
    text = dims.show(size)
    return text[1:-1] if re.fullmatch(r"\([^()]*(\([^()]*\)[^()]*)*\)", text) else text


def _parameters(cell: Cell) -> str:
    lines = [
        (
            f"<code>{parameter.attribute}_l0</code>{'' if parameter.trained else ', not trained'}",
            f"<code>[{', '.join(map(_size, shape(parameter)))}]</code>",
            ", ".join(map(_member, (member.name for member in parameter.members))),
            _starts(parameter),
        )
        for parameter in cell.parameters
    ]
    head = ("name", "shape", "its rows, in order", "starts")
    return f"{_table(head, lines)}\n\n{_about_sizes(cell)}"


def _member(name: str) -> str:
    """A member of a group by its symbol; a factor of a matrix of low rank, `R__u_v`, by that of the matrix."""
    if (factor := re.fullmatch(r"(\w+)__([uv])(_\w+)", name)) is None:
        return site_math.inline(symbol(name).tex)
    side = "left" if factor[2] == "u" else "right"
    return f"{side} factor of {site_math.inline(symbol(factor[1] + factor[3]).tex)}"


def _starts(parameter: Parameter) -> str:
    starts = {member.name: show_initialiser(member.initialiser) for member in parameter.members}
    if len(set(starts.values())) == 1:
        (start,) = set(starts.values())
        return _start(start)
    # Most rows start alike. The others are named.
    usual = max(starts.values(), key=list(starts.values()).count)
    others = [f"{_member(name)}: {_start(start)}" for name, start in starts.items() if start != usual]
    return "; ".join([_start(usual), *others])


def _start(initialiser: str) -> str:
    if initialiser in _FACTORS:
        return _PRODUCT
    return _DEFAULT if initialiser == "default" else escape(initialiser)


def _about_sizes(cell: Cell) -> str:
    heads = "" if cell.single_head_because else " `num_heads` is 1 where it is not given."
    return (
        "`I` is `input_size`, `H` is `hidden_size`."
        f"{heads} Later layers end in `_l1`, `_l2`, …, and backward directions in `_reverse`."
    )


def _speed(file: str) -> str:
    gpu, lines = known("gpu_cells"), []
    for head_dim, heads in dict.fromkeys((row["head_dim"], row["heads"]) for row in gpu.rows):
        rows = [gpu.one(cell=file, head_dim=head_dim, heads=heads, run=run) for run in PASSES]
        if not any(rows):
            continue
        size = f"{heads} heads of {head_dim}" if heads > 1 else f"{head_dim}, one head"
        times = [pair([row["queued_ms"] if row else None]) for row in rows]
        of_bound = ratios([row["queued_ms"] / row["must_ms"] if row and row["must_ms"] else None for row in rows])
        lines.append((size, *times, of_bound))
    parts = []
    if lines:
        head = ("hidden size", "forward, ms", "forward + backward, ms", "of its bound")
        parts += [
            _table(head, lines),
            f"One layer on an {machine(gpu.about)}: a batch of 16 over 1024 steps in bfloat16, its input as wide as "
            "its hidden size. [Figures](../results.md) says how it was measured and what the bound is.",
        ]
    parts += _cpu_speed(file)
    return "\n\n".join(parts) or f"Nobody has measured it yet. `rnncc bench {file}` does, on your machine."


def _cpu_speed(file: str) -> list[str]:
    """The cell's times on a CPU, with those of whom it was measured beside."""
    measured, rows = cpu_rows(file)
    found = [row for row in rows if row]
    if not found:
        return []
    whose = [(name, key) for name, key in _CPU_COLUMNS if any(row.get(key) for row in found)]
    lines = [(name, *(pair([row.get(key) if row else None]) for row in rows)) for name, key in whose]
    return [
        _table(("128 units", "forward, ms", "forward + backward, ms"), lines),
        f"One layer on a CPU ({machine(measured.about)}): a batch of 16 over {found[0]['T']} steps in float32. "
        "[Figures](../results.md) says how it was measured.",
    ]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{each}</{tag}>' for each in cells)}</tr>"

    body = "".join(row(line, "td") for line in lines)
    return f'<div class="wide"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'
