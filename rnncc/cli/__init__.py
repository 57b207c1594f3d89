"""The command line: parse arguments, call the compiler, render what comes back.

Modules that cost time to import (the stages, torch) are imported inside the commands that need them.
"""

from __future__ import annotations

from typing import Any

import click

from rnncc.cli import about, package, text
from rnncc.cli.output import fail
from rnncc.diagnostics import InternalError, RnnccError
from rnncc.version import VERSION

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h: not the user's fault
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class _Group(click.Group):
    """The commands in the order of use, and the one place where errors become text and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RnnccError as error:
            ctx.exit(fail(error, as_json=ctx.meta.get("rnncc.json", False)))
        except InternalError as error:
            click.echo(f"internal error: {error}", err=True)
            ctx.exit(EXIT_BUG)
        except KeyboardInterrupt:
            click.echo("rnncc: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="rnncc")
def cli() -> None:
    """rnncc compiles recurrent cells: gate equations in, a PyTorch module out.

    FILE is a .rnn file, or the name of a shipped cell such as lstm.
    """


for _command in (
    text.new,
    text.check,
    package.build,
    text.show,
    text.explain,
    package.verify,
    about.cells,
    about.env,
):
    cli.add_command(_command)
