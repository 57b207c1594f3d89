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
from rnncc.stages.render.cpp import processor_needs

DISPATCH = "\n".join([*processor_needs(), '#include "rnncc/cpu/dispatch.h"', ""])
HOST = f"""
#include <cstdio>
{DISPATCH}"""
HOST += """
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
        DISPATCH,
        "static int level;",
        "#define rnncc_level() level",
    ]
    answers = {(isa, suffix): 10 * n + m for n, isa in enumerate(INSTRUCTION_SETS, 1) for m, suffix in enumerate(TYPES)}
    for name in sets:
        lines.append(f"RNNCC_DISPATCH(take_{name}, f32, {name}, f64, {name}, int, RNNCC_FLOAT32 + *call)")
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


def test_what_was_not_compiled_is_found_once(tmp_path: Path) -> None:
    """By its name, for the best instruction set that may be there; other dtypes do not look for it. Nothing is asked
    for on a processor that could not run it, and a failure is no answer for the next call."""
    lines = [
        "#include <cstdio>",
        "#include <stdexcept>",
        DISPATCH,
        "static int level;",
        "#define rnncc_level() level",
        "RNNCC_DISPATCH(take, f32, v3, f64_masked, late_v3, int, RNNCC_FLOAT32 + *call)",
        "RNNCC_DISPATCH(other, f32, late_all, f64, late_all, int, RNNCC_FLOAT32 + *call)",
        'extern "C" int32_t take_v3_f32(const int*) { return 1; }',
        "static int asked;",
        "static int32_t late(const int*) { return 2; }",
        "void* rnncc_late_function(const char* name, const char* set, const char* file) {",
        '  std::printf("%s_%s_%s ", name, set, file);',
        '  if (!asked++) throw std::runtime_error("none");',
        "  return reinterpret_cast<void*>(late);",
        "}",
        "int main() {",
        "  const int narrow = 0, wide = 1;",
        "  level = 1;",
        '  std::printf("%d ", take(&wide));',
        "  level = 3;",
        '  std::printf("%d ", take(&narrow));',
        '  try { take(&wide); } catch (const std::runtime_error& error) { std::printf("%s ", error.what()); }',
        '  std::printf("%d ", take(&wide));',
        '  std::printf("%d ", take(&wide));',
        '  for (int l : {4, 1}) { level = l; std::printf("%d ", other(&narrow) + other(&wide)); }',
        "}",
    ]
    (tmp_path / "host.cpp").write_text("\n".join(lines))
    command = [*find_toolchain().command, f"-I{templates_dir() / 'include'}", "host.cpp", "-o", "host"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "host"], capture_output=True, text=True, check=True).stdout.split()
    assert found == [
        "4", "1", "take_v3_f64_masked", "none", "take_v3_f64_masked", "2", "2",
        "other_v4_f32", "other_v4_f64", "4", "other_generic_f32", "other_generic_f64", "4",
    ]  # fmt: skip


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
