"""Kernels compile where there is NVRTC and nothing else; those of one CTA and of a grid do for compute capability 8.0
too (CONTRIBUTING.md, "Rules"). Needs neither a CUDA toolkit nor a GPU.

test_compile.py has more kernels, and looks at what was made of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.ir.family import ALTERNATING, BLOCKS, FUSED, GATHER, GRID, SCAN, SCATTER, SPARSE, STEPWISE, WIDE
from rnncc.language.source import Source
from tests.compiling import lowered
from tests.cuda import kernels, nvrtc
from tests.cuda.inspected import Look, Text
from tests.cuda.kernels import BLOCK_LSTM, CORE, HEAD_NORM, HEADS, LOW_RANK_LSTM, ONE_CTA, SPARSE_LSTM, Case

OLDEST, HOPPER = kernels.OLDEST, kernels.HOPPER
# Kernels, and the head_dim of fused ones where it is not that of HEAD_DIM.
CASES = [
    (Case("lstm", GATHER, "f16", HOPPER, masked=False), None),
    (Case("gru", SCATTER, "bf16", HOPPER, masked=False), None),
    (Case("lstm", GRID, "bf16", HOPPER, masked=False), None),
    (Case("gruv3", WIDE, "f16", HOPPER, masked=False), None),
    (Case(SPARSE_LSTM, SPARSE, "bf16", HOPPER, masked=False), None),
    (Case(SPARSE_LSTM, SPARSE, "f16", OLDEST, masked=False), None),
    (Case(BLOCK_LSTM, BLOCKS, "bf16", HOPPER, masked=False), None),
    (Case(BLOCK_LSTM, BLOCKS, "f16", OLDEST, masked=False), None),
    (Case(LOW_RANK_LSTM, GRID, "bf16", HOPPER, masked=False), None),
    (Case(LOW_RANK_LSTM, GRID, "f32", OLDEST, masked=False), None),
    (Case("elman", ALTERNATING, "bf16", HOPPER, masked=False), None),
    (Case("paralstm", SCAN, "f32", HOPPER, masked=False), None),
    (Case("lstm", CORE, "bf16", OLDEST, masked=False), None),
    (Case("lstm", HEADS, "bf16", OLDEST, masked=False), None),
    (Case("layernormlstm", HEAD_NORM, "bf16", OLDEST, masked=False), None),
    # Reductions, and several phases.
    (Case("layernormlstm", GRID, "f16", OLDEST, masked=False), 128),
    (Case("layernormlstm", GATHER, "bf16", OLDEST, masked=False), ONE_CTA),
    (Case("lstm", SCATTER, "f32", OLDEST, masked=False), ONE_CTA),
    (Case("lstm", STEPWISE, "f32", OLDEST, masked=False), None),
    (Case("mingru", SCAN, "bf16", OLDEST, masked=False), None),
]


def check(case: Case, architecture: str, folder: Path, look: Look, head_dim: int | None = None) -> None:
    """Compiles the files of a case; together they must have all its kernels."""
    bundle, expected = kernels.sources(case, head_dim)
    texts = [Text(f"{case}-alone/{unit.name}", unit, bundle, architecture, True) for unit in bundle.device_units]
    found = {name: usage for text in texts for name, usage in look(text, folder).kernels.items()}
    assert set(found) == set(expected) and None not in found.values()


@pytest.mark.parametrize(("case", "head_dim"), CASES, ids=str)
def test_kernels_compile_without_a_standard_header(
    case: Case, head_dim: int | None, tmp_path: Path, look: Look
) -> None:
    check(case, case.architecture, tmp_path, look, head_dim)


def test_every_family_is_compiled() -> None:
    assert {case.family for case, _ in CASES} == {ALTERNATING, SCAN, CORE, HEADS, HEAD_NORM, *FUSED}


def test_what_the_oldest_gpus_lack_is_seen(tmp_path: Path) -> None:
    of_a_cluster = Case("lstm", GATHER, "bf16", HOPPER, masked=False)
    with pytest.raises(nvrtc.NvrtcError, match=r"requires \.target sm_90"):
        check(of_a_cluster, OLDEST, tmp_path, Text.compile)


NUMBERS = """
cell Numbers
state h
h[t] = tanh(W@x + R@h[t-1])**3 + where(h[t-1] == 0, -inf, h[t-1]**-2)
"""


def test_powers_and_infinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lowered(Source("numbers.rnn", NUMBERS))
    monkeypatch.setattr(kernels, "plan", lambda _: plan)
    case = Case("numbers", GATHER, "bf16", OLDEST, masked=False)
    check(case, OLDEST, tmp_path, Text.compile, ONE_CTA)
    own = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "src").glob("*.cuh"))
    assert "rnncc::powi<3>(" in own and "rnncc::powi<-2>(" in own and "rnncc::infinity<T>()" in own


@pytest.mark.parametrize(
    ("text", "said"), [("#include <stdint.h>\n", "stdint.h"), ('\n#error "as it was meant"\n', "as it was meant")]
)
def test_what_does_not_compile_is_an_error(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(nvrtc.NvrtcError, match=said):
        nvrtc.compiled(file, OLDEST, ())


def test_who_has_no_nvrtc_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    with pytest.raises(FileNotFoundError, match="pip install 'nvidia-cuda-nvrtc"):
        nvrtc.library_file()
