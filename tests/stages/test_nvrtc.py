"""NVRTC: where it is found, what it compiles for, and what becomes of its failures. tests/cuda has what it makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit, File
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import Cache
from rnncc.progress import Count
from rnncc.stages.build import Job, build_kernels, elf, find_nvrtc, nvrtc
from rnncc.stages.build.nvrtc import Nvrtc
from tests.compilers import quick_nvrtc, replace_nvrtc

KERNEL = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n'
UNIT = DeviceUnit("src/a.cu", "a")


def bundle(text: str = KERNEL) -> Bundle:
    """A file of kernels."""
    return Bundle((File("src/a.cu", text),), (), (), (UNIT,))


def made(compiler: Nvrtc, folder: Path, text: str = KERNEL) -> tuple[list[Path], list[str]]:
    """The files that it makes of a text, and what is said meanwhile."""
    said: list[str] = []
    job = Job("0" * 32, "toy", Cache(folder), nvrtc=compiler, progress=said.append)
    return sorted((build_kernels(job, "kernels", lambda: bundle(text)) / "cuda").iterdir()), said


def failure(compiler: Nvrtc, folder: Path, text: str = KERNEL) -> str:
    """The message of an error."""
    with pytest.raises(RnnccError) as caught:
        made(compiler, folder, text)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "RNN602"
    return diagnostic.message


def test_code_and_ptx(tmp_path: Path) -> None:
    compiler = find_nvrtc(("sm_80", "sm_90a", "compute_86"), required=True)
    assert compiler is not None
    files, said = made(compiler, tmp_path)
    assert [path.name for path in files] == ["a_compute_86.ptx", "a_sm_80.cubin", "a_sm_90a.cubin"]
    assert all(elf.fault(path) == "" for path in files)
    text = files[0].read_text(encoding="utf-8")
    assert ".target sm_86" in text and ".entry scale" in text
    # How often files are counted depends on how long they take.
    words = [line.split()[0] for line in said if not isinstance(line, Count)]
    assert words == ["compiling", "compiled"]


def test_an_older_nvrtc_than_the_gpu_makes_ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'printf ".target\\n}\\n" > "$out"'
    compiler = replace_nvrtc(tmp_path, monkeypatch, body, version="echo 12.6 50 80 90")
    newer = Nvrtc(compiler.library, ("sm_120a", "sm_103a"))
    assert [newer.made_for(name) for name in newer.architectures] == ["compute_90", "compute_90"]
    files, said = made(newer, tmp_path / "cache")
    assert [path.name for path in files] == ["a_compute_90.ptx"]
    assert said[1].startswith("NVRTC 12.6 does not know sm_120a: kernels are compute_90's PTX")


@pytest.mark.parametrize("text", ["", "no assembler", ".target sm_80\n.entry a {"])
def test_what_is_no_ptx_is_seen(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ptx"
    path.write_text(text)
    assert elf.fault(path) != ""


def test_a_mistake_names_its_line(tmp_path: Path) -> None:
    compiler = find_nvrtc(("sm_90a",), required=True)
    assert compiler is not None
    said = failure(compiler, tmp_path, "__global__ void a() {\n  b();  // cell.rnn:7\n}\n")
    assert said == 'the compiler failed on toy: src/a.cu(2): error: identifier "b" is undefined (cell.rnn:7)'
    said = failure(compiler, tmp_path, '#include "none.h"\n')
    assert said.endswith('src/a.cu(1): catastrophic error: cannot open source file "none.h"')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("kill -SEGV $$", "Segmentation fault"),
        ("echo nothing to say", "nothing to say"),
        ("exit 0", "reported success, but a_sm_90a.cubin was not written"),
        (': > "$out"', "reported success, but a_sm_90a.cubin is empty"),
    ],
)
def test_failures(body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"{body}; exit 1" if "nothing" in body else body
    assert said in failure(replace_nvrtc(tmp_path, monkeypatch, body), tmp_path / "cache")


# A library that crashes when it compiles, one that is no NVRTC, and one that never ends.
CRASHES = "int nvrtcCreateProgram(void) { __builtin_trap(); }"
HANGS = "#include <unistd.h>\nint nvrtcCreateProgram(void) { for (;;) sleep(1); }"


def library(text: str, folder: Path) -> Path:
    """A library of C."""
    path = folder / "libnvrtc.so.13"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)
    return path


def worker(path: Path, folder: Path, seconds: int) -> tuple[int, str]:
    """What becomes of a compilation: the exit code, and what it says."""
    (folder / "a.cu").write_text(KERNEL)
    code = f"import rnncc.stages.build.nvrtc_worker as w, sys; w.SECONDS = {seconds}; sys.exit(w.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), "sm_90a", str(folder / "a.cu"), str(folder / "a.cubin")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_crash_is_said(tmp_path: Path) -> None:
    code, said = worker(library(CRASHES, tmp_path), tmp_path, 60)
    assert code != 0 and "Fatal Python error: Illegal instruction" in said


def test_what_does_not_end_is_ended(tmp_path: Path) -> None:
    code, said = worker(library(HANGS, tmp_path), tmp_path, 1)
    assert code != 0 and "Timeout" in said


def test_what_is_no_nvrtc_is_said(tmp_path: Path) -> None:
    other = library("int x;", tmp_path)
    assert worker(other, tmp_path, 60)[0] == 1
    assert "undefined symbol: nvrtcCreateProgram" in worker(other, tmp_path, 60)[1]
    with pytest.raises(RnnccError, match=r"^error.RNN602.: NVRTC cannot be used: .*undefined symbol"):
        nvrtc.known(other)
    text = tmp_path / "text"
    text.write_text("no library")
    with pytest.raises(RnnccError, match=r"NVRTC cannot be used: .*text: .*\n.*pip install nvidia-cuda-nvrtc"):
        nvrtc.known(text)
    # An architecture that every NVRTC knows is not asked for first.
    with pytest.raises(RnnccError, match=r"NVRTC cannot be used: .*\n.*pip install nvidia-cuda-nvrtc`; everything"):
        made(Nvrtc(text, ("sm_90a",)), tmp_path / "cache")


@pytest.mark.parametrize(("cuda", "release"), [("13.0", 13), ("12.8", 12), (None, 13)])
def test_the_one_for_torch_goes_first(
    cuda: str | None, release: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, number in (("cu13/lib", 13), ("cuda_nvrtc/lib", 12)):
        (tmp_path / "nvidia" / folder).mkdir(parents=True)
        (tmp_path / "nvidia" / folder / f"libnvrtc.so.{number}").touch()
    (tmp_path / "torch").mkdir()
    about = f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(about)

    def found(name: str) -> SimpleNamespace:
        return SimpleNamespace(submodule_search_locations=[str(tmp_path / name)])

    monkeypatch.setattr(nvrtc, "find_spec", found)
    assert nvrtc.find_library() == next(tmp_path.glob(f"nvidia/*/lib/libnvrtc.so.{release}"))


def test_a_toolkit_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "find_spec", lambda name: None)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.12").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_SYSTEM", ())
    assert nvrtc.find_library() == tmp_path / "lib64" / "libnvrtc.so.12"
    monkeypatch.delenv("CUDA_HOME")
    assert nvrtc.find_library() is None


@pytest.mark.parametrize("executable", ["", "/usr/sbin/some-server"])
def test_a_program_that_embeds_python_finds_one(
    executable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    nvrtc._worker.cache_clear()
    program, *options = nvrtc._worker()
    nvrtc._worker.cache_clear()
    asked = [program, *options[:-1], "-c", "import sys, json; print(json.dumps(sys.version_info[:2]))"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert tuple(json.loads(shown)) >= (3, 11)


def test_a_package_says_what_it_was_made_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = quick_nvrtc(tmp_path, monkeypatch)
    assert compiler.made_for("sm_90a") == "sm_90a"
    assert Nvrtc(compiler.library, ("sm_80",)).key() != compiler.key()
