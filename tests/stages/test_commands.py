"""Words of commands reach a program as they are, through ninja and a shell; or they are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rnncc.language.diagnostics import RnnccError
from rnncc.machine.cache import Cache
from rnncc.stages.build import Job
from rnncc.stages.build.commands import Command, ninja_text, run

WORDS = ("a b", "$x", "$$", "$(touch x)", "`touch x`", "'", '"', "a:b", "#", "|", "\\", "*", "~", "ä", ";", "&", "")


def test_words_arrive_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write = "import json, sys; open('out $ x:y.ptx', 'w').write(json.dumps(sys.argv[1:]))"
    run((Command("out $ x:y.ptx", (sys.executable, "-c", write, *WORDS)),), None, folder)
    assert tuple(json.loads((folder / "out $ x:y.ptx").read_text())) == WORDS
    assert sorted(path.name for path in folder.iterdir()) == ["out $ x:y.ptx"]


@pytest.mark.parametrize("control", ["\n", "\r", "\0", "\t", "\x1b", "\x7f", "\v"], ids=ascii)
@pytest.mark.parametrize("place", ["output", "argument", "folder"])
def test_a_control_character_reaches_no_command(place: str, control: str) -> None:
    word = f"foo{control}  arguments = touch x #"
    output, argument, folder = (word if each == place else "a" for each in ("output", "argument", "folder"))
    with pytest.raises(RnnccError, match="has a control character") as caught:
        ninja_text([Command(output, ("cc", argument))], folder)
    assert caught.value.diagnostics[0].code == "RNN602"


@pytest.mark.parametrize("stem", ["../toy", "/toy", "toy\n", "a b", "", "_toy"])
def test_a_folder_of_the_cache_is_called_as_a_package(stem: str, tmp_path: Path) -> None:
    with pytest.raises(RnnccError, match="cannot be a package's name"):
        Job("a" * 32, stem, Cache(tmp_path))
