"""Compilers that do not what they should, or do it quickly."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rnncc.stages.build import nvrtc

_OUTPUT = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done\n'


def write_compiler(path: Path, body: str, version: str = "echo 'release 0'") -> Path:
    """A program at `path` that answers --version by the shell command `version`, and else runs `body`, which finds the
    name of the file to write in $out and its own arguments in the file $0.arguments."""
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then {version}; exit; fi\necho "$@" > "$0.arguments"\n{_OUTPUT}{body}\n'
    )
    path.chmod(0o755)
    return path


def replace_nvrtc(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, version: str = "echo 13.0 80 86 90 100"
) -> nvrtc.Nvrtc:
    """In place of NVRTC a program in the folder, for sm_90a. It prints by the shell command `version` what it is, and
    else runs `body`, which finds the name of the file to write in $out."""
    program = folder / "nvrtc"
    program.write_text(f"#!/bin/sh\nif [ $# = 1 ]; then {version}; exit; fi\nout=$4\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(nvrtc, "_worker", lambda: (str(program),))
    monkeypatch.setattr(nvrtc, "find_library", lambda: program)
    return nvrtc.Nvrtc(program, ("sm_90a",))


def quick_nvrtc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> nvrtc.Nvrtc:
    """One whose cubins are those of no kernel: an ELF header for NVIDIA's machine, and nothing."""
    cubin = folder / "empty.cubin"
    cubin.write_bytes(b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HH", 2, 190) + bytes(44))
    return replace_nvrtc(folder, monkeypatch, f'cp "{cubin}" "$out"')
