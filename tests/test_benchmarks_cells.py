"""The logic of benchmarks/gpu_cells.py, which needs no GPU, and how often the units of cells exchange values."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.analysis.exchanges import exchanges
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.pipeline import compile_cells

# By hand, from the equations: the longest chain of exchanges in a step. Every other cell has one.
EXCHANGES = {
    0: """brc hgrn indrnn layernormindrnn mingru mingru_log minlstm minlstm_log paragru paralstm plif qrnn rglru rwkv4
          s6 sru tgru tlstm trnn unicornn""",
    2: """comba deltanet gateddeltanet kda mamba3 rwkv7 titans
          cfc dreamergru dsgu egru gruode gruv3 layernormgru lem lipschitzrnn lowrankrnn lstmp mgu miru1
          multiplicativelstm multiplicativernn mut1 mut2 mut3 nn_lstmp reslstm rhn scrn skiplstm wmclstm""",
    3: "deltaproduct fastweights gsa layernormlstm layernormlstm_pt lmu",
    4: "masslstm onlstm",
    6: "ltc ltc_pairs mogrifierlstm",
    7: "ttt_linear",
    8: "ntm",
    25: "mesanet",
}
# Shipped since the committed run, which had no GPU for them: the next run takes them in.
UNMEASURED = frozenset(
    (
        *(
            "comba",
            "deltanet",
            "deltaproduct",
            "fastweights",
            "gateddeltanet",
            "gla",
            "gsa",
            "hgrn2",
            "kda",
            "ltc_pairs",
        ),
        *("mamba2", "mamba3", "masslstm", "mesanet", "mlstm", "ntm", "plasticity", "retnet", "rwkv7", "titans"),
        "ttt_linear",
    )
)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("gpu_cells")


@pytest.mark.long
def test_exchanges_of_shipped_cells(cells: Any) -> None:
    wanted = {name: count for count, names in EXCHANGES.items() for name in names.split()}
    for path in shipped_cells():
        assert cells.known(path.stem).exchanges == wanted.get(path.stem, 1), path.stem


@pytest.mark.parametrize(
    ("equations", "count"),
    [
        ("h[t] = tanh(R@h[t-1] + W@x)", 1),
        ("q = R@h[t-1]\nr = R@h[t-1]\nh[t] = tanh(q*r + W@x)", 1),
        ("q = sigmoid(R@h[t-1] + W@x)\nh[t] = tanh(R@(q*h[t-1]))", 2),
        ("h[t] = layernorm(R@h[t-1] + W@x)", 2),
        ("h[t] = tanh(R@layernorm(softmax(h[t-1])) + W@x)", 3),
        ("q = layernorm(W@x)\nh[t] = tanh(q + R@h[t-1])", 1),
    ],
)
def test_exchanges_of_equations(equations: str, count: int) -> None:
    text = f"cell Some\nstate h\n{equations}\n"
    (made,) = compile_cells(Request(Source("some.rnn", text), "cell"), "check").cells
    assert exchanges(made.typed) == count


def test_the_committed_run_has_every_case(cells: Any) -> None:
    """What it says of exchanges and bounds is what the program says now."""
    path = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu_cells.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    found = {(row["cell"], row["head_dim"], row["heads"], row["run"]): row for row in rows}
    assert len(found) == len(rows)
    cases = [case for case in cells.select([], "1/1", quick=False) if case.cell not in UNMEASURED]
    assert set(found) == {(case.cell, case.head_dim, case.heads, run) for case in cases for run in cells.PASSES}
    for case in cases:
        about = cells.known(case.cell)
        for run in cells.PASSES:
            row = found[case.cell, case.head_dim, case.heads, run]
            assert row["exchanges"] == about.exchanges
            assert row["must_ms"] == pytest.approx(cells.must_ms(case, about, run))
            assert ("error" in row) == (about.one_head and case.heads > 1)


def test_words_and_shards_choose_cases(cells: Any) -> None:
    everything = cells.select([], "1/1", quick=False)
    assert len(everything) == 3 * len(shipped_cells())
    shards = [cells.select([], f"{index}/4", quick=False) for index in range(1, 5)]
    assert sorted(map(str, everything)) == sorted(str(case) for shard in shards for case in shard)
    assert cells.select(["gru", "64x12"], "1/1", quick=False) == [cells.Case("gru", 64, 12)]
    for words, shard in ((["nonsense"], "1/1"), ([], "3/2"), ([], "0/2"), ([], "half")):
        with pytest.raises(ValueError, match=r"nonsense|shard"):
            cells.select(words, shard, quick=False)


def test_the_bound_is_that_of_the_equations(cells: Any) -> None:
    assert cells.must_ms(cells.Case("gruv3", 768, 1), cells.known("gruv3"), "fw") == pytest.approx(1.024 * 3.2)
    both = cells.must_ms(cells.Case("gruv3", 64, 12), cells.known("gruv3"), "fw+bw")
    assert both == pytest.approx(2.9 * 1.024 * 1.25)
    assert cells.must_ms(cells.Case("mingru", 768, 1), cells.known("mingru"), "fw") is None


def test_files_of_shards_are_shown_together(cells: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"cell": "gru", "head_dim": 768, "heads": 1, "run": "fw", "exchanges": 1, "must_ms": 2.0, "call_ms": 3.0}
    files = [tmp_path / f"{name}.json" for name in ("one", "two")]
    rows = [row | {"queued_ms": 3.0, "path": ["fused (forward grid)"]}, row | {"cell": "lstm", "error": "no memory"}]
    for path, each in zip(files, rows, strict=True):
        path.write_text(json.dumps({"environment": {}, "results": [each]}))
    assert cells.main(["--merge", *map(str, files), "--out", str(tmp_path / "all.json")]) == 0
    _, _, other, worst = capsys.readouterr().out.splitlines()
    assert "no memory" in other and "| 1.50 | fused (forward grid) |" in worst
