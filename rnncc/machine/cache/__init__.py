"""The cache of built packages: content-addressed, safe under many processes, bounded, and readable by eye.

    <root>/CACHEDIR.TAG             says that the folder is a cache, and which layout it has
    <root>/packages/<key>/<stem>/   a finished package, or only the GPU kernels that a loaded package asked for;
                                    a rename makes the whole folder visible at once; `_rnncc.json` has checksums
    <root>/objects/<key>-<sum>.o    what packages share: object files, and cubins or PTX of GPU kernels;
                                    and a package's cells, as `rnncc/machine/cells.py` keeps them
    <root>/tmp/<key>-<pid>/         a running build, or the rest of a killed one, which the next builder removes
    <root>/locks/<key>.lock         an OS lock, held while a build runs; it ends with the process that holds it
    <root>/logs/<name>.log          the compiler's output of the latest failed builds

Module `root` finds the folder and decides whether it may be used. `names` knows the names that the cache gives, `locks`
lets one process build, `store` adds and reads entries, `sweep` deletes them.
"""

from __future__ import annotations

import hashlib

from rnncc.machine.cache.limit import DEFAULT_LIMIT_BYTES, limit_bytes
from rnncc.machine.cache.root import default_root
from rnncc.machine.cache.store import Cache
from rnncc.machine.cache.sweep import KEEP_SECONDS

__all__ = ["DEFAULT_LIMIT_BYTES", "KEEP_SECONDS", "Cache", "default_root", "digest", "limit_bytes"]


def digest(*parts: bytes | str) -> str:
    """A hash of the parts: 64 hex digits. Each part's length counts, so that parts cannot run together."""
    whole = hashlib.sha256()
    for part in parts:
        # A path may be bytes that are no UTF-8.
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()
