"""What fork() needs: a child has none of its parent's threads."""

from __future__ import annotations

import ctypes

_SOFT = 1  # omp_pause_soft of OpenMP 5.0, section 3.2.44


def release_threads() -> None:
    """Ends the idle OpenMP threads that torch keeps for this thread; the next parallel loop makes new ones.

    GNU's OpenMP would have a forked child wait for its parent's for ever. Other implementations see to that themselves.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(_SOFT)
