"""The rule of device code (CONTRIBUTING.md): no standard header, and two headers for what began with compute capability
9.0. tests/cuda/test_nvrtc.py compiles kernels by it; this reads all headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnncc.machine.paths import templates_dir

INCLUDE = templates_dir() / "include" / "rnncc"
# What clusters need, with another form for older GPUs where there is one; and the products of the one family that older
# GPUs do not run.
NEWER_HEADERS = {(INCLUDE / "cuda" / "fused" / "device" / name).resolve() for name in ("transport.cuh", "wgmma.cuh")}
SYSTEM = re.compile(r"#include\s*<(.*)>")
QUOTED = re.compile(r'#include\s*"(.*)"')
# What GPUs before compute capability 9.0 do not have, in names of instructions and of C++; and the question which GPU
# it is.
NEWER = re.compile(
    r"cluster|mapa|st\.async|red\.async|try_wait|expect_tx|complete_tx|async\.bulk|cp\.reduce|tensormap|"
    r"fence\.mbarrier_init|fence\.proxy|griddepcontrol|setmaxnreg|wgmma|multimem|elect\.sync|stmatrix"
)
ASKS = re.compile(r"__CUDA_ARCH__|__cluster_dims__|cooperative_groups|cuda::")


def included(path: Path) -> list[Path]:
    """The project's headers that a header includes."""
    return [(path.parent / name).resolve() for name in QUOTED.findall(path.read_text(encoding="utf-8"))]


def device_headers() -> list[Path]:
    """All headers of device code, with those that they include."""
    found: set[Path] = set()
    left = [path.resolve() for path in (INCLUDE / "cuda").rglob("*.cuh")]
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += included(path)
    return sorted(found)


HEADERS = device_headers()
FILES = sorted(path for path in (templates_dir() / "cuda").glob("*.cu*.j2"))


def newer(text: str) -> list[str]:
    """What a text has that began with compute capability 9.0: in the strings of its instructions, or in its C++."""
    code = re.sub(r"//[^\n]*", "", QUOTED.sub("", text))
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', code)
    return [*(name for string in strings for name in NEWER.findall(string)), *ASKS.findall(code)]


def test_the_headers_are_found() -> None:
    names = {path.relative_to(INCLUDE.resolve()).as_posix() for path in HEADERS}
    assert {
        "cuda/fused/families/grid.cuh",
        "cuda/scan/scan.cuh",
        "cuda/arguments.h",
        "core/tables.h",
        "core/call.h",
    } <= names
    assert not [name for name in names if name.startswith(("cpu/", "torch/"))]
    assert {path.name for path in FILES} >= {"fused.cu.j2", "kernels.cu.j2", "scan.cu.j2", "steps.cuh.j2"}


@pytest.mark.parametrize(
    "path", [*HEADERS, *FILES, templates_dir() / "cpp" / "tables.h.j2"], ids=lambda path: path.name
)
def test_device_code_includes_no_standard_header(path: Path) -> None:
    assert not SYSTEM.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [*HEADERS, *FILES], ids=lambda path: path.name)
def test_two_headers_have_what_older_gpus_lack(path: Path) -> None:
    assert bool(newer(path.read_text(encoding="utf-8"))) is (path in NEWER_HEADERS)


@pytest.mark.parametrize(
    "text",
    [
        'asm("mapa.shared::cluster.u32 %0,%1,%2;");', 'asm volatile("{\\nst.async.weak [%0];\\n}");',
        '#define POLL "mbarrier.try_wait"', "#if __CUDA_ARCH__ >= 900", "namespace cg = cooperative_groups;",
    ],
)  # fmt: skip
def test_what_is_newer_is_seen(text: str) -> None:
    assert newer(text)


@pytest.mark.parametrize(
    "text",
    ['#include "cluster.cuh"', "// mapa", "cluster_barrier();", 'asm("mbarrier.init.shared::cta.b64 [%0],%1;");'],
)
def test_what_is_older_is_not(text: str) -> None:
    assert not newer(text)
