"""Many generated cells, in pieces: `python -m tests.generated.run --seeds 0:10000 --minutes 9 --results file.json`.

Called again with the same file it goes on where it stopped; at another commit it runs again what did not agree. Exit
status: 0 all is done and agrees, 1 something does not, 2 seeds are left.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from tests.generated.harness import run
from tests.generated.results import Results

BATCH = 10  # cells in one package


def main() -> int:
    """Run what is left of the seeds, for some minutes."""
    parser = argparse.ArgumentParser(prog="python -m tests.generated.run", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="A:B, from A up to B - 1")
    parser.add_argument("--shard", default="0/1", help="i/n: the i-th of n parts")
    parser.add_argument("--compiled", action="store_true", help="compile the cells; else check and eager torch")
    parser.add_argument("--matrices", action="store_true", help="cells whose states are matrices")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--results", type=Path, required=True, help="a JSON file, written after every package")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, given.seeds.split(":"))
    part, parts = map(int, given.shard.split("/"))
    batches = [range(start, min(start + BATCH, last)) for start in range(first, last, BATCH)][part::parts]
    results = Results(given.results, _commit(), {"compiled": given.compiled, "matrices": given.matrices})
    end = time.monotonic() + 60 * given.minutes
    left = 0
    for batch in batches:
        seeds = [seed for seed in batch if not results.is_done(seed)]
        if time.monotonic() > end:
            left += len(seeds)
        elif seeds:
            for outcome in run(seeds, given.compiled, given.matrices):
                detail = {"detail": outcome.detail} if outcome.detail else {}
                results.add(outcome.seed, {"kind": outcome.kind, **detail})
            results.write()
    kinds = Counter(entry["kind"] for entry in results.outcomes.values())
    commits = Counter(entry["version"] for entry in results.outcomes.values())
    for seed, entry in results.outcomes.items():
        if entry["kind"] != "ok":
            print(f"seed {seed}: {entry['kind']}: {entry['detail']}")
    print(f"{dict(kinds)} of seeds {given.seeds}, shard {given.shard}; {left} left; by commit {dict(commits)}")
    return 1 if set(kinds) - {"ok"} else 2 if left else 0


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
