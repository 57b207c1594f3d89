"""lightning: training by a Trainer, checkpoints, mixed precision, a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.page import close, example, is_rnncc

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
lightning = pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def tagger() -> Any:
    """The page's module with what it takes to train it."""

    class Tagger(example("lightning").Tagger):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.encoder(x)[0])

        def training_step(self, batch: Any, index: int) -> Any:
            loss = nn.functional.cross_entropy(self(batch[0]).mT, batch[1])
            self.losses = [*getattr(self, "losses", []), loss.item()]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-2)

    return Tagger


def trained(module: Any, folder: Path, **options: Any) -> Any:
    torch.manual_seed(1)
    x = torch.randn(24, 9, 4)
    data = DataLoader(TensorDataset(x, x[..., :3].argmax(-1)), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0, **options,
    )  # fmt: skip
    trainer.fit(module, data)
    return trainer


def twins(tagger: Any) -> tuple[Any, Any]:
    """The module with our layer, and with nn.LSTM, of the same values."""
    torch.manual_seed(0)
    ours, theirs = tagger(), tagger()
    theirs.encoder = nn.LSTM(4, 16, num_layers=2, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    assert is_rnncc(ours.encoder)
    return ours, theirs


def test_a_trainer_trains_as_before_and_checkpoints_fit_both_ways(tagger: Any, tmp_path: Path) -> None:
    ours, theirs = twins(tagger)
    trainers = [trained(module, tmp_path / name) for module, name in ((ours, "ours"), (theirs, "theirs"))]
    assert len(ours.losses) == 6 and ours.losses[-1] < ours.losses[0]
    close(torch.tensor(ours.losses), torch.tensor(theirs.losses), 1e-4)
    x = torch.randn(2, 5, 4)
    for trainer, module in zip(trainers, (ours, theirs), strict=True):
        trainer.save_checkpoint(path := tmp_path / "model.ckpt")
        again = tagger.load_from_checkpoint(path, map_location="cpu")
        assert is_rnncc(again.encoder)
        close(again(x), module(x))
    trained(tagger(), tmp_path, max_steps=8)


def test_mixed_precision_trains(tagger: Any, tmp_path: Path) -> None:
    ours, theirs = twins(tagger)
    for module in (ours, theirs):
        trained(module, tmp_path, precision="bf16-mixed")
    close(torch.tensor(ours.losses), torch.tensor(theirs.losses), 2e-2)


def test_a_trace(tagger: Any, tmp_path: Path) -> None:
    ours, x = tagger().eval(), torch.randn(2, 5, 4)
    traced = ours.to_torchscript(tmp_path / "model.pt", method="trace", example_inputs=x)
    longer = torch.randn(3, 8, 4)
    close(traced(longer), ours(longer))
    close(torch.jit.load(tmp_path / "model.pt")(longer), ours(longer))  # type: ignore[no-untyped-call]
