"""Cells as `lower` leaves them, kept in the cache: a package that asks for kernels later need not parse, check and
differentiate its text again.

They are pickled, and nothing but rnncc's own records comes out of a pickle. Like a package, one counts only where this
user wrote it into the cache, and where it is what was written."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnncc.language.source import Source

if TYPE_CHECKING:
    from rnncc.ir.compilation import CompiledCell
    from rnncc.machine.cache import Cache

# Where the classes of such records are.
_OWN = ("rnncc.ir.", "rnncc.language.")


def keep_cells(cache: Cache, key: str, cells: Sequence[CompiledCell]) -> None:
    """Keep a text's cells under a key. Raises RnnccError (RNN605, RNN610) as the cache does."""
    data = io.BytesIO()
    try:
        _Pickler(data, pickle.HIGHEST_PROTOCOL).dump(tuple(cells))
    except RecursionError:  # expressions that are nested too deep for pickle; the stages themselves may take more
        return
    # They are of use only later. Where there is no room for them, they are made again.
    with suppress(OSError), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells"
        path.write_bytes(data.getvalue())
        cache.publish_object(key, path)


def kept_cells(cache: Cache, key: str, source: Source) -> tuple[CompiledCell, ...]:
    """The cells that were kept under a key, of this text; none where there are none. Raises as `keep_cells`."""
    from rnncc.ir.compilation import CompiledCell

    with suppress(OSError), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells"
        if cache.take_object(key, path):
            found: object = ()
            # Bytes that are no pickle raise errors of many kinds. What cannot be read is made again.
            with suppress(Exception):
                found = _Unpickler(io.BytesIO(path.read_bytes()), source).load()
            if isinstance(found, tuple) and all(isinstance(each, CompiledCell) for each in found):
                return found
    return ()


class _Pickler(pickle.Pickler):
    """Leaves the text out: its name in messages is that of the request which asks."""

    def persistent_id(self, obj: Any) -> str | None:
        return "source" if isinstance(obj, Source) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, source: Source) -> None:
        super().__init__(file)
        self._source = source

    def persistent_load(self, pid: Any) -> Source:
        return self._source

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module.startswith(_OWN) and "." not in name else None
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of rnncc")
        return found
