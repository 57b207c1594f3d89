"""How much the cache may hold."""

from __future__ import annotations

import os
import re
import sys

from rnncc.language.diagnostics import Diagnostic, RnnccError

# Bytes of finished packages and objects that are kept, unless RNNCC_CACHE_LIMIT says otherwise.
DEFAULT_LIMIT_BYTES = 1 << 30
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def limit_bytes() -> int:
    """The limit of the cache in bytes, by `RNNCC_CACHE_LIMIT`: `500000000`, `500MB` (1000²) or `500MiB` (1024²).

    Raises RnnccError (RNN607) where that variable is no size.
    """
    text = os.environ.get("RNNCC_CACHE_LIMIT", "").strip()
    if not text:
        return DEFAULT_LIMIT_BYTES
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text, re.IGNORECASE | re.ASCII)
    if found is None or (found[3] and not found[2]):
        help = "write bytes, or a number with a unit: RNNCC_CACHE_LIMIT=2GB"
        raise RnnccError(Diagnostic("RNN607", f"RNNCC_CACHE_LIMIT is '{text}', which is no size", help=help))
    size = float(found[1]) * (1024 if found[3] else 1000) ** _UNITS[found[2].lower()]
    return int(min(size, sys.maxsize))  # so many digits that it is infinity
