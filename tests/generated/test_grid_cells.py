"""Cells drawn with matrix states do what their text says: values, final states and every gradient."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from tests.generated.grid_cells import generate
from tests.generated.harness import run
from tests.seeds import batches

PACKAGES = batches(60, 5)
COMPILED = batches(4, 1)


@cache
def texts() -> tuple[str, ...]:
    """Of the cells above, and more."""
    return tuple(generate(seed).text for seed in range(400))


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Threads cost more than they give on values of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seeds", PACKAGES, ids=str)
def test_the_torch_code_of_cells_with_matrices(seeds: range) -> None:
    assert [outcome for outcome in run(seeds, compiled=False, matrices=True) if outcome.kind != "ok"] == []


@pytest.mark.long
@pytest.mark.parametrize("seeds", COMPILED, ids=str)
def test_the_kernels_of_cells_with_matrices(seeds: range) -> None:
    assert [outcome for outcome in run(seeds, compiled=True, matrices=True) if outcome.kind != "ok"] == []


def test_a_seed_is_a_cell() -> None:
    one, two = generate(5), generate(5)
    assert (one.text, one.settings, one.case.arguments) == (two.text, two.settings, two.case.arguments)


@pytest.mark.long
def test_the_cells_hold_all_of_matrices() -> None:
    """Shapes, layouts, products, reductions and functions, with what the design lists."""
    shapes = (
        r"^state S\d: matrix\(H, K\)", r"^state S\d: matrix\(2\*H, ", r"^state S\d: matrix\(D\*num_heads, ",
        r"^state S\d: matrix\(3\*num_heads, ", r"^state S\d: matrix\(H//2, ", r"^state S\d: matrix\(K, ",
        r"^state S\d: matrix\(.*, H\)", r"^state S\d: matrix\(.*, D\*num_heads\)", r"^state S\d: .* = learned$",
        r"^state S\d: .* = 0.7\*eye$", r"^state S\d: .* = -?eye$",
        r"^state S\d: .* = 0.5$", r"^state S0.*\n(.*\n)*state S1", r"^state h\d: K", r"^state m\d: num_heads",
        r"S\d\[t - 1\] @ \w", r"T\(S\d\[t - 1\]\) @", r"A\d\)? @ ", r"@ A\d", r"@ T\(A\d\)", r"diag\(\w.*\) @ S",
        r"S\d\[t - 1\] @ diag\(", r"@ \(eye\(.*\) - ", r"@ \(diag\(.*\) - .* @ T\(",
        r"cumsum\(.*S\d.*, axis=rows\)", r"cumsum\(.*S\d.*, axis=columns\)", r"roll\(.*S\d.*, -?\d, axis=rows\)",
        r"roll\(.*S\d.*, -?\d, axis=columns\)", r"roll\(.*, -?\d, fill=0.25, axis=",
        r"roll\(.*S\d.*, fill=-1 / K, axis=columns\)",
        r"roll\(.*S\d.*, fill=0, axis=", r"logsumexp\(S\d.*, axis=rows\)",
        r"logsumexp\(S\d.*, axis=columns\)", r"logsumexp\(S\d[^,]*\)", r"cumsum\(A\d, axis",
        r"roll\(A\d, 1, axis=rows\)",
        r"sum\([^()]*, axis=rows\)", r"mean\(S.*axis=columns\)", r"max\(S.*axis=rows\)", r"min\(S.*axis=columns\)",
        r"softmax\(.*S\d.*, axis=rows\)", r"normalize\(.*, axis=columns\)", r"norm\(1.5 \+ sin\(",
        r"sum\(S\d\[t(?: - 1)?\]\)", r"= sum\(\w+ \* \w+\)", r"diag\(S\d\[t", r"unflatten\(W @ x", r"unflatten\(z1, ",
        r"1 - S\d", r"max\(S\d\[t - 1\], 0\)", r"where\(", r"^local v\d: matrix\(", r"^v(\d) = .* @ T\(",
        r"^param p\d: vector\(", r"heads\(w1\)", r"expm\(0.3 \* A\d\)", r"softmax\(A\d, axis=rows\)", r"^output h\d",
        r"^def def0\(arg0\)", r"\b[RV] @ S\d", r"@ V\b", r"V: lowrank", r"V: mask", r"for l in 1..2:\n +turn1\[l\]",
        r"^input in\d: num_heads", r"^input in\d: \w+ per sequence",
    )  # fmt: skip
    assert [shape for shape in shapes if not any(re.search(shape, text, re.MULTILINE) for text in texts())] == []


def test_the_cells_are_called_in_all_ways() -> None:
    drawn = [generate(seed) for seed in range(100)]
    settings = [setting for each in drawn for setting in each.settings]
    assert {setting.heads for setting in settings} == {1, 2, 3}
    for name in ("bidirectional", "states", "lengths", "reset"):
        assert {bool(getattr(setting, name)) for setting in settings} == {False, True}
    assert {"K", "zoneout", "recompute"} <= {name for each in drawn for name in each.case.arguments}
    assert {each.sizes["K"] for each in drawn} >= {1, 2, 3, 4, 5, 6}
