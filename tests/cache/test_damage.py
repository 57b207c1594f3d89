"""What is damaged in the cache is noticed, said in one line and built again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rnncc.ir.artifact import Bundle, DeviceUnit, File
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import Cache
from rnncc.machine.cache.root import make_folder
from rnncc.runtime import manifest
from rnncc.stages.build import Job, Product, build, build_kernels, find_toolchain
from tests.compilers import quick_nvrtc
from tests.fresh import run_fresh
from tests.stages.test_build import KEY, answer, contents, product
from tests.test_cache import worker

ROOT = Path(__file__).resolve().parents[2]


def cut(path: Path) -> None:
    """A file that a full disk or a power cut shortened."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """One of which only the name reached the disk."""
    os.truncate(path, 0)


def zeros(path: Path) -> None:
    """One of which only the size reached the disk."""
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def grow(path: Path) -> None:
    """More than was written."""
    with path.open("ab") as file:
        file.write(b"!")


def as_folder(path: Path) -> None:
    """A folder in its place."""
    path.unlink()
    path.mkdir()


def as_link(path: Path) -> None:
    """A link to the same content in its place."""
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


def as_pipe(path: Path) -> None:
    """A pipe, which nobody writes."""
    path.unlink()
    os.mkfifo(path)


DAMAGES = (cut, empty, zeros, flip, grow, Path.unlink, as_folder, as_link, as_pipe)
OTHERS = ("_rnncc.json", "_runtime/modules/layer.py")  # which every package has
FILES = (*OTHERS, "__init__.py", "libtoy.so", "cuda/fused.txt", "cuda/a_sm_90a.cubin")


def files() -> Product:
    """A package whose files have the names of every kind, and no compiler's content."""
    named = tuple(File(name, f"content of {name}, of some length\n") for name in FILES if name not in OTHERS)
    return Product(named, None, ("Toy",))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_package_is_built_again(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    said: list[str] = []
    package = build(Job(KEY, "toy", cache, progress=said.append), files)
    sound = contents(package)
    damage(package / name)
    assert cache.package(KEY) is None
    assert build(Job(KEY, "toy", cache, progress=said.append), files) == package
    short = Path(name).name
    assert len(said) == 1 and said[0].startswith("the package toy in the cache is damaged (") and short in said[0]
    assert contents(package) == sound and list((tmp_path / "tmp").iterdir()) == []
    assert build(Job(KEY, "toy", cache, progress=said.append), lambda: pytest.fail("built again")) == package


@pytest.mark.parametrize("left", ["nothing", "a file", "an empty package", "a file alone", "a link alone"])
def test_a_folder_without_its_package_is_built_again(left: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "packages") / KEY
    if left == "a file alone":
        folder.write_text("")
    elif left == "a link alone":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir(mode=0o700)
    if left == "a file":
        (folder / "toy").write_text("")
    elif left == "an empty package":
        (folder / "toy").mkdir()
    said: list[str] = []
    assert build(Job(KEY, "toy", Cache(tmp_path), progress=said.append), files) == folder / "toy"
    assert len(said) == 1 and "is damaged" in said[0]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("what", ["folders of keys", "packages in them"])
def test_packages_that_were_exchanged_are_built_again(what: str, tmp_path: Path) -> None:
    cache, other = Cache(tmp_path), "e" * 32
    said: list[str] = []

    def made(key: str, text: str) -> Path:
        return build(
            Job(key, "toy", cache, progress=said.append), lambda: Product((File("__init__.py", text),), None, ("Toy",))
        )

    packages = made(KEY, "x = 1"), made(other, "x = 2")
    one, two = packages if what == "packages in them" else (package.parent for package in packages)
    aside = tmp_path / "tmp" / "aside"
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    assert cache.package(KEY) is cache.package(other) is None
    again = made(KEY, "x = 1"), made(other, "x = 2")
    assert [(package / "__init__.py").read_text() for package in again] == ["x = 1", "x = 2"]
    assert len(said) == 2 and all("of another key" in line for line in said)


def test_kernels_that_were_exchanged_are_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc, cache, other = quick_nvrtc(tmp_path, monkeypatch), Cache(tmp_path / "cache"), "e" * 32

    def made(key: str, text: str) -> str:
        bundle = Bundle((File("cuda/fused.txt", text),), (), ())
        folder = build_kernels(Job(key, "toy", cache, nvrtc=nvrtc), "kernels", lambda: bundle)
        return (folder / "cuda" / "fused.txt").read_text()

    assert (made(KEY, "one"), made(other, "two")) == ("one", "two")
    one, two = (tmp_path / "cache" / "packages" / key for key in (KEY, other))
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    assert (made(KEY, "one"), made(other, "two")) == ("one", "two")


def test_an_object_under_another_key_is_compiled_again(tmp_path: Path) -> None:
    cache, other = Cache(tmp_path / "cache"), "e" * 32
    for key, text in ((KEY, "one"), (other, "two")):
        (tmp_path / "made").write_text(text)
        cache.publish_object(key, tmp_path / "made")
    one, two = (next((cache.root / "objects").glob(f"{key}-*")) for key in (KEY, other))
    one.unlink()
    two.rename(two.with_name(two.name.replace(other, KEY)))
    said: list[str] = []
    assert not cache.take_object(KEY, tmp_path / "taken", said.append)
    assert len(said) == 1 and "is damaged" in said[0]


def test_bytecode_of_another_module_does_not_run(cell_cache: Path) -> None:
    """Bytecode names the time and size of its source, which another package's may share."""
    environment = {**os.environ, "RNNCC_CACHE_DIR": str(cell_cache)}
    environment |= {"CXX": "none", "RNNCC_LOG": "error"}  # the eager fallback, which is Python
    program = """
import os, torch, rnncc
text = "cell Toy\\nstate h\\nh[t] = 0.{0}*h[t-1] + x\\n"
for digit in "12":
    module = rnncc.compile(text.format(digit), "toy" + digit)
    output, _ = module.Toy(1, 1)(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    print(module.__path__[0], round(float(output), 3))
"""

    def run() -> tuple[list[Path], list[str]]:
        done = run_fresh(program, environment=environment)
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        return [Path(path) for path, _ in lines], [value for _, value in lines]

    packages, values = run()
    assert values == ["0.1", "0.2"]
    for path in packages[0].rglob("*.py"):
        os.utime(path, (1e9, 1e9))
        os.utime(packages[1] / path.relative_to(packages[0]), (1e9, 1e9))
    assert run() == (packages, values)
    compiled = [next((package / "__pycache__").glob("_reference*.pyc")) for package in packages]
    first, second = (path.read_bytes() for path in compiled)
    assert first != second and first[:16] == second[:16]  # the magic number, flags, date and size
    compiled[0].write_bytes(second)
    compiled[1].write_bytes(first)
    assert run() == (packages, values)


def test_an_object_that_does_not_fit_on_the_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(RnnccError, match="no space left"):
        Cache(tmp_path).publish_object(KEY, Path(__file__))
    assert list((tmp_path / "objects").iterdir()) == []


def test_damage_where_nothing_can_be_built_is_an_error_of_both(tmp_path: Path) -> None:
    package = build(Job(KEY, "toy", Cache(tmp_path)), files)
    flip(package / "libtoy.so")
    (tmp_path / "locks" / f"{KEY}.lock").mkdir()  # as good as a cache that is read-only, also for root
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", Cache(tmp_path)), files)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["RNN712", "RNN605"]
    assert "libtoy.so" in caught.value.diagnostics[0].message


@pytest.mark.long
def test_ten_processes_mend_a_damaged_package_once(tmp_path: Path) -> None:
    first = worker(tmp_path)
    assert first.wait(120) == 0
    package = tmp_path / "cache" / "packages" / KEY / "toy"
    cut(package / "libtoy.so")
    crowd = [worker(tmp_path) for _ in range(10)]
    results = [process.communicate(timeout=240) for process in crowd]
    assert [out.strip() for out, _ in results] == [str(package)] * 10, results
    assert answer(package) == 42
    assert (tmp_path / "log").read_text().splitlines() == ["produced"] * 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("damage", [cut, empty, zeros, flip])
def test_a_damaged_object_is_compiled_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    cache, compiler = Cache(tmp_path), find_toolchain()
    build(Job(KEY, "toy", cache, compiler), product)
    shared = sorted((tmp_path / "objects").iterdir())
    sound = [path.read_bytes() for path in shared]
    for path in shared:
        damage(path)
    said: list[str] = []
    assert answer(build(Job("e" * 32, "toy", cache, compiler, progress=said.append), lambda: product(7))) == 7
    assert sorted(line for line in said if "damaged" in line) == [
        f"a shared object in the cache is damaged ({path}): compiling it again" for path in shared
    ]
    assert [path.read_bytes() for path in sorted((tmp_path / "objects").iterdir())] == sound


def test_damaged_kernels_are_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = quick_nvrtc(tmp_path, monkeypatch)
    units = Bundle((File("src/a.cu", ""), File("cuda/fused.txt", "line\n")), (), (), (DeviceUnit("src/a.cu", "a"),))
    cache = Cache(tmp_path / "cache")
    said: list[str] = []
    for name in ("a_sm_90a.cubin", "fused.txt", None):
        folder = build_kernels(Job(KEY, "toy", cache, nvrtc=nvrtc, progress=said.append), "kernels", lambda: units)
        if name is not None:
            cut(folder / "cuda" / name)
    assert sum("is damaged" in line for line in said) == 2
    assert (folder / "cuda" / "fused.txt").read_text() == "line\n"


LOAD = """
import sys
sys.path.insert(0, {root!r})
import rnncc, torch
module = rnncc.load("elman")
layer = module.Elman(3, 4)
print(module.__path__[0], layer(torch.zeros(2, 1, 3))[0].shape[0], "CPU kernels" in layer.explain())
"""


@pytest.mark.long
def test_a_loaded_package_is_mended_and_so_is_its_bytecode(cell_cache: Path) -> None:
    """In processes of their own: who maps a library that is cut short ends, and who runs damaged bytecode may."""
    environment = {**os.environ, "RNNCC_CACHE_DIR": str(cell_cache)}

    def load() -> tuple[Path, str]:
        done = run_fresh(LOAD.format(root=str(ROOT)), environment=environment)
        assert done.returncode == 0, done.stderr
        path, *rest = done.stdout.split()
        assert rest == ["2", "True"]
        return Path(path), done.stderr

    package, said = load()
    assert "compiling elman" in said and "damaged" not in said
    cut(package / "libelman.so")
    again, said = load()
    assert again == package and said.count("damaged") == 1
    compiled = sorted(package.rglob("*.pyc"))  # not of the runtime, whose bytecode is rnncc's own
    assert {path.name.partition(".")[0] for path in compiled} == {"__init__", "_cell_elman", "_reference"}
    for damage in (cut, empty, zeros, flip):
        for path in compiled:
            damage(path)
        assert load() == (package, "")
        assert not {path for path in package.rglob("*.pyc") if path.stat().st_size < 100}


def test_every_single_bit_counts(tmp_path: Path) -> None:
    manifest.seal(tmp_path, {"stem": "toy", "source": "h[t] = x", "number": 1.5})
    text = (tmp_path / manifest.NAME).read_bytes()
    about = manifest.read_sealed(tmp_path)
    for place in range(len(text)):
        (tmp_path / manifest.NAME).write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        try:
            found = manifest.read_sealed(tmp_path)
        except manifest.DamagedError:
            continue
        assert found == about  # white space
