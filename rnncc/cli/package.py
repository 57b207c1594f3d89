"""Commands on the built package: build, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rnncc.cli.output import (
    EXIT_USER,
    fused_sizes,
    gpu_options,
    json_option,
    one_or_list,
    pick,
    print_json,
    progress_printer,
    table,
)
from rnncc.paths import locate

if TYPE_CHECKING:
    from rnncc.verify import Row


@click.command()
@click.argument("file", metavar="FILE")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder that gets the package's folder (default: the current one).",
)
@gpu_options
@click.option("--name", help="The package's name (default: that of the file).")
@click.option("--wheel", is_flag=True, help="Also write the package as a wheel beside its folder.")
def build(
    file: str,
    out: Path,
    target: str,
    hidden: int | None,
    heads: int | None,
    dtype: str | None,
    name: str | None,
    wheel: bool,
) -> None:
    """Compile the cells of FILE into an importable package.

    It holds the CPU op and, for the targets, GPU kernels; both take every size and dtype at run time. With --hidden it
    also holds kernels that keep the recurrent weights on chip, for that size and 16-bit --dtype (bf16).
    """
    from rnncc.compiler import build_package

    sizes = fused_sizes(hidden, heads, dtype)
    path = build_package(locate(file), out, target=target, name=name, sizes=sizes, progress=progress_printer())
    click.echo(str(path))
    if wheel:
        from rnncc.cli.wheel import write_wheel

        click.echo(str(write_wheel(path)))


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True)
@click.option("--cell", metavar="NAME", help="Only this cell of the file.")
@json_option
def verify(file: str, device: str, cell: str | None, as_json: bool) -> None:
    """Compare the built op of FILE with its reference.

    Outputs, final states and every gradient, for several shapes and dtypes, against float64.
    """
    import torch

    import rnncc
    from rnncc import verify as verifier
    from rnncc.compiler import front
    from rnncc.read import read_source

    path = locate(file)
    chosen = pick({checked.name: checked for checked, _ in front(read_source(path))}, cell, file)
    if device == "cuda" and not torch.cuda.is_available():
        raise click.BadParameter("no CUDA device is available", param_hint="--device")
    report = progress_printer()
    module = rnncc.load(path)
    results: list[dict[str, Any]] = []
    for checked in chosen:
        report(f"comparing {checked.name} with its reference")
        rows = verifier.verify(getattr(module, checked.name), checked, device=device)
        passed = all(row.passed for row in rows)
        results.append(
            {"cell": checked.name, "device": device, "passed": passed, "rows": [_as_data(row) for row in rows]}
        )
        if not as_json:
            _print_table(checked.name, device, rows, passed)
    if as_json:
        print_json(one_or_list(results))
    if not all(result["passed"] for result in results):
        raise click.exceptions.Exit(EXIT_USER)


def _as_data(row: Row) -> dict[str, Any]:
    return {
        "quantity": row.quantity,
        "dtype": row.dtype,
        "error": row.error,
        "bound": row.bound,
        "passed": row.passed,
    }


def _print_table(cell: str, device: str, rows: list[Row], passed: bool) -> None:
    lines = [
        (row.quantity, row.dtype, f"{row.error:.1e}", f"{row.bound:.0e}", "ok" if row.passed else "FAILED")
        for row in rows
    ]
    click.echo(f"{cell} on {device}: relative error against the float64 reference, worst of several shapes")
    click.echo(table(("quantity", "dtype", "error", "bound", ""), lines))
    click.echo(f"{cell}: {'all within their bounds' if passed else 'FAILED'}\n")
