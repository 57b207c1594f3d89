"""Two ranks are one with the doubled batch: DDP and FSDP2 by torchrun, with gloo on the CPU and with NCCL on GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader

from tests.scale import worker

ROOT = Path(__file__).resolve().parents[2]


def complaints(folder: Path, device: str) -> dict[str, str]:
    """Of the cases that failed on two ranks, by name. One launch serves all cases."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.scale.worker"]
    done = subprocess.run(
        [sys.executable, *command, str(folder), device],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert list(found) == [case.__name__ for case in worker.CASES]
    return {name: complaint for name, complaint in found.items() if complaint}


@pytest.mark.long
def test_two_processes_are_one(tmp_path: Path) -> None:
    assert complaints(tmp_path, "cpu") == {}
    # The checkpoint that two ranks wrote in shards is read by one process.
    model, expected = worker.make("cpu"), worker.make("cpu")
    state = model.state_dict()
    state_dict_loader.load(state, checkpoint_id=tmp_path / worker.CHECKPOINT)
    model.load_state_dict(state)
    for tensor, before in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(tensor, before + 1)


@pytest.mark.gpu
def test_two_gpus_are_one(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("fewer than two CUDA devices")
    assert complaints(tmp_path, "cuda") == {}
