"""What a shell completes after `rnncc`, and the command that installs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from rnncc.machine.files import replaced, unwritable
from rnncc.machine.paths import SUFFIX, shipped_cells

_VARIABLE = "_RNNCC_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def complete_file(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Cells that FILE may name: files in the folder that was typed, folders, and shipped cells."""
    *files, folders = complete_path(ctx, parameter, incomplete)
    in_folder = bool(os.path.split(incomplete)[0])
    shipped = [] if in_folder else [path.stem for path in shipped_cells() if path.stem.startswith(incomplete.lower())]
    return [*files, *map(CompletionItem, shipped), folders]


def complete_path(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files of cells in the folder that was typed, and last, folders."""
    folder, begin = os.path.split(incomplete)
    try:
        inside = sorted(Path(folder or ".").iterdir())
    except OSError:
        inside = []
    names = [
        os.path.join(folder, path.name)  # noqa: PTH118 (pathlib would drop the `./` that the user typed)
        for path in inside
        if path.suffix == SUFFIX and path.name.startswith(begin)
    ]
    # The shell completes folders by itself.
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="dir")]


def complete_file_or_code(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same, and the codes of diagnostics."""
    found = complete_file(ctx, parameter, incomplete)
    if incomplete.upper().startswith("RNN"):
        from rnncc.language.codes import CODES

        found = [
            CompletionItem(c, help=row.title) for c, row in CODES.items() if c.startswith(incomplete.upper())
        ] + found
    return found


def file_argument(command: Callable[..., None]) -> Callable[..., None]:
    """The argument FILE of a command."""
    return click.argument("file", metavar="FILE", shell_complete=complete_file)(command)


def files_argument(command: Callable[..., None]) -> Callable[..., None]:
    """The argument FILE... of a command."""
    return click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_file)(command)


@click.command()
@click.argument("shell", metavar="[SHELL]", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it where the shell finds it.")
@click.pass_context
def completion(ctx: click.Context, shell: str | None, install: bool) -> None:
    """Completion for SHELL, by default yours.

    \b
    rnncc completion --install          for every new shell
    eval "$(rnncc completion bash)"     for this one
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in SHELLS else None
    if found is None:
        raise click.UsageError(f"name a shell, one of {', '.join(SHELLS)}: $SHELL is '{os.environ.get('SHELL', '')}'")
    script = _script(found, ctx.find_root().command)
    if not install:
        click.echo(script)
        return
    path, advice = _place(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None
    with replaced(path) as beside:
        beside.write_text(script + "\n", encoding="utf-8")
    click.echo(f"wrote {path}; {advice}")


def _script(shell: Any, command: click.Command) -> str:
    # `source()` of bash would start bash to ask for its version, which is 4.4 or later since 2016.
    made = shell(command, {}, "rnncc", _VARIABLE)
    return str(made.source_template % made.source_vars()).strip()


def _place(shell: str) -> tuple[Path, str]:
    """Where the shell looks for a command's completion, and what is to be done then."""
    home = Path.home()
    match shell:
        case "bash":
            data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
            return data / "bash-completion" / "completions" / "rnncc", "open a new shell (needs bash-completion)"
        case "fish":
            config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            return config / "fish" / "completions" / "rnncc.fish", "open a new shell"
        case _:
            line = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
            return home / ".zfunc" / "_rnncc", f"put `{line}` into ~/.zshrc if it is not there, and open a new shell"
