"""AOTInductor: a layer compiled ahead of time, run from Python and by the C++ program of examples/deploy_cpp."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import aoti_compile_and_package, aoti_load_package

import rnncc

IN, H = 3, 8
ROOT = Path(__file__).resolve().parents[2]


# Its output reads no state: the loop hands no sequence on.
ASIDE = "cell Aside\nstate h\nweights V: matrix\noutput y\nh[t] = tanh(W@x + R@h[t-1])\ny = V@x\n"


class Layers(torch.nn.Module):
    """Cells side by side: minGRU's loop has no weights, no sequence of Aside's is read, and a state is a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [
                rnncc.load("lstm").LSTM(IN, H, bidirectional=True),
                rnncc.load("mingru").minGRU(IN, H, bidirectional=True),
                rnncc.compile(ASIDE, "aside").Aside(IN, H),
                rnncc.load("gateddeltanet").GatedDeltaNet(IN, H, num_heads=2),
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


class InPlace(torch.nn.Module):
    """A single step that writes to the state it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.step = rnncc.load("gateddeltanet").GatedDeltaNetCell(IN, 2 * H, num_heads=2)

    def forward(self, x: Tensor, state: Tensor) -> Any:
        return self.step(x, state, inplace=True)


def expected(layer: Any, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        found: list[Tensor] = torch.utils._pytree.tree_leaves(layer(x))
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of examples/deploy_cpp. Its CMake is the dev environment's, or else the machine's."""
    cmake = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert cmake is not None, "CMake is missing: pip install cmake"
    build = tmp_path_factory.mktemp("build")
    configure = [cmake, "-S", str(ROOT / "examples" / "deploy_cpp"), "-B", str(build), f"-DTORCH={torch.__path__[0]}"]
    for command in ([*configure, "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"], [cmake, "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "run"


@pytest.mark.long
def test_from_python_and_from_a_program_without_it(program: Path, tmp_path: Path) -> None:
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

    libraries = []
    for layer in layers.layers:
        module = sys.modules[type(layer).__module__].__file__
        assert module is not None
        about = json.loads((Path(module).parent / "_rnncc.json").read_text(encoding="utf-8"))
        libraries.append(Path(module).parent / about["library"])
    done = run_program(program, model, x, libraries)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(numbers(done.stdout), torch.cat([tensor.flatten() for tensor in wanted]))


def run_program(
    program: Path, model: str | Path, x: Tensor, libraries: Iterable[Path]
) -> subprocess.CompletedProcess[str]:
    """What the program of examples/deploy_cpp says of a model and an input."""
    given = "\n".join(map(repr, x.flatten().tolist()))
    command = list(map(str, [program, model, *x.shape, *libraries]))
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def numbers(printed: str) -> Tensor:
    """All numbers of the results that the program printed, without their shapes."""
    rows = [line for line in printed.splitlines() if not line.startswith("#")]
    return torch.tensor([float(number) for row in rows for number in row.split()])


def deployed(folder: Path, *options: str) -> str:
    """What examples/deploy_cpp/export.py prints, and makes in `folder`."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(ROOT / "examples" / "deploy_cpp" / "export.py"), str(folder), *options]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_in_python(program: Path, folder: Path, printed: str) -> None:
    """The program prints of example.txt what Python printed."""
    x = torch.tensor([float(number) for number in (folder / "example.txt").read_text().split()]).view(3, 2, 4)
    done = run_program(program, folder / "model.pt2", x, [folder / "mycell" / "libmycell.so"])
    assert done.returncode == 0, done.stderr
    wanted = printed[printed.index("#") :]
    assert done.stdout.partition("\n")[0] == wanted.partition("\n")[0] == "# 3 2 3"
    torch.testing.assert_close(numbers(done.stdout), numbers(wanted))


@pytest.mark.long
def test_the_deployment_example(program: Path, tmp_path: Path) -> None:
    """The folder goes elsewhere, without what only Python reads; another length and batch run too."""
    printed = deployed(tmp_path / "made")
    folder = tmp_path / "away"
    (folder / "mycell").mkdir(parents=True)
    for name in ("model.pt2", "example.txt", "mycell/libmycell.so"):
        (tmp_path / "made" / name).rename(folder / name)
    shutil.rmtree(tmp_path / "made")
    as_in_python(program, folder, printed)
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu" in libraries and "libpython" not in libraries and "libtorch_python" not in libraries

    model, library = folder / "model.pt2", folder / "mycell" / "libmycell.so"
    done = run_program(program, model, torch.linspace(-1, 1, 7 * 5 * 4).view(7, 5, 4), [library])
    assert done.stdout.startswith("# 7 5 3\n")
    torch.testing.assert_close(numbers(done.stdout).view(-1, 3).exp().sum(1), torch.ones(35))

    unknown = run_program(program, model, torch.zeros(3, 2, 4), [])
    assert unknown.returncode == 1 and unknown.stderr.startswith(f"{model}: ")


@pytest.mark.gpu
def test_the_deployment_example_on_a_gpu(program: Path, tmp_path: Path) -> None:
    as_in_python(program, tmp_path, deployed(tmp_path, "--device", "cuda"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "given", "status", "message"),
    [
        ((), "", 2, "usage: run MODEL.pt2 STEPS BATCH INPUTS LIBRARY.so"),
        (("model.pt2", "3", "0", "4"), "", 2, "'0' is no size"),
        (("model.pt2", "3", "2x", "4"), "", 2, "'2x' is no size"),
        (("model.pt2", "1", "2", "2"), "1 2 three", 2, "not a number"),
        (("model.pt2", "1", "2", "2"), "1 2 3", 2, "expected 1 * 2 * 2 numbers, got 3"),
        (("model.pt2", "1", "1", "2", "/missing.so"), "1 2", 1, "/missing.so: cannot open shared object file"),
        (("/missing.pt2", "1", "1", "2"), "1 2", 1, "/missing.pt2: "),
    ],
)
def test_the_program_checks_what_it_is_given(
    program: Path, arguments: tuple[str, ...], given: str, status: int, message: str
) -> None:
    done = subprocess.run([program, *arguments], input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "") and message in done.stderr


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


@pytest.mark.long
def test_a_step_in_place(tmp_path: Path) -> None:
    """The state that the program is given is the new one after the call, as it is in Python."""
    torch.manual_seed(0)
    model, any_batch = InPlace().eval(), torch.export.Dim("batch", max=4096)
    with torch.no_grad():
        given = (torch.randn(3, IN), model.step(torch.randn(3, IN))[1])
        exported = torch.export.export(model, given, dynamic_shapes=({0: any_batch}, {0: any_batch}))
        run = aoti_load_package(aoti_compile_and_package(exported, package_path=str(tmp_path / "step.pt2")))
        x, old = torch.randn(5, IN), model.step(torch.randn(5, IN))[1]
        wanted, new = model.step(x, old)
        state = old.clone()
        output, returned = run(x, state)
    torch.testing.assert_close((output, returned, state), (wanted, new, new))
    assert not torch.equal(state, old)
