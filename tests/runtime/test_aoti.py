"""AOTInductor: a layer compiled ahead of time, run from Python and by a C++ program without Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import aoti_compile_and_package, aoti_load_package

import rnncc

IN, H = 3, 8
TORCH = Path(torch.__file__).parent


# Its output reads no state: the loop hands no sequence on.
ASIDE = "cell Aside\nstate h\nweights V: matrix\noutput y\nh[t] = tanh(W@x + R@h[t-1])\ny = V@x\n"


class Layers(torch.nn.Module):
    """Cells side by side: minGRU's loop has no weights, and no sequence of Aside's is read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [
                rnncc.load("lstm").LSTM(IN, H, bidirectional=True),
                rnncc.load("mingru").minGRU(IN, H, bidirectional=True),
                rnncc.compile(ASIDE, "aside").Aside(IN, H),
            ]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        found: list[Tensor] = torch.utils._pytree.tree_leaves([layer(x) for layer in self.layers])
        return found


def compiled(layer: Any, path: Path, *, grad: bool = False) -> str:
    """The layer, exported for inference, as a .pt2 for any number of steps and batch entries."""
    x = next(layer.parameters()).new_zeros(5, 4, IN)
    sizes = {0: torch.export.Dim("steps", max=4096), 1: torch.export.Dim("batch", max=4096)}
    with torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes=(sizes,))
    with torch.set_grad_enabled(grad):
        made: str = aoti_compile_and_package(program, package_path=str(path))
    return made


def expected(layer: Any, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        found: list[Tensor] = torch.utils._pytree.tree_leaves(layer(x))
    return found


def test_from_python_and_from_a_program_without_it(tmp_path: Path) -> None:
    """Compiled where gradients are on, as happens unless one thinks of it."""
    torch.manual_seed(0)
    layers = Layers()
    model = compiled(layers, tmp_path / "model.pt2", grad=True)
    x = torch.linspace(-1, 1, 9 * 2 * IN).view(9, 2, IN)
    wanted = expected(layers, x)
    run = aoti_load_package(model)
    torch.testing.assert_close(run(x), wanted)
    with torch.no_grad():
        torch.testing.assert_close(run(x), wanted)

    program = tmp_path / "program"
    # The package's library needs libtorch.so itself, which the linker would leave out as unused.
    torch_libraries = [
        f"-L{TORCH / 'lib'}",
        f"-Wl,-rpath,{TORCH / 'lib'}",
        "-Wl,--no-as-needed",
        "-ltorch",
        "-ltorch_cpu",
    ]
    source = Path(__file__).with_name("aoti.cpp")
    subprocess.run(
        ["g++", "-std=c++20", "-w", source, f"-I{TORCH / 'include'}", *torch_libraries, "-lc10", "-o", program],
        check=True,
    )
    arguments = [model, "9", "2", str(IN)]
    for layer in layers.layers:
        module = sys.modules[type(layer).__module__].__file__
        assert module is not None
        about = json.loads((Path(module).parent / "_rnncc.json").read_text(encoding="utf-8"))
        arguments.append(str(Path(module).parent / about["library"]))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.tensor([float(line) for line in done.stdout.split()])
    torch.testing.assert_close(found, torch.cat([tensor.flatten() for tensor in wanted]))


ON_A_GPU = """
import sys
from pathlib import Path
import torch
from torch._inductor import aoti_load_package
from tests.runtime import test_aoti
layer, x = test_aoti.on_a_gpu(sys.argv[1])
found = aoti_load_package(test_aoti.compiled(layer, Path(sys.argv[2]) / "model.pt2"))(x)
torch.testing.assert_close(torch.utils._pytree.tree_leaves(found), test_aoti.expected(layer, x))
"""


def on_a_gpu(whose: str) -> tuple[Any, Tensor]:
    """A layer, ours or torch's that has no kernel of ours, and an input."""
    torch.manual_seed(0)
    x = torch.randn(9, 2, IN, device="cuda")
    if whose == "torch":
        return TorchLayer().cuda(), x
    return rnncc.load("lstm").LSTM(IN, H, bidirectional=True, device="cuda"), x


class TorchLayer(torch.nn.Module):
    """torch's Linear with the results of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(IN, H)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output = self.linear(x)
        return output, (output[:1], output[-1:])


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    """In a process of its own: there are machines where torch 2.11 dies of loading any package for a GPU."""

    def run(whose: str) -> subprocess.CompletedProcess[str]:
        (folder := tmp_path / whose).mkdir()
        command = [sys.executable, "-c", ON_A_GPU, whose, str(folder)]
        return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)

    ours = run("ours")
    if ours.returncode < 0 and run("torch").returncode == ours.returncode:
        pytest.skip(f"torch's package of its own Linear ends with signal {-ours.returncode} here as well")
    assert ours.returncode == 0, ours.stderr
