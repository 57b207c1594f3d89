"""Reads a `.rnn` file: bytes to Source, with a diagnostic for whatever is no text."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rnncc.ir.request import Request
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.packages import package_name
from rnncc.language.source import Source
from rnncc.machine.paths import locate

# The largest text that is looked at, in bytes of UTF-8 (language.md, limits).
LARGEST = 1 << 20


def too_large(name: str) -> Diagnostic:
    """The finding for a text of more than `LARGEST` bytes."""
    return Diagnostic(
        "RNN102",
        f"'{name}' holds more than 1 MiB of text",
        help="a cell takes a few lines; equations that differ by a number are one `for` loop",
    )


def decode(name: str, data: bytes) -> Source:
    """The text of `data`, named `name`. Line ends become `\\n`; a byte order mark is dropped.

    Raises:
        RnnccError: RNN101 where the bytes are not UTF-8, RNN102 above 1 MiB.
    """
    if len(data) > LARGEST:
        raise RnnccError(too_large(name))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RnnccError(
            Diagnostic(
                "RNN101",
                f"'{name}' is not UTF-8 text: byte 0x{error.object[error.start]:02x} in line {line}",
                help="save the file with the encoding UTF-8",
            )
        ) from None
    return Source(name, text.replace("\r\n", "\n").replace("\r", "\n"))


def from_text(name: str, text: str) -> Source:
    """A text that was given as such. Raises TypeError where it is no str, RnnccError (RNN101) where it holds half a
    surrogate pair, which is no character: what is made of the text could not be written."""
    for what, given in (("text", text), ("name", name)):
        if not isinstance(given, str):
            raise TypeError(f"the {what} of cells must be a str, not {type(given).__name__}")
    if (found := re.search("[\ud800-\udfff]", text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise RnnccError(
            Diagnostic(
                "RNN101",
                f"'{name}' is not text: U+{ord(found[0]):04X} in line {line} is half a surrogate pair",
                help="decode the text as UTF-8 without `surrogateescape` and `surrogatepass`",
            )
        )
    return Source(name, text)


def read_request(name_or_path: str | os.PathLike[str]) -> Request:
    """A request for the cells of a file, or of a shipped one by its name (`lstm`); its package is called as the file,
    as nearly as can be. Raises RnnccError (RNN101, RNN102)."""
    path = locate(os.fspath(name_or_path))
    return Request(read_source(path), package_name(path.stem))


def read_source(path: str | os.PathLike[str]) -> Source:
    """The text of the file at `path`, named as the user wrote the path.

    Raises:
        RnnccError: RNN101 where it cannot be read, RNN102 above 1 MiB.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            # One byte more than is allowed tells a file that is too large without reading all of it.
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        diagnostic = Diagnostic("RNN101", f"'{name}' cannot be read: {reason.lower()}")
        raise RnnccError(diagnostic) from error
    return decode(name, data)
