"""A limit on the time of work that cannot be asked to stop, such as torch.compile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# The exception is raised again so often: one that comes while Python finalises an object is lost.
_AGAIN_SECONDS = 0.5


class TooLong(BaseException):
    """The time is over. No Exception, so that the work does not take it for an error of its own."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TooLong in the work once it has taken that many seconds. Only the main thread has a limit, since Python
    handles signals there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def over(_number: int, _frame: FrameType | None) -> None:
        if running:
            raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
