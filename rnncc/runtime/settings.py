"""The environment variables that packages read. Imports no torch: `rnncc env` reads them too."""

from __future__ import annotations

import os

_LEVELS = ("info", "warning", "error")


def compiles_at_first_use() -> bool:
    """Whether kernels that are missing are compiled: unless RNNCC_COMPILE is 0. Raises ValueError where it is neither 0
    nor 1."""
    setting = os.environ.get("RNNCC_COMPILE", "").strip()
    if setting not in ("", "0", "1"):
        raise ValueError(f"RNNCC_COMPILE is '{setting}': set it to 0 or 1, or not at all")
    return setting != "0"


def log_level() -> str:
    """What is said beside errors, by RNNCC_LOG: `info` (the default) says what is compiled and warns of slow paths,
    `warning` only warns of them, `error` does neither. Raises ValueError for anything else."""
    setting = os.environ.get("RNNCC_LOG", "").strip() or "info"
    if setting not in _LEVELS:
        raise ValueError(
            f"RNNCC_LOG is '{setting}': set it to {', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}, or not at all"
        )
    return setting


def warns_of_slow_paths() -> bool:
    """Whether users hear of a slow path that a call takes. Raises ValueError as `log_level` does."""
    return log_level() != "error"
