"""rnncc's own wheel and source distribution, and the wheels that it makes of cells."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.utils import parse_wheel_filename

from rnncc import __version__
from rnncc.cli.wheel import write_wheel
from rnncc.language.diagnostics import RnnccError
from rnncc.stages.build import find_toolchain

ROOT = Path(__file__).resolve().parents[1]
PURE = {**os.environ, "RNNCC_NO_PREBUILT": "1"}


def run(*arguments: str, **options: Any) -> str:
    """What a Python program prints; it must succeed."""
    command = [sys.executable, *arguments]
    result: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, without compiled objects, and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    run("-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder), cwd=ROOT, env=PURE)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """A folder with what the wheel holds, as an installation would lay it."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(built / "site")
    return built / "site"


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, without the list of their hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def metadata(wheel: Path) -> Message:
    """A wheel's METADATA."""
    (text,) = (data for name, data in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(text)


@pytest.mark.long
def test_the_source_distribution_builds_the_same_wheel(built: Path) -> None:
    (source,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    # hatchling is installed: nothing is fetched.
    run(
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        "again",
        str(source),
        cwd=built,
        env=PURE,
    )
    (again,) = (built / "again").glob("*.whl")
    assert again.name == wheel.name and contents(again) == contents(wheel)


def test_what_the_wheel_says_of_itself(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    about = metadata(wheel)
    assert (about["Name"], about["Version"], about["License-Expression"]) == ("rnncc", __version__, "Apache-2.0")
    assert about["Requires-Python"] == ">=3.11" and "torch>=2.10" in about.get_all("Requires-Dist", [])
    licence = (ROOT / "LICENSE").read_bytes()
    texts = [data for name, data in contents(wheel).items() if name.endswith("LICENSE")]
    assert about["License-File"] == "LICENSE" and texts == [licence, licence]


def test_templates_and_cells_travel_inside_the_package(installed: Path) -> None:
    for kind in ("templates", "cells"):
        here = {path.relative_to(ROOT / kind) for path in (ROOT / kind).rglob("*") if path.is_file()}
        there = installed / "rnncc" / "_data" / kind
        assert {path.relative_to(there) for path in there.rglob("*") if path.is_file()} == here
    for data in ("parse/grammar.lark", "schedule/rates_h200.toml"):
        assert (installed / "rnncc" / "stages" / data).is_file()
    assert sorted(path.name for path in installed.iterdir())[0] == "rnncc"


def test_the_pages_that_name_the_version_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^([a-z-]+): (.*)$", citation, re.MULTILINE))
    assert (fields["cff-version"], fields["version"], fields["license"]) == ("1.2.0", __version__, "Apache-2.0")
    assert {"message", "title"} <= fields.keys() and re.search(r"^authors:\n  - name: ", citation, re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == __version__


def test_the_citation_fulfils_the_schema() -> None:
    """The schema of the Citation File Format, as cffconvert brings it."""
    pytest.importorskip("cffconvert")
    program = "import sys; from cffconvert import Citation; Citation(sys.stdin.read()).validate(); print('valid')"
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert run("-c", program, input=text) == "valid\n"


@pytest.mark.long
def test_build_and_twine_take_it(built: Path, tmp_path: Path) -> None:
    """What `make dist` does. `build` makes the wheel of what is in the source distribution."""
    for tool in ("build", "twine"):
        pytest.importorskip(tool)
    run("-m", "build", "--no-isolation", "--outdir", str(tmp_path), cwd=ROOT, env=PURE)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    (same,) = built.glob("*.whl")
    assert wheel.name == f"rnncc-{__version__}-py3-none-any.whl" and contents(wheel) == contents(same)
    assert run("-m", "twine", "check", "--strict", str(wheel), str(source)).count("PASSED") == 2
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CITATION.cff", "CHANGELOG.md", "README.md", "docs/cli.md", "tests/conftest.py", "rnncc/py.typed"} <= names


@pytest.fixture(scope="module")
def with_objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel holds that brings objects."""
    folder = tmp_path_factory.mktemp("objects")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT, env={**os.environ, "CXX": "g++"})
    (wheel,) = folder.glob("*.whl")
    assert re.fullmatch(r"rnncc-[\d.]+-py3-none-manylinux_2_\d\d_x86_64.whl", wheel.name)
    assert wheel.stat().st_size < 5e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_a_wheel_with_objects(compiler: str, with_objects: Path, tmp_path: Path) -> None:
    """A first load compiles what the cell alone has, by whatever compiler there is, and computes what torch does."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    assert {path.suffix for path in (with_objects / "rnncc" / "_data" / "objects").iterdir()} >= {".o", ".cubin"}
    # Where there is a GPU, it also compiles what calls the cell's kernels there.
    own = {**os.environ, "CXX": compiler, "PYTHONPATH": str(with_objects), "CUDA_VISIBLE_DEVICES": ""}
    said = run("-c", _LOAD, str(tmp_path / "cache"), cwd=tmp_path, env=own)
    assert said.splitlines() == ["lstm_dispatch.o lstm_f32.o binding.o libtorch.so", "right"]


_LOAD = """
import os, sys, re
import torch
from rnncc.stages.build import commands
os.environ["RNNCC_CACHE_DIR"] = sys.argv[1]
run, made = commands.run, []
def recorded(compiles, *rest):
    made.extend(os.path.basename(command.output) for command in compiles)
    return run(compiles, *rest)
commands.run = recorded
import rnncc
layer = rnncc.load("lstm").LSTM(5, 16)
print(" ".join(re.sub("_(generic|v3|v4)_", "_", name) for name in made))
x = torch.randn(7, 3, 5)
peer = torch.nn.LSTM(5, 16)
layer.load_state_dict(peer.state_dict())
mine, theirs = layer(x)[0], peer(x)[0]
torch.testing.assert_close(mine, theirs)
print("right")
"""


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own, into which pip has installed the wheel. It sees the dependencies that are
    installed here."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    (wheel,) = built.glob("*.whl")
    program = str(folder / "bin" / "python")
    run("-m", "pip", "--python", program, "install", "-q", "--no-deps", "--no-index", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    # After the environment's own folder, and without the editable installation of this checkout.
    (site / "here.pth").write_text("\n".join([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]) + "\n")
    return folder


@pytest.mark.long
def test_an_installation_in_a_clean_environment(environment: Path, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        bare = {"HOME": str(tmp_path), "PATH": os.defpath}
        done = subprocess.run(
            [str(environment / "bin" / words[0]), *words[1:]], cwd=tmp_path, env=bare, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("rnncc", "--version") == f"rnncc, version {__version__}\n"
    assert said("rnncc", "check", "lstm") == "lstm: ok\n"
    where = said("python", "-c", "import rnncc; print(rnncc.__file__)")
    assert Path(where.strip()).is_relative_to(environment)
    found = json.loads(said("python", "-c", _EXTRAS))
    assert {"bench", "plot", "nvrtc", "dev"} <= set(found)


_EXTRAS = """
import json
from importlib.metadata import metadata
print(json.dumps(metadata('rnncc').get_all('Provides-Extra')))
"""


def test_its_types_are_known_to_programs_that_use_it(environment: Path, tmp_path: Path) -> None:
    """py.typed is there, so that mypy reads the annotations."""
    pytest.importorskip("mypy")
    (tmp_path / "use.py").write_text("import rnncc\nx: int = rnncc.load('lstm')\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--python-executable", str(environment / "bin" / "python"), "use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "use.py:2: error: Incompatible types in assignment" in done.stdout and "py.typed" not in done.stdout
    assert done.stdout.endswith("Found 1 error in 1 file (checked 1 source file)\n")


@pytest.mark.parametrize(
    "command",
    [("check", "lstm"), ("show", "lstm", "--stage", "render"), ("explain", "RNN203"), ("build", "elman")],
    ids=" ".join,
)
def test_the_installed_package_works(installed: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    # Without the checkout on the path: -P leaves the current folder out, and an editable installation comes later.
    program = "import sys, rnncc; print(rnncc.__file__, file=sys.stderr); from rnncc.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", program, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(str(installed))


@pytest.mark.long
def test_a_built_package_as_a_wheel_runs_without_rnncc_or_a_compiler(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}

    options = {"cwd": tmp_path, "env": environment}
    folder, wheel = run("-m", "rnncc", "build", "lstm", "--wheel", **options).splitlines()
    assert folder == "lstm"
    first = (tmp_path / wheel).read_bytes()
    assert run("-m", "rnncc", "build", "lstm", "--wheel", **options).splitlines()[1] == wheel
    assert (tmp_path / wheel).read_bytes() == first
    # pip checks the wheel's name, its metadata and every hash.
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", "site", wheel, **options)
    # No rnncc there, no compiler, nothing but torch.
    bare = {"cwd": tmp_path, "env": {"HOME": str(tmp_path), "PATH": ""}}
    assert run("-P", str(ROOT / "tests" / "wheel_use.py"), "site", **bare) == f"torch {torch.__version__}: all right\n"
    # auditwheel counts torch's library as a foreign one. It names the tag of the versions of symbols apart.
    shown = json.loads(run("-m", "auditwheel", "show", "--json", wheel, **options))
    assert wheel.endswith(f"-{shown['sym_tag']}.whl")
    about = metadata(tmp_path / wheel)
    fingerprint = json.loads((tmp_path / "lstm" / "_rnncc.json").read_text(encoding="utf-8"))["fingerprint"]
    assert about["Version"] == f"{__version__}+{fingerprint[:8]}" and about.get_all("Requires-Dist") == ["torch>=2.10"]
    # rnncc's code goes along, and so does its licence.
    licence = (ROOT / "LICENSE").read_bytes()
    texts = [data for name, data in contents(tmp_path / wheel).items() if name.endswith("LICENSE")]
    assert about["License-File"] == "LICENSE" and texts == [licence, licence]


@pytest.mark.parametrize("name", ["a_", "a__b", "a" * 240])
def test_a_wheel_is_not_called_what_pip_takes_for_another_name(name: str, tmp_path: Path) -> None:
    text = "cell Foo\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n"
    (tmp_path / f"{name}.rnn").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "rnncc", "build", f"{name}.rnn", "--wheel", "--out", "out"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "RNN604" in found.stderr + found.stdout
    assert not (tmp_path / "out").exists()


def toy(folder: Path) -> Path:
    """A package with all that a wheel is made of."""
    (folder / "_runtime").mkdir(parents=True)
    (folder / "_runtime" / "LICENSE").write_text("…", encoding="utf-8")
    about = {"cells": ["A"], "fingerprint": "0123456789", "torch_abi": "2.10", "library": "libtoy.so"}
    (folder / "_rnncc.json").write_text(json.dumps(about), encoding="utf-8")
    command = [*find_toolchain().command, "-shared", "-x", "c++", os.devnull, "-o", str(folder / "libtoy.so")]
    subprocess.run(command, check=True)
    return folder


def test_a_wheel_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = toy(tmp_path / "toy")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(RnnccError, match="whl' cannot be written: no space left on device"):
        write_wheel(package)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_wheel_bears_its_package_s_name_as_file_names_do(tmp_path: Path) -> None:
    wheel = write_wheel(toy(tmp_path / "My__Cell"))
    name, version, build, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version), build) == ("my-cell", f"{__version__}+1234567", ())
    assert {(tag.interpreter, tag.abi, tag.platform) for tag in tags} == {("py3", "none", "manylinux_2_17_x86_64")}
    assert "My__Cell/_rnncc.json" in contents(wheel) and metadata(wheel)["Name"] == "my_cell"
