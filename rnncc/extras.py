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
    with _named(what, f"'{_OWN}[{extra}]'"):
        yield


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """The same around the import of PyTorch, which rnncc depends on: it may have been installed without."""
    with _named(what, "torch"):
        yield


def check_torch(what: str) -> None:
    """Raises RnnccError (RNN611) where PyTorch is not installed, before long work that needs it at its end. It is not
    imported."""
    with needs_torch(what):
        if not is_installed("torch"):
            raise ModuleNotFoundError(name="torch")


@contextmanager
def _named(what: str, package: str) -> Iterator[None]:
    """Makes of an ImportError what the user is told: that `what` needs a library, which pip installs with `package`."""
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
        raise RnnccError(Diagnostic("RNN611", f"{what} needs {state}: pip install {package}")) from error


def is_installed(library: str) -> bool:
    """Whether a library is there. It is not imported."""
    return find_spec(library) is not None


def _one_line(error: ImportError) -> str:
    return " ".join(str(error).split())
