"""The platform tag of wheels. tests/test_packaging.py compares that of a built package with auditwheel's."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from rnncc.stages.build import commands, find_toolchain, manylinux
from rnncc.stages.build.commands import Command


@pytest.mark.parametrize(
    ("versions", "tag"),
    [
        ([], "manylinux_2_17_x86_64"),
        (["GLIBC_2.2.5", "GLIBC_2.14", "CXXABI_1.3"], "manylinux_2_17_x86_64"),
        (["GLIBC_2.2.5", "GLIBC_2.34"], "manylinux_2_34_x86_64"),
        (["GLIBC_2.2.5", "GLIBCXX_3.4.29"], "manylinux_2_34_x86_64"),
        (["GLIBC_2.35", "GLIBCXX_3.4.25"], "manylinux_2_35_x86_64"),
        (["GLIBCXX_3.4.25"], "manylinux_2_31_x86_64"),
        (["GCC_3.0", "GCC_12.0.0"], "manylinux_2_35_x86_64"),
        (["GLIBCXX_3.4.99"], "linux_x86_64"),
        (["GLIBC_PRIVATE"], "linux_x86_64"),
        (["OPENMP_1.0"], "linux_x86_64"),
    ],
)
def test_it_is_the_oldest_system_with_all_versions(
    versions: list[str], tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manylinux, "needed_versions", lambda library: iter(versions))
    assert manylinux.platform_tag(Path()) == tag


def test_it_agrees_with_auditwheel_s_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (resources.files("auditwheel") / "policy" / "manylinux-policy.json").read_text()
    policies = [each for each in json.loads(text) if each["name"] != "linux"]
    found: dict[str, int] = {}
    for policy in policies:
        glibc = int(policy["name"].rpartition("_")[2])
        for library, versions in policy["symbol_versions"].get("x86_64", {}).items():
            for version in versions if library in ("CXXABI", "GCC", "GLIBC", "GLIBCXX") else ():
                if version.replace(".", "").isdigit():
                    # auditwheel has not each of the tags that PEP 600 names by a version of glibc.
                    first = int(version.split(".")[1]) if library == "GLIBC" else glibc
                    found[f"{library}_{version}"] = min(found.get(f"{library}_{version}", first), first)
    assert len(found) > 100
    for name, glibc in found.items():
        monkeypatch.setattr(manylinux, "needed_versions", lambda library, name=name: iter([name]))
        assert manylinux.platform_tag(Path()) == f"manylinux_2_{max(17, glibc)}_x86_64", name


def test_needed_versions_are_read_from_a_library(tmp_path: Path) -> None:
    text = '#include <cstdio>\n#include <string>\nstd::string say() { std::puts(""); return {}; }\n'
    (tmp_path / "say.cpp").write_text(text)
    compiler = find_toolchain()
    command = Command("say.so", (*compiler.command, "-shared", "-fPIC", "say.cpp", "-o", "say.so"))
    assert commands.run([command], None, tmp_path).succeeded
    found = set(manylinux.needed_versions(tmp_path / "say.so"))
    assert "GLIBC_2.2.5" in found and all("_" in name and name.isprintable() for name in found)
