"""Random chains (tests/generated/chains.py) by emulated kernels: python -m tests.emulated.chains --seeds 0:40."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random

import torch

from rnncc.ir.dim import evaluate
from rnncc.ir.family import GATHER, GRID, SCATTER, Family
from rnncc.ir.layout import FusedKernels
from rnncc.ir.lowered import fused_programs
from rnncc.language.source import Source
from rnncc.verify import BOUNDS
from tests.compiling import front
from tests.cuda.kernels import Case as Wanted
from tests.cuda.kernels import forced, plan
from tests.emulated.compiled import Kernel, build
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.generated.chains import chain
from tests.numeric.compare import Problem
from tests.numeric.loops import loops_of

# Head_dims of values that are not H wide: less than a kernel's smallest tile, no multiple of 16, more than H has.
_OWN = (8, 16, 24, 40, 48, 80)


@dataclass(frozen=True, slots=True)
class Run:
    """How the kernels of a chain are run. `own`: the head_dims of P and Q."""

    family: Family
    dtype: str
    head_dim: int
    heads: int
    batch: int
    masked: bool
    reverse: bool
    own: tuple[int, int]

    def __str__(self) -> str:
        words = [self.family.name, self.dtype, f"{self.heads} x {self.head_dim} {self.own}", f"B={self.batch}"]
        words += ["masked"] if self.masked else []
        return " ".join([*words, "reverse"] if self.reverse else words)


def run_of(seed: int) -> Run:
    """How a seed's chain is run."""
    random = Random(f"run {seed}")
    return Run(
        random.choice((GATHER, GRID, GATHER, GRID, SCATTER)),
        random.choice(tuple(DTYPES)),
        random.choice((32, 40, 56, 64, 72)),
        random.choice((1, 1, 2)),
        random.choice((1, 3, 9, 11, 17)),
        random.random() < 0.5,
        random.random() < 0.5,
        (random.choice(_OWN), random.choice(_OWN)),
    )


def errors_of(text: str, run: Run, folder: Path, seed: int = 0) -> Mapping[str, float]:
    """The relative errors of everything that the loops of a cell make, of those loops that have kernels in the
    family; each as a part of its bound.

    Several phases of rounded operands, several steps deep: the bounds are those of `rnncc verify`. Where one is
    exceeded, it is twice the error of the eager loop in the dtype, as there."""
    path = folder / "chain.rnn"
    path.write_text(text, encoding="utf-8")
    whole = plan(str(path))
    forms = dict(fused_programs(whole))
    ((cell, _),) = front(Source(str(path), text))
    # K is half of H, and its head_dim is a multiple of 8 too.
    head_dim = run.head_dim // 16 * 16 if any(size.name == "K" for size in cell.sizes) else run.head_dim
    own = dict(zip("KPQ", (head_dim // 2, *run.own), strict=True))
    sizes = {"I": 3, "H": head_dim * run.heads} | {size.name: own[size.name] * run.heads for size in cell.sizes}
    problem = Problem(5, run.batch, sizes, run.heads, DTYPES[run.dtype], reverse=run.reverse)
    found: dict[str, float] = {}
    for loop in loops_of(cell):
        names = [f"{loop.name}_{way}" for way in ("forward", "inference", "backward")]
        if ("_masked" in loop.name) != run.masked or not forms.keys() >= set(names):
            continue
        kernels: dict[str, Kernel] = {}
        for name in names:
            widest = max(evaluate(width, {**sizes, "num_heads": run.heads}) for width in forms[name].widths)
            made = _kernel(str(path), run, name, widest // run.heads)
            kernels |= build(whole, made, folder / name) if made.kernels else {}
        if len(kernels) < len(names):
            continue
        case, bound = EmulatedCase(loop, problem, kernels, seed), BOUNDS[problem.dtype]
        errors = case.measured()
        eager = {} if all(error <= bound for error in errors.values()) else case.eager_errors()
        for name, error in errors.items():
            # An eager loop that is off by infinity excuses nothing.
            excuse = 2 * eager[name] if error > bound and eager[name] < inf else 0.0
            found[f"{loop.name} {name}"] = error / max(bound, excuse)
    return found


def _kernel(cell: str, run: Run, name: str, head_dim: int) -> FusedKernels:
    """A program's kernel of the run's family, or of GATHER: SCATTER takes steps of one phase alone."""
    for family in (run.family, GATHER):
        made = forced(Wanted(cell, family, run.dtype, "sm_90a"), head_dim)
        if own := tuple(entry for entry in made.tables if entry[0] == name):
            return replace(made, tables=own)
    return replace(made, tables=())


def main() -> int:
    """Run seeds, and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulated.chains", description=__doc__)
    parser.add_argument("--seeds", default="0:40", help="A:B, from A up to B - 1")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, given.seeds.split(":"))
    failed = 0
    for seed in range(first, last):
        text, run = chain(seed).cell.text, run_of(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = errors_of(text, run, Path(folder), seed)
                wrong = {name: f"{error:.2f}" for name, error in found.items() if not error <= 1}
            except Exception:
                found, wrong = {}, {"error": traceback.format_exc(limit=-4)}
        failed += bool(wrong)
        state = "no kernel" if not found else f"{max(found.values()):.2f} of the bound"
        print(f"seed {seed}: {run}: {state}", flush=True)
        if wrong:
            print(text, *(f"{name}: {error}" for name, error in wrong.items()), sep="\n", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
