"""Make what the C++ program of this folder runs: a trained model with a cell of your own, without Python.

    python examples/deploy_cpp/export.py deployed                     # this writes the folder `deployed`
    TORCH=$(python -c "import torch; print(torch.__path__[0])")       # or an unpacked libtorch of the same version
    cmake -S examples/deploy_cpp -B deployed/build -DTORCH=$TORCH
    cmake --build deployed/build
    deployed/build/run deployed/model.pt2 3 2 4 deployed/mycell/libmycell.so < deployed/example.txt

The last command prints the numbers that export.py printed, up to rounding. With `--device cuda`, export.py makes a
model for this machine's GPU. The other commands stay as they are.

In `deployed` are
    mycell/        the package that `rnncc build` made of examples/mycell.rnn; C++ needs its lib….so alone
    model.pt2      the model, compiled by AOTInductor for any number of steps and any batch
    example.txt    an input [3, 2, 4], as the program reads it
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package

CELL = Path(__file__).resolve().parents[1] / "mycell.rnn"
INPUTS, HIDDEN, CLASSES = 4, 32, 3


class Model(nn.Module):
    """Log probabilities [T, B, CLASSES] of series [T, B, INPUTS], at every step."""

    def __init__(self, cells: Any) -> None:
        super().__init__()
        self.layer = cells.MyCell(INPUTS, HIDDEN, num_layers=2)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(x)
        logits: Tensor = self.out(y)
        return logits.log_softmax(-1)


def build(folder: Path, device: str) -> Any:
    """The package of the cell, imported from `folder` as it is where rnncc is not installed. For CUDA it has kernels
    for this machine's GPU, and fused ones for this size."""
    options = ["--hidden", str(HIDDEN), "--dtype", "fp32"] if device == "cuda" else ["--target", "cpu"]
    subprocess.run([sys.executable, "-m", "rnncc", "build", str(CELL), "--out", str(folder), *options], check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module(CELL.stem)


def compiled(model: nn.Module, x: Tensor, path: Path) -> Path:
    """The model as AOTInductor's package `path`, for inputs [T, B, …] on x's device; x is an example."""
    sizes = {0: torch.export.Dim("steps", max=4096), 1: torch.export.Dim("batch", max=4096)}
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=(sizes,))
        aoti_compile_and_package(program, package_path=str(path))
    return path


def rows(tensor: Tensor) -> str:
    """The numbers of a tensor as the C++ program reads and prints them: a row of the last dimension a line, with so
    many digits that a float32 is read back bit by bit."""
    found = tensor.reshape(-1, tensor.shape[-1]).tolist()
    return "".join(" ".join(f"{value:.9g}" for value in row) + "\n" for row in found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make what examples/deploy_cpp runs.")
    parser.add_argument("folder", type=Path, help="gets model.pt2, example.txt and the cell's package")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    cells = build(given.folder, given.device)
    torch.manual_seed(0)
    model = Model(cells).to(given.device).eval()  # here a trained model's state_dict would be loaded
    x = torch.randn(3, 2, INPUTS)
    compiled(model, x.to(given.device), given.folder / "model.pt2")
    (given.folder / "example.txt").write_text(rows(x), encoding="utf-8")
    with torch.no_grad():
        result = model(x.to(given.device))
    print("#", *result.shape)
    print(rows(result), end="")


if __name__ == "__main__":
    main()
