"""Work that a call will wait for soon, begun in the background."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_JOIN_SECONDS = 5.0
# Beside a thread of usual priority this one gets a quarter of a processor: what a call waits for now comes first. The
# compilers that it starts have the same priority, which most users cannot raise again. So on a busy machine a call that
# comes to wait for this work waits longer.
_NICE = 5
_THREADS: set[threading.Thread] = set()
os.register_at_fork(after_in_child=_THREADS.clear)  # a child has none of its parent's threads


def begin(work: Callable[[], object]) -> None:
    """Do the work in a thread. Nothing is said of what goes wrong: the call that needs the work does it again, and
    meets the same problem. The process may end before the work does."""

    def run() -> None:
        with suppress(OSError):
            own = threading.get_native_id()  # to Linux, priorities are those of threads
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICE)
        with suppress(Exception):
            work()
        _THREADS.discard(threading.current_thread())

    thread = threading.Thread(target=run, name="rnncc", daemon=True)
    _THREADS.add(thread)
    with suppress(RuntimeError):  # there can be no more threads, or the process is about to end
        thread.start()


def finish() -> None:
    """Wait for the end of all that was begun."""
    for thread in list(_THREADS):
        if thread.is_alive():
            thread.join()


@atexit.register
def _end() -> None:
    """Stops the compilers at the end of the process, and gives threads the time to remove what they had begun."""
    # They stop at the end of the process themselves, but perhaps after this.
    processes = sys.modules.get("rnncc.stages.build.processes")
    if _THREADS and processes is not None:
        processes.stop_all()
    for thread in list(_THREADS):
        if thread.is_alive():
            thread.join(_JOIN_SECONDS)
