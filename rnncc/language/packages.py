"""What a package can be called: its folder, its library, its ops and a macro of C++ have the name."""

from __future__ import annotations

import keyword
import re

from rnncc.language.diagnostics import Diagnostic, RnnccError

# A file's name has at most 255 bytes, and the library is called `libNAME.so`.
LONGEST_NAME = 255
_LONGEST_STEM = LONGEST_NAME - len("lib.so")


def is_package_name(name: str) -> bool:
    """Whether a package can be called so: an identifier, since Python imports it by that name; in ASCII, since torch
    reads it as part of its ops' names; and no keyword. Names that begin with an underscore are private ones."""
    return re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) is not None and not keyword.iskeyword(name)


def package_name(stem: str) -> str:
    """The name of the package of a file's stem, or of a text's name, where the user gave it none: the stem itself, or
    with `_` for what cannot stand in a package's name and `cell_` before what cannot begin or be one. A long one is
    cut to 100 characters: files of the package have longer names."""
    name = re.sub("[^A-Za-z0-9_]", "_", stem)[:100]
    return name if is_package_name(name) else f"cell_{name}"


def check_package_name(name: str) -> None:
    """Raise RnnccError (RNN604) where no package can be called so."""
    rename = "choose another name with --name"
    # The length comes first: a name that is too long is not shown as a whole.
    check_length(name, "a package's", LONGEST_NAME - _LONGEST_STEM)
    if not is_package_name(name):
        raise RnnccError(Diagnostic("RNN604", f"'{name}' cannot be a package's name", help=rename))


def check_length(stem: str, what: str, more: int) -> None:
    """Raise RnnccError (RNN604) where a file name of `stem` and `more` other characters is too long. `what` ("a
    package's") says in the message whose name it is."""
    most = LONGEST_NAME - more
    if len(stem) > most:
        message = f"'{stem[:20]}…' is too long for {what} name: it has {len(stem)} characters, of at most {most}"
        raise RnnccError(Diagnostic("RNN604", message, help="choose another name with --name"))
