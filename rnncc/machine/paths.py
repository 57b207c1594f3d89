"""Where the templates, the shipped cells and the licence are, and which file a name or path means.

In a checkout they stand beside the package; a wheel carries them inside it, as `rnncc/_data`.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError

SUFFIX = ".rnn"
_PACKAGE = Path(__file__).resolve().parents[1]


def _data(name: str) -> Path:
    carried = _PACKAGE / "_data" / name
    return carried if carried.exists() else _PACKAGE.parent / name


def templates_dir() -> Path:
    """The folder with `*.j2` and `include/rnncc/`."""
    return _data("templates")


def cells_dir() -> Path:
    """The folder with the shipped cells."""
    return _data("cells")


def objects_dir() -> Path:
    """The folder with the objects that a wheel brings (rnncc/stages/build/shared.py). A checkout has none."""
    return _PACKAGE / "_data" / "objects"


def license_file() -> Path:
    """rnncc's licence, which goes along with the code of rnncc's that built packages carry."""
    return _data("LICENSE")


def shipped_cells() -> tuple[Path, ...]:
    """The shipped `.rnn` files, sorted by name."""
    return tuple(sorted(cells_dir().glob("*" + SUFFIX)))


def shipped_cell(name: str) -> Path | None:
    """The file of the shipped cell that a name such as `lstm` or `LSTM` means."""
    path = cells_dir() / (name.lower() + SUFFIX)
    return path if name.isidentifier() and path.is_file() else None


def locate(name_or_path: str | Path) -> Path:
    """The file meant by a path, or by a shipped cell's name such as `lstm`. An existing file goes before a name, and a
    name before a folder: after `rnncc build lstm` there is a folder lstm, the built package.

    Raises RnnccError (RNN101) where it is neither.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    text = str(name_or_path)
    shipped = shipped_cell(text)
    if shipped is not None:
        return shipped
    if path.exists():
        # Reading it says what is wrong with it.
        return path
    close = get_close_matches(path.stem.lower(), [cell.stem for cell in shipped_cells()], n=1)
    advice = f"did you mean the shipped cell '{close[0]}'? " if close else ""
    raise RnnccError(
        Diagnostic(
            "RNN101",
            f"no file '{text}', and no shipped cell of that name",
            help=f"{advice}`rnncc cells` lists the shipped cells",
        )
    )
