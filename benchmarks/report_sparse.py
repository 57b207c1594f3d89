"""Tables of recurrences whose matrices have zeros, or are of low rank, on a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from gpu_cases import PASSES
from report_text import NOTHING, known, number, ratio, table
from sparse_cases import CROSSOVER, TARGETS, Shape, SparseCase, case_of_shape, target_of
from sparse_table import MOST_OF_DENSE, Found, cases_of_rows, of_dense, step_us

CELLS = {"lstm": "LSTM", "elman": "Elman"}


@cache
def found() -> Found:
    """Every row of gpu_sparse.json, by case."""
    return cases_of_rows(known("gpu_sparse").rows)


def _targets() -> str:
    head = (
        "cell, hidden size, batch, R",
        "pass",
        "rnncc, µs a step",
        "must",
        "dense R, µs a step",
        "torch's CSR loop, µs a step",
        "kernels",
    )
    return table(head, (_target_line(shape, run) for shape in TARGETS for run in PASSES))


def _target_line(shape: Shape, run: str) -> tuple[str, ...]:
    rows, case = found(), case_of_shape(TARGETS[shape].who, shape, run)
    own, target = step_us(case, rows), target_of(case)
    assert target is not None
    figure = number(own)
    kernels = rows.get(case, {}).get("kernels", NOTHING)
    return (
        f"{CELLS[shape.cell]}, {shape.hidden}, {shape.batch}, `{shape.weights}`",
        {PASSES[0]: "forward", PASSES[1]: "forward + backward"}[run],
        f"**{figure}**" if own is not None and own > target.must else figure,
        f"{target.must:g}",
        number(step_us(case.dense, rows)),
        number(step_us(case_of_shape("csr", shape, run), rows)),
        kernels,
    )


def _by_density(who: str) -> str:
    densities = sorted({density for sizes in CROSSOVER.values() for own in sizes.values() for density in own})
    head = ("hidden size, batch", *(f"{density:.0%}" for density in densities))
    lines = []
    for batch, sizes in CROSSOVER.items():
        for hidden in sizes:
            shape = Shape("lstm", hidden, batch)
            cases = [case_of_shape(who, replace(shape, density=density), PASSES[0]) for density in densities]
            lines.append((f"{hidden}, {batch}", *map(_beside_dense, cases)))
    return table(head, lines)


def _beside_dense(case: SparseCase) -> str:
    """A case's time as a part of that with a dense R, in both passes: bold where it is more."""
    parts = [of_dense(replace(case, run=run), found()) for run in PASSES]
    if all(part is None for part in parts):
        return NOTHING
    return ", ".join(map(_part, parts))


def _part(part: float | None) -> str:
    if part is None:
        return NOTHING
    return f"**{ratio(part)}**" if part > MOST_OF_DENSE else ratio(part)


TABLES = {
    "zeros on a GPU": _targets,
    "zeros on a GPU, by density": lambda: _by_density("rnncc"),
    "kernels for zeros, by density": lambda: _by_density("forced"),
}
