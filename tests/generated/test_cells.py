"""Cells drawn from the whole language do what their text says: values, final states and every gradient."""

from __future__ import annotations

import pytest
import torch

from tests.generated.cells import generate
from tests.generated.harness import run

PACKAGES = [range(start, start + 25) for start in range(0, 300, 25)]
COMPILED = [range(start, start + 10) for start in (0, 10)]


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Threads cost more than they give on values of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("seeds", PACKAGES, ids=str)
def test_the_torch_code_of_generated_cells(seeds: range) -> None:
    assert [outcome for outcome in run(seeds, compiled=False) if outcome.kind != "ok"] == []


@pytest.mark.parametrize("seeds", COMPILED, ids=str)
def test_the_kernels_of_generated_cells(seeds: range) -> None:
    assert [outcome for outcome in run(seeds, compiled=True) if outcome.kind != "ok"] == []


def test_a_seed_is_a_cell() -> None:
    one, two = generate(5), generate(5)
    assert (one.text, one.settings, one.case.arguments) == (two.text, two.settings, two.case.arguments)


def test_the_cells_hold_the_whole_language() -> None:
    """Every function, in every placement's reach; so that a row of the operator table is not forgotten."""
    from rnncc.language.functions import MATRIX_FUNCTIONS, ROW_FUNCTIONS
    from rnncc.language.operators import OPERATORS, SURROGATES

    texts = [generate(seed).text for seed in range(300)]
    called = {name for name, row in OPERATORS.items() if row.user} | {*ROW_FUNCTIONS, *MATRIX_FUNCTIONS}
    unseen = [name for name in called | set(SURROGATES) if not any(f"{name}(" in text for text in texts)]
    words = (" ** ", " / ", " @ ", " == ", " if ", "for l in", "= learned", ": 2*H", ": P", ": H//2", "[t-3]", "x[t-1]",
             "-inf", "bR", "v1[t-1]", "v2[t-3]", "def def0(arg0) = ", "def0(arg0, arg1)", "g_v", "u -> ",
             "input in1: H = ", "buffer MF", "axis=rows", "axis=columns", " per sequence",
             " per sequence = ")  # fmt: skip
    assert (unseen, [word for word in words if not any(word in text.replace("t - ", "t-") for text in texts)]) == (
        [],
        [],
    )
