"""Programs in processes of their own, which have torch and nothing else of what a test uses. They are forked from a
process that has imported torch. An interpreter of their own would import it again, which takes three seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

_PROCESSES = multiprocessing.get_context("forkserver")


def run_fresh(
    program: str, arguments: Sequence[str] = (), *, folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """The outcome of `python -c program` in a folder. `environment`: as for subprocess; what an interpreter reads when
    it starts, such as PYTHONPATH, counts for nothing."""
    _PROCESSES.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as outputs:
        given = (program, list(arguments), str(folder or Path.cwd()), dict(environment or os.environ), outputs)
        process = _PROCESSES.Process(target=_execute, args=given)
        process.start()
        process.join()
        assert process.exitcode is not None
        printed, errors = (Path(outputs, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(["-c", program, *arguments], process.exitcode, printed, errors)


def succeeds_in_a_fork(work: Callable[[], object], seconds: int = 60) -> bool:
    """Whether `work`, done by a forked child of this process, gives something true, in time. A child that raises an
    error ends as well: else it would go on with the parent's tests."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            code = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _execute(program: str, arguments: list[str], folder: str, environment: dict[str, str], outputs: str) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(outputs, name), os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), vars(main))
