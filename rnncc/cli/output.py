"""How every command prints diagnostics, JSON, tables and progress; and the exit codes:

0    done
1    the user's input is wrong
2    the command line is wrong (click)
3    the toolchain, a library or a device is missing, or the toolchain failed, or no kernels run
4    `verify` found nothing wrong, but could not judge everything
70   a bug in rnncc
130  interrupted (Ctrl-C); 143 by SIGTERM, 129 by SIGHUP
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click

from rnncc.ir.compilation import CompiledCell
from rnncc.ir.problem import DTYPES, Problem
from rnncc.ir.target import Target
from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity, render_all
from rnncc.language.source import Span, line_and_column
from rnncc.machine.files import check_writable, replaced, unwritable
from rnncc.machine.targets import planned

EXIT_USER = 1
EXIT_TOOLCHAIN = 3
EXIT_NOT_JUDGED = 4
# No C++ compiler; compilation failed; no CUDA compiler; a missing library; no kernels that run.
_TOOLCHAIN_CODES = frozenset({"RNN601", "RNN602", "RNN608", "RNN611", "RNN613"})


# The first words of click's own sentences.
_CLICK_BEGINS = frozenset({"Argument", "Could", "Got", "Invalid", "Missing", "No", "Option", "Value"})


def _mark_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    # Errors that reach the group are then printed as JSON too.
    ctx.meta["rnncc.json"] = value
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_mark_json, help="Print one JSON value and nothing else."
)


def ignore_missing_numpy() -> None:
    """Before torch is imported: that NumPy is missing is no concern of who runs a command that needs none."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)


def wants_colour(stream: TextIO | None) -> bool:
    """Colour is for terminals, and not where NO_COLOR is set. A stream that was closed is None."""
    return stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")


def print_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Print diagnostics, and an empty line after each."""
    colour = wants_colour(sys.stdout)
    for text in render_all(diagnostics, colour=colour):
        click.echo(text + "\n", color=colour)


def print_json(value: Any) -> None:
    """The only thing that `--json` prints. Infinities are strings, since JSON has none."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case _:
            return value


def one_or_list(values: Sequence[Any]) -> Any:
    """The value itself where there is one, else the list."""
    return values[0] if len(values) == 1 else list(values)


def fail(error: RnnccError, *, as_json: bool) -> int:
    """Print an error; the exit code it means."""
    if as_json:
        print_json({"diagnostics": [as_data(diagnostic) for diagnostic in error.diagnostics]})
    else:
        colour = wants_colour(sys.stderr)
        text = "\n\n".join(render_all(error.diagnostics, colour=colour))
        click.echo(text, err=True, color=colour)
    codes = {diagnostic.code for diagnostic in error.diagnostics}
    return EXIT_TOOLCHAIN if codes & _TOOLCHAIN_CODES else EXIT_USER


def fail_usage(error: click.UsageError, *, as_json: bool = False) -> int:
    """Print a mistake in the command line in one line; the exit code it means. Without arguments, a command prints its
    help."""
    # Older releases of click have no such error.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return error.exit_code
    message = " ".join(error.format_message().split()).removesuffix(".")
    # click's sentences begin with a capital; a cell's name, an option and $SHELL are left as they are.
    if message.partition(" ")[0] in _CLICK_BEGINS:
        message = message[0].lower() + message[1:]
    command = error.ctx.command_path if error.ctx is not None else "rnncc"
    fail(RnnccError(Diagnostic("RNN612", f"{message} ({command} --help)")), as_json=as_json)
    return error.exit_code


def fail_output(error: OSError) -> int:
    """Say that standard output cannot be written, as where it is a file on a full disk; the exit code it means."""
    what = "standard output" if error.filename is None else f"'{error.filename}'"
    reason = (error.strerror or str(error)).lower()
    # Standard error may be the one that is full.
    with suppress(OSError):
        fail(RnnccError(Diagnostic("RNN605", f"{what} cannot be written: {reason}")), as_json=False)
    # At its end Python writes what is left in the buffers, and must not fail again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    return EXIT_USER


def as_data(diagnostic: Diagnostic) -> dict[str, Any]:
    """A diagnostic for `--json`; lines and columns count from 1, the end is exclusive."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        "label": diagnostic.label,
        "help": diagnostic.help,
        **_place(diagnostic, diagnostic.span),
        "notes": [{"text": note.text, **_place(diagnostic, note.span)} for note in diagnostic.notes],
    }


def _place(diagnostic: Diagnostic, span: Span) -> dict[str, Any]:
    if diagnostic.source is None:
        return dict.fromkeys(("file", "line", "column", "end_line", "end_column"))
    line, column = line_and_column(diagnostic.source, span.start)
    end_line, end_column = line_and_column(diagnostic.source, span.end)
    return {
        "file": diagnostic.source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
    }


def summary(diagnostics: Sequence[Diagnostic]) -> str:
    """`2 errors, 1 note`, or `ok`."""
    parts = []
    for severity in Severity:
        count = sum(diagnostic.severity is severity for diagnostic in diagnostics)
        if count:
            parts.append(f"{count} {severity.value}{'s' if count > 1 else ''}")
    return ", ".join(parts) or "ok"


def is_special(path: Path) -> bool:
    """Whether a path is a terminal, a pipe or a device, as /dev/stdout: it is written to, and never replaced."""
    return path.exists() and not path.is_file()


# Endings that say of a file that it is of another kind.
_KINDS = frozenset((".gif", ".html", ".jpeg", ".jpg", ".json", ".pdf", ".png", ".svg", ".tex", ".webp"))


def check_out(option: str, path: Path | None, ending: str) -> None:
    """Before the work: raises a usage error where the ending of the file says that it is no `ending`, and RnnccError
    (RNN605) where it could not be written."""
    if path is None:
        return
    if not path.name:
        raise click.BadParameter(f"'{path}' is not the name of a file", param_hint=option)
    if path.suffix.lower() in _KINDS - {ending}:
        raise click.BadParameter(
            f"'{path}' would not be what its name says: it is written as {ending}", param_hint=option
        )
    if not is_special(path):
        check_writable(path)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file as a whole or not at all, and say so; what is a symbolic link stays one. Raises RnnccError
    (RNN605)."""
    special = is_special(path)
    if special:
        try:
            write(path)
        except OSError as error:
            raise unwritable(path, error) from None
    else:
        with replaced(path) as beside:
            write(beside)
    # Where the file may be standard output itself, only the file is there.
    click.echo(f"wrote {path}", err=special)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the last one is left as it is."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def pick(cells: Sequence[CompiledCell], name: str | None, file: str) -> list[CompiledCell]:
    """The cell called `name`, or all; a usage error where the file has no such cell."""
    chosen = [cell for cell in cells if name in (None, cell.name)]
    if not chosen:
        names = ", ".join(cell.name for cell in cells)
        raise click.BadParameter(f"{file} has no cell '{name}', only {names}", param_hint="--cell")
    return chosen


def gpu_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--target --hidden --heads --dtype`: what GPU kernels are planned and compiled for."""
    for option in (
        click.option("--dtype", type=click.Choice(DTYPES), help="Dtype that GPU kernels are for."),
        click.option("--heads", type=click.IntRange(min=1), help="Number of heads that GPU kernels are for."),
        click.option("--hidden", type=click.IntRange(min=1), help="Hidden size that GPU kernels are for."),
        click.option("--target", default="auto", show_default=True, help="auto, cpu, or GPUs separated by commas."),
    ):
        command = option(command)
    return command


def problem_of(hidden: int, heads: int | None, dtype: str | None) -> Problem:
    """What kernels are for, by the options of `gpu_options`: one head and bf16 unless said otherwise."""
    if hidden % (heads or 1):
        raise click.BadParameter(f"{hidden} is no multiple of {heads} heads", param_hint="--hidden")
    return Problem(hidden // (heads or 1), heads or 1, dtype or "bf16")


def plan_for(target: str, hidden: int | None, heads: int | None, dtype: str | None) -> tuple[Problem, Target] | None:
    """What a plan is for. None without a hidden size, or without a GPU, which is said."""
    gpu = planned(target)
    if hidden is None:
        if (gpu and target != "auto") or heads or dtype:
            click.echo("rnncc: a plan for a GPU needs --hidden", err=True)
        return None
    problem = problem_of(hidden, heads, dtype)
    if gpu is None:
        click.echo("rnncc: the CPU op takes every size at run time; a plan is for a GPU: --target h200", err=True)
        return None
    return problem, gpu


def fused_problems(hidden: int | None, heads: int | None, dtype: str | None) -> tuple[Problem, ...]:
    """What the options ask fused kernels to be built for."""
    if hidden is None:
        if heads is not None or dtype is not None:
            raise click.UsageError("--heads and --dtype belong to --hidden: kernels are made for one size")
        return ()
    return (problem_of(hidden, heads, dtype),)
