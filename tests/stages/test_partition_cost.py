"""The estimate of what a cell costs to compile, beside what is really generated."""

from __future__ import annotations

import pytest

from rnncc.driver import load_text
from rnncc.ir.cell import Cell
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir
from rnncc.stages.partition.cost import WARN_SECONDS, cost
from tests.compiling import front, kernel_plan
from tests.rendering import for_cpus
from tests.shipped import STEMS, WRITTEN_OUT, cells_and_warnings

SUM = "tanh(W@x + R@h[t-1] + b)"


def loop(turns: int, turn: str) -> str:
    return f"state h\nv[0] = {SUM}\nfor m in 1..{turns}:\n    v[m] = {turn}\nh[t] = v[{turns}]\n"


def many(count: int, equation: str, output: str) -> str:
    names = [f"s{i}" for i in range(count)]
    total = " + ".join(f"{name}[t]" for name in names)
    equations = "\n".join(equation.replace("NAME", name) for name in names)
    return f"state h, {', '.join(names)}\n{equations}\nh[t] = {output.replace('TOTAL', total)}\n"


GATES = ", ".join(f"g{i}" for i in range(40))
SPREAD = {
    "functions": loop(60, "tanh(0.9*v[m-1] + 0.1*h[t-1])"),
    "quotients": loop(60, "v[m-1]/(1 + v[m-1]*v[m-1])"),
    "linear": loop(100, "0.9*v[m-1] + 0.1*h[t-1]"),
    "two loops": f"state h\nv[0] = {SUM}\nfor m in 0..7:\n    for n in 1..6:\n"
    "        v[6*m+n] = tanh(0.9*v[6*m+n-1] + h[t-1])\nh[t] = v[48]\n",
    "products": loop(20, "tanh(R@v[m-1] + b)"),
    "sums": loop(20, "tanh(v[m-1] + sum(v[m-1]*h[t-1]))"),
    "scans": loop(12, "tanh(cumsum(softmax(v[m-1])))"),
    "gates": f"state h\n{GATES} = sigmoid(W@x + R@h[t-1] + b)\nh[t] = tanh({GATES.replace(', ', ' + ')})\n",
    "states": many(40, "NAME[t] = 0.9*NAME[t-1] + 0.1*h[t-1]", "tanh(W@x + TOTAL)"),
    "segments": many(12, "NAME[t] = sigmoid(W@x + b)*NAME[t-1] + 0.1*(W@x)", "tanh(0.9*h[t-1] + TOTAL)"),
    "delays": "state h\nh[t] = tanh(W@x + R@h[t-40] + b)\n",
    "one expression": "state h\nz = W@x + b\nh[t] = "
    + "*".join(f"tanh(z + 0.{i:02}*h[t-1])" for i in range(40))
    + "\n",
    "parts": "state h\nstate s: 32*H\nh[t] = tanh(W@x + R@h[t-1])\ns[t] = 0.5*s[t-1] + concat("
    + ", ".join(f"0.{i:02}*h[t]" for i in range(32))
    + ")\n",
}


def checked(name: str, text: str) -> Cell:
    ((cell, _),) = front(Source(f"{name}.rnn", text))
    return cell


def generated_mb(cell: Cell) -> float:
    """Of C++ that is made for this cell alone."""
    bundle = for_cpus([kernel_plan(cell)])
    own = [file for file in bundle.files if not file.path.startswith(("src/include/", "src/_core"))]
    return sum(len(file.text) for file in own if file.path.endswith((".h", ".cpp"))) / 1e6


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SPREAD)
def test_the_size_is_that_of_the_generated_code(name: str) -> None:
    cell = checked("trap", f"cell Trap\n{SPREAD[name]}")
    assert 0.5 < cost(cell.segments).code_mb / generated_mb(cell) < 2


@pytest.mark.parametrize("name", ["elman", "lstm", "nas", "slstm", "mclstm", "lmu", "scrn", "unicornn"])
def test_the_size_of_shipped_cells(name: str) -> None:
    cell = checked(name, (cells_dir() / f"{name}.rnn").read_text(encoding="utf-8"))
    assert 0.5 < cost(cell.segments).code_mb / generated_mb(cell) < 2


@pytest.mark.parametrize("stem", STEMS)
def test_no_shipped_cell_is_warned_of(stem: str) -> None:
    """One whose states are written out takes longer than others, and so does NTM, which addresses its memory twice."""
    for cell, warnings in cells_and_warnings(stem):
        assert cost(cell.segments).seconds < WARN_SECONDS / (2 if stem in ("ntm", *WRITTEN_OUT) else 4)
        assert "RNN264" not in {warning.code for warning in warnings}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "text",
    [
        loop(1000, "tanh(0.9*tanh(0.8*tanh(0.7*tanh(0.6*tanh(0.5*v[m-1])))))"),
        loop(500, "tanh(R@v[m-1] + b)"),
        loop(400, "tanh(v[m-1] + sum(v[m-1]*h[t-1]))"),
    ],
    ids=["functions", "products", "sums"],
)
def test_what_takes_minutes_is_warned_of(text: str) -> None:
    ((_, warnings),) = front(Source("trap.rnn", f"cell Trap\n{text}"))
    (found,) = (warning for warning in warnings if warning.code == "RNN264")
    assert "s of processor time" in found.message
    assert "MB of C++" in found.message


def test_it_is_said_once_before_the_work_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Begun(Exception):
        pass

    def begins(*_: object) -> None:
        raise Begun

    monkeypatch.setattr("rnncc.stages.mask.mask", begins)
    with pytest.raises(Begun):
        load_text(f"cell Trap\n{loop(401, 'v[m-1] + sum(v[m-1]*h[t-1])')}", "trap", {})
    assert capsys.readouterr().err.count("RNN264") == 1
