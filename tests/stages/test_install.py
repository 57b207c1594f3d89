"""Installing a package over an older one loses nothing that is the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import Cache
from rnncc.stages.build import Job, build, install
from tests.cache.test_root import everything
from tests.stages.test_build import product, toy


@pytest.mark.parametrize("name", ["toy.rnn", "src/notes.txt", ".git/config", "link"])
def test_a_file_of_the_user_s_in_a_package_is_not_deleted(name: str, tmp_path: Path) -> None:
    package, _ = toy(tmp_path)
    target = install(package, tmp_path / "out")
    (target / "__pycache__").mkdir()
    (target / "__pycache__" / "toy.pyc").write_text("")
    own = target / name
    own.parent.mkdir(exist_ok=True)
    if name == "link":
        own.symlink_to(tmp_path)
    else:
        own.write_text("thesis")
    before = everything(tmp_path / "out")
    with pytest.raises(RnnccError) as caught:
        install(package, tmp_path / "out")
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "RNN603" and f"'{name}'" in diagnostic.message and "-o" in diagnostic.help
    assert everything(tmp_path / "out") == before
    own.unlink()
    assert install(package, tmp_path / "out") == target and not (target / "__pycache__").exists()


@pytest.mark.parametrize("text", ["", "{}", '{"files": []}'])
def test_a_package_that_does_not_say_what_it_holds_is_replaced(text: str, tmp_path: Path) -> None:
    """One that is damaged, or of a version that wrote no sums."""
    package, _ = toy(tmp_path)
    target = install(package, tmp_path / "out")
    (target / "_rnncc.json").write_text(text)
    (target / "module.py").write_text("")
    assert install(package, tmp_path / "out") == target and not (target / "module.py").exists()


def test_a_package_whose_files_were_edited_is_replaced(tmp_path: Path) -> None:
    package, _ = toy(tmp_path)
    target = install(package, tmp_path / "out")
    (target / "__init__.py").write_text("edited")
    assert install(package, tmp_path / "out") == target
    assert (target / "__init__.py").read_text() == "x = 1\n"


def test_an_interrupt_leaves_the_old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, _ = toy(tmp_path)
    target = install(package, tmp_path / "out")
    before = everything(tmp_path / "out")
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        install(package, target.parent)
    assert everything(tmp_path / "out") == before


def test_the_cache_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    package = build(Job("a" * 32, "toy", Cache(tmp_path / "__pycache__" / "cache")), product)
    assert (install(package, tmp_path / "out") / "__init__.py").is_file()
