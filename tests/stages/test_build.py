"""Building without kernels of the compiler's: the toolchain, the cache, its lock, and where packages are put."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit, File, Unit
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.packages import is_package_name, package_name
from rnncc.language.source import Source
from rnncc.machine.cache import Cache, digest
from rnncc.machine.targets import architectures
from rnncc.progress import Count
from rnncc.stages.build import (
    Job,
    Nvrtc,
    Product,
    Toolchain,
    build,
    build_kernels,
    check_stem,
    commands,
    find_nvrtc,
    find_toolchain,
    first_key,
    install,
)

ROOT = Path(__file__).resolve().parents[2]
KEY = "0123456789abcdef" * 2


def product(answer: int = 42, broken: bool = False) -> Product:
    """A package of two translation units, one of them shared."""
    binding = f'#include "own.h"\nint shared_part();\nextern "C" __attribute__((visibility("default"))) int answer() ' \
              f"{{ return OWN + shared_part() + {answer}; }}\n"  # fmt: skip
    core = '#include "own.h"\nint shared_part() { return OWN; }\n'
    if broken:
        binding = "int answer( {\n"
    bundle = Bundle(
        files=(File("src/include/own.h", "#define OWN 0\n"), File("src/core.cpp", core)),
        units=(Unit("src/core.cpp", "generic", True),),
        include=("src/include",),
    )
    return Product((File("__init__.py", ""), File("src/binding.cpp", binding)), bundle, ("Toy",))


def gpu_bundle() -> Bundle:
    """Two files of kernels, of which one is for an H200 alone."""
    text = 'extern "C" __global__ void kernel(int* x) { *x = 1; }\n'
    units = (DeviceUnit("src/all.cu", "all"), DeviceUnit("src/wide.cu", "wide", ("sm_90a",)))
    return Bundle(tuple(File(unit.path, text) for unit in units), (), (), units)


def answer(package: Path) -> int:
    """What the package's library says."""
    import torch  # noqa: F401 (the library needs libtorch.so in the process)

    library = json.loads((package / "_rnncc.json").read_text())["library"]
    return int(ctypes.CDLL(str(package / library)).answer())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_build_makes_a_working_package_and_finds_it_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    calls: list[int] = []

    def produce() -> Product:
        calls.append(1)
        return product()

    package = build(Job(KEY, "toy", cache, find_toolchain()), produce)
    assert answer(package) == 42
    assert build(Job(KEY, "toy", cache, find_toolchain()), produce) == package
    assert len(calls) == 1
    assert (package / "_runtime" / "modules" / "layer.py").is_file()
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_two_builds_are_byte_identical(tmp_path: Path) -> None:
    first = build(Job(KEY, "toy", Cache(tmp_path / "one"), find_toolchain()), product)
    second = build(Job(KEY, "toy", Cache(tmp_path / "two" / "deeper"), find_toolchain()), product)
    assert contents(first) == contents(second)


def test_a_long_build_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(commands, "POLL_SECONDS", 60)
    build(Job(KEY, "toy", Cache(tmp_path / "quick"), find_toolchain(), progress=said.append), product)
    assert said == ["compiling toy (Toy)"]
    monkeypatch.setattr(commands, "POLL_SECONDS", 0.001)
    build(Job(KEY, "toy", Cache(tmp_path / "slow"), find_toolchain(), progress=said.append), product)
    counts = [message for message in said[2:] if isinstance(message, Count)]
    done, total = [count.done for count in counts], counts[0].total
    assert len(done) == len(said) - 2 > 1 and done == sorted(done) and 0 <= done[0] < total == done[-1]


def test_a_compiler_error_keeps_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", cache, find_toolchain()), lambda: product(broken=True))
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "RNN602"
    log = tmp_path / "logs" / f"toy-{KEY[:12]}.log"
    assert str(log) in diagnostic.help and "binding.cpp" in log.read_text()
    assert cache.package(KEY) is None and not list((tmp_path / "tmp").iterdir())
    assert answer(build(Job(KEY, "toy", cache, find_toolchain()), product)) == 42


def test_kernels_are_compiled_for_each_architecture_that_can_run_them(tmp_path: Path) -> None:
    nvrtc = find_nvrtc(architectures("a100, h200"), required=True)
    gpu = gpu_bundle()
    cpu = product().bundle
    assert nvrtc is not None and cpu is not None
    both = replace(cpu, files=cpu.files + gpu.files, device_units=gpu.device_units)
    job = Job(KEY, "toy", Cache(tmp_path), find_toolchain(), nvrtc)
    package = build(job, lambda: replace(product(), bundle=both))
    cubins = ["all_sm_80.cubin", "all_sm_90a.cubin", "wide_sm_90a.cubin"]
    assert sorted(path.name for path in (package / "cuda").iterdir()) == cubins
    assert json.loads((package / "_rnncc.json").read_text())["architectures"] == ["sm_80", "sm_90a"]
    assert answer(package) == 42


def test_kernels_alone(tmp_path: Path) -> None:
    nvrtc = find_nvrtc(("sm_90a",), required=True)
    assert nvrtc is not None
    said: list[str] = []
    for _ in range(2):
        job = Job(KEY, "toy", Cache(tmp_path), nvrtc=nvrtc, progress=said.append)
        folder = build_kernels(job, "Toy's kernels", gpu_bundle)
        assert sorted(path.name for path in (folder / "cuda").iterdir()) == ["all_sm_90a.cubin", "wide_sm_90a.cubin"]
    first, last = (line for line in said if not isinstance(line, Count))
    assert first == "compiling Toy's kernels" and last.startswith("compiled Toy's kernels in")


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RnnccError) as caught:
        find_toolchain()
    assert caught.value.diagnostics[0].code == "RNN601"
    assert "g++" in caught.value.diagnostics[0].help
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RnnccError, match="no-such-compiler"):
        find_toolchain()


def test_without_a_compiler_the_package_has_no_library(tmp_path: Path) -> None:
    package = build(Job(KEY, "toy", Cache(tmp_path)), product)
    assert json.loads((package / "_rnncc.json").read_text())["library"] is None


def test_first_key_follows_everything_it_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = find_toolchain()
    library, newer = tmp_path / "libnvrtc.so.13", tmp_path / "newer.so"
    library.write_bytes(b"library")
    newer.write_bytes(b"newer library")
    nvrtc = Nvrtc(library, ("sm_90a",))
    request = Request(Source("cell.rnn", "text"), "stem")
    base = first_key(request, None, compiler)
    assert base == first_key(replace(request, source=Source("other.rnn", "text")), None, compiler)
    on_gpus = replace(request, architectures=("sm_90a",))
    others = [
        first_key(request, nvrtc, compiler),
        first_key(request, replace(nvrtc, library=newer), compiler),
        first_key(request, replace(nvrtc, architectures=("sm_80",)), compiler),
        first_key(request, None, None),
        first_key(replace(on_gpus, newton=True), nvrtc, compiler),
        first_key(replace(on_gpus, problems=(Problem(64, 1, "bf16"),)), nvrtc, compiler),
        *(
            first_key(replace(request, **changed), None, compiler)
            for changed in (
                {"source": Source("cell.rnn", "text ")},
                {"name": "other"},
                {"constants": {"L": 3}},
                {"zoneout": ("h",)},
                {"recurrent_dropout": True},
                {"instructions": "v3"},
                {"cell": "LSTM"},
                {"programs": ("forward",)},
            )
        ),
    ]
    with monkeypatch.context() as setting:
        setting.setenv("RNNCC_NVRTC_FLAGS", "-DRNNCC_SPIN_BUDGET=30000000")
        others.append(first_key(request, nvrtc, compiler))
        assert first_key(request, None, compiler) == base  # nothing that NVRTC makes
    assert len({base, *others}) == 16
    assert digest("ab", "c") != digest("a", "bc")


def test_an_unwritable_cache_is_a_diagnostic(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", Cache(blocked)), product)
    assert caught.value.diagnostics[0].code == "RNN605"


def toy(tmp_path: Path) -> tuple[Path, Cache]:
    """A finished package without kernels, and its cache."""
    cache = Cache(tmp_path / "cache")
    return build(Job(KEY, "toy", cache), lambda: Product((File("__init__.py", "x = 1\n"),), None, ("Toy",))), cache


def test_install_copies_replaces_and_refuses(tmp_path: Path) -> None:
    package, _ = toy(tmp_path)
    (package / "__pycache__").mkdir()
    out = tmp_path / "out"
    target = install(package, out)
    assert (target / "__init__.py").read_text() == "x = 1\n" and not (target / "__pycache__").exists()
    older = Product((File("__init__.py", "x = 0\n"), File("stale.py", "")), None, ("Toy",))
    install(build(Job("e" * 32, "toy", Cache(tmp_path / "cache")), lambda: older), out)
    assert (target / "stale.py").exists()
    assert install(package, out) == target and not (target / "stale.py").exists()
    assert sorted(path.name for path in out.iterdir()) == ["toy"]
    (tmp_path / "mine" / "toy").mkdir(parents=True)
    with pytest.raises(RnnccError) as caught:
        install(package, tmp_path / "mine")
    assert caught.value.diagnostics[0].code == "RNN603"


def test_many_install_at_once(tmp_path: Path) -> None:
    package, _ = toy(tmp_path)
    out = tmp_path / "out"
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: install(package, out), range(60))) == [out / "toy"] * 60
    assert contents(out / "toy") == contents(package) and [path.name for path in out.iterdir()] == ["toy"]
    # What a killed one left goes an hour later; what is called alike stays.
    left = out / f".rnncc-{digest('toy')[:8]}-1-2"
    for path in (left, left.with_name(f"{left.name}-mine")):
        path.mkdir()
        os.utime(path, (0, 0))
    install(package, out)
    assert sorted(path.name for path in out.iterdir()) == [f"{left.name}-mine", "toy"]


def test_a_package_is_dropped_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, cache = toy(tmp_path)
    os.utime(package.parent, (0, 0))
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "0")
    # As if the process were killed at the first file.
    monkeypatch.setattr("rnncc.machine.cache.sweep.shutil.rmtree", lambda *_, **__: None)
    cache.trim()
    assert not package.parent.exists() and cache.package(package.parent.name) is None


def test_an_installation_that_fails_leaves_the_old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, _ = toy(tmp_path)
    target = install(package, tmp_path / "out")
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self.name == "new":
            raise OSError("no")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RnnccError):
        install(package, tmp_path / "out")
    assert (target / "__init__.py").is_file() and sorted(path.name for path in target.parent.iterdir()) == ["toy"]


@pytest.mark.parametrize("stem", ["x" * 250, "2fast", "class", "json", "torch", "my-cell", "_hidden", "ünï", "x\n", ""])
def test_bad_stems_are_refused(stem: str) -> None:
    with pytest.raises(RnnccError) as caught:
        check_stem(stem)
    assert caught.value.diagnostics[0].code == "RNN604"
    assert "--name" in caught.value.diagnostics[0].help


@pytest.mark.parametrize("stem", ["2fast", "class", "my-cell", "_hidden", "ünï", "", "a.b", "__init__", "x\n"])
def test_every_stem_has_a_package_name(stem: str) -> None:
    assert not is_package_name(stem) and is_package_name(package_name(stem))


def test_a_good_stem_is_the_package_s_name() -> None:
    assert [package_name(stem) for stem in ("lstm", "My_Cell2", "match")] == ["lstm", "My_Cell2", "match"]
    assert package_name("my-cell.v2") == "my_cell_v2"


def test_a_package_does_not_hide_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, _ = toy(tmp_path)
    install(package, tmp_path / "out")
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    check_stem("toy", tmp_path / "out")
    (tmp_path / "out" / "toy" / "_rnncc.json").unlink()
    with pytest.raises(RnnccError):
        check_stem("toy", tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("RNNCC_CACHE_LIMIT", "a lot", "RNN607"),
        ("RNNCC_CACHE_LIMIT", "-1", "RNN607"),
        ("RNNCC_CACHE_LIMIT", "1iB", "RNN607"),
        ("MAX_JOBS", "abc", "RNN607"),
        ("MAX_JOBS", "0", "RNN607"),
        ("MAX_JOBS", "-2", "RNN607"),
        ("MAX_JOBS", "000", "RNN607"),
        ("CXX", "g++ '-O2", "RNN601"),
    ],
)
def test_settings_that_mean_nothing_are_said_before_the_work(
    name: str, value: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", Cache(tmp_path), find_toolchain()), lambda: pytest.fail("began"))
    assert caught.value.diagnostics[0].code == code
    assert repr(value)[1:-1] in caught.value.diagnostics[0].message


def test_a_program_that_cannot_be_started_is_a_failure_of_the_toolchain(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    compiler = Toolchain((str(gone),), "")
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", Cache(tmp_path / "cache"), compiler), product)
    assert caught.value.diagnostics[0].code == "RNN602"
    assert caught.value.diagnostics[0].message.endswith(f"{gone}: not found")


def test_a_missing_ninja_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "find_ninja", lambda: "ninja-that-is-gone")
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", Cache(tmp_path / "cache"), find_toolchain()), product)
    message = caught.value.diagnostics[0].message
    assert message.endswith("error: 'ninja-that-is-gone' cannot be run: no such file or directory")


@pytest.mark.parametrize("stem", ["objects", "ninja", "finished"])
def test_a_package_may_be_called_like_a_folder_of_the_build(stem: str, tmp_path: Path) -> None:
    assert build(Job(KEY, stem, Cache(tmp_path), find_toolchain()), product).name == stem


def test_other_systems_are_told_that_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(RnnccError, match="made for Linux on x86-64, and this machine is Darwin on"):
        find_toolchain()


RENDER = """
import sys
sys.path.insert(0, {root!r})
from rnncc.machine.cache import digest
from dataclasses import replace
from rnncc.driver import make_product
from rnncc.ir.problem import Problem
from rnncc.language.read import read_request
for name in ("lstm", "slstm", "onlstm", "lmu", "layernormlstm"):
    problems = (Problem(64, 1, "bf16"),)
    product = make_product(replace(read_request(name), architectures=("sm_90a",), problems=problems))
    files = product.files + product.bundle.files
    print(name, digest(*(part for file in files for part in (file.path, file.text))))
"""


@pytest.mark.long
def test_every_file_is_the_same_under_other_hash_seeds() -> None:
    code = RENDER.format(root=str(ROOT))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    ]
    assert len(outputs[0].splitlines()) == 5 and len(set(outputs)) == 1
