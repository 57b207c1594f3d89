"""The cache of built packages: content-addressed, safe under many processes, bounded, and readable by eye.

    <root>/CACHEDIR.TAG             says that the folder is a cache, and which layout it has
    <root>/packages/<key>/<stem>/   a finished package, or GPU kernels alone that a package in use asked for; the folder
                                    appears whole, by a rename, or not at all; `_rnncc.json` holds the files' sums
    <root>/objects/<key>-<sum>.o    objects that every package shares
    <root>/tmp/<key>-<pid>/         a build under way, or what a killed one left: the next builder clears it
    <root>/locks/<key>.lock         an OS lock while a build runs: it ends with the process that holds it
    <root>/logs/<name>.log          the compiler's output of builds that failed, the latest of them

`root` says which folder that is and whether it may be used, `names` what the cache made, `locks` who builds, `store`
puts in and takes out, `sweep` drops.
"""

from __future__ import annotations

import hashlib

from rnncc.cache.limit import DEFAULT_LIMIT_BYTES, limit_bytes
from rnncc.cache.root import default_root
from rnncc.cache.store import Cache, Progress
from rnncc.cache.sweep import KEEP_SECONDS

__all__ = ["DEFAULT_LIMIT_BYTES", "KEEP_SECONDS", "Cache", "Progress", "default_root", "digest", "limit_bytes"]


def digest(*parts: bytes | str) -> str:
    """A hash of the parts: 64 hex digits. Each part's length counts, so that parts cannot run together."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()
