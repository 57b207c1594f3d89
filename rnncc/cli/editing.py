"""Commands for those who edit cells: format, and lsp for their editors. Neither imports torch."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rnncc.cli.completion import complete_path
from rnncc.cli.output import EXIT_USER, fail
from rnncc.extras import needs
from rnncc.language.diagnostics import Diagnostic, RnnccError, printable
from rnncc.machine.files import replaced

_STDIN = "-"


@click.command("format")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_path)
@click.option("--check", is_flag=True, help="Change nothing; list files that would change, and exit with code 1.")
def format_files(files: tuple[str, ...], check: bool) -> None:
    """Bring FILE... into the one style of cells.

    \b
    rnncc format mycell.rnn
    rnncc format --check cells/*.rnn

    The meaning and all comments stay. FILE is a path; with - standard input goes to standard output.
    """
    failed = False
    for file in files:
        try:
            differs = _format_stdin(check) if file == _STDIN else _format_file(Path(file), check)
        except RnnccError as error:
            fail(error, as_json=False)
            failed = True
            continue
        if differs and check:
            click.echo(f"{printable(file)}: would change")
            failed = True
        elif file != _STDIN and not check:
            click.echo(f"{printable(file)}: {'formatted' if differs else 'unchanged'}")
    if failed:
        raise click.exceptions.Exit(EXIT_USER)


def _format_file(path: Path, check: bool) -> bool:
    from rnncc.editing.formatting import format_bytes

    data = _read(path)
    made = format_bytes(str(path), data)
    if made != data and not check:
        with replaced(path) as beside:
            beside.write_bytes(made)
    return made != data


def _read(path: Path) -> bytes:
    """The bytes of a file that can be replaced. Raises RnnccError (RNN101) for what cannot be read, or is no file."""
    try:
        if path.exists() and not path.is_file():
            help = "" if path.is_dir() else "`rnncc format -` reads standard input"
            raise RnnccError(Diagnostic("RNN101", f"'{path}' is not a file", help=help))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RnnccError(Diagnostic("RNN101", f"'{path}' cannot be read: {reason.lower()}")) from error


def _format_stdin(check: bool) -> bool:
    from rnncc.editing.formatting import format_bytes

    if sys.stdin is None:
        raise RnnccError(Diagnostic("RNN101", "standard input cannot be read: it is closed"))
    data = sys.stdin.buffer.read()
    made = format_bytes("<stdin>", data)
    if not check:
        click.echo(made, nl=False)
    return made != data


@click.command()
def lsp() -> None:
    """Serve an editor over standard input and output.

    \b
    rnncc lsp

    It speaks the language server protocol. Editors start it.
    """
    with needs("lsp", "rnncc lsp"):
        from rnncc.editing.server import serve
    serve()
