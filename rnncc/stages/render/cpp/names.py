"""Names of values as names of C++."""

from __future__ import annotations

import re

from rnncc.ir.kernel import TileStage
from rnncc.ir.plan import KernelPlan

# What a macro of the standard's headers, of the system's or of CUDA's may be called.
_MACRO = re.compile(r"[A-Z_]\w+|cuda\w+|errno|math_errhandling|sched_priority")


def macro_names(plan: KernelPlan) -> tuple[str, ...]:
    """Names of values that a header may have made a macro (`SIZE_MAX`, `M_E`): files that use them undefine them
    behind all headers. Compilers' own names, with `__`, are never macros."""
    found: set[str] = set()
    for loop in plan.loops:
        for program in (loop.forward, loop.backward):
            found.update(slot.name for slot in program.slots)
            found.update(program.constants)
            tiles = [stage for stage in program.stages if isinstance(stage, TileStage)]
            found.update(statement.target for stage in tiles for statement in stage.statements)
    return tuple(sorted(name for name in found if _MACRO.fullmatch(name) and "__" not in name))
