"""What rnncc 0.1 made still loads: pickled layers, which name `rnncc.compiler` and `rnncc.source`, and packages. Names
that CHANGELOG.md marks as old still work.

tests/fixtures/layers_0_1.pt: `torch.save` of a bidirectional LSTM, of a two-layer GRU with zoneout, and of what they
gave; also the weights and the output of the minGRU of tests/fixtures/package_0_1.zip, a package without kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rnncc import compiler, verify
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from tests.test_cli import run

FIXTURES = Path(__file__).parent / "fixtures"
SAVED = FIXTURES / "layers_0_1.pt"


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_pickled_layer_loads_and_computes_the_same(name: str) -> None:
    saved: dict[str, Any] = torch.load(SAVED, weights_only=False)
    with torch.no_grad():
        output, _ = saved[name](saved["x"])
    torch.testing.assert_close(output, saved[f"{name}_output"], rtol=1e-5, atol=1e-6)


def test_a_package_runs(tmp_path: Path) -> None:
    with zipfile.ZipFile(FIXTURES / "package_0_1.zip") as archive:
        archive.extractall(tmp_path)
    code = (
        "import torch, warnings\nwarnings.simplefilter('ignore')\nimport mingru\n"
        f"saved = torch.load({str(SAVED)!r}, weights_only=False)\n"
        "layer = mingru.minGRU(3, 4)\nlayer.load_state_dict(saved['mingru_weights'])\n"
        "with torch.no_grad(): output = layer(saved['x'])[0]\n"
        "torch.testing.assert_close(output, saved['mingru_output'])\n"
        # Another program, for which it asks the rnncc that is installed.
        "print(mingru.minGRU(3, 4, zoneout={'h': 0.1}).spec.regularisation.zoneout)\n"
    )
    path = os.pathsep.join([str(FIXTURES.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "('h',)\n"


def test_its_fused_kernels_are_refused() -> None:
    """A package asks its rnncc for them at first use; it warns with what is raised, and runs without."""
    with pytest.raises(RnnccError, match="build the package again") as caught:
        compiler.compile_fused("text", "lstm", {}, "LSTM", ((64, 1, "bf16"),), (9, 0), "code")
    assert caught.value.diagnostics[0].code == "RNN609"


def test_the_old_way_to_check_a_text_warns() -> None:
    with pytest.warns(DeprecationWarning, match="compile_cells"):
        ((cell, warnings),) = compiler.front(Source("cell.rnn", "cell Leak\nstate h\nh[t] = 0.5*h[t-1] + W@x\n"))
    assert cell.name == "Leak" and [found.code for found in warnings] == ["RNN258"]


def test_old_names_of_cases_and_doubts_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"Case\.columns is called `batch` now"):
        assert verify.Case(steps=7, batch=3).columns == 3
    doubt = verify.Doubt("bfloat16", entries=2, of=3, why=verify.ROUNDING, left_out=False)
    with pytest.warns(DeprecationWarning, match=r"Doubt\.columns is called `entries` now"):
        assert doubt.columns == 2


def records(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from records(part)


def test_old_keys_of_explain_stand_beside_the_new_ones() -> None:
    old = {
        "smallest_batch": "fewest_columns", "largest_batch": "most_columns", "other_batches": "other_columns",
        "launch_batch": "most_columns_of_a_launch", "ctas": "blocks", "batch_tile": "column_tile",
    }  # fmt: skip
    said = [json.loads(run("explain", name, "--json", "--target", "h200", "--hidden", "768").stdout)
            for name in ("elman", "indrnn")]  # fmt: skip
    found = [(key, record) for record in records(said) for key in old if key in record]
    assert {key for key, _ in found} == set(old)
    assert [key for key, record in found if record[old[key]] != record[key]] == []


def test_old_keys_of_verify_stand_beside_the_new_ones() -> None:
    """Those of doubts are in tests/test_verify.py, which makes some."""
    cases = json.loads(run("verify", "elman", "--json").stdout)["scope"]["cases"]
    assert cases and all(case["columns"] == case["batch"] > 0 for case in cases)
