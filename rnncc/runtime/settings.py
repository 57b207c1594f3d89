"""The environment variables that packages read. Imports no torch: `rnncc env` reads them too."""

from __future__ import annotations

import os

# The levels of messages, the least important first.
LEVELS = ("debug", "info", "warning", "error")


def compiles_at_first_use() -> bool:
    """Whether missing fused kernels are compiled. They are unless RNNCC_COMPILE is 0. Raises ValueError where it is
    neither 0 nor 1."""
    setting = os.environ.get("RNNCC_COMPILE", "").strip()
    if setting not in ("", "0", "1"):
        raise ValueError(f"RNNCC_COMPILE is '{setting}': set it to 0 or 1, or not at all")
    return setting != "0"


def log_level() -> str:
    """The value of RNNCC_LOG. With `info` (the default) users see lines of progress and warnings of slow paths, with
    `debug` also what helps to find a mistake, with `warning` these warnings alone, with `error` neither. Raises
    ValueError for any other value."""
    setting = os.environ.get("RNNCC_LOG", "").strip() or "info"
    if setting not in LEVELS:
        raise ValueError(f"RNNCC_LOG is '{setting}': set it to {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, or not at all")
    return setting


def warns_of_slow_paths() -> bool:
    """Whether a call that takes a slow path warns. Raises ValueError as `log_level` does."""
    return log_level() != "error"
