"""ConstrINT beside OR-tools' CP-SAT: kernel schedules and general problems (magic squares, factorisations, tilings,
jobs).

    python benchmarks/constrint.py [--quick] [--every N] [--repeats R] [--seconds S] [--json FILE]

Both get the same model: the benchmark translates ConstrINT's own expression trees. Times are processor time
of one call each, building the solver's internal form included (CP-SAT with one worker: several threads are no use for
problems of milliseconds); medians over the repeats. The optima must agree: if they do not, the benchmark fails. Without
OR-tools (`pip install ortools`) only ConstrINT is measured, and the output says so.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from measure import output, write  # noqa: E402

from rnncc.constrint import Expression, Infeasible, LimitReached, Limits, Model, Variable  # noqa: E402
from rnncc.ir.family import Family  # noqa: E402
from rnncc.ir.problem import Problem  # noqa: E402
from rnncc.ir.target import GPUS  # noqa: E402
from rnncc.stages.schedule.cost import LoopCost, cost_of  # noqa: E402
from rnncc.stages.schedule.families import MODELS, families_for  # noqa: E402
from tests.constrint import classics  # noqa: E402
from tests.stages.scheduling import backward, forward  # noqa: E402

# What the design asks of any kernel's schedule.
TARGET_MS = 50

Solver = Callable[[Model, Expression | None, dict[Variable, int], float], int | str]


def cpsat() -> Solver | None:
    """CP-SAT as a solver of our models, None without OR-tools."""
    if importlib.util.find_spec("ortools") is None:
        return None
    from cpsat import solve

    return solve


@dataclass(frozen=True)
class Task:
    """One problem: built afresh by `make`, which gives the model, the objective (or None) and given values."""

    group: str
    name: str
    make: Callable[[], tuple[Model, Expression | None, dict[Variable, int]]]


def problems() -> Iterator[Problem]:
    """Yield every size of 8 … 2304 by 8, and vary one factor at a time round one head and a batch of 16."""
    yield from (Problem(head_dim, 1, "bf16") for head_dim in range(8, 2305, 8))
    shapes = ((64, 12), (128, 6), (256, 3), (768, 4), (1024, 12))
    yield from (Problem(head_dim, heads, "bf16") for head_dim, heads in shapes)
    batches = (1, 3, 64, 200, 256)
    yield from (Problem(head_dim, heads, "bf16", b) for b in batches for head_dim, heads in ((768, 1), (128, 6)))


def tasks(every: int) -> Iterator[Task]:
    """Every n-th schedule of the LSTM and the GRU on an H200, forward and backward, in each family of kernels; then the
    general problems."""
    loops = {
        f"{cell} {way.__name__}": cost_of(way(cell), "bf16") for cell in ("lstm", "gru") for way in (forward, backward)
    }
    drawn = [
        (loop, family, problem)
        for loop, known in loops.items()
        for family in families_for(known)
        for problem in problems()
    ]
    for loop, family, problem in drawn[::every]:

        def make(
            known: LoopCost = loops[loop], family: Family = family, problem: Problem = problem
        ) -> tuple[Model, Expression | None, dict[Variable, int]]:
            layout_model = MODELS[family](known, problem, GPUS["h200"])
            return layout_model.model, layout_model.total, {layout_model.batch: problem.batch}

        yield Task("schedules", f"{loop} {problem.head_dim}x{problem.heads} B{problem.batch} {family.name}", make)
    for name, classic in classics.ALL.items():
        yield Task("general", name, lambda classic=classic: (*classic(), {}))  # type: ignore[misc]


def constrint_solve(
    model: Model, objective: Expression | None, given: dict[Variable, int], seconds: float
) -> int | str:
    """The optimum (0 if there is nothing to minimise), or `infeasible`, or `limit`."""
    limits = Limits(nodes=None, steps=None, seconds=seconds)
    try:
        if objective is None:
            model.solve(given=given, limits=limits)
            return 0
        return model.minimise(objective, given=given, limits=limits).objective
    except Infeasible:
        return "infeasible"
    except LimitReached:
        return "limit"


def explained(model: Model, given: dict[Variable, int]) -> float | None:
    """Milliseconds to say why there is no solution, the proof included; None if there is one."""
    begin = time.process_time()
    try:
        model.solve(given=given)
    except Infeasible as error:
        str(error)
        return (time.process_time() - begin) * 1e3
    return None


def measured(task: Task, repeats: int, seconds: float, rival: Solver | None) -> dict[str, Any]:
    """Answers and median times of both solvers on one task."""
    ours, theirs = [], []
    for _ in range(repeats):
        model, objective, given = task.make()
        begin = time.process_time()
        answer = constrint_solve(model, objective, given, seconds)
        ours.append((time.process_time() - begin) * 1e3)
        if rival is not None:
            begin = time.process_time()
            other = rival(model, objective, given, seconds)
            theirs.append((time.process_time() - begin) * 1e3)
            if "limit" not in (answer, other) and answer != other:
                raise SystemExit(f"{task.name}: ConstrINT says {answer}, CP-SAT {other}")
    row: dict[str, Any] = {"group": task.group, "name": task.name, "answer": answer}
    row["constrint_ms"] = statistics.median(ours)
    if theirs:
        row["cpsat_ms"], row["cpsat_answer"] = statistics.median(theirs), other
    if answer == "infeasible":
        row["explained_ms"] = explained(model, given)
    return row


def summary(rows: list[dict[str, Any]], key: str) -> str:
    """Median and maximum of a column."""
    times = sorted(row[key] for row in rows if row.get(key) is not None)
    if not times:
        return "–"
    return (
        f"median {statistics.median(times):.1f}, 95 % {times[int(0.95 * (len(times) - 1))]:.1f}, max {times[-1]:.1f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few schedules, one repeat")
    parser.add_argument("--every", type=int, default=1, help="take every n-th schedule only")
    parser.add_argument("--repeats", type=int, default=3, help="runs a problem")
    parser.add_argument("--seconds", type=float, default=20, help="limit a run")
    parser.add_argument("--json", type=output, help="write all rows there")
    arguments = parser.parse_args()
    every, repeats = (61, 1) if arguments.quick else (arguments.every, arguments.repeats)
    rival = cpsat()
    # What was imported is no garbage: going through it would be charged to whatever runs at the time.
    gc.collect()
    gc.freeze()
    if rival is None:
        print("OR-tools is not installed: no comparison with CP-SAT (pip install ortools)", file=sys.stderr)

    rows = []
    for task in tasks(every):
        row = measured(task, repeats, arguments.seconds, rival)
        rows.append(row)
        if task.group == "general":
            beside = f"  CP-SAT {row['cpsat_ms']:9.1f} ms ({row['cpsat_answer']})" if "cpsat_ms" in row else ""
            print(f"{row['name']:34} {row['constrint_ms']:9.1f} ms ({row['answer']}){beside}", flush=True)
    schedules = [row for row in rows if row["group"] == "schedules"]
    feasible = [row for row in schedules if row["answer"] != "infeasible"]
    infeasible = [row for row in schedules if row["answer"] == "infeasible"]
    for title, chosen in (("optimum found and proven", feasible), ("proven infeasible", infeasible)):
        print(f"{len(chosen)} schedules, {title}:")
        print(f"  ConstrINT  {summary(chosen, 'constrint_ms')}")
        print(f"  CP-SAT     {summary(chosen, 'cpsat_ms')}")
        within = sum(row["constrint_ms"] <= TARGET_MS for row in chosen)
        print(f"  ConstrINT within {TARGET_MS} ms: {within} of {len(chosen)}")
    print(f"  explained  {summary(infeasible, 'explained_ms')}")
    if arguments.json:
        write(arguments.json, rows)


if __name__ == "__main__":
    main()
