"""What a family of fused GPU kernels is worth: loops for which the planner chooses it, by its kernels and by those that
the planner chooses without it.

    python benchmarks/gpu_families.py FAMILY... [--most N] [--only CELLS] [--shard I/N] [--quick] [--out FILE]
    python benchmarks/gpu_families.py FAMILY... --plan [--target GPU] [--most N]
    python benchmarks/gpu_families.py --show FILE

The cases are every shipped cell of one loop that has a fused form, forward and backward, at eight sizes, four batches
and two dtypes. For kernels for zeros they are cells whose matrices are mostly zeros, in blocks and without. Where the
planner chooses the family, at most N cases (24) are measured, evenly from small ones to large ones. --plan prints them,
and measures nothing.

Both kernels of a case run in one process, by turns. `chosen_us` and `without_us` are medians of a step's time between
CUDA events, over 256 steps of calls back to back: of the forward as training runs it, or of the backward to the
gradients of pre-activations. `gain` is how much longer a step takes without the family: the median of the ratios round
by round, less 1. Before that, outputs and all gradients over 12 steps are compared. A case that cannot run, or whose
kernels do not agree, has an `error` instead of times. Every row is written as soon as it is measured, and a run that is
started again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from family_cases import (
    CHOSEN,
    PARTIES,
    WITHOUT,
    Case,
    Cell,
    Expected,
    build_package,
    cells_for,
    chosen_cases,
    family_named,
    spread,
)
from gpu_calls import DTYPES
from gpu_cases import missing, row_of
from gpu_cells import PARTS
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from sparse_calls import Numbers
from sparse_cases import Shape
from torch import Tensor

from rnncc.bench.timing import WARM_CALLS, Function, between_events, median_ms, queued, ratio, rounds
from rnncc.ir.target import Target
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.targets import planned
from rnncc.verify import BOUNDS, relative_error

STEPS, CHECKED_STEPS = 256, 12
MOST, FEW = 24, 8
QUEUED, ROUNDS, SECONDS = 10, 9, 0.1
# What a family must gain in the median of its cases.
WORTH = 0.1


@dataclass(frozen=True, slots=True)
class Given:
    """What a case's op is given: streams [T, B, width], weights, and states [B, width]."""

    streams: list[Tensor]
    weights: list[Tensor]
    states: list[Tensor]

    @property
    def inputs(self) -> list[Tensor]:
        """All of them."""
        return [*self.streams, *self.weights, *self.states]


class WrongError(Exception):
    """Other kernels ran than were planned, or they do not agree."""


def draw(case: Case, module: ModuleType, steps: int, device: str = "cuda") -> Given:
    """Random numbers for a case."""
    torch.manual_seed(0)
    dtype, hidden = DTYPES[case.dtype], case.head_dim * case.heads
    if case.density < 1:
        shape = Shape(case.cell, hidden, case.batch, case.density, case.block)
        numbers = Numbers(shape, device, dtype)
        stream, *_ = numbers.inputs(steps, trained=False)
        states = 2 if case.cell == "lstm" else 1
        return Given([stream], numbers.weights, [torch.zeros_like(stream[0, :, :hidden]) for _ in range(states)])
    layer_class = getattr(module, CHOSEN)
    own = {name: hidden // part for name, part in PARTS.get(case.cell, {}).items()}
    layer = layer_class(hidden, hidden, num_heads=case.heads, device=device, dtype=dtype, **own)
    specs = import_module(f"{module.__name__}._runtime.modules.function_inputs").specs_of(
        layer_class.spec, masked=False, return_delays=False
    )
    sizes = layer._sizes[0]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    streams = [normal(steps, case.batch, stream.width(sizes)) for stream in specs.streams]
    # One number per batch entry is a time, which is not negative.
    streams = [stream.abs() if stream.shape[-1] == 1 else stream for stream in streams]
    weights = [getattr(layer, f"{weight.attribute}_l0").detach() for weight in specs.weights]
    return Given(streams, weights, [0.1 * normal(case.batch, state.width(sizes)) for state in specs.states])


def call_of(case: Case, module: ModuleType, party: str, given: Given) -> Callable[[], Tensor]:
    """The output [T, B, width] by a party's kernels."""
    op, options = getattr(module, party.lower()), {"num_heads": case.heads, "backend": given.streams[0].device.type}
    if case.density == 1:
        hidden = case.head_dim * case.heads
        options |= {name: hidden // part for name, part in PARTS.get(case.cell, {}).items()}
    return lambda: op(given.streams, given.weights, given.states, **options)[0]


def check_kernels(case: Case, module: ModuleType, expected: Expected) -> None:
    """Raises WrongError where the library does not choose what was planned: another GPU has other sizes."""
    fused = import_module(f"{module.__name__}._runtime.kernels.fused")
    device = torch.cuda.current_device()
    for party, family in ((CHOSEN, expected.chosen), (WITHOUT, expected.without)):
        spec = getattr(module, party).spec
        (segment,) = spec.segments
        wanted = fused.Wanted(spec, segment.name, case.head_dim, case.heads, DTYPES[case.dtype], fused.gpu_of(device))
        words = fused.chosen(wanted, case.batch, device, denser=False).split(", ")
        ran = next(each.removeprefix(f"{case.run} ") for each in words if each.startswith(f"{case.run} "))
        if ran.split()[0] != family:
            raise WrongError(f"the library chooses {ran}, and {family} was planned")


def check_results(case: Case, module: ModuleType, device: str = "cuda") -> float:
    """How far the results of both parties are from each other, at most, over CHECKED_STEPS: the output, and where the
    case is a backward every gradient. Raises WrongError where that is too far."""
    found = []
    for party in PARTIES:
        given = draw(case, module, CHECKED_STEPS, device)
        backward = case.run != "forward"
        for tensor in given.inputs:
            # As training does, also a forward keeps what its backward needs.
            tensor.requires_grad_()
        output = call_of(case, module, party, given)()
        torch.manual_seed(1)
        gradients = (
            torch.autograd.grad(output, given.inputs, torch.randn_like(output), allow_unused=True) if backward else ()
        )
        found.append([output.detach(), *(each for each in gradients if each is not None)])
    errors = [relative_error(ours, theirs) for ours, theirs in zip(*found, strict=True)]
    # Each may be as far from what is right.
    if not all(error <= 2 * BOUNDS[DTYPES[case.dtype]] for error in errors):
        raise WrongError(f"results do not agree: they are {', '.join(f'{error:.2g}' for error in errors)} apart")
    return max(errors)


def timed(case: Case, module: ModuleType, party: str, given: Given) -> Function:
    """The forward or the backward of a case over all of its steps."""
    forward = call_of(case, module, party, given)
    if case.run == "forward":
        return forward
    output = forward()
    torch.manual_seed(1)
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, given.streams, gradient, retain_graph=True, allow_unused=True)


def measure(case: Case, expected: Expected, chosen_in: int, quick: bool) -> dict[str, Any]:
    """A case's row. `chosen_in`: in how many cases the planner chooses the family."""
    row = row_of(case, **asdict(expected) | {"chosen_in": chosen_in})
    for name in ("chosen_us", "without_us"):
        row[f"planned_{name}"] = round(row.pop(name), 3)
    try:
        module = import_module(case.of.package)
        row["apart"] = check_results(case, module)
        check_kernels(case, module, expected)
        given = draw(case, module, STEPS)
        for stream in given.streams:
            stream.requires_grad_()
        functions = {party: timed(case, module, party, given) for party in PARTIES}
        for function in functions.values():
            for _ in range(WARM_CALLS):
                function()
        torch.cuda.synchronize()
        timers = {party: queued(each, between_events(each, 1), QUEUED) for party, each in functions.items()}
        found = list(rounds(timers, seconds=SECONDS, least=3 if quick else ROUNDS))
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError, WrongError) as error:
        torch.cuda.synchronize()
        return row | {"error": said(error)}
    times = {party: [each[party] for each in found] for party in PARTIES}
    chosen_us, without_us = (round(1e3 * median_ms(times[party]) / STEPS, 4) for party in PARTIES)
    gain = round(ratio(times[WITHOUT], times[CHOSEN]) - 1, 4)
    return row | {"chosen_us": chosen_us, "without_us": without_us, "gain": gain, "rounds": len(found)}


def find(pool: Executor, families: Sequence[str], cells: Sequence[str], target: Target) -> dict[str, list[Case]]:
    """The cases in which the planner chooses each family. `cells`: the names of those that count; none for all."""
    found = {}
    for name in families:
        wanted = [cell for cell in cells_for(family_named(name)) if not cells or cell.name in cells]
        made = pool.map(partial(chosen_cases, name, target=target), wanted)
        found[name] = [case for own in made for case in own]
    return found


def build(pool: Executor, cases: Iterable[Case], folder: Path, target: Target, jobs: int) -> dict[Case, Expected | str]:
    """Builds the packages of the cases: what is expected of each case, or why its package was not built. The first one
    goes before the others, which find what all packages share in the cache. `jobs`: compilers at a time."""
    by_cell: dict[Cell, list[Case]] = {}
    for case in cases:
        by_cell.setdefault(case.of, []).append(case)
    found: dict[Case, Expected | str] = {}
    every = list(by_cell.items())
    for packages, each in ((every[:1], jobs), (every[1:], max(2, jobs // len(every) if every else jobs))):
        builds = [(own, pool.submit(build_package, cell, own, folder, target, each)) for cell, own in packages]
        for own, built in builds:
            try:
                found |= built.result()
            except Exception as error:  # what one package lacks, the others may have
                found |= dict.fromkeys(own, said(error))
    return found


def said(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def measure_all(arguments: argparse.Namespace, pool: Executor, results: Results) -> None:
    """Measures what the file does not have yet. Raises ValueError where there is no GPU to plan for."""
    torch.backends.cuda.matmul.allow_tf32 = False
    begin, target = time.monotonic(), target_of(arguments)

    def say(what: str) -> None:
        print(f"{time.monotonic() - begin:5.1f} s {what}", flush=True)

    found = find(pool, arguments.families, words_of(arguments), target)
    say("; ".join(f"{name} is chosen in {len(cases)} cases" for name, cases in found.items()))
    most = min(arguments.most, FEW) if arguments.quick else arguments.most
    picked = part([case for cases in found.values() for case in spread(cases, most)], arguments.shard)
    left = missing(picked, results.rows)
    with tempfile.TemporaryDirectory() as folder:
        expected = build(pool, left, Path(folder), target, arguments.jobs)
        say(f"packages are built; {len(left)} cases")
        os.environ["RNNCC_COMPILE"] = "0"  # what is missing there is an error
        sys.path.insert(0, folder)
        for case in in_time(left, arguments.minutes):
            known, chosen_in = expected[case], len(found[case.family])
            if isinstance(known, str):
                row = row_of(case, chosen_in=chosen_in, error=known)
            else:
                row = measure(case, known, chosen_in, arguments.quick)
            results.add(row)
            times = row.get("error") or f"{row['chosen_us']:.3f} us, {row['without_us']:.3f} without"
            say(f"{case}: {times}")
            torch.cuda.empty_cache()


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines: every case, from the smallest gain to the largest, then what each family gains."""
    yield (
        f"{'cell':34}{'size':>8}{'B':>5} {'dtype':6}{'pass':9}{'kernel':>9}{'us':>9}  {'without':12}{'us':>9}"
        f"{'gain':>8}{'planned':>9}"
    )
    for row in sorted(rows, key=lambda row: (row["family"], "error" in row, row.get("gain", 0.0))):
        yield line(row)
    for name in sorted({row["family"] for row in rows}):
        yield verdict(name, [row for row in rows if row["family"] == name])


def line(row: dict[str, Any]) -> str:
    """A case."""
    zeros = f" {row['density']} in {row['block']}x{row['block']}" if row["density"] < 1 else ""
    size = f"{row['head_dim']}x{row['heads']}"
    begin = f"{row['cell'] + zeros:34}{size:>8}{row['batch']:>5} {row['dtype']:6}{row['run']:9}{row['family']:>9}"
    if "error" in row:
        return f"{begin}  {row['error']}"
    planned_gain = row["planned_without_us"] / row["planned_chosen_us"] - 1
    return (
        f"{begin}{row['chosen_us']:9.3f}  {row['without']:12}{row['without_us']:9.3f}{row['gain']:+8.1%}"
        f"{planned_gain:+9.1%}"
    )


def verdict(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """What a family gains."""
    gains = [row["gain"] for row in rows if "error" not in row]
    failed = f", {len(rows) - len(gains)} failed" if len(gains) < len(rows) else ""
    begin = f"{name}: chosen in {rows[0]['chosen_in']} cases, {len(gains)} measured{failed}"
    if not gains:
        return begin
    large = sum(gain >= WORTH for gain in gains)
    return (
        f"{begin}; without it a step takes {statistics.median(gains):+.1%} in the median "
        f"({min(gains):+.1%} to {max(gains):+.1%}), {WORTH:.0%} or more in {large} of {len(gains)}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Find the cases; print them, or measure and print the table. 1 where nothing can be measured."""
    parser = parser_of(__doc__, Path("gpu_families.json"))
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="families of kernels: scatter, blocks")
    parser.add_argument("--most", type=int, default=MOST, help=f"cases of a family at most (default: {MOST})")
    parser.add_argument("--target", default="auto", help="the GPU that is planned for (default: the one here)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that plan and build at a time")
    parser.add_argument("--plan", action="store_true", help="print the cases, and measure nothing")
    arguments = parser.parse_args(words)
    try:
        part([], arguments.shard)
        for name in arguments.families:
            family_named(name)
        reads = arguments.show or arguments.merge
        if not (arguments.families or reads):
            raise ValueError("name a family")
        with ProcessPoolExecutor(arguments.jobs) as pool:
            if not reads:
                pool.submit(os.getpid).result()  # the processes begin before this one uses a GPU
            if arguments.plan:
                return plan(arguments, pool)
            rows, _ = read_or_measure(arguments, partial(measure_all, arguments, pool))
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_families: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(rows)))
    return 0


def target_of(arguments: argparse.Namespace) -> Target:
    """The GPU that is planned for. Raises ValueError where there is none."""
    found = planned(arguments.target)
    if found is None:
        raise ValueError("there is no GPU to plan for: name one by --target")
    return found


def plan(arguments: argparse.Namespace, pool: Executor) -> int:
    """Prints the cases that would be measured. Raises as `target_of`."""
    found = find(pool, arguments.families, words_of(arguments), target_of(arguments))
    for name, cases in found.items():
        picked = spread(cases, arguments.most)
        print(f"{name}: chosen in {len(cases)} cases, of which {len(picked)} are measured")
        print("\n".join(f"  {case}" for case in picked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
