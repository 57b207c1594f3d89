"""Commands for those who edit cells: format, and lsp for their editors. Neither imports torch."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rnncc.cli.completion import complete_path
from rnncc.cli.output import EXIT_USER, fail
from rnncc.extras import needs
from rnncc.language.diagnostics import RnnccError

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
            click.echo(f"{file}: would change")
            failed = True
        elif file != _STDIN and not check:
            click.echo(f"{file}: {'formatted' if differs else 'unchanged'}")
    if failed:
        raise click.exceptions.Exit(EXIT_USER)


def _format_file(path: Path, check: bool) -> bool:
    from rnncc.editing.files import read_regular, replace_bytes
    from rnncc.editing.formatting import format_bytes

    data = read_regular(path)
    made = format_bytes(str(path), data)
    if made != data and not check:
        replace_bytes(path, made)
    return made != data


def _format_stdin(check: bool) -> bool:
    from rnncc.editing.formatting import format_bytes

    data = sys.stdin.buffer.read()
    made = format_bytes("<stdin>", data)
    if not check:
        sys.stdout.buffer.write(made)
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
