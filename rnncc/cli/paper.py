"""Commands that show a cell as a paper does: latex, draw. None of them imports torch."""

from __future__ import annotations

from pathlib import Path

import click

from rnncc.cli.completion import file_argument
from rnncc.cli.output import check_out, pick, write_file
from rnncc.language.read import read_request
from rnncc.machine.paths import locate
from rnncc.pipeline import compile_cells
from rnncc.show.draw import THEMES


@click.command()
@file_argument
@click.option("--standalone", is_flag=True, help="A document that compiles, with what the text says of the cell.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option("--cell", metavar="NAME", help="Only this cell of the file.")
def latex(file: str, standalone: bool, out: Path | None, cell: str | None) -> None:
    """Print the equations of FILE in LaTeX, as a paper has them.

    \b
    rnncc latex lstm
    rnncc latex mycell.rnn --standalone --out mycell.tex

    They are in align environments, for amsmath and amssymb.
    """
    from rnncc.show.latex import latex as tex

    _check_target(file, out, ".tex")
    chosen = pick(compile_cells(read_request(file), "check").cells, cell, file)
    _deliver(tex(chosen, standalone=standalone), out)


@click.command()
@file_argument
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option(
    "--theme", type=click.Choice(THEMES), default="auto", show_default=True, help="auto: as the reader's browser is."
)
@click.option("--cell", metavar="NAME", help="This cell of a file that has several.")
def draw(file: str, out: Path | None, theme: str, cell: str | None) -> None:
    """Draw one step of the cell of FILE as SVG.

    \b
    rnncc draw lstm --out lstm.svg
    rnncc draw mycell.rnn --theme dark --out mycell.svg

    Inputs are below, states of the step before at the left, and states after it at the right.
    """
    from rnncc.show.draw import draw as picture

    _check_target(file, out, ".svg")
    chosen = pick(compile_cells(read_request(file), "check").cells, cell, file)
    if len(chosen) > 1:
        names = ", ".join(checked.name for checked in chosen)
        raise click.UsageError(f"a picture is of one cell: give --cell, one of {names}")
    _deliver(picture(chosen[0].typed, theme), out)


def _check_target(file: str, out: Path | None, ending: str) -> None:
    """Before the work: raises as `check_out`, and a usage error where the file to write is the cell's own."""
    check_out("--out", out, ending)
    if out is not None and out.exists() and out.resolve() == locate(file).resolve():
        raise click.BadParameter(f"'{out}' is the cell itself", param_hint="--out")


def _deliver(text: str, out: Path | None) -> None:
    """Print a text, or write it to a file."""
    if out is None:
        click.echo(text, nl=False)
        return
    write_file(out, lambda path: path.write_text(text, encoding="utf-8"))
