"""`%%rnn`: the text of a notebook's cell becomes layers in the notebook's namespace."""

from __future__ import annotations

import argparse
import builtins
import shlex
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.display import display

from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity
from rnncc.language.packages import is_package_name
from rnncc.notebook.show import draw, equations, explain, layers_of
from rnncc.notebook.values import Findings

_HELP = """%%rnn [NAME] [--equations] [--draw] [--explain]

Define the recurrent cells of this text: of `cell LSTM` the layer LSTM, the single step LSTMCell and the functional op
lstm. With NAME, the module of all of them is NAME.

--equations  show the equations as a paper has them
--draw       show a picture of a step
--explain    say what the compiler decided
"""


class NothingDefinedError(Exception):
    """A notebook stops here, after the mistakes have been shown: one line takes the place of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"rnncc: {self}"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the magic's line, as IPython's own magics do."""
        raise UsageError(f"%%rnn: {message}")


def _parsed(line: str) -> argparse.Namespace:
    parser = _Parser("%%rnn", add_help=False, allow_abbrev=False)
    parser.add_argument("name", nargs="?")
    for option in ("--equations", "--draw", "--explain"):
        parser.add_argument(option, action="store_true")
    try:
        given = parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%%rnn: {error}".lower()) from None
    if given.name is not None and not is_package_name(given.name):
        raise UsageError(f"%%rnn: '{given.name}' cannot be the name of a module")
    return given


def _define(shell: Any, name: str | None, text: str) -> list[Any]:
    """Put what the text defines into the shell's namespace, and show warnings. Returns the layers' classes."""
    from rnncc.driver import load_text
    from rnncc.ir.request import Request
    from rnncc.language.read import from_text
    from rnncc.pipeline import compile_cells

    stem = name or "cell"
    checked = compile_cells(Request(from_text(f"<{stem}>", text), stem), "partition")
    warnings = tuple(each for cell in checked.cells for each in cell.warnings if _is_said(each))
    if warnings:
        display(Findings(warnings))
    module = load_text(text, stem, {})
    cells = [each.name for each in checked.cells]
    made = {each: getattr(module, each) for cell in cells for each in (cell, f"{cell}Cell", cell.lower())}
    if name is not None:
        made[name] = module
    hidden = {each: what for each in made if (what := _hidden(each, shell.user_ns))}
    shell.push(made)
    print(f"defined {', '.join(made)}")
    for each, what in hidden.items():
        print(f"rnncc: {each} now hides {what}")
    return [made[cell] for cell in cells]


def _hidden(name: str, names: Mapping[str, Any]) -> str:
    """What a name means in a notebook that its author may miss, or nothing: a function of Python's or a module. The
    functional op of a cell `Print` is `print`."""
    if name not in names:
        return f"Python's own {name}" if hasattr(builtins, name) else ""
    before = names[name]
    return f"the module {before.__name__}" if isinstance(before, ModuleType) and not layers_of(before) else ""


def _is_said(diagnostic: Diagnostic) -> bool:
    """What `rnncc check` says without `--pedantic`."""
    from rnncc.language.codes import CODES

    return diagnostic.severity is not Severity.ERROR and not CODES[diagnostic.code].pedantic


def register(shell: Any) -> None:
    """Make `%%rnn` known to a shell of IPython."""

    def rnn(line: str, cell: str) -> None:
        given = _parsed(line)
        try:
            layers = _define(shell, given.name, cell)
        except RnnccError as error:
            display(Findings(error.diagnostics))
            count = len(error.diagnostics)
            raise NothingDefinedError(f"{count} error{'s' if count > 1 else ''}; nothing is defined") from None
        for layer in layers:
            for is_wanted, show in ((given.equations, equations), (given.draw, draw), (given.explain, explain)):
                if is_wanted:
                    display(show(layer))

    rnn.__doc__ = _HELP
    shell.register_magic_function(rnn, "cell", "rnn")
