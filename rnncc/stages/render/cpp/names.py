"""Names of values as names of C++.

In the namespace of a program its slots are the enumerators of `slot__`, and its matrices those of `matrix__`. No value
has these names, and in there no value's name hides anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rnncc.ir.kernel import Program
from rnncc.stages.render.notation import listed

# The names that macros of the standard's, the system's or CUDA's headers may have.
_MACRO = re.compile(r"(?![WR]_[a-z])[A-Z_]\w+|cuda\w+|errno|math_errhandling|sched_priority")


def enumerated(program: Program) -> Iterator[str]:
    """The enums of a program's slots and of its matrices."""
    for space, names in (
        ("slot__", [slot.name for slot in program.slots]),
        ("matrix__", [matrix.name for matrix in program.step.matrices]),
    ):
        if names:
            yield listed(f"namespace {space} {{\nenum : int16_t {{", names, "};\n}", 4)


def slot_name(name: str) -> str:
    """The number of a slot, by its name."""
    return f"slot__::{name}"


def matrix_name(name: str) -> str:
    """The number of a matrix, by its name."""
    return f"matrix__::{name}"


def macro_names(programs: Iterable[Program]) -> tuple[str, ...]:
    """Names of values that a header may have made a macro (`SIZE_MAX`, `M_E`). Files that use them undefine them after
    all headers. Names that the compiler made, with `__`, are never macros, and nor are those of most matrices
    (`R_f`)."""
    found: set[str] = set()
    for program in programs:
        found.update(slot.name for slot in program.slots)
        found.update(matrix.name for matrix in program.step.matrices)
        found.update(program.step.constants)
        found.update(each.target for stage in program.step.elementwise for each in stage.statements)
    return tuple(sorted(name for name in found if _MACRO.fullmatch(name) and "__" not in name))
