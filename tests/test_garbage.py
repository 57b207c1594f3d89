"""The collection of garbage, which is off during a load."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import rnncc
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.garbage import uncollected
from tests.fresh import run_fresh, succeeds_in_a_fork


def test_garbage_is_collected_again_after_a_load() -> None:
    with pytest.raises(RnnccError):
        rnncc.compile("cell Wrong\nstate h\n")
    assert gc.isenabled()
    gc.disable()
    try:
        rnncc.load("elman")
        assert not gc.isenabled(), "somebody had turned it off"
    finally:
        gc.enable()
    with uncollected():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(rnncc.load, "elman").result()
        assert not gc.isenabled(), "another load goes on"
        assert succeeds_in_a_fork(gc.isenabled)
    assert gc.isenabled()


def test_a_thread_beside_the_program_leaves_its_garbage_alone() -> None:
    """Kernels that are compiled in the background take seconds, in which the program trains."""

    def enabled() -> bool:
        with uncollected():
            return gc.isenabled()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enabled).result()
    assert not enabled() and gc.isenabled()


FIRST = """
import gc, sys
seen = []
def look(phase, about):
    if "rnncc.driver" in sys.modules and not hasattr(sys.modules["rnncc.driver"], "load_text"):
        seen.append(phase)
gc.callbacks.append(look)
gc.set_threshold(100)
import rnncc
rnncc.compile("cell Plain\\nstate h\\nh[t] = tanh(W@x + R@h[t-1] + b)\\n")
print(seen)
"""


def test_garbage_is_not_collected_while_a_first_load_imports_the_compiler() -> None:
    done = run_fresh(FIRST)
    assert done.stdout == "[]\n", done.stderr
