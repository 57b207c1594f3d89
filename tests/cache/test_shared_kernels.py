"""GPU kernels that are the same for every cell are compiled once for all packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit, File
from rnncc.machine.cache import Cache
from rnncc.stages.build import Job, Product, build, commands, find_nvrtc, find_toolchain
from rnncc.stages.build.commands import Command

KERNEL = 'extern "C" __global__ void kernel(int* x) {{ *x = {}; }}\n'


def product(own: int = 1, shared: int = 1, header: int = 1, unused: int = 1) -> Product:
    """A package with kernels of its own and with kernels that every package has."""
    files = (
        File("src/include/all.cuh", f"#define ALL {header}\n"),
        File("src/toy.cu", KERNEL.format(own)),
        File("src/include/unused.cuh", f"#define UNUSED {unused}\n"),
        File("src/_core.cu", '#include "all.cuh"\n' + KERNEL.format(shared)),
    )
    units = (DeviceUnit("src/toy.cu", "toy"), DeviceUnit("src/_core.cu", "_core", shared=True))
    binding = File("src/binding.cpp", "int rnncc_toy;\n")
    return Product((File("__init__.py", ""), binding), Bundle(files, (), ("src/include",), units), ("Toy",))


def test_kernels_of_every_package_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled again where the text, a header of theirs, the architecture or an option of NVRTC is another."""
    compiled: list[str] = []
    run = commands.run

    def recorded(compiles: Sequence[Command], *rest: Any) -> Any:
        compiled.extend(Path(command.output).name for command in compiles if command.output.startswith("cuda/"))
        return run(compiles, *rest)

    monkeypatch.setattr(commands, "run", recorded)
    nvrtc = find_nvrtc(("sm_90a",), required=True)
    assert nvrtc is not None
    packages = 0

    def compiles(made: Product, architecture: str = "sm_90a") -> list[str]:
        nonlocal packages
        packages += 1
        job = Job(
            f"{packages:032}", "toy", Cache(tmp_path), find_toolchain(), replace(nvrtc, architectures=(architecture,))
        )
        package = build(job, lambda: made)
        assert {path.name for path in (package / "cuda").iterdir()} == {
            f"toy_{architecture}.cubin",
            f"_core_{architecture}.cubin",
        }
        names = sorted(compiled)
        compiled.clear()
        return names

    both = ["_core_sm_90a.cubin", "toy_sm_90a.cubin"]
    assert compiles(product()) == both
    assert compiles(product()) == compiles(product(own=2)) == ["toy_sm_90a.cubin"]
    assert compiles(product(shared=2)) == both
    assert compiles(product(header=2)) == both
    assert compiles(product(unused=2)) == ["toy_sm_90a.cubin"]
    assert compiles(product(), "sm_80") == ["_core_sm_80.cubin", "toy_sm_80.cubin"]
    monkeypatch.setenv("RNNCC_NVRTC_FLAGS", "--ptxas-options=-O2")
    assert compiles(product()) == both
