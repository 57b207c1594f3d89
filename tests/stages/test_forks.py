"""A process that forks while another of its threads loads a cell."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rnncc.stages.load import load
from tests.fresh import run_fresh, succeeds_in_a_fork


def test_a_fork_waits_for_an_import(tmp_path: Path) -> None:
    """In the child, nobody would finish what another thread imports."""
    package = tmp_path / "forked"
    package.mkdir()
    (package / "_rnncc.json").write_text('{"fingerprint": "f", "cells": []}')
    (package / "__init__.py").write_text("import time\ntime.sleep(0.5)\nready = True\n")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, package)
        while f"rnncc_loaded_f_{package.name}" not in sys.modules:
            assert not loading.done()
        assert succeeds_in_a_fork(lambda: load(package).ready, 10)
        assert loading.result().ready


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.3])
def test_a_fork_within_a_first_load(seconds: float) -> None:
    """The other thread is somewhere in rnncc's own imports, or past them."""
    program = f"""
import threading, time, torch, rnncc
from tests.fresh import succeeds_in_a_fork
loading = threading.Thread(target=rnncc.load, args=("lstm",))
loading.start()
time.sleep({seconds})
assert succeeds_in_a_fork(lambda: bool(rnncc.load("lstm").LSTM), 30)
loading.join()
"""
    done = run_fresh(program)
    assert done.returncode == 0, done.stderr
