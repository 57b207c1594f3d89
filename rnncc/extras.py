"""Optional libraries: they are imported where they are used, and a missing one is one line.

    with needs("plot", "rnncc bench --plot"):
        from matplotlib.figure import Figure

An extra is a row of `[project.optional-dependencies]` in pyproject.toml, which `pip install 'rnncc[plot]'` installs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rnncc.language.diagnostics import Diagnostic, RnnccError

_OWN = "rnncc"


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around imports of an extra's libraries, and nothing else. `what` needs them, as the message says it.

    Raises RnnccError (RNN611) in place of an ImportError. One that comes from rnncc itself is a bug, and stays.
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library == _OWN:
            raise
        if isinstance(error, ModuleNotFoundError) and library:
            state = f"{library}, which is not installed"
        else:
            # It is there, and does not work: another version may.
            state = f"{library or 'a library'}, which cannot be imported ({_one_line(error)})"
        raise RnnccError(Diagnostic("RNN611", f"{what} needs {state}: pip install 'rnncc[{extra}]'")) from error


def is_installed(library: str) -> bool:
    """Whether a library is there. It is not imported."""
    return find_spec(library) is not None


def _one_line(error: ImportError) -> str:
    return " ".join(str(error).split())
