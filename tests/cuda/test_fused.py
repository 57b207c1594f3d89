"""A fused kernel that is missing is compiled at first use (needs a GPU)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.ir.family import ALTERNATING, Scope
from tests.cuda.harness import Packages, kernels_of, launches_of


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing kernels are compiled, and none is in the cache yet."""
    monkeypatch.setenv("RNNCC_COMPILE", "1")
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path / "cache"))


def fused_kernels(run: Callable[[], object], head_dim: int) -> set[str]:
    """The programs of which fused kernels of that size run in a call."""
    return {kernel.split("_")[2] for kernel in kernels_of(run) if f"_bf16_{head_dim}_" in kernel}


@pytest.mark.gpu
# Of units that no other test uses: what was compiled is the process's.
@pytest.mark.parametrize(("head_dim", "bidirectional", "heads"), [(48, False, "2"), (56, True, "2 and 4")])
def test_a_missing_kernel_is_compiled_at_first_use(
    head_dim: int, bidirectional: bool, heads: str, compiles: None, capfd: pytest.CaptureFixture[str]
) -> None:
    layer = rnncc.load("lstm").LSTM(
        16, 2 * head_dim, num_heads=2, bidirectional=bidirectional, device="cuda", dtype=torch.bfloat16
    )
    x = torch.randn(6, 3, 16, device="cuda", dtype=torch.bfloat16)
    assert "alternating" in layer.explain() and "the first call of several steps compiles" in layer.explain()
    used = fused_kernels(lambda: layer(x)[0].sum().backward(), head_dim)
    said = capfd.readouterr().err
    for program in ("forward", "backward"):
        assert said.count(f"compiled LSTM {program} for {heads} heads with head_dim {head_dim}, bf16") == 1
    assert used == {"forward", "backward"}
    assert "fused (" in layer.explain()
    expected = rnncc.load("lstm").LSTM(
        16, 2 * head_dim, num_heads=2, bidirectional=bidirectional, device="cuda", backend="reference"
    )
    expected.load_state_dict(layer.state_dict())
    assert verify.relative_error(layer(x)[0].double(), expected(x.float())[0].double()) <= verify.BOUNDS[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_step_of_reductions_alone_is_fused(bidirectional: bool, compiles: None) -> None:
    made = rnncc.compile("cell Normed\nstate h\nh[t] = tanh(layernorm(h[t-1] + W@x))\n").Normed
    given: dict[str, Any] = {"num_heads": 3, "bidirectional": bidirectional, "device": "cuda"}
    layer = made(16, 3 * 40, **given, dtype=torch.bfloat16)
    x = torch.randn(6, 3, 16, device="cuda", dtype=torch.bfloat16)
    assert fused_kernels(lambda: layer(x)[0].sum().backward(), 40) == {"forward", "backward"}
    expected = made(16, 3 * 40, **given, backend="reference")
    expected.load_state_dict(layer.state_dict())
    assert verify.relative_error(layer(x)[0].double(), expected(x.float())[0].double()) <= verify.BOUNDS[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("how", "head_dim"),
    [("compiled", 232), ("exported", 248), ("captured", 264), ("functional", 280), ("decomposed", 296)],
)
def test_whoever_calls_first_gets_fused_kernels(
    how: str, head_dim: int, compiles: None, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In a process where no layer of that size was called before."""
    cells = rnncc.load("lstm")
    layer = cells.LSTM(16, head_dim, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(40, 3, 16, device="cuda", dtype=torch.bfloat16)
    programs = {"inference"}
    if how == "compiled":
        model: Any = torch.compile(layer, fullgraph=True)
        used, programs = fused_kernels(lambda: model(x)[0].sum().backward(), head_dim), {"forward", "backward"}
    elif how == "captured":
        layer(x[:1])  # a single step asks for no kernel; torch makes its cuBLAS handle
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            captured = layer(x)[0]
        used = fused_kernels(graph.replay, head_dim)
        with torch.no_grad():
            assert torch.equal(captured, layer(x)[0])
    elif how == "functional":
        streams = x @ layer.weight_ih_l0.T
        with torch.no_grad():
            used = fused_kernels(lambda: cells.lstm(streams, layer.weight_hh_l0, hidden_size=head_dim), head_dim)
    else:
        with torch.no_grad():
            program = torch.export.export(layer, (x,))
            if how == "decomposed":
                program = program.run_decompositions()
            else:
                torch.export.save(program, tmp_path / "lstm.pt2")
                program = torch.export.load(tmp_path / "lstm.pt2")
            model = program.module()
            used = fused_kernels(lambda: model(x), head_dim)
    assert used == programs
    said = re.findall(r"rnncc: compiled LSTM (.+) for 1 head", capfd.readouterr().err)
    assert sorted(said) == (["without gradients"] if programs == {"inference"} else sorted(programs))


@pytest.mark.gpu
def test_slow_paths_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_LOG", "info")
    cells = rnncc.load("gru")
    layer = cells.GRU(16, 120, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(40, 3, 16, device="cuda", dtype=torch.bfloat16)
    with warnings.catch_warnings(action="error"):
        layer(x[:31])
    said = "no fused kernel for 1 head with head_dim 120, bfloat16: RNNCC_COMPILE=0 keeps"
    with pytest.warns(UserWarning, match=said) as caught:
        compiled: Any = torch.compile(layer)
        compiled(x)
        layer(x)[0].sum().backward()
    assert len([warning for warning in caught if "no fused kernel" in str(warning.message)]) == 1
    with pytest.warns(UserWarning, match="the kernels do not take torch.float64 on cuda"):
        layer.double()(x.double())
    with warnings.catch_warnings(action="error"):
        layer(x.double())


@pytest.mark.gpu
def test_tensors_that_no_fused_kernel_takes_are_said(packages: Packages) -> None:
    cells = packages("lstm")
    layer = cells.LSTM(8, 64, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(40, 3, 4 * 64 + 1, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        aligned = rows[..., :-1].contiguous()
        assert len(fused_kernels(lambda: cells.lstm(aligned, layer.weight_hh_l0, hidden_size=64), 64)) == 1
        with pytest.warns(UserWarning, match="do not all begin at multiples of 16 bytes"):
            cells.lstm(rows[..., 1:], layer.weight_hh_l0, hidden_size=64)


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize(("head_dim", "batch"), [(64, 16), (768, 16), (768, 64), (768, 300)])
def test_explain_says_which_kernels_a_batch_takes(
    head_dim: int, batch: int, bidirectional: bool, packages: Packages
) -> None:
    layer = packages("lstm").LSTM(8, head_dim, bidirectional=bidirectional, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(5, batch, 8, device="cuda", dtype=torch.bfloat16)
    names = launches_of(lambda: layer(x)[0].sum().backward())
    with torch.no_grad():
        names += launches_of(lambda: layer(x))
    families, expected = packages.families("lstm"), []
    for program, words in (("forward", "forward"), ("backward", "backward"), ("inference", "without gradients")):
        own = [name for name in names if name.startswith(f"lstm_0_{program}_")]
        family = families[own[0]] if own else ALTERNATING
        several = len(own) > 1 and family.scope is not Scope.STEP
        expected.append(f"{words} {family.name}" + (f" in {len(own)} launches" if several else ""))
    assert f"    a batch of {batch}: {', '.join(expected)}" in layer.explain(batch_size=batch).splitlines()
    assert "a batch of" not in layer.explain()
