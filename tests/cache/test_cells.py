"""Cells that are kept in the cache: the same kernels are made of them, and nothing else comes out of a pickle."""

from __future__ import annotations

import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rnncc
import rnncc.stages.parse
from rnncc import on_demand
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.read import from_text, read_request
from rnncc.machine.cache import Cache
from rnncc.machine.cells import keep_cells, kept_cells
from rnncc.pipeline import compile_cells, kernels_of
from rnncc.stages.build import own_code
from tests.compilers import quick_nvrtc
from tests.shipped import COVERING

KEY = "0" * 32


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", COVERING)
def test_kernels_of_kept_cells_are_the_same(name: str, tmp_path: Path) -> None:
    keep_cells(Cache(tmp_path), KEY, compile_cells(read_request(name), "lower").cells)
    # Another file may have the same text.
    source, h200 = replace(read_request(name).source, name="<elsewhere>"), GPUS["h200"]
    found = kept_cells(Cache(tmp_path), KEY, source)
    problems = (Problem(64, 1, "bf16"),)
    request = Request(source, "cells", architectures=(h200.architecture,), gpus=(h200,), problems=problems)
    assert found == compile_cells(request, "lower").cells
    assert kernels_of(request, found) == compile_cells(request).bundle


def test_one_cell_of_several() -> None:
    text = "cell A\nstate h\nh[t] = tanh(W@x + R@h[t-1])\n\ncell B\nstate h\nh[t] = 0.5*h[t-1] + W@x\n"
    request = Request(from_text("two.rnn", text), "two", architectures=("sm_90a",), cell="B")
    cells = compile_cells(replace(request, cell=""), "lower").cells
    assert [cell.name for cell in cells] == ["A", "B"]
    assert kernels_of(request, cells) == compile_cells(request).bundle


def test_no_other_class_comes_out(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    for made in (Evil(), [Cache(tmp_path)], Path, from_text):
        path = tmp_path / "cells"
        path.write_bytes(pickle.dumps(made))
        cache = Cache(tmp_path / "cache")
        cache.publish_object(KEY, path)
        assert kept_cells(cache, KEY, from_text("x.rnn", "")) == ()
        for entry in (tmp_path / "cache" / "objects").iterdir():
            entry.unlink()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x02crnncc.ir.nowhere\nX\n.", b"\x80\x02crnncc.ir.cell\nNope\n.",
        b"\x80\x02crnncc.ir.cell\nCell\n)R.", b"\x80\x99.", b"\x80\x02}]K\x01s.",
        pickle.dumps(None), pickle.dumps(("a",)),
    ],
)  # fmt: skip
def test_what_holds_no_cells_is_made_again(data: bytes, tmp_path: Path) -> None:
    path, cache = tmp_path / "cells", Cache(tmp_path / "cache")
    path.write_bytes(data)
    cache.publish_object(KEY, path)
    assert kept_cells(cache, KEY, from_text("x.rnn", "")) == ()


def test_without_a_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    cache = Cache(tmp_path / "cache")
    keep_cells(cache, KEY, ())
    assert kept_cells(cache, KEY, from_text("x.rnn", "")) == ()


def test_what_is_damaged_or_missing_is_made_again(tmp_path: Path) -> None:
    source = read_request("mingru").source
    cache = Cache(tmp_path)
    assert kept_cells(cache, KEY, source) == ()
    keep_cells(cache, KEY, compile_cells(read_request("mingru"), "lower").cells)
    (kept,) = (tmp_path / "objects").iterdir()
    kept.write_bytes(kept.read_bytes()[:-9] + bytes(9))
    assert kept_cells(cache, KEY, source) == () and not kept.exists()


def test_a_deep_text_is_not_kept(tmp_path: Path) -> None:
    cells: Any = [None]
    for _ in range(100_000):
        cells = [cells]
    keep_cells(Cache(tmp_path), KEY, cells)
    assert not (tmp_path / "objects").exists()


def test_first_use_does_not_read_the_text_again(
    cell_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(cell_cache))
    quick_nvrtc(tmp_path, monkeypatch)
    text = "cell A\nconst act = tanh\nstate h\nh[t] = act(W@x + R@h[t-1])\n\ncell B\nstate h\nh[t] = 0.5*h[t-1] + W@x\n"
    layers = rnncc.compile(text, "two")
    parse, parsed = rnncc.stages.parse.parse, []

    def spy(source: Any) -> Any:
        parsed.append(source.name)
        return parse(source)

    monkeypatch.setattr(rnncc.stages.parse, "parse", spy)

    def fused(dtype: str, **given: Any) -> None:
        options = layers.A.spec.program() | given | {"problems": [(64, 1, dtype)], "directions": 1}
        on_demand.compile_fused((text, "two", own_code()), options, ("A", "inference"), (9, 0, 0), lambda: None)

    fused("bf16")
    on_demand.compile_file((text, "two", own_code()), layers.B.spec.program(), ("B", "b_0_forward_f32"), (9, 0, 0))
    assert not parsed
    # Another program of the text, which is kept in turn.
    for dtype in ("bf16", "fp16"):
        fused(dtype, constants={"act": "sin"})
        assert len(parsed) == 1
