"""Random chains on a GPU: `python -m tests.generated.gpu_chains --shard 0/1 --minutes 9 --out FILE`.

Processes compile packages side by side. One process runs them, one after the other, and another one takes its place
where a kernel ends it or hangs. Called again with the same file it goes on where it stopped; with other code it runs
again what was not right. `--device cpu` runs the CPU kernels, and shows what would be fused.

Exit status: 0 all is done and right, 1 something is not, 2 seeds are left.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rnncc.stages.build import own_code
from tests.generated.chain_runs import Run, built, judged, run_of, why_not_fused
from tests.generated.results import Results

# Waits of more polls than this end a kernel.
_FLAGS = "-DRNNCC_SPIN_BUDGET=30000000"
_SECONDS = 120.0  # after which a run counts as hanging
_SPAWN = multiprocessing.get_context("spawn")


class Runner:
    """A process that runs packages on a device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.stop()

    def stop(self) -> None:
        """End the process, if there is one."""
        if process := getattr(self, "process", None):
            process.kill()
            process.join()
        self.process: Any = None

    def judged(self, run: Run, folder: str) -> dict[str, Any]:
        """The outcome of a run."""
        if self.process is None:
            self.ours, theirs = _SPAWN.Pipe()
            self.process = _SPAWN.Process(target=_serve, args=(theirs, self.device), daemon=True)
            self.process.start()
            theirs.close()
        self.ours.send((run, folder))
        try:
            found: dict[str, Any] | None = self.ours.recv() if self.ours.poll(_SECONDS) else None
        except EOFError:
            self.process.join()
            found = {"kind": "crashed", "detail": f"the process ended with {self.process.exitcode}"}
        found = found or {"kind": "hung", "detail": f"nothing came for {_SECONDS:.0f} s"}
        # After an error of CUDA nothing else runs in the process.
        if found["kind"] not in ("ok", "wrong"):
            self.stop()
        return found


def _serve(connection: Connection, device: str) -> None:
    import traceback

    torch.set_num_threads(4)
    while True:
        run, folder = connection.recv()
        try:
            connection.send(judged(run, folder, device))
        except Exception:
            connection.send({"kind": "error", "detail": traceback.format_exc(limit=-4)})


def outcomes(runs: Sequence[Run], device: str, jobs: int, end: float) -> Iterator[tuple[Run, dict[str, Any]]]:
    """The outcomes of runs. No package is begun that would not be compiled by `end`, as far as the others tell."""
    waiting, runner, slowest = list(reversed(runs)), Runner(device), 0.0
    with ProcessPoolExecutor(jobs, _SPAWN) as pool:
        running: dict[Future[tuple[str, dict[str, Any]]], tuple[Run, float]] = {}
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() + slowest < end:
                run = waiting.pop()
                running[pool.submit(built, run, device)] = run, time.monotonic()
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                run, begin = running.pop(done)
                slowest = max(slowest, time.monotonic() - begin)
                folder, record = done.result()
                yield run, record | (runner.judged(run, folder) if folder else {})
    runner.stop()


def table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """How many runs are right, how many fused, and why not."""
    kinds = Counter(each["kind"] for each in found.values())
    yield f"{len(found)} chains: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    fused = Counter(bool(why_not_fused(each)) for each in found.values())
    yield f"{fused[False]} fused, {fused[True]} not, or not all loops"
    reasons = Counter(reason for each in found.values() for reason in why_not_fused(each))
    yield from (f"  {count:4}  {reason}" for reason, count in reasons.most_common())
    names = Counter(
        name for each in found.values() for name in set(each.get("ran") or each.get("planned", {}).values())
    )
    yield from (f"  {count:4}  by {name}" for name, count in names.most_common() if not name.startswith("not "))


def main() -> int:
    """Run what is left of the seeds, for some minutes."""
    parser = argparse.ArgumentParser(prog="python -m tests.generated.gpu_chains", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="A:B, from A up to B - 1")
    parser.add_argument("--shard", default="0/1", help="i/n: the i-th of n parts")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file, written after every chain")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="packages that are compiled at a time")
    parser.add_argument("--largest", type=int, default=768, help="the largest head_dim, a multiple of 8")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    os.environ.setdefault("RNNCC_NVRTC_FLAGS", _FLAGS)
    first, last = map(int, given.seeds.split(":"))
    part, parts = map(int, given.shard.split("/"))
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    about = {"device": name, "torch": torch.__version__, "largest": given.largest}
    results = Results(given.out, own_code()[:12], about)
    seeds = range(first, last)[part::parts]
    runs = [run_of(seed, given.largest) for seed in seeds if not results.is_done(seed)]
    for run, outcome in outcomes(runs, given.device, given.jobs, end):
        results.add(run.seed, outcome)
        results.write()
        print(f"seed {run.seed}: {outcome['size']} {outcome['dtype']}: {outcome['kind']}", flush=True)
    for seed, entry in results.outcomes.items():
        if entry["kind"] != "ok":
            print(f"seed {seed}: {entry['kind']}: {entry.get('detail', '')}")
    left = sum(not results.is_done(seed) for seed in seeds)
    versions = Counter(entry["version"] for entry in results.outcomes.values())
    print(*table(results.outcomes), sep="\n")
    print(f"seeds {given.seeds}, shard {given.shard}, {name}; {left} left; by the code's version {dict(versions)}")
    wrong = any(entry["kind"] != "ok" for entry in results.outcomes.values())
    return 1 if wrong else 2 if left else 0


if __name__ == "__main__":
    sys.exit(main())
