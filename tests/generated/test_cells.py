"""Cells drawn from the whole language do what their text says: values, final states and every gradient."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from tests.generated import grid_cells
from tests.generated.cells import generate
from tests.generated.harness import run
from tests.seeds import batches

PACKAGES = batches(60, 5)
COMPILED = batches(8, 2)


@cache
def texts() -> tuple[str, ...]:
    """Of the cells above."""
    return tuple(generate(seed).text for seed in range(300))


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Threads cost more than they give on values of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seeds", PACKAGES, ids=str)
def test_the_torch_code_of_generated_cells(seeds: range) -> None:
    assert [outcome for outcome in run(seeds, compiled=False) if outcome.kind != "ok"] == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seeds", COMPILED, ids=str)
def test_the_kernels_of_generated_cells(seeds: range) -> None:
    assert [outcome for outcome in run(seeds, compiled=True) if outcome.kind != "ok"] == []


def test_a_seed_is_a_cell() -> None:
    one, two = generate(5), generate(5)
    assert (one.text, one.settings, one.case.arguments) == (two.text, two.settings, two.case.arguments)


def test_the_cells_hold_the_whole_language() -> None:
    """Every function, in every placement's reach; so that a row of the operator table is not forgotten."""
    from rnncc.language.functions import MATRIX_FUNCTIONS, OF_WIDTHS, PER_HEAD, ROW_FUNCTIONS
    from rnncc.language.operators import OPERATORS
    from rnncc.language.surrogates import SURROGATES

    called = {name for name, row in OPERATORS.items() if row.user} | {*ROW_FUNCTIONS, *MATRIX_FUNCTIONS}
    called |= {*OF_WIDTHS, *PER_HEAD}
    drawn = (*texts(), *(grid_cells.generate(seed).text for seed in range(50)))
    unseen = [name for name in called | set(SURROGATES) if not any(f"{name}(" in text for text in drawn)]
    words = (
        " ** ", " / ", " @ ", " == ", " if ", "for l in", "for k in", "= learned", ": 2*H", ": P", ": H//2", ": 3*H",
        ": n*H", ": H + P", ": K*num_heads", ": 2*num_heads", ": I\n", "dim S\n", "[t-3]", "[t-back]", "x[t-1]",
        "-inf", "bR", "v1[t-1]", "v2[t-3]", "][t-1]", "def def0(arg0) = ", "def0(arg0, arg1)", "g_v", "u -> ",
        "act(", "input x, ", "input in1: H = ", "input in1: num_heads", "buffer MF", "param MI: matrix\n",
        "axis=rows", "axis=columns", " per sequence", " per sequence = ", "in1: 1 per sequence", "gs: scalar",
        "Z: lowrank", "Z: mask", "Z: sparse", "R: lowrank", "repeat(half, 2)", ", fill=", "arange(2 * H)",
        "cumsum(MF, axis=", "roll(MF, 1, axis=columns, fill=0.25)", "pv: vector\n", "pv: vector(H)\n",
    )  # fmt: skip
    assert (unseen, [word for word in words if not any(word in text.replace("t - ", "t-") for text in texts())]) == (
        [],
        [],
    )


def test_numbers_of_heads_are_joined() -> None:
    assert any(re.search(r"concat\((sum|mean|min|norm|logsumexp)\(", text) for text in texts())


def test_states_of_several_widths_share_gates() -> None:
    """Gates of one number and of one per head, of products, inputs, inputs per sequence and reductions, in loops of
    narrow states before wide ones and behind them; and widths that are declared before the states and behind them."""
    shapes = (
        r"^local gate1: 1$", r"^local gate1: num_heads$", r"^state n\d.*\n(.*\n)*state h0",
        r"^state h0.*\n(.*\n)*state n1",
        r"^local .*\n(.*\n)*state ", r"^state .*\n(.*\n)*local ", r"^n1\[t\] = .*(sigmoid|exp).*in1",
        r"^n1\[t\] = .*mean\(", r"^n1\[t\] = .*gate1.*n1\[t - 1\]", r"^state n1: 2\*H", r"^state n2: 2\*H",
        r"^W_h0|[WR]_\w+ @", r"^part1, part2, part3 = split", r"^part1, part2 = split",
    )  # fmt: skip
    assert [shape for shape in shapes if not any(re.search(shape, text, re.MULTILINE) for text in texts())] == []
