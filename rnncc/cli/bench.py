"""The command bench: a cell's time beside that of others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rnncc.cli.completion import file_argument
from rnncc.cli.kernels import check_machine, check_runner, fallback_option
from rnncc.cli.output import check_out, pick, table, write_file
from rnncc.extras import is_installed
from rnncc.ir.problem import DTYPES
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.progress import say

if TYPE_CHECKING:
    from rnncc.bench.measure import Effort
    from rnncc.bench.parties import Sizes
    from rnncc.bench.report import Report
    from rnncc.ir.lowered import LoweredCell

_RUNS = ("forward", "training")
# torch counts elements with 64 bits, and a tensor has several sizes.
_COUNT = click.IntRange(min=1, max=2**31 - 1)


def _words_of(*words: str) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """Reads some of a few words, separated by commas, in the order of `words`."""

    def read(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
        given = [word.strip() for word in value.split(",") if word.strip()]
        if unknown := [word for word in given if word not in words]:
            raise click.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(words)}")
        return tuple(word for word in words if word in given)

    return read


class _Seconds(click.FloatRange):
    """A time of at most a day: a range alone lets nan through, which is not below anything."""

    name = "time"

    def __init__(self, **limits: Any) -> None:
        super().__init__(max=24 * 60 * 60, **limits)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value} is no time", param, ctx)
        return found


def _read_sizes(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for value in values:
        name, _, number = value.partition("=")
        if not (name.isidentifier() and number.isascii() and number.isdecimal() and int(number)):
            raise click.BadParameter(f"'{value}' is not NAME=N with a whole number above 0")
        found[name] = int(number)
    return found


@click.command()
@file_argument
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True)
@click.option("--hidden", type=_COUNT, default=256, show_default=True, help="Hidden size.")
@click.option("--input", "input_size", type=_COUNT, help="Input size (default: the hidden size).")
@click.option("--heads", type=_COUNT, default=1, show_default=True, help="Number of heads.")
@click.option("--batch", type=_COUNT, default=16, show_default=True, help="Batch size.")
@click.option("--steps", type=_COUNT, default=128, show_default=True, help="Steps of the sequence.")
@click.option(
    "--size", "own", multiple=True, callback=_read_sizes, metavar="NAME=N", help="A size that the cell declares."
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Dtype (default: fp32 on a CPU, bf16 on a GPU).")
@click.option(
    "--pass", "runs", callback=_words_of(*_RUNS), default=",".join(_RUNS), show_default=True, metavar="PASSES",
    help="Which passes; training is forward and backward.",
)  # fmt: skip
@click.option(
    "--without", callback=_words_of("eager", "compiled", "nn"), default="", metavar="WHO",
    help="Leave out eager, compiled or nn, separated by commas.",
)  # fmt: skip
@click.option(
    "--seconds", type=_Seconds(min=0, min_open=True), default=1.0, show_default=True, help="Time per party and pass."
)
@click.option(
    "--compile-limit", type=_Seconds(min=0), default=60.0, show_default=True,
    help="Seconds that torch.compile may take for a pass of the loop, which it unrolls; 0 leaves it out.",
)  # fmt: skip
@click.option("--cell", metavar="NAME", help="Only this cell of the file.")
@fallback_option
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Also write it as JSON.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path, dir_okay=False), help="Also draw it as a PNG.")
def bench(
    file: str,
    device: str,
    hidden: int,
    input_size: int | None,
    heads: int,
    batch: int,
    steps: int,
    own: dict[str, int],
    dtype: str | None,
    runs: tuple[str, ...],
    without: tuple[str, ...],
    seconds: float,
    compile_limit: float,
    cell: str | None,
    allow_fallback: bool,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Time a layer of FILE beside others.

    \b
    rnncc bench mycell.rnn --hidden 128 --plot mycell.png
    rnncc bench lstm --device cuda --hidden 768 --heads 12 --compile-limit 0

    The others are its own loop in eager torch, that loop under torch.compile, and nn.LSTM, nn.GRU and nn.RNN of the
    same sizes. Calls are taken in turn. Below the table stands what arithmetic and memory allow at best, and on a GPU
    what the schedule predicts. Ctrl-C prints what was measured until then.
    """
    if not runs:
        raise click.BadParameter(f"give some of {', '.join(_RUNS)}", param_hint="--pass")
    check_out("--json", json_path, ".json")
    check_out("--plot", plot_path, ".png")
    chosen = pick(compile_cells(read_request(file), "lower").cells, cell, file)
    # Names with two underscores are the compiler's own: ranks, which follow from other sizes.
    declared = {each.name: {size.name for size in each.cell.sizes if "__" not in size.name} for each in chosen}
    for name in own:
        if not any(name in sizes for sizes in declared.values()):
            raise click.BadParameter(f"{', '.join(declared)}: no size '{name}'", param_hint="--size")
    check_machine("rnncc bench", device, allow_fallback=allow_fallback)
    from rnncc.bench.machine import machine
    from rnncc.bench.measure import Effort
    from rnncc.bench.parties import COMPILED, EAGER, PEERS, Sizes

    if plot_path is not None:
        from rnncc.bench.plot import check_matplotlib

        check_matplotlib()
    names = {"eager": (EAGER,), "compiled": (COMPILED,), "nn": tuple(PEERS)}
    left_out = tuple(name for word in without for name in names[word])
    sizes = Sizes(
        input_size or hidden, hidden, heads, batch, steps, dtype or ("bf16" if device == "cuda" else "fp32"), device,
        own,
    )  # fmt: skip
    # A size is for the cells that declare it.
    each_sizes = {
        each: replace(sizes, own={name: n for name, n in own.items() if name in names})
        for each, names in declared.items()
    }
    about = machine()
    reports: list[Report] = []
    interrupt: KeyboardInterrupt | None = None
    for each in chosen:
        effort = Effort(seconds, compile_limit, left_out)
        report, interrupt = _bench(file, each.plan, each_sizes, runs, effort, allow_fallback)
        reports.append(report)
        _print(report)
        if interrupt is not None:
            break
    from rnncc.bench.report import machine_line

    click.echo(f"\n{machine_line(about)}")
    if json_path is not None:
        text = json.dumps({"machine": about, "cells": [report.data() for report in reports]}, indent=1) + "\n"
        write_file(json_path, lambda path: path.write_text(text, encoding="utf-8"))
    if plot_path is not None and any(report.rows for report in reports):
        from rnncc.bench.plot import plot

        write_file(plot_path, lambda path: plot(reports, about, path))
    if interrupt is not None:
        raise interrupt


def _bench(
    file: str,
    plan: LoweredCell,
    each_sizes: Mapping[str, Sizes],
    runs: tuple[str, ...],
    effort: Effort,
    allow_fallback: bool,
) -> tuple[Report, KeyboardInterrupt | None]:
    """The report of a cell, and the interrupt that ended it early, if one did. `each_sizes` has the sizes of every cell
    that is asked for.

    Raises a usage error where one of them does not take its sizes, so that nothing that was measured is lost later."""
    import rnncc
    from rnncc.bench.measure import Measured, measure
    from rnncc.bench.parties import OURS, Case
    from rnncc.bench.predict import expected, measure_roofs, work_of
    from rnncc.bench.report import Report
    from rnncc.verify.runner import Runner, runner_of

    found, work, roofs, hopes = Measured(), {}, None, []
    runner: Runner | None = None
    interrupt: KeyboardInterrupt | None = None
    sizes = each_sizes[plan.cell]
    try:
        module = rnncc.load(file)
        case = Case(module, plan.cell, sizes)
        try:
            runners = {name: runner_of(Case(module, name, given).layer()) for name, given in each_sizes.items()}
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from None
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            raise click.UsageError("a layer of these sizes does not fit into memory") from None
        for name, each in runners.items():
            check_runner(name, sizes.device, each, allow_fallback=allow_fallback)
        runner = runners[plan.cell]
        measure(case, runs, effort, found, say)
        ours = found.parties.get(OURS)
        if ours is not None:  # the first call may have compiled others
            runner = runner_of(ours.layer)
        say("measuring what the machine does at most")
        measured = {(row.run, row.party) for row in found.rows()}
        work = {
            (run, name): work_of(party, sizes, run)
            for run in runs
            for name, party in found.parties.items()
            if not party.is_loop and (run, name) in measured
        }
        # A loop computes what our op does.
        work |= {key: work[key[0], OURS] for key in measured - work.keys() if (key[0], OURS) in work}
        roofs = measure_roofs(sizes)
        if ours is not None:
            hopes = [
                expected(case, ours.layer, plan, work[run, OURS], roofs, run) for run in runs if (run, OURS) in work
            ]
    except KeyboardInterrupt as error:
        interrupt = error
    complete = found.complete and interrupt is None
    rows = found.rows()
    made = Report(plan.cell, file, sizes, runner, rows, found.left_out, work, roofs, hopes, complete)
    return made, interrupt


def _print(report: Report) -> None:
    click.echo(report.title)
    if report.rows and sys.stdout is not None and sys.stdout.isatty() and is_installed("rich"):
        _print_table(report)
    elif report.rows:
        click.echo(table(report.header(), report.lines()))
    for line in report.words():
        click.echo(line)


def _print_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    from rnncc.bench.parties import OURS

    drawn = Table()
    for name in report.header():
        drawn.add_column(name, justify="left" if name in ("pass", "who") else "right")
    for line in report.lines():
        if line[0] and drawn.row_count:
            drawn.add_section()
        drawn.add_row(*line, style="bold" if line[1] == report.who(OURS) else None)
    Console().print(drawn)
