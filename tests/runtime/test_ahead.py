"""Work in the background: a call that comes first is served first."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from rnncc.runtime.kernels import ahead

NICE = "import os; print(os.nice(0))"


def test_it_waits_for_the_end_of_all() -> None:
    release, ended = threading.Event(), []

    def work() -> None:
        assert release.wait(10)
        ended.append(1)

    ahead.begin(work)
    ahead.begin(work)
    threading.Timer(0.1, release.set).start()
    ahead.finish()
    assert ended == [1, 1]
    ahead.finish()  # there is nothing left


def test_work_that_fails_has_ended_too() -> None:
    ahead.begin(lambda: 1 // 0)
    ahead.finish()
    assert not ahead._THREADS


def test_it_leaves_the_processor_to_what_a_call_waits_for() -> None:
    """Its own programs, too. Priorities of other threads are as they were."""
    found: list[int] = []

    def work() -> None:
        shown = subprocess.run([sys.executable, "-c", NICE], capture_output=True, text=True, check=True)
        found.append(int(shown.stdout))

    own = os.nice(0)
    ahead.begin(work)
    ahead.finish()
    assert found == [min(own + ahead._NICE, 19)]
    assert os.nice(0) == own
