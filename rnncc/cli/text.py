"""Commands on the text of a cell: new, check, show, explain. None of them imports torch."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from rnncc.cli.completion import complete_file_or_code, file_argument, files_argument
from rnncc.cli.output import (
    EXIT_USER,
    as_data,
    gpu_options,
    json_option,
    one_or_list,
    pick,
    plan_for,
    print_diagnostics,
    print_json,
    summary,
    wants_colour,
)
from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity, printable
from rnncc.language.packages import is_package_name
from rnncc.language.read import read_request
from rnncc.machine.paths import SUFFIX, shipped_cell
from rnncc.pipeline import STAGES, compile_cells

_STARTER = """\
# {name}: say here what the cell is and where it comes from (this text is kept in the generated code).
#
# x        the input of this step          W@x       a trained matrix times it, one of its own for every equation
# h[t-1]   the state before this step      R@h[t-1]  a trained recurrent matrix times it
# h[t]     the state after this step       b         a trained bias
#
# rnncc check {file}            what is wrong with the equations
# rnncc explain {file}          what the compiler makes of them
# rnncc build {file}            a package to import: from {stem} import {name}
cell {name}
state h                          # carried from step to step; starts at 0 unless `= 0.5` or `= learned` follows
f = sigmoid(W@x + R@h[t-1] + b)  # a gate: how much of the old state stays, between 0 and 1
n = tanh(W@x + R@h[t-1] + b)     # the candidate for the new state
h[t] = f*h[t-1] + (1 - f)*n
init b_f = 1                     # begin by remembering
"""


@click.command()
@click.argument("name", type=click.Path(path_type=Path))
def new(name: Path) -> None:
    """Write a commented starter cell to NAME.rnn.

    \b
    rnncc new mycell
    """
    path = name if name.suffix == SUFFIX else name.with_name(name.name + SUFFIX)
    stem = path.stem
    if not is_package_name(stem):
        message = f"'{stem}' cannot be the name of a package"
        raise RnnccError(Diagnostic("RNN604", message, help="use letters, digits and underscores, a letter first"))
    # A cell's name has an upper-case letter.
    words = [word for word in stem.split("_") if word]
    cell = stem if stem != stem.lower() else "".join(word[0].upper() + word[1:] for word in words)
    text = _STARTER.format(name=cell, file=path.name, stem=stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        raise RnnccError(Diagnostic("RNN603", f"{path} exists already; nothing was written")) from None
    except FileNotFoundError:
        raise RnnccError(Diagnostic("RNN605", f"cannot write {path}: there is no folder '{path.parent}'")) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RnnccError(Diagnostic("RNN605", f"cannot write {path}: {reason}")) from None
    if shipped_cell(stem) is not None:
        message = f"'{stem}' alone still means the cell that rnncc ships; this one is '{path}'"
        click.echo(f"rnncc: {message}, for commands and for rnncc.load", err=True)
    click.echo(f"wrote {path}; next: rnncc check {shlex.quote(str(path))}")


@click.command()
@files_argument
@click.option("--pedantic", is_flag=True, help="Also report what is often intended, such as a missing bias.")
@json_option
def check(files: tuple[str, ...], pedantic: bool, as_json: bool) -> None:
    """Report what is wrong with FILE...; exit code 1 on errors.

    \b
    rnncc check mycell.rnn
    rnncc check --pedantic --json cells/*.rnn
    """
    reports: list[dict[str, Any]] = []
    failed = False
    for file in files:
        diagnostics = _diagnose(file, pedantic)
        wrong = any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
        failed = failed or wrong
        if as_json:
            found = [as_data(diagnostic) for diagnostic in diagnostics]
            reports.append({"file": file, "ok": not wrong, "diagnostics": found})
        else:
            print_diagnostics(diagnostics)
            click.echo(f"{printable(file)}: {summary(diagnostics)}")
    if as_json:
        print_json({"ok": not failed, "files": reports})
    if failed:
        raise click.exceptions.Exit(EXIT_USER)


def _diagnose(file: str, pedantic: bool) -> list[Diagnostic]:
    """Everything that is wrong with a file, in the order of the text."""
    from rnncc.editing.analysis import findings

    try:
        return findings(read_request(file), pedantic=pedantic)[1]
    except RnnccError as error:
        return list(error.diagnostics)


@click.command()
@file_argument
@click.option("--stage", type=click.Choice(STAGES), required=True, help="The stage whose value to print.")
@gpu_options
def show(file: str, stage: str, target: str, hidden: int | None, heads: int | None, dtype: str | None) -> None:
    """Print a stage's value for the cells of FILE.

    \b
    rnncc show lstm --stage differentiate
    rnncc show lstm --stage schedule --hidden 768 --target h200

    The schedule of a GPU's kernels is for a hidden size.
    """
    from rnncc.show.stage import stage_text

    wanted = plan_for(target, hidden, heads, dtype)
    click.echo(stage_text(read_request(file), stage, wanted).rstrip("\n"))


@click.command()
@click.argument("what", metavar="FILE|CODE", shell_complete=complete_file_or_code)
@gpu_options
@click.option("--cell", metavar="NAME", help="Only this cell of the file.")
@json_option
def explain(
    what: str,
    target: str,
    hidden: int | None,
    heads: int | None,
    dtype: str | None,
    cell: str | None,
    as_json: bool,
) -> None:
    """Say what the compiler makes of FILE, or what CODE means.

    \b
    rnncc explain lstm
    rnncc explain lstm --hidden 768 --target h200
    rnncc explain RNN203

    CODE is that of a diagnostic, such as RNN203.
    """
    if re.fullmatch(r"(?i)RNN\d+", what) and not Path(what).exists():
        _explain_code(what.upper(), as_json)
        return
    from rnncc.show.explain import explain as facts
    from rnncc.show.explain import explain_words
    from rnncc.stages.schedule.kernels import planned

    wanted = plan_for(target, hidden, heads, dtype)
    made = compile_cells(read_request(what), "lower" if wanted else "differentiate")
    chosen = pick(made.cells, cell, what)
    explained = [(each, planned(each.plan, *wanted) if wanted else None) for each in chosen]
    if as_json:
        print_json(one_or_list([facts(*entry) for entry in explained]))
    else:
        click.echo("\n\n".join(explain_words(*entry) for entry in explained))


def _explain_code(code: str, as_json: bool) -> None:
    from rnncc.language.codes import CODES

    row = CODES.get(code)
    if row is None:
        raise click.BadParameter(f"there is no diagnostic {code}", param_hint="CODE")
    if as_json:
        keys = ("code", "title", "explanation", "example", "mended")
        print_json({key: getattr(row, key) for key in keys} | {"severity": row.severity.value})
        return
    colour = wants_colour(sys.stdout)
    head = f"{row.code}: {row.title}"
    lines = [click.style(head, bold=True) if colour else head, "", row.explanation]
    if row.example is not None:
        lines += ["", "Example:", "", _indented(row.example)]
    if row.mended is not None:
        lines += ["", "Instead:", "", _indented(row.mended)]
    click.echo("\n".join(lines), color=colour)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip("\n").split("\n"))
