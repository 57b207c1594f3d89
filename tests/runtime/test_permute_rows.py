"""The op `permute_rows` as torch sees it: schema, fake kernel, autograd of any order, autocast. An implementation for
the CPU stands for the kernel, which needs a GPU (tests/cuda/test_permute.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc.machine.paths import templates_dir
from rnncc.runtime.ops.ops import make_permute_rows

LENGTHS = (5, 3, 3, 1)


def tables_of(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """firsts [T + 1], starts [B + 1] of batch entries of falling lengths."""
    counts = [sum(length > t for length in lengths) for t in range(max(lengths))]
    return torch.tensor((0, *counts)).cumsum(0), torch.tensor((0, *lengths)).cumsum(0)


def permuted(rows: Tensor, firsts: Tensor, starts: Tensor, to_steps: bool) -> Tensor:
    """What the op gives, by torch's indexing."""
    places = torch.cat([firsts[:length] + b for b, length in enumerate(starts.diff().tolist())])
    return torch.empty_like(rows).index_copy_(0, places, rows) if to_steps else rows[places]


@pytest.fixture(scope="module")
def op() -> Iterator[Callable[..., Tensor]]:
    """As eager code calls it."""
    text = (templates_dir() / "include" / "rnncc" / "torch" / "schema.h").read_text(encoding="utf-8")
    schema = re.search(r'permute_rows_schema =\s*"(.*)";', text)
    assert schema is not None
    library = torch.library.Library("rnncc_permute_rows", "DEF")  # type: ignore[no-untyped-call]
    library.define(f"permute_rows{schema[1]}")  # type: ignore[no-untyped-call]
    library.impl("permute_rows", permuted, "CPU")  # type: ignore[no-untyped-call]
    yield make_permute_rows(library, "rnncc_permute_rows")
    library._destroy()  # type: ignore[no-untyped-call]


def by_name() -> Any:
    """The same through the dispatcher."""
    return torch.ops.rnncc_permute_rows.permute_rows


@pytest.mark.one_in(2)
@pytest.mark.parametrize("to_steps", [False, True])
def test_opcheck(op: Callable[..., Tensor], to_steps: bool) -> None:
    rows = torch.randn(sum(LENGTHS), 2)
    for given in (rows, rows.clone().requires_grad_(), rows > 0, rows[:, 0]):
        result = torch.library.opcheck(by_name(), (given, *tables_of(LENGTHS), to_steps))
        assert set(result.values()) == {"SUCCESS"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("to_steps", [False, True])
def test_gradients(op: Callable[..., Tensor], to_steps: bool) -> None:
    """What flows back goes the other way, once, twice, and many gradients as one."""
    tables = tables_of(LENGTHS)
    rows = torch.randn(sum(LENGTHS), 2, dtype=torch.float64, requires_grad=True)
    flowing = torch.randn_like(rows)
    expected = permuted(flowing, *tables, not to_steps)
    for called in (op, by_name()):

        def run(rows: Tensor, called: Any = called) -> Tensor:
            made: Tensor = called(rows, *tables, to_steps)
            return made

        assert torch.equal(torch.autograd.grad(run(rows), rows, flowing)[0], expected)
        assert torch.autograd.gradcheck(run, (rows,)) and torch.autograd.gradgradcheck(run, (rows,))
        jacobian: Any = torch.autograd.functional.jacobian
        assert torch.equal(jacobian(run, rows.detach(), vectorize=True), jacobian(run, rows.detach()))


def test_autocast_leaves_rows_alone(op: Callable[..., Tensor]) -> None:
    rows = torch.randn(sum(LENGTHS), 2)
    with torch.autocast("cpu"):
        for called in (op, by_name()):
            made = called(rows, *tables_of(LENGTHS), False)
            assert torch.equal(made, permuted(rows, *tables_of(LENGTHS), False)) and made.dtype == torch.float32
