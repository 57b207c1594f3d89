"""torch.load(weights_only=True) of whole layers, in a process that has loaded no cell yet."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import rnncc
from rnncc.compat.nn import replace
from tests.fresh import run_fresh

LOAD = """
import sys, pickle, torch, rnncc
from torch import nn
path = sys.argv[1]
try:
    torch.load(path, weights_only=True)
except pickle.UnpicklingError as error:
    assert "Unsupported" in str(error) or "safe_globals" in str(error)
else:
    raise SystemExit("loaded without being allowed")
with torch.serialization.safe_globals([*rnncc.safe_globals(), nn.ModuleList]):
    layers, x, expected = torch.load(path, weights_only=True)
assert [type(layer).__name__ for layer in layers] == ["LSTM", "LSTMCell", "nn_GRU", "nn_LSTM"]
assert isinstance(layers[3], nn.LSTM)
for layer, value in zip(layers, expected, strict=True):
    assert torch.equal(layer(x if "Cell" not in type(layer).__name__ else x[0])[0], value)
"""


def test_whole_layers_load_by_one_allow_list(tmp_path: Path) -> None:
    cells = rnncc.load("lstm")
    layers = nn.ModuleList(
        [
            cells.LSTM(3, 4, 2, zoneout={"h": 0.1}).eval(),
            cells.LSTMCell(3, 4),
            replace(nn.GRU(3, 4)),
            replace(nn.LSTM(3, 4), as_nn=True),
        ]
    )
    x = torch.randn(5, 2, 3)
    with torch.no_grad():
        expected = [layer(x if "Cell" not in type(layer).__name__ else x[0])[0] for layer in layers]
    path = tmp_path / "layers.pt"
    torch.save((layers, x, expected), path)
    done = run_fresh(LOAD, [str(path)])
    assert done.returncode == 0, done.stderr
