"""Commands on the built package: build, verify."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rnncc.cli.completion import file_argument, files_argument
from rnncc.cli.kernels import check_machine, check_runner, fallback_option
from rnncc.cli.output import (
    EXIT_NOT_JUDGED,
    EXIT_USER,
    fused_problems,
    gpu_options,
    json_option,
    one_or_list,
    pick,
    print_json,
    table,
)
from rnncc.ir.request import Request
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.progress import say

if TYPE_CHECKING:
    from rnncc.verify import Report, Row


@click.command()
@files_argument
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder that gets the package's folder (default: the current one).",
)
@gpu_options
@click.option(
    "--parallel-newton",
    is_flag=True,
    help="Also GPU kernels that work on many steps at a time where they are neither affine nor have a product.",
)
@click.option(
    "--zoneout",
    multiple=True,
    metavar="STATE",
    help="For layers with zoneout of STATE (may be given several times).",
)
@click.option("--recurrent-dropout", is_flag=True, help="For layers with variational recurrent dropout.")
@click.option("--name", help="The package's name (default: that of the file).")
@click.option("--wheel", is_flag=True, help="Also write the package as a wheel beside its folder.")
def build(
    files: tuple[str, ...],
    out: Path,
    target: str,
    hidden: int | None,
    heads: int | None,
    dtype: str | None,
    parallel_newton: bool,
    zoneout: tuple[str, ...],
    recurrent_dropout: bool,
    name: str | None,
    wheel: bool,
) -> None:
    """Compile the cells of each FILE into an importable package.

    \b
    rnncc build mycell.rnn
    rnncc build mycell.rnn --wheel --out dist
    rnncc build mycell.rnn --target a100,h200 --hidden 768 --heads 12

    It holds the CPU op and, for the targets, GPU kernels; both take every size and dtype at run time. With --hidden it
    also holds kernels that keep the recurrent weights on chip, for that size and --dtype (bf16).

    Layers with zoneout or recurrent dropout run another program, which takes the place of the plain one.
    """
    from rnncc.driver import build_package
    from rnncc.stages.build import check_stem

    problems = fused_problems(hidden, heads, dtype)
    if name is not None and len(files) > 1:
        raise click.UsageError("--name is for one FILE: each of several is a package of its own")
    requests = [read_request(file) for file in files]
    # A file whose name no package can have needs --name. `rnncc.load` takes a name near it.
    stems = [Path(request.source.name).stem for request in requests] if name is None else [name]
    for stem in stems:
        if stems.count(stem) > 1:
            raise click.UsageError(
                f"two of the files would become the package '{stem}': build one under another --name"
            )
    requests = [
        replace(
            request, name=stem, zoneout=zoneout, recurrent_dropout=recurrent_dropout, problems=problems,
            newton=parallel_newton,
        )
        for request, stem in zip(requests, stems, strict=True)
    ]  # fmt: skip
    if zoneout or recurrent_dropout:
        for request in requests:
            _check_regularised(request)
    if wheel:
        from rnncc.cli.wheel import check_name, write_wheel

        for stem in stems:
            check_name(stem)
    if len(requests) > 1:  # a mistake in the last one is found before the first one is compiled
        for request in requests:
            compile_cells(request, "partition")
            check_stem(request.name, out)
    for place, request in enumerate(requests, 1):
        if len(requests) > 1:
            say(f"package {place} of {len(requests)}: {request.name}")
        path = build_package(request, out, target, say)
        click.echo(str(path))
        if wheel:
            click.echo(str(write_wheel(path)))


def _check_regularised(request: Request) -> None:
    """Raises a usage error for a state that no cell of the file has, and for a cell without what dropout acts on."""
    cells = [made.cell for made in compile_cells(request, "regularise").cells]
    drawn = [{(item.drawn, item.of) for item in cell.inputs} for cell in cells]
    for state in request.zoneout:
        if not any(("zoneout", state) in own for own in drawn):
            raise click.UsageError(f"--zoneout: {Path(request.source.name).name} has no cell with a state '{state}'")
    for cell, own in zip(cells, drawn, strict=True):
        if request.recurrent_dropout and not any(kind == "recurrent_dropout" for kind, _ in own):
            raise click.UsageError(
                f"--recurrent-dropout: no matrix product of {cell.name} reads an earlier value of a state"
            )


@click.command()
@file_argument
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True)
@click.option("--cell", metavar="NAME", help="Only this cell of the file.")
@click.option("-q", "--quiet", is_flag=True, help="Only what failed, and the verdict.")
@fallback_option
@json_option
def verify(file: str, device: str, cell: str | None, quiet: bool, allow_fallback: bool, as_json: bool) -> None:
    """Compare the built op of FILE with its reference.

    \b
    rnncc verify mycell.rnn --quiet
    rnncc verify lstm --device cuda

    Outputs, final states and every gradient of one layer, against float64: several lengths and dtypes, with and
    without hx, in reverse, with lengths and reset, with two heads where the cell can have them.

    The exit code is 1 where a row FAILED, and 4 where none did but some are NOT JUDGED: the eager loop overflows there,
    or rounding decides its comparisons. It is 3 where no kernels run: nothing is compared then.
    """
    request = read_request(file)
    chosen = pick(compile_cells(request, "partition").cells, cell, file)
    check_machine("rnncc verify", device, allow_fallback=allow_fallback)
    import rnncc
    from rnncc import verify as verifier
    from rnncc.verify.runner import together

    module = rnncc.load(request.source.name)
    results: list[dict[str, Any]] = []
    for checked in (each.cell for each in chosen):
        try:
            sizes = verifier.problem_sizes(checked)
        except ValueError as error:
            nothing: dict[str, Any] = {"kernels": None, "passed": False, "failed": False, "rows": []}
            results.append({"cell": checked.name, "device": device, **nothing})
            click.echo(f"{checked.name}: NOT JUDGED: {error}", err=as_json)
            continue
        say(f"comparing {checked.name} with its reference")
        made = getattr(module, checked.name)
        found = verifier.verify(made, checked, device=device, allow_fallback=allow_fallback)
        runner = together(found.runners.values())
        check_runner(checked.name, device, runner, allow_fallback=allow_fallback)
        scope = {
            "cases": [{**asdict(case), "text": str(case)} for case in verifier.cases_of(checked)],
            "sizes": sizes,
        }
        result = {"cell": checked.name, "device": device, "kernels": str(runner), "passed": found.passed}
        rows = [_as_data(row) for row in found.rows]
        doubts = [asdict(doubt) for doubt in found.doubts]
        results.append({**result, "failed": found.failed, "rows": rows, "doubts": doubts, "scope": scope})
        if not as_json:
            _print_table(f"{checked.name} by {runner.words}", found, scope, quiet=quiet)
    if as_json:
        print_json(one_or_list(results))
    if any(result["failed"] for result in results):
        raise click.exceptions.Exit(EXIT_USER)
    if not all(result["passed"] for result in results):
        raise click.exceptions.Exit(EXIT_NOT_JUDGED)


def _as_data(row: Row) -> dict[str, Any]:
    return {
        "quantity": row.quantity,
        "dtype": row.dtype,
        "error": row.error,
        "bound": row.bound,
        "passed": row.passed,
        "judged": row.judged,
        "weak": row.weak,
    }


def _print_table(what: str, report: Report, scope: dict[str, Any], *, quiet: bool) -> None:
    rows = report.rows
    lines = [
        (row.quantity, row.dtype, f"{row.error:.1e}", f"{row.bound:.0e}", _verdict(row))
        for row in rows
        if not (quiet and row.passed)
    ]
    if not quiet:
        sizes = " ".join(f"{name}={size}" for name, size in scope["sizes"].items() if name != "num_heads")
        click.echo(f"{what}: relative error against the float64 reference, worst of {len(scope['cases'])} cases")
        click.echo(f"one layer, {sizes}: {'; '.join(case['text'] for case in scope['cases'])}")
    if lines:
        click.echo(table(("quantity", "dtype", "error", "bound", ""), lines))
    failed, weak = sum(row.failed for row in rows), sum(row.passed and row.weak for row in rows)
    unjudged = sum(not row.judged for row in rows)
    verdict = f"FAILED in {failed} of {len(rows)} rows" if failed else "all within their bounds"
    if unjudged:
        verdict = f"{verdict}; " if failed else ""
        verdict += f"NOT JUDGED in {unjudged} of {len(rows)} rows" + (
            "" if failed else ", the others within their bounds"
        )
    verdict += f"; {weak} of {len(rows)} rows prove little (weak)" if weak else ""
    click.echo(f"{what}: {verdict}")
    for doubt in report.doubts:
        click.echo(f"  {doubt}")
    # The bound is what the eager loop's own errors allow.
    if unsteady := sorted({row.dtype for row in rows if row.failed and row.weak}):
        said = "where rows FAILED, the eager loop is off by about their bounds, and rounding decides"
        click.echo(f"  {', '.join(unsteady)}: {said}. Does the cell divide by what comes near 0?")
    if not quiet:
        click.echo()


def _verdict(row: Row) -> str:
    if not row.judged:
        return "NOT JUDGED"
    if row.failed:
        return "FAILED"
    if row.zero:
        return "weak: zero but for rounding"
    return f"weak: the eager {row.dtype} loop is off by as much" if row.weak else "ok"
