"""Objects that every package shares come with rnncc's wheel, or are kept in the cache."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit, File
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine.cache import Cache
from rnncc.stages.build import (
    Job,
    Nvrtc,
    Toolchain,
    build,
    build_kernels,
    commands,
    find_toolchain,
    processes,
    shared,
    toolchain,
)
from rnncc.stages.build.shared import included
from tests.compilers import quick_nvrtc
from tests.stages.test_build import KEY, answer, product

TEXTS = {
    "src/one.cu": '#include "one.cuh"\n#include <math.h>\n  # include "lib/a.cuh"\n',
    "src/one.cuh": "",
    "include/lib/a.cuh": '#include "b.cuh"\n#include "../other/c.cuh"\n',
    "include/lib/b.cuh": '#include "a.cuh"\n',
    "include/other/c.cuh": "",
    "include/unused.cuh": "",
}


def test_what_a_file_includes_belongs_to_it() -> None:
    found = dict(included("src/one.cu", TEXTS, ("include",)))
    assert found == {name: text for name, text in TEXTS.items() if name != "include/unused.cuh"}
    with pytest.raises(KeyError, match=r"lib/a\.cuh"):
        list(included("src/one.cu", TEXTS, ()))


def test_a_shared_object_is_compiled_once(tmp_path: Path, compiled: list[str]) -> None:
    cache = Cache(tmp_path)
    build(Job(KEY, "toy", cache, find_toolchain()), product)
    compiled.clear()
    package = build(Job("f" * 32, "toy", cache, find_toolchain()), lambda: product(7))
    assert answer(package) == 7
    assert "core.o" not in compiled
    # Another command may make another object.
    compiler = find_toolchain()
    build(Job("e" * 32, "toy", cache, replace(compiler, command=(*compiler.command, "-O0"))), product)
    assert "core.o" in compiled


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of objects, as a wheel brings it, for the package of `product`."""
    folder = tmp_path / "objects"
    bundle = product().bundle
    assert bundle is not None
    shared.make([bundle, bundle], folder, find_toolchain())
    monkeypatch.setattr(shared, "objects_dir", lambda: folder)
    return folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled from now on."""
    found: list[str] = []
    run = commands.run

    def recorded(compiles: list[commands.Command], *rest: Any) -> processes.Outcome:
        found.extend(Path(command.output).name for command in compiles)
        return run(compiles, *rest)

    monkeypatch.setattr(commands, "run", recorded)
    return found


def test_a_wheel_brings_it(objects: Path, compiled: list[str], tmp_path: Path) -> None:
    (brought,), (text,) = objects.glob("*.o"), objects.glob("*.txt")
    assert len(brought.stem) > 32 and text.name == shared.MADE_BY
    assert text.read_text() == f"{find_toolchain().version}\n"
    cache, compiler = Cache(tmp_path / "cache"), find_toolchain()
    assert answer(build(Job(KEY, "toy", cache, compiler), lambda: product(7))) == 7
    assert compiled == ["binding.o", "libtorch.so"]
    # The cache keeps the stand-in for libtorch.so alone.
    assert len(list((cache.root / "objects").iterdir())) == 1
    # Another compiler has other flags, and links it all the same.
    other = Toolchain(compiler.command, "clang version 19")
    assert answer(build(Job("e" * 32, "toy", cache, other), lambda: product(8))) == 8
    assert "core.o" not in compiled


@pytest.mark.parametrize("change", ["text", "header", "flags", "options"])
def test_a_wheel_s_object_is_not_for_another_text(
    objects: Path, compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    made, compiler = product(9), find_toolchain()
    bundle = made.bundle
    assert bundle is not None
    if change == "options":
        compiler = replace(compiler, command=(*compiler.command, "-g"))
    elif change == "flags":
        monkeypatch.setattr(toolchain, "FLOATS", (*toolchain.FLOATS, "-g"))
    else:
        name = {"text": "src/core.cpp", "header": "src/include/own.h"}[change]
        text = {"text": "int shared_part() { return 1; }\n", "header": "#define OWN 1\n"}[change]
        files = [replace(file, text=text) if file.path == name else file for file in bundle.files]
        made = replace(made, bundle=replace(bundle, files=tuple(files)))
    package = build(Job(KEY, "toy", Cache(tmp_path / "cache"), compiler), lambda: made)
    assert answer(package) == {"text": 10, "header": 11}.get(change, 9)
    assert "core.o" in compiled


@pytest.mark.parametrize("damage", ["cut", "changed", "another", "empty", "folder", "named"])
def test_a_damaged_object_of_a_wheel_is_never_linked(
    objects: Path, compiled: list[str], tmp_path: Path, damage: str
) -> None:
    (path,) = objects.glob("*.o")
    data = path.read_bytes()
    if damage == "named":
        path.rename(path.with_name(f"{path.name[:32]}-none.o"))
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        changed = bytes([*data[:100], data[100] ^ 1, *data[101:]])
        path.write_bytes({"cut": data[:-7], "changed": changed, "another": data[::-1], "empty": b""}[damage])
    said: list[str] = []
    package = build(Job(KEY, "toy", Cache(tmp_path / "cache"), find_toolchain(), progress=said.append), product)
    assert answer(package) == 42 and "core.o" in compiled
    assert [
        line for line in said if "an object that came with rnncc is damaged" in line and "compiling it anew" in line
    ]


def test_a_full_disk_is_no_damage(objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copyfile, full = shutil.copyfile, list[Path]()

    def copied(source: Path, target: Path) -> None:
        if target.suffix != ".o":
            copyfile(source, target)
            return
        full.append(target)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", copied)
    said: list[str] = []
    with pytest.raises(RnnccError, match=r"RNN605.*no space left on device"):
        build(Job(KEY, "toy", Cache(tmp_path / "cache"), find_toolchain(), progress=said.append), product)
    assert len(full) == 1 and not [line for line in said if "damaged" in line]
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["CACHEDIR.TAG"]


def test_a_wheel_is_not_made_with_a_compiler_that_fails(tmp_path: Path) -> None:
    bundle = product().bundle
    assert bundle is not None
    with pytest.raises(RnnccError, match="the compiler failed"):
        shared.make([bundle], tmp_path / "objects", Toolchain(("/bin/false",), "none"))


@pytest.mark.parametrize("failing", ["for_all_gpus", "make_code"])
def test_a_wheel_has_objects_where_nvrtc_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    pytest.importorskip("hatchling")
    from rnncc.stages.build import nvrtc, wheel_hook

    def fails(*given: object) -> None:
        raise RnnccError(Diagnostic("RNN602", "NVRTC cannot be used"))

    monkeypatch.setattr(nvrtc, "for_all_gpus", lambda: quick_nvrtc(tmp_path, monkeypatch))
    monkeypatch.setattr({"for_all_gpus": nvrtc, "make_code": shared}[failing], failing, fails)
    monkeypatch.setattr(wheel_hook, "bundles", lambda: [product().bundle])
    said: list[str] = []
    app: Any = SimpleNamespace(display_warning=said.append)
    nothing: Any = None
    hook = wheel_hook.WheelHook(str(tmp_path), {}, nothing, nothing, str(tmp_path), "wheel", app)
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    (folder,) = data["force_include"]
    assert {path.suffix for path in Path(folder).iterdir()} == {".o", ".txt"}
    assert data["tag"].startswith("py3-none-") and data["pure_python"] is False
    assert said == ["the wheel brings no code for GPUs: NVRTC cannot be used"]
    hook.finalize("standard", data, "")
    assert not Path(folder).exists()


def test_a_wheel_brings_code_for_gpus(compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of another major release compiles it, and so does one with options of the user's."""
    text = 'extern "C" __global__ void kernel(int* x) { *x = 1; }\n'
    units = (DeviceUnit("src/_core.cu", "_core", shared=True), DeviceUnit("src/toy.cu", "toy"))
    bundle = Bundle(tuple(File(unit.path, text) for unit in units), (), (), units)
    nvrtc, folder = quick_nvrtc(tmp_path, monkeypatch), tmp_path / "objects"
    shared.make_code([bundle], folder, nvrtc)
    assert [path.suffix for path in folder.iterdir()] == [".cubin"]
    monkeypatch.setattr(shared, "objects_dir", lambda: folder)
    made = 0

    def compiles(by: Nvrtc) -> list[str]:
        nonlocal made
        made += 1
        compiled.clear()
        job = Job(f"{made:032}", "toy", Cache(tmp_path / "cache"), nvrtc=by)
        code = build_kernels(job, "it", lambda: bundle) / "cuda"
        assert sorted(path.name for path in code.iterdir()) == ["_core_sm_90a.cubin", "toy_sm_90a.cubin"]
        assert len({path.read_bytes() for path in code.iterdir()}) == 1
        return sorted(compiled)

    both = ["_core_sm_90a.cubin", "toy_sm_90a.cubin"]
    assert compiles(nvrtc) == ["toy_sm_90a.cubin"]
    monkeypatch.setenv("RNNCC_NVRTC_FLAGS", "-lineinfo")
    assert compiles(nvrtc) == both
    monkeypatch.delenv("RNNCC_NVRTC_FLAGS")
    (brought,) = folder.glob("*.cubin")
    brought.write_bytes(b"")
    assert compiles(nvrtc) == both
    (tmp_path / "libnvrtc.so.12").symlink_to(nvrtc.library)
    shared.make_code([bundle], tmp_path / "again", nvrtc)
    monkeypatch.setattr(shared, "objects_dir", lambda: tmp_path / "again")
    assert compiles(nvrtc) == ["toy_sm_90a.cubin"]
    assert compiles(replace(nvrtc, library=tmp_path / "libnvrtc.so.12")) == both
