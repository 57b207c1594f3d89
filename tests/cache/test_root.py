"""Which folder may be the cache, and that it changes nothing but what it made itself."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

import rnncc
from rnncc.ir.artifact import Bundle, DeviceUnit, File
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import Cache, default_root
from rnncc.machine.cache.names import KINDS
from rnncc.machine.cache.root import MARKER, make_folder
from rnncc.stages.build import Job, Product, build, build_kernels
from tests.compilers import quick_nvrtc
from tests.stages.test_build import KEY

LONG_AGO = (0, 0)


def plain() -> Product:
    """A package without kernels, which takes no compiler."""
    return Product((File("__init__.py", "x = 1\n"),), None, ("Toy",))


def make(root: Path) -> Path:
    """The package in the cache at `root`."""
    return build(Job(KEY, "toy", Cache(root)), plain)


def everything(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every path in a folder, with its mode and content."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = path.lstat().st_mode, content
    return found


def code_of(function: Callable[[], object]) -> str:
    """The code of the diagnostic that a call raises."""
    with pytest.raises(RnnccError) as caught:
        function()
    return caught.value.diagnostics[0].code


@pytest.fixture
def in_use(tmp_path: Path) -> Path:
    """A folder of the user's, whose names are those of a cache's folders."""
    folder = tmp_path / "proj"
    for name in ("tmp/mydata/a.tex", "locks/yarn.lock", "packages/mylib/src/a.py", "objects/model.bin"):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text("thesis")
        os.utime(path, LONG_AGO)
        os.utime(path.parent, LONG_AGO)
    return folder


@pytest.mark.parametrize("kinds", [KINDS, ("tmp",), ("locks",), ("packages",), ("objects",)], ids="-".join)
def test_a_folder_in_use_is_refused_and_stays(
    kinds: tuple[str, ...], in_use: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in {"tmp", "locks", "packages", "objects"} - set(kinds):
        (in_use / kind).rename(in_use.parent / kind)
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "1")
    before = everything(in_use)
    cache = Cache(in_use)
    with pytest.raises(RnnccError) as caught:
        make(in_use)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "RNN610" and f"'{in_use}' is not a cache" in diagnostic.message
    assert str(in_use / "rnncc") in diagnostic.help
    doors: list[Callable[[], object]] = [
        cache.trim, cache.usage, cache.check, lambda: cache.package(KEY), lambda: cache.take_object(KEY, in_use / "o"),
        lambda: cache.publish_object(KEY, Path(__file__)), lambda: cache.keep_log(f"toy-{KEY[:12]}", "text"),
        cache.lock(KEY).__enter__,
    ]  # fmt: skip
    assert [code_of(door) for door in doors] == ["RNN610"] * len(doors)
    assert everything(in_use) == before


@pytest.mark.parametrize("name", ["thesis.tex", ".git", "CACHEDIR.TAG", "packages"])
def test_whatever_is_not_the_cache_s_makes_a_folder_another_s(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# This one was made by cargo.\n")
    before = everything(tmp_path)
    assert code_of(lambda: make(tmp_path)) == "RNN610"
    assert everything(tmp_path) == before


def test_loading_and_kernels_at_first_use_are_refused_as_well(
    in_use: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(in_use))
    before = everything(in_use)
    assert code_of(lambda: rnncc.load("lstm")) == "RNN610"
    nvrtc = quick_nvrtc(tmp_path, monkeypatch)
    units = Bundle((File("a.cu", ""),), (), (), (DeviceUnit("a.cu", "a"),))
    job = Job(KEY, "toy", Cache(in_use), nvrtc=nvrtc)
    assert code_of(lambda: build_kernels(job, "", lambda: units)) == "RNN610"
    assert everything(in_use) == before


def test_what_others_put_into_the_cache_stays(in_use: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    make(root)
    for kind in ("tmp", "locks", "packages", "objects"):
        folder = make_folder(root, kind)
        for path in (in_use / kind).iterdir():
            path.rename(folder / path.name)
        # Names of the cache's own, of another kind than it makes.
        (folder / (KEY + {"tmp": "-1", "packages": "", "objects": ".o", "locks": ".lock"}[kind])[::-1]).write_text("")
        (folder / f"{'d' * 32}-1").symlink_to(tmp_path)
    (make_folder(root, "logs") / "notes.txt").write_text("thesis")
    for path in root.glob("*/*"):
        os.utime(path, LONG_AGO, follow_symlinks=False)
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "0")
    before = everything(root)
    Cache(root).trim()
    after = everything(root)
    # The package was the cache's own, and old.
    gone = {name for name in before if name not in after}
    assert gone and all(name.startswith(f"packages/{KEY}") for name in gone)
    assert all(after[name] == before[name] for name in after) and "tmp/mydata/a.tex" in after


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marked", [True, False])
def test_a_link_in_place_of_a_folder_is_refused(kind: str, marked: bool, in_use: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    make(root)
    for name in KINDS:
        make_folder(root, name)
    if not marked:
        (root / MARKER).unlink()
    target = in_use / "tmp"
    (target / (KEY + "-1")).mkdir()
    if (root / kind).exists():
        (root / kind).rename(tmp_path / "away")
    (root / kind).symlink_to(target)
    before = everything(in_use)
    assert code_of(lambda: build(Job("e" * 32, "toy", Cache(root)), plain)) == "RNN610"
    assert code_of(Cache(root).trim) == "RNN610"
    assert everything(in_use) == before


@pytest.mark.parametrize("there", ["missing", "empty", "new file system", "broken off"])
def test_an_empty_folder_becomes_a_cache(there: str, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "cache"
    if there != "missing":
        root.mkdir(parents=True, mode=0o700)
    if there == "new file system":
        (root / "lost+found").mkdir()
    if there == "broken off":
        (root / f"{MARKER}-1-2").write_text("Sig")
    cache = Cache(root)
    assert cache.package(KEY) is None and cache.usage() == (0, 0)
    assert (root / MARKER).exists() is False  # looking makes none
    package = make(root)
    assert cache.package(KEY) == package and package.is_dir()
    assert (root / MARKER).read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert [path for path in root.iterdir() if path.is_dir() and path.name not in (*KINDS, "lost+found")] == []


def test_a_damaged_marker_and_another_layout_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    make(root)
    marker = (root / MARKER).read_text()
    (root / MARKER).write_text(marker[:20])
    before = everything(root)
    assert code_of(lambda: build(Job("e" * 32, "toy", Cache(root)), plain)) == "RNN610" and everything(root) == before
    (root / MARKER).write_text(marker.replace("rnncc cache 1", "rnncc cache 2"))
    with pytest.raises(RnnccError, match="another version of rnncc"):
        Cache(root).package(KEY)


def test_who_is_stopped_while_it_writes_the_marker_leaves_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, or for a full disk."""
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert code_of(lambda: make(root)) == "RNN605"
    assert not list(root.glob(f"{MARKER}*"))
    left, writing = root / f"{MARKER}-1-2", root / f"{MARKER}-3-4"
    for path in (left, writing):
        path.write_text("")
    os.utime(left, LONG_AGO)
    assert make(root).is_dir()
    assert sorted(root.glob(f"{MARKER}*")) == [root / MARKER, writing]


@pytest.mark.parametrize("written", ["cache", "./cache/", "~/cache", "~/cache/", "link", "{0}/cache", "{0}//link/"])
def test_the_folder_may_be_written_in_many_ways(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RNNCC_CACHE_DIR", written.format(tmp_path))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("cache")
    assert default_root() == tmp_path / "cache"
    assert make(default_root()) == tmp_path / "cache" / "packages" / KEY / "toy"
    monkeypatch.delenv("RNNCC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored
    assert default_root() == tmp_path / ".cache" / "rnncc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "rnncc"


@pytest.mark.parametrize("written", ["file", "file/below", "/dev/null/x", "x" * 300, "/proc/rnncc"])
def test_what_can_be_no_folder_is_said(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RNNCC_CACHE_DIR", written)
    (tmp_path / "file").write_text("thesis")
    assert code_of(lambda: make(default_root())) == "RNN605"
    assert (tmp_path / "file").read_text() == "thesis"


def test_without_a_home_folder_the_cache_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    for name in ("HOME", "RNNCC_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert code_of(default_root) == "RNN605"
    monkeypatch.setenv("RNNCC_CACHE_DIR", "~nobody-has-this-name/cache")
    assert code_of(default_root) == "RNN605"
