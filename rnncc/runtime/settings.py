"""The environment variable that packages read. Imports no torch: `rnncc env` reads it too."""

from __future__ import annotations

import os


def compiles_at_first_use() -> bool:
    """Whether kernels that are missing are compiled: unless RNNCC_COMPILE is 0. Raises ValueError where it is neither 0
    nor 1."""
    setting = os.environ.get("RNNCC_COMPILE", "").strip()
    if setting not in ("", "0", "1"):
        raise ValueError(f"RNNCC_COMPILE is '{setting}': set it to 0 or 1, or not at all")
    return setting != "0"
