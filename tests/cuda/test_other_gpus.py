"""What a package and rnncc make of GPUs that are not here, by a driver that describes them. Needs no GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS, Target, code_file
from rnncc.machine.paths import templates_dir
from rnncc.runtime.kernels.index import read_index
from rnncc.stages.build.toolchain import BINDING
from rnncc.stages.schedule.kernels import fused_kernels
from tests.compiling import plan_of
from tests.fresh import run_fresh
from tests.rendering import for_gpus

HERE = Path(__file__).parent
PROBLEMS = (Problem(64, 12, "bf16"), Problem(768, 1, "bf16"))
# In a process of its own, which has this driver: whoever opens libcuda.so.1 later gets it, by its name.
DRIVER = """
import ctypes, sys
ctypes.CDLL(sys.argv[3])
"""
# The files of the kernels that run a batch of 16, and the GPU.
CODE = f"""{DRIVER}
library, folder = ctypes.CDLL(sys.argv[1]), sys.argv[2]
assert library.rnncc_add_kernels(folder.encode()) > 0
for head_dim, heads in ((64, 12), (768, 1)):
    for program in (b"lstm_0_forward", b"lstm_0_backward"):
        text = ctypes.create_string_buffer(4096)
        library.choose(program, *map(ctypes.c_int64, (head_dim, heads, 1, 16)), text, ctypes.c_int64(4096))
        print(text.value.decode() or "none")
from rnncc.machine import gpus
print(gpus.here()[0])
"""


def forward_code(*calls: tuple[int, int, int, int]) -> str:
    """The files of the forward kernels that run calls of such a head_dim, heads, directions and batch."""
    return f"""{DRIVER}
library = ctypes.CDLL(sys.argv[1])
for folder in sys.argv[2].split(":"):
    assert library.rnncc_add_kernels(folder.encode()) > 0
for call in {calls}:
    text = ctypes.create_string_buffer(4096)
    library.choose(b"lstm_0_forward", *map(ctypes.c_int64, call), text, ctypes.c_int64(4096))
    print(text.value.decode() or "none")
"""


GROUPS = f"""{DRIVER}
library = ctypes.CDLL(sys.argv[1])
assert library.rnncc_add_kernels(sys.argv[2].encode()) > 0
print(library.groups(b"lstm_0_backward", *map(ctypes.c_int64, (64, 1, 16))))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, and a library that chooses among kernels."""
    made = tmp_path_factory.mktemp("others")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", HERE / "driver.c", "-o", made / "driver.so"],
        check=True,
    )
    torch_lib = Path(torch.__file__).parent / "lib"
    subprocess.run(
        ["g++", *BINDING, "-shared", f"-I{templates_dir() / 'include'}", str(HERE / "choices.cpp"), "-o",
         str(made / "choices.so"), f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-ltorch_cpu", "-lc10"],
        check=True,
    )  # fmt: skip
    return made


def kernels(folder: Path, targets: tuple[Target, ...], problems: Sequence[Problem] = PROBLEMS) -> Path:
    """A folder with the index of the LSTM's kernels for these GPUs, and an empty file for each of them."""
    plan = plan_of("lstm")
    bundle = for_gpus([plan], [[found for target in targets for found in fused_kernels(plan, problems, target)]])
    (folder / "cuda").mkdir(parents=True)
    (index,) = (file.text for file in bundle.files if file.path == "cuda/fused.txt")
    (folder / "cuda" / "fused.txt").write_text(index, encoding="utf-8")
    for table in read_index(folder / "cuda" / "fused.txt"):
        for kernel in table.kernels:
            (folder / code_file(kernel.name, table.architecture)).touch()
    return folder / "cuda"


def asked(folder: Path, kernels: Path | str, name: str, facts: Mapping[int, int], code: str = CODE) -> list[str]:
    """What is said on a machine whose GPU is such a one."""
    environment = os.environ | {f"GPU_{which}": str(value) for which, value in facts.items()}
    environment |= {"GPU_NAME": name}
    files = (str(folder / "choices.so"), str(kernels), str(folder / "driver.so"))
    done = run_fresh(code, files, environment=environment)
    assert done.returncode == 0, done.stderr
    return [Path(line).name for line in done.stdout.splitlines()]


def driver_facts(target: Target, **changed: int) -> dict[int, int]:
    """What the driver says of a GPU, by the numbers of CUdevice_attribute."""
    major, minor = map(int, target.capability.split("."))
    sms, shared = changed.get("sms", target.sms), target.shared_bytes
    return {16: sms, 38: target.l2_mb << 20, 39: target.threads, 75: major, 76: minor, 97: shared, 106: target.ctas}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels for several GPUs."""
    targets = (*(GPUS[name] for name in ("a100", "rtx4090", "h200")), GPUS["a100"].with_ptx())
    return kernels(tmp_path_factory.mktemp("package"), targets)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [
        ("a100", "sm_80"),
        ("rtx3090", "sm_80"),  # an older one of its generation
        ("rtx4090", "sm_89"),
        ("h200", "sm_90a"),
        ("b200", "compute_80"),
        ("rtx5090", "compute_80"),
    ],
)
def test_a_gpu_runs_the_best_kernels_that_a_package_has(
    gpu: str, architecture: str, folder: Path, package: Path
) -> None:
    target = GPUS[gpu]
    *files, here = asked(folder, package, f"NVIDIA {gpu}", driver_facts(target))
    assert here.startswith(f"Target(name='{gpu}', architecture='{target.architecture}', sms={target.sms}")
    backward = files.pop() if target.shared_bytes < GPUS["a100"].shared_bytes and architecture != "sm_89" else "none"
    assert backward == "none"  # made for an A100, it takes more shared memory
    assert all(Path(file).stem.endswith(f"_{architecture}") for file in files)
    families = ("gather", "scatter" if gpu == "h200" else "gather", "grid", "grid")
    assert all(f"_{family}_" in file for file, family in zip(files, families, strict=False)) and len(files) >= 3


def test_two_directions_run_by_kernels_that_are_for_both(folder: Path, tmp_path: Path) -> None:
    h200 = (GPUS["h200"],)
    one = kernels(tmp_path / "one", h200, [Problem(64, 2, "bf16", directions=1)])
    both = kernels(tmp_path / "both", h200, [Problem(64, 2, "bf16")])
    facts = driver_facts(GPUS["h200"])

    def found(*folders: Path) -> list[bool | None]:
        code = forward_code((64, 2, 1, 16), (64, 1, 2, 16))
        files = asked(folder, ":".join(map(str, folders)), "NVIDIA H200", facts, code)
        return [None if file == "none" else "_one_" in file for file in files]

    assert found(one) == [True, None] and found(both, one) == [True, False]


def test_directions_share_a_launch_where_a_smaller_grid_has_room_for_both(folder: Path, tmp_path: Path) -> None:
    """The quickest kernel for a batch of 4 has 96 CTAs: an H200 has room for one direction of it alone. That for 16
    has 48."""
    made = kernels(tmp_path / "package", (GPUS["h200"],), [Problem(768, 1, "bf16")])
    code = forward_code((768, 1, 1, 4), (768, 1, 2, 4), (768, 1, 1, 16))
    one, both, larger = asked(folder, made, "NVIDIA H200", driver_facts(GPUS["h200"]), code)
    assert one != larger and both == larger


@pytest.mark.long
def test_what_does_not_fit_does_not_run(folder: Path, tmp_path: Path) -> None:
    """A package for an RTX 4090 on a GPU of a third of its SMs: the kernels of one CTA run, grids do not."""
    made = kernels(tmp_path / "package", (GPUS["rtx4090"],))
    *files, here = asked(folder, made, "NVIDIA GeForce RTX 4060", driver_facts(GPUS["rtx4090"], sms=24))
    assert here.startswith("Target(name='NVIDIA GeForce RTX 4060', architecture='sm_89', sms=24")
    assert ["_gather_" in file for file in files[:2]] == [True, True] and files[2:] == ["none", "none"]


@pytest.mark.long
def test_clusters_share_no_sm_where_larger_groups_need_not(folder: Path, tmp_path: Path) -> None:
    """The kernel takes so little shared memory that an SM has room for several of its CTAs. A batch of 16 is divided by
    the 8 clusters that have SMs of their own."""
    made = kernels(tmp_path / "package", (GPUS["h200"],))
    assert asked(folder, made, "NVIDIA H200", driver_facts(GPUS["h200"]), GROUPS) == ["8"]
