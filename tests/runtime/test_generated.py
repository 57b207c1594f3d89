"""The generated torch code of every shipped cell against `rnncc.verify.reference`, without any kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rnncc import verify
from rnncc.ir.cell import Cell
from rnncc.ir.dim import evaluate
from rnncc.language.read import read_source
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.verify.reference import Arguments, run
from tests.packages import reference_package
from tests.shipped import COVERING

CELLS = [path.stem for path in shipped_cells()]
# The oracles hold the interpreter to every cell (test_cells_oracles.py).
some_stand_for_all = pytest.mark.always(stem=COVERING[1::7])


@cache
def shipped(stem: str) -> tuple[ModuleType, list[Cell]]:
    """A shipped file's reference package."""
    path = next(path for path in shipped_cells() if path.stem == stem)
    return reference_package(read_source(path), stem)


def inputs_of(cell: Cell, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Random inputs of five steps and a batch of three."""
    return {
        item.name: torch.rand(*(() if item.per_sequence else (5,)), 3, evaluate(item.width, sizes)).double()
        for item in cell.inputs
    }


@some_stand_for_all
@pytest.mark.parametrize("stem", CELLS)
def test_every_cell_and_gradient(stem: str) -> None:
    module, cells = shipped(stem)
    for cell in cells:
        # More steps take the same code again.
        cases = [case for case in verify.cases_of(cell) if case.steps < 10]
        made, dtypes = getattr(module, cell.name), (torch.float64,)
        rows = verify.verify(made, cell, dtypes=dtypes, cases=cases, allow_fallback=True).rows
        assert len(rows) >= 3
        assert [row for row in rows if not row.error < 1e-10] == []


@some_stand_for_all
@pytest.mark.parametrize("stem", CELLS)
def test_every_cell_with_heads(stem: str) -> None:
    module, cells = shipped(stem)
    for cell in cells:
        sizes = verify.problem_sizes(cell)
        dims = {size.name: sizes[size.name] for size in cell.sizes if size.solved is None}
        given = {"I": sizes["I"], "H": sizes["H"], **dims}

        def make(heads: int, cell: Cell = cell, sizes: Any = sizes, dims: Any = dims) -> Any:
            layer_class = getattr(module, cell.name)
            return layer_class(sizes["I"], sizes["H"], num_heads=heads, dtype=torch.float64, **dims)

        for heads in (2, 3):
            try:
                layer = make(heads)
            except ValueError as error:
                # Only sizes may stand in the way: the message names what num_heads must divide.
                assert "num_heads" in str(error)
                continue
            inputs = inputs_of(cell, sizes)
            extra = {name: value for name, value in inputs.items() if name != "x"}
            expected, _ = run(cell, Arguments(layer.gate_parameters(), inputs, sizes=given, num_heads=heads))
            output, _ = layer(inputs["x"], **extra)
            torch.testing.assert_close(output, expected[cell.output], atol=1e-10, rtol=1e-10)


@some_stand_for_all
@pytest.mark.parametrize("stem", CELLS)
def test_every_cell_step_by_step(stem: str) -> None:
    """FooCell, which hands on delays too, gives what the layer gives."""
    module, cells = shipped(stem)
    for cell in cells:
        sizes = verify.problem_sizes(cell)
        options = {size.name: sizes[size.name] for size in cell.sizes if size.solved is None}
        layer, single = (
            getattr(module, name)(sizes["I"], sizes["H"], dtype=torch.float64, return_delays=True, **options)
            for name in (cell.name, f"{cell.name}Cell")
        )
        single.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
        inputs, same = inputs_of(cell, sizes), {item.name for item in cell.inputs if item.per_sequence}
        x = inputs.pop(cell.inputs[0].name)
        expected, last = layer(x, **inputs)
        state, outputs = None, []
        for t in range(5):
            now = {name: value if name in same else value[t] for name, value in inputs.items()}
            made = single(x[t], state, **now)
            if cell.output == cell.states[0].name:
                made = (made if isinstance(made, torch.Tensor) else made[0]), made
            output, state = made
            outputs.append(output)
        torch.testing.assert_close(torch.stack(outputs), expected, atol=1e-10, rtol=1e-10)
        for ours, theirs in zip(*((s if isinstance(s, tuple) else (s,)) for s in (state, last)), strict=True):
            torch.testing.assert_close(ours, theirs[0], atol=1e-10, rtol=1e-10)


AWKWARD = """
# Names that the generated code uses itself, numbers alone, one width on another, a value of every placement.
cell Awkward
const dt = 0.5
param gain: scalar = 2
weights u: vector
state torch, values = learned
input x, sizes: 1
elementwise = sigmoid(W@x + sizes)
rows = dt*0.25 + sin(dt)
tools = sizes
streams = softmax(u + tools)
step = elementwise*gain
torch[t] = step*torch[t-1] + rows + streams*values[t-1]
values[t] = tanh(torch[t])*exp(rows)
"""


def test_names_numbers_and_widths_that_need_care() -> None:
    text = AWKWARD
    module, (cell,) = reference_package(Source("awkward.rnn", text), "awkward")
    rows = verify.verify(module.Awkward, cell, dtypes=(torch.float64,), allow_fallback=True).rows
    assert [row for row in rows if not row.error < 1e-10] == []


def test_a_reduction_fills_the_width_that_is_declared() -> None:
    """Across units, what is one number in every unit is not one unit: cumsum, concat and products tell them apart."""
    text = """
cell Filled
state h, c
output y
local v: H, w: 2*H
v = mean(h[t-1])
w = sum(W@x)
c[t] = sum(h[t-1]*(W@x))
h[t] = 0.1*cumsum(v) + R@c[t] + mean(cumsum(concat(v, w)))
y = sum(h[t])
"""
    module, (cell,) = reference_package(Source("filled.rnn", text), "filled")
    rows = verify.verify(module.Filled, cell, dtypes=(torch.float64,), allow_fallback=True).rows
    assert [row for row in rows if not row.error < 1e-10] == []


def test_what_numbers_make_is_a_weight_that_nobody_gives() -> None:
    """A value of constants alone, which a loop reads: the layer and the functional op make it themselves."""
    text = """
cell Numbers
state h
const dt = 0.5
param a: vector
local u: 2*H
v = 2*dt
u = 0.25
h[t] = tanh(W@x + R@(v*h[t-1]) + a*mean(cumsum(u)*concat(h[t-1], h[t-1])))
"""
    module, (cell,) = reference_package(Source("numbers.rnn", text), "numbers")
    rows = verify.verify(module.Numbers, cell, dtypes=(torch.float64,), allow_fallback=True).rows
    assert [row for row in rows if not row.error < 1e-10] == []
    layer = module.Numbers(2, 4, dtype=torch.float64)
    assert "(of numbers)" in layer.explain()
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    found, _ = module.numbers(x @ layer.weight_ih_l0.T, [layer.weight_hh_l0, layer.a_l0], hidden_size=4)
    torch.testing.assert_close(found, layer(x)[0])


def test_a_state_that_became_a_number_can_start_anew() -> None:
    text = "cell Anew\nstate h, c: 1 = learned\nc[t] = 1\nh[t] = tanh(W@x + R@h[t-1])*c[t-1]\n"
    module, (cell,) = reference_package(Source("anew.rnn", text), "anew")
    layer = module.Anew(2, 3, dtype=torch.float64)
    inputs, reset = torch.randn(4, 2, 2, dtype=torch.float64), torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]])
    given = Arguments(layer.gate_parameters(), {"x": inputs}, sizes={"I": 2, "H": 3}, reset=reset)
    expected, _ = run(cell, given)
    torch.testing.assert_close(layer(inputs, reset=reset)[0], expected["h"])


def test_what_parameters_make_is_joined_with_what_a_state_makes() -> None:
    text = "cell Joined\nstate h\nparam a: vector\nh[t] = tanh(W@x + R@concat(sin(a), h[t-1]))\n"
    module, (cell,) = reference_package(Source("joined.rnn", text), "joined")
    rows = verify.verify(module.Joined, cell, dtypes=(torch.float64,), allow_fallback=True).rows
    assert [row for row in rows if not row.error < 1e-10] == []


@pytest.mark.parametrize(
    "comment",
    [
        r"h_t = \tanh(\nu \mathbf{W}) \N{no such name} \x \u12 \U",
        r'"""; raise SystemExit("not text"); """',
        'of "quotes" and ""pairs""',
        'ends with "a quote"',
        "ends with a backslash \\",
        r'\"""',
        "{{ 1/0 }} {% for %} {# gone #}",
        "page\x0cfeed, line\x1cend, null\0, bell\a, next\u2028line, tab\there, \u202eback",
        "ünï ∑ 漢字",
    ],
)
def test_comments_are_kept_as_they_were(comment: str) -> None:
    """The module says what stands above `cell`, and none of it is run."""
    text = f"# {comment}\n#\n# second line\ncell Said\nstate h\nh[t] = tanh(x + R@h[t-1])\n"
    module, (cell,) = reference_package(Source("said.rnn", text), "said")
    assert cell.comment == f"{comment}\n\nsecond line"
    assert module._cell_said.__doc__.partition("\n\n")[2] == f"{cell.comment}\n"


def test_comments_stay_readable() -> None:
    module, _ = reference_package(Source("said.rnn", '# Of "X", $\\nu$: ü\ncell Said\nstate h\nh[t] = x\n'), "said")
    assert '\nOf "X", $\\\\nu$: ü\n' in Path(module._cell_said.__file__).read_text(encoding="utf-8")
