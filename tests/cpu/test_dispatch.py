"""The choice of code for a processor: every feature that the compiler may use is asked for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rnncc.cli.environment import _instructions
from rnncc.ir.target import INSTRUCTION_SETS
from rnncc.machine.paths import templates_dir
from rnncc.stages.build import find_toolchain
from rnncc.stages.build.toolchain import ISA

HOST = """
#include <cstdio>
#include "rnncc/cpu/dispatch.h"
int main() {
  std::printf("%d", rnncc_level());
  for (int missing = 0; missing < 13; ++missing) std::printf(" %d", rnncc_level_of(RNNCC_V4 & ~(1 << missing)));
}
"""
# What gcc and clang define for an instruction set, by its bit in dispatch.h.
MACROS = (
    "AVX2", "FMA", "BMI", "BMI2", "F16C", "MOVBE", "LZCNT", "AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL",
)  # fmt: skip
TYPES = ("f32", "f64")


def test_no_feature_may_miss(tmp_path: Path) -> None:
    (tmp_path / "host.cpp").write_text(HOST)
    command = [*find_toolchain().command, f"-I{templates_dir() / 'include'}", "host.cpp", "-o", "host"]
    subprocess.run(command, cwd=tmp_path, check=True)
    shown = subprocess.run([tmp_path / "host"], capture_output=True, text=True, check=True).stdout.split()
    assert shown[1:] == ["1"] * 7 + ["3"] * 5 + ["4"]
    assert {"1": "generic", "3": "x86-64-v3", "4": "x86-64-v4"}[shown[0]] == _instructions()


def test_the_best_code_that_there_is_or_none(tmp_path: Path) -> None:
    """Of libraries for every set of instructions and for one, on a processor of each level."""
    sets = ("all", *INSTRUCTION_SETS)
    lines = [
        "#include <cstdio>",
        "#include <initializer_list>",
        '#include "rnncc/cpu/dispatch.h"',
        "static int level;",
        "#define rnncc_level() level",
    ]
    answers = {(isa, suffix): 10 * n + m for n, isa in enumerate(INSTRUCTION_SETS, 1) for m, suffix in enumerate(TYPES)}
    for name in sets:
        lines.append(f"RNNCC_DISPATCH(take_{name}, {name}, int, RNNCC_FLOAT32 + *call)")
        for (isa, suffix), answer in answers.items():
            lines.append(f'extern "C" int32_t take_{name}_{isa}_{suffix}(const int*) {{ return {answer}; }}')
    calls = "".join(f' std::printf("%d ", take_{name}(&wide));' for name in sets)
    lines.append(f"int main() {{ for (int l : {{1, 3, 4}}) for (int wide : {{0, 1}}) {{ level = l; {calls} }} }}")
    (tmp_path / "host.cpp").write_text("\n".join(lines))
    command = [*find_toolchain().command, f"-I{templates_dir() / 'include'}", "host.cpp", "-o", "host"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "host"], capture_output=True, text=True, check=True).stdout.split()
    expected = []
    for best in range(len(INSTRUCTION_SETS)):
        for suffix in TYPES:
            runs = [answers[isa, suffix] if n <= best else 4 for n, isa in enumerate(INSTRUCTION_SETS)]
            expected += [runs[best], *runs]
    assert [int(number) for number in found] == expected


def test_the_flags_use_nothing_else() -> None:
    def features(*flags: str) -> set[str]:
        command = [*find_toolchain().command, *flags, "-dM", "-E", "-x", "c++", "/dev/null"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        names = {line.split()[1] for line in lines}
        return {name.strip("_") for name in names if re.fullmatch(r"__[A-Z][A-Z0-9_]*__", name)}

    # These every processor with AVX2 has; the rest of what a flag changes is no instruction.
    older = {"SSE3", "SSSE3", "SSE4_1", "SSE4_2", "POPCNT", "AVX", "XSAVE", "CRC32", "LAHF_SAHF"}
    for level, known in (("v3", MACROS[:7]), ("v4", MACROS)):
        more = {name for name in features(*ISA[level]) - features() if not name.startswith(("OPTIMIZE", "FP_FAST"))}
        assert set(known) <= more
        assert more - set(known) - older == set(), level
