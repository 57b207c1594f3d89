"""A fused kernel that is missing is compiled at first use (needs a GPU)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import rnncc
from rnncc import verify
from tests.cuda.harness import Packages, kernels_of, launches_of


@pytest.mark.gpu
# Of units that no other test uses: what was compiled is the process's.
@pytest.mark.parametrize(("units", "bidirectional", "heads"), [(48, False, "2"), (56, True, "2 and 4")])
def test_a_missing_kernel_is_compiled_at_first_use(
    units: int,
    bidirectional: bool,
    heads: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    layer = rnncc.load("lstm").LSTM(
        16, 2 * units, num_heads=2, bidirectional=bidirectional, device="cuda", dtype=torch.bfloat16
    )
    x = torch.randn(6, 3, 16, device="cuda", dtype=torch.bfloat16)
    reference = layer(x)[0]
    assert "alternating" in layer.explain() and "RNNCC_COMPILE=0" in layer.explain()
    monkeypatch.setenv("RNNCC_COMPILE", "1")
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path))
    sys.modules[f"{type(layer).__module__.rpartition('.')[0]}._runtime.fused"]._STATE.settled.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = layer(x)[0]
    graph.replay()
    assert "compiling" not in capfd.readouterr().err, "a graph is captured with the kernels that there are"
    used = kernels_of(lambda: layer(x)[0].sum().backward())
    assert f"compiled LSTM for {heads} heads of {units} units, bf16" in capfd.readouterr().err
    assert {kernel.split("_")[2] for kernel in used if f"_bf16_{units}_" in kernel} == {"forward", "backward"}
    assert "fused (" in layer.explain()
    ours = layer(x)[0]
    for other in (reference, captured):
        assert verify.relative_error(ours.double(), other.double()) <= verify.BOUNDS[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize(("units", "columns"), [(64, 16), (768, 16), (768, 64), (768, 300)])
def test_explain_says_which_kernels_a_batch_takes(
    units: int, columns: int, bidirectional: bool, packages: Packages
) -> None:
    layer = packages("lstm").LSTM(8, units, bidirectional=bidirectional, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(5, columns, 8, device="cuda", dtype=torch.bfloat16)
    names = launches_of(lambda: layer(x)[0].sum().backward())
    with torch.no_grad():
        names += launches_of(lambda: layer(x))
    families, expected = packages.families("lstm"), []
    for program, words in (("forward", "forward"), ("backward", "backward"), ("inference", "without gradients")):
        own = [name for name in names if name.startswith(f"lstm_0_{program}_")]
        family = families[own[0]] if own else "alternating"
        several = len(own) > 1 and family != "stepwise"
        expected.append(f"{words} {family}" + (f" in {len(own)} launches" if several else ""))
    assert f"    a batch of {columns}: {', '.join(expected)}" in layer.explain(batch_size=columns).splitlines()
    assert "a batch of" not in layer.explain()
