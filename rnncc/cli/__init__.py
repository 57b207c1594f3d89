"""The command line: parse arguments, call the compiler, render what comes back.

Modules that cost time to import (the stages, torch) are imported inside the commands that need them.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import Any, NoReturn

import click

from rnncc.cli import about, bench, completion, editing, package, paper, text
from rnncc.cli.output import fail, fail_output, fail_usage
from rnncc.language.diagnostics import InternalError, RnnccError
from rnncc.machine.paths import SUFFIX, shipped_cell
from rnncc.progress import shown
from rnncc.version import VERSION

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h: not the user's fault
# What only writing meets. Commands turn errors of files into diagnostics, so that standard output and error are left.
_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_SIGNALLED = 128  # and the signal's number, as shells have it


class _Group(click.Group):
    """The commands in the order of use, and the one place where errors become text and exit codes."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except OSError as error:  # of a closed pipe click says nothing
            if error.errno not in _WRITING or not extra.get("standalone_mode", True):
                raise
            sys.exit(fail_output(error))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise click.exceptions.Exit(fail_usage(error)) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = get_close_matches(name.lower(), self.commands, n=1)
            if close:
                advice = f"; did you mean '{close[0]}'?"
            elif name.endswith(SUFFIX) or shipped_cell(name):
                advice = f", but a cell; did you mean 'rnncc explain {name}'?"
            else:
                advice = ""
            raise click.UsageError(f"'{name}' is no command{advice}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _signals_end_it_in_order(), shown():
                return super().invoke(ctx)
        except RnnccError as error:
            ctx.exit(fail(error, as_json=ctx.meta.get("rnncc.json", False)))
        except click.UsageError as error:
            ctx.exit(fail_usage(error, as_json=ctx.meta.get("rnncc.json", False)))
        except InternalError as error:
            click.echo(f"internal error: {error}", err=True)
            ctx.exit(EXIT_BUG)
        except KeyboardInterrupt as error:
            click.echo("rnncc: interrupted", err=True)
            ctx.exit(_SIGNALLED + (error.number if isinstance(error, _Signalled) else signal.SIGINT))


class _Signalled(KeyboardInterrupt):
    """SIGTERM (`kill`, `timeout`) or SIGHUP (a terminal was closed): as Ctrl-C, it stops the compilers and removes what
    they began."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _signals_end_it_in_order() -> Iterator[None]:
    """Raises _Signalled where Python would end at once. A signal that is ignored (`nohup`) still is."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise _Signalled(number)

    # Handlers are the main thread's; a program may call the command in another one.
    own = threading.current_thread() is threading.main_thread()
    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if own and signal.getsignal(s) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="rnncc")
def cli() -> None:
    """rnncc compiles recurrent cells: gate equations in, a PyTorch module out.

    \b
    rnncc new mycell              write a starter cell, mycell.rnn
    rnncc check mycell.rnn        say what is wrong with it
    rnncc verify mycell.rnn       compare what is compiled with its definition
    rnncc bench mycell.rnn        time it beside nn.LSTM and an eager loop
    rnncc build mycell.rnn        make a package that runs without rnncc
    rnncc explain lstm            say what the compiler makes of a shipped cell
    rnncc explain RNN203          say what a message means

    In Python: rnncc.load("mycell.rnn").

    FILE is a .rnn file, or the name of a shipped cell such as lstm.
    """


for _command in (
    text.new,
    text.check,
    editing.format_files,
    package.build,
    text.show,
    text.explain,
    paper.latex,
    paper.draw,
    package.verify,
    bench.bench,
    about.cells,
    about.env,
    completion.completion,
    editing.lsp,
):
    cli.add_command(_command)
