"""The flags that each compiler gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rnncc.ir.artifact import Unit
from rnncc.ir.target import COMPUTE_TYPES
from rnncc.language.diagnostics import RnnccError
from rnncc.stages.build import Toolchain, find_toolchain, toolchain
from tests.compilers import write_compiler


def test_gcc_compiles_kernels_with_parts_of_o2_and_clang_with_o2() -> None:
    gcc, clang = (
        Toolchain(("c++",), "c++ (GCC) 12.2.0"),
        Toolchain(("c++",), "clang version 14.0.6"),
    )
    core, cell, binding = Unit("core.cpp", "v3", True), Unit("cell.cpp", "v3"), Unit("binding.cpp", "binding")
    doubles = Unit("cell_f64.cpp", "v3", compute_type="f64")
    for compiler, kernel_level, binding_level in ((gcc, "-O1", "-Og"), (clang, "-O2", "-O1")):
        for unit, level in (
            (core, kernel_level),
            (cell, kernel_level),
            (doubles, kernel_level),
            (binding, binding_level),
        ):
            flags = toolchain.unit_flags(unit, compiler)
            assert [flag for flag in flags if flag.startswith("-O")] == [level]
            assert ("-march=x86-64-v3" in flags) == (unit is not binding)
    assert not any(flag.startswith("-O") for flags in toolchain.ISA.values() for flag in flags)
    # An option that clang does not know may be an error of its.
    of_clang = {flag for unit in (core, doubles, binding) for flag in toolchain.unit_flags(unit, clang)}
    assert not of_clang & {*toolchain.FLOATS[1:], *toolchain.DOUBLES[1:], *toolchain.BINDING[len(toolchain.COMMON) :]}


def test_products_are_fused_into_sums(tmp_path: Path) -> None:
    # Products take 1.3 times as long where they are not fused. GCC 13 tunes for no processor as others do for znver3.
    source = tmp_path / "sum.cpp"
    source.write_text(
        "float dot(const float* a, const float* b, long n) {\n"
        "  float sum = 0;\n"
        "  for (long i = 0; i < n; ++i) sum += a[i] * b[i];\n"
        "  return sum;\n"
        "}\n"
    )
    compiler = find_toolchain()
    for compute_type in COMPUTE_TYPES:
        flags = toolchain.unit_flags(Unit("core.cpp", "v3", True, compute_type), compiler)
        for tuned in ((), ("-mtune=znver3",)):
            command = [*compiler.command, *flags, *tuned, "-S", str(source), "-o", "-"]
            assert "vfmadd" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_compiler_is_asked_once_until_another_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"

    def install(version: str) -> None:
        source, beside = tmp_path / "compiler.c", tmp_path / "beside"
        text = f'puts("{version}"); fputs("{version}\\n", fopen("{asked}", "a"));'
        source.write_text(f"#include <stdio.h>\nint main() {{ {text} }}\n", encoding="utf-8")
        subprocess.run(["g++", "-x", "c++", str(source), "-o", str(beside)], check=True)
        beside.rename(tmp_path / "compiler")

    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    for version in ("one", "two"):
        install(version)
        assert [find_toolchain().version for _ in range(3)] == [version] * 3
    assert asked.read_text().split() == ["one", "two"]
    # What runs another program is asked again: the other one may have changed.
    (tmp_path / "compiler").rename(tmp_path / "ccache")
    monkeypatch.setenv("CXX", str(tmp_path / "ccache"))
    assert [find_toolchain().version for _ in range(2)] == ["two"] * 2
    assert asked.read_text().split() == ["one", "two", "two", "two"]


def test_a_script_that_compiles_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path / "compiler", "", f"cat {tmp_path / 'version'}")))
    for version in ("one", "two"):
        (tmp_path / "version").write_text(version, encoding="utf-8")
        assert find_toolchain().version == version
    # One that does not run, too.
    write_compiler(tmp_path / "compiler", "", f"[ -e {tmp_path / 'licence'} ] || exit 1; echo three")
    with pytest.raises(RnnccError, match="does not run"):
        find_toolchain()
    (tmp_path / "licence").touch()
    assert find_toolchain().version == "three"
