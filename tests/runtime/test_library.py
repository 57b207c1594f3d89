"""A package's library makes its ops known when it is opened, once, whoever opens it first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import rnncc
from tests.fresh import run_fresh

PROGRAM = """
import sys
import torch
library, copy, space, order = sys.argv[1:]

def opened():
    torch.ops.load_library(library)
    x, weight = torch.randn(2, 3), torch.randn(4, 3)
    torch.testing.assert_close(getattr(torch.ops, space).linear(x, weight, None), x @ weight.T)

def imported():
    import rnncc
    layer = rnncc.load("lstm").LSTM(3, 4)
    x = torch.randn(2, 2, 3, requires_grad=True)
    layer(x)[0].sum().backward()
    assert x.grad is not None

steps = {"o": opened, "i": imported, "c": lambda: torch.ops.load_library(copy)}
for step in order:
    steps[step]()
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", ["oi", "cio"])
def test_a_library_and_its_package_in_any_order(order: str, tmp_path: Path) -> None:
    """The same library at another path (c) has the same ops: the first one's stay, without a word (of ours: torch 2.11
    prints that the namespace is taken)."""
    module = rnncc.load("lstm").__file__
    assert module is not None
    about = json.loads((Path(module).parent / "_rnncc.json").read_text(encoding="utf-8"))
    library, copy = Path(module).parent / about["library"], tmp_path / "copy.so"
    shutil.copyfile(library, copy)
    done = run_fresh(PROGRAM, [str(library), str(copy), about["namespace"], order])
    assert done.returncode == 0
    if torch.__version__ >= "2.12":
        assert done.stderr == ""
    else:
        assert "rnncc: " not in done.stderr
