"""Who may write the cache, whatever the umask, and who else may use it."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import Cache
from rnncc.machine.cache.root import make_folder
from rnncc.stages.build import Job, build, find_toolchain, install
from rnncc.stages.load import load
from tests.cache.test_root import code_of, everything, make
from tests.stages.test_build import KEY, product

ROOT = Path(__file__).resolve().parents[2]
OTHER = 65534  # nobody, who is also the owner of all that a user namespace does not know


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_modes_do_not_depend_on_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        package = build(Job(KEY, "toy", Cache(tmp_path / "home" / ".cache" / "rnncc"), find_toolchain()), product)
        Cache(tmp_path / "home" / ".cache" / "rnncc").keep_log(f"toy-{KEY[:12]}", "text")
        installed = install(package, tmp_path / "out")
    finally:
        os.umask(before)
    parents, cache = [tmp_path / "home", tmp_path / "home" / ".cache"], tmp_path / "home" / ".cache" / "rnncc"
    assert {path.stat().st_mode & 0o777 for path in parents} == {0o755 & ~umask}
    made = [cache, *cache.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    shown = {str(path): path.stat().st_mode & 0o022 for path in made if path.is_file()}
    assert not any(shown.values()), shown
    # What goes to the user is as the umask lets it be.
    assert installed.stat().st_mode & 0o777 == 0o777 & ~umask
    assert (installed / "__init__.py").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("name", ["", "packages", "tmp", f"packages/{KEY}", f"packages/{KEY}/toy/__init__.py"])
@pytest.mark.parametrize("mode", [stat.S_IWOTH, stat.S_IWGRP])
def test_what_others_can_write_is_refused(
    name: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    make(root)
    path = root / name
    path.chmod(path.stat().st_mode | mode)
    own = pwd.getpwuid(os.geteuid())
    group = grp.struct_group(("lab", "x", path.stat().st_gid, ["somebody"]))
    monkeypatch.setattr(grp, "getgrgid", lambda number: group)
    with pytest.raises(RnnccError) as caught:
        make(root)
    diagnostic = caught.value.diagnostics[0]
    who = "every user" if mode == stat.S_IWOTH else "the group lab"
    assert diagnostic.code == "RNN610" and f"can be written by {who}" in diagnostic.message
    assert f"chmod -R go-w '{root}'" in diagnostic.help
    # The user's own group, which has no other member, is no other.
    group = grp.struct_group((own.pw_name, "x", path.stat().st_gid, []))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_gid=path.stat().st_gid, pw_name=own.pw_name))
    if mode == stat.S_IWGRP:
        assert make(root).is_dir()
    path.chmod(path.stat().st_mode & ~0o022)
    assert make(root).is_dir()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="rnncc-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_an_object_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """It would become a part of the next package."""
    cache = Cache(tmp_path / "cache")
    cache.publish_object(KEY, Path(__file__))
    (path,) = (tmp_path / "cache" / "objects").iterdir()
    assert cache.take_object(KEY, tmp_path / "taken")
    path.chmod(0o646)
    assert code_of(lambda: cache.take_object(KEY, tmp_path / "taken")) == "RNN610"


def test_bytecode_is_made_for_the_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    package = tmp_path / "bytecode"
    (package / "part").mkdir(parents=True)
    (package / "_rnncc.json").write_text('{"fingerprint": "f", "cells": []}')
    (package / "__init__.py").write_text("from .part import x\n")
    (package / "part" / "__init__.py").write_text("x = 1\n")
    before, writes = os.umask(0), sys.dont_write_bytecode
    sys.dont_write_bytecode = False
    try:
        assert load(package).x == 1
    finally:
        os.umask(before)
        sys.dont_write_bytecode = writes
    made = [path for folder in package.rglob("__pycache__") for path in (folder, *folder.iterdir())]
    assert len(made) == 4 and not any(path.stat().st_mode & 0o022 for path in made)


@pytest.mark.parametrize("name", ["", "packages", f"packages/{KEY}/toy/__init__.py"])
def test_what_belongs_to_another_user_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root the cache is given away; else this process takes itself for another user's."""
    root = tmp_path / "cache"
    make(root)
    if os.geteuid() == 0:
        os.chown(root / name, OTHER, OTHER)
        owner = OTHER
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    before = everything(root)
    with pytest.raises(RnnccError) as caught:
        make(root)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "RNN610" and str(owner) in diagnostic.message and "belongs to" in diagnostic.message
    assert "RNNCC_CACHE_DIR" in diagnostic.help and everything(root) == before


READER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from rnncc.machine.cache import Cache
from rnncc.language.diagnostics import RnnccError
from rnncc.stages.build import Job, build, install
if os.geteuid() == 0:  # after the imports: Python itself may lie where nobody else can read
    os.setgid({other}); os.setuid({other})
folder = Path({folder!r})
def produce():
    raise SystemExit("not found")
package = build(Job({key!r}, "toy", Cache(folder / "cache")), produce)
print(install(package, folder / "out"))
try:
    build(Job("e" * 32, "toy", Cache(folder / "cache")), produce)
except RnnccError as error:
    print(error.diagnostics[0].code)
"""


def test_a_cache_that_cannot_be_written_serves(open_folder: Path) -> None:
    """That of an image, which root built for all; where this is not root, one that is the user's own."""
    root = open_folder / "cache"
    make(root)
    shutil.rmtree(root / "locks")  # a lock has no place
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    before = everything(root)
    code = READER.format(root=str(ROOT), other=OTHER, folder=str(open_folder), key=KEY)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    assert found.stdout.split() == [str(open_folder / "out" / "toy"), "RNN605"], found.stderr
    assert {name: content for name, (_, content) in everything(root).items()} == {
        name: content for name, (_, content) in before.items()
    }
    assert json.loads((open_folder / "out" / "toy" / "_rnncc.json").read_text())["stem"] == "toy"
    assert [path.name for path in (open_folder / "out").iterdir()] == ["toy"]


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_lock_never_changes_what_it_is_linked_to(kind: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("thesis")
    lock = make_folder(tmp_path / "cache", "locks") / f"{KEY}.lock"
    if kind == "hard":
        lock.hardlink_to(victim)
        assert make(tmp_path / "cache").is_dir()
    else:
        lock.symlink_to(victim)
        with pytest.raises(RnnccError, match=r"\.lock' is a link"):
            make(tmp_path / "cache")
        assert code_of(lambda: make(tmp_path / "cache")) == "RNN605"
    assert victim.read_text() == "thesis"
