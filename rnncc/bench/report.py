"""What `rnncc bench` says of a cell: rows of a table, words below it, and the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rnncc.bench.measure import UNWANTED, LeftOut, Row, Spread
from rnncc.bench.parties import OURS, Sizes
from rnncc.bench.predict import Expected, Roofs, Work
from rnncc.verify.runner import FALLBACK, Runner

HEADER = ("pass", "who", "ms", "middle half", "rounds")
QUEUED = "queued ms"
# Where the middle half of the calls is so wide, the machine was not idle.
_UNSTEADY = 2.0
_PASS = {"forward": "forward", "training": "forward + backward"}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything about one cell.

    runner   what ran our layer; None where the work was interrupted before that was known
    work     what a call of a party must do, by (pass, party)
    roofs    None where the work was interrupted before they were measured; then nothing is expected either
    """

    cell: str
    file: str
    sizes: Sizes
    runner: Runner | None
    rows: Sequence[Row]
    left_out: Sequence[LeftOut]
    work: Mapping[tuple[str, str], Work]
    roofs: Roofs | None
    expected: Sequence[Expected]
    complete: bool

    @property
    def title(self) -> str:
        """`LSTM of lstm on cpu: …`."""
        sizes = self.sizes
        own = "".join(f", {name} {size}" for name, size in sizes.own.items())
        heads = f"{sizes.heads} head{'s' if sizes.heads > 1 else ''}"
        steps = f"{sizes.steps} step{'s' if sizes.steps > 1 else ''}"
        return (
            f"{self.cell} ({self.file}) on {sizes.device}: input {sizes.input}, hidden {sizes.hidden}, {heads}{own}, "
            f"batch {sizes.batch}, {steps}, {sizes.dtype}"
        )

    def header(self) -> tuple[str, ...]:
        """The columns of the table. On a GPU calls are also queued."""
        columns = (*HEADER, f"over {self.who(OURS)}")
        return (*columns, QUEUED) if self.sizes.device == "cuda" else columns

    def who(self, party: str) -> str:
        """What a party is called: the eager fallback is not called rnncc."""
        is_fallback = party == OURS and self.runner is not None and self.runner.is_fallback
        return FALLBACK if is_fallback else party

    def lines(self) -> list[tuple[str, ...]]:
        """The rows of the table, the name of a pass on its first row alone."""
        found, last = [], ""
        for row in self.rows:
            call = row.call
            over = "" if row.over is None else f"{number(row.over)}x"
            cells = (
                self.who(row.party),
                number(call.median),
                f"{number(call.low)} - {number(call.high)}",
                str(call.rounds),
                over,
            )
            queued = () if self.sizes.device == "cpu" else (number(row.queued.median) if row.queued else "-",)
            found.append(("" if row.run == last else _PASS[row.run], *cells, *queued))
            last = row.run
        return found

    def words(self) -> list[str]:
        """What is to be known beside the table: what was left out, what is expected, and that it was interrupted."""
        found = [] if self.runner is None else [self._ran(self.runner)]
        if self.sizes.heads > 1 and any(row.party.startswith("nn.") for row in self.rows):
            found.append(f"torch.nn has one head of {self.sizes.hidden}, and so more arithmetic")
        reasons: dict[tuple[str, str], list[str]] = {}
        for left in (left for left in self.left_out if left.reason != UNWANTED):
            reasons.setdefault((left.party, left.reason), []).append(left.run)
        for (party, reason), runs in reasons.items():
            found.append(f"left out: {party} ({', '.join(runs)}): {reason}")
        if any(row.call.high > _UNSTEADY * row.call.low for row in self.rows):
            found.append("the calls vary widely: is something else running?")
        if self.roofs is not None:
            found += self._expectations(self.roofs)
        if not self.complete:
            what = "these are the rounds that were measured until then" if self.rows else "nothing was measured yet"
            found.append(f"interrupted: {what}")
        return found

    def _ran(self, runner: Runner) -> str:
        return f"no kernels ran: {runner.why}" if runner.is_fallback else f"{OURS} runs {runner.words}"

    def _expectations(self, roofs: Roofs) -> list[str]:
        found = []
        for each in self.expected:
            ours = next((row for row in self.rows if (row.run, row.party) == (each.run, OURS)), None)
            took = None if ours is None else (ours.queued or ours.call).median
            measured = "" if took is None else f"; measured {number(took)} ms"
            if each.total is not None and each.loops is not None:
                parts = f"loops {number(each.loops)} by the schedule + products outside {number(each.outside)}"
                found.append(f"predicted {each.run}: {number(each.total)} ms ({parts}){measured}")
            elif self.sizes.device == "cuda":
                found.append(f"predicted {each.run}: nothing: {each.why_not}")
            share = "" if took is None else f", {percent(each.roofline / took)} of what {self.who(OURS)} took"
            found.append(f"roofline {each.run}: {number(each.roofline)} ms at least{share}")
        found.append(
            f"roofs, measured here in {self.sizes.dtype}: {si(roofs.flops)}FLOP/s in products of large matrices, "
            f"{si(roofs.moved)}B/s in copies of large tensors"
        )
        return found

    def data(self) -> dict[str, Any]:
        """The same for JSON. Times are in milliseconds."""
        return {
            "cell": self.cell,
            "file": self.file,
            **asdict(self.sizes),
            "complete": self.complete,
            "kernels": None if self.runner is None else str(self.runner),
            "rows": [
                {
                    "pass": row.run,
                    "who": self.who(row.party),
                    "call": _data(row.call),
                    "queued": _data(row.queued),
                    "over_rnncc": row.over if self.who(OURS) == OURS else None,
                }
                for row in self.rows
            ],
            "left_out": [
                {"pass": each.run, "who": self.who(each.party), "reason": each.reason} for each in self.left_out
            ],
            "work": [
                {"pass": run, "who": self.who(party), "flops": work.flops, "bytes": work.moved}
                for (run, party), work in self.work.items()
            ],
            "roofs": None if self.roofs is None else {"flops_per_s": self.roofs.flops, "bytes_per_s": self.roofs.moved},
            "expected": [
                {
                    "pass": each.run,
                    "roofline_ms": each.roofline,
                    "schedule_ms": each.loops,
                    "outside_ms": None if each.loops is None else each.outside,
                    "predicted_ms": each.total,
                    "why_not": each.why_not,
                }
                for each in self.expected
            ],
        }


def _data(spread: Spread | None) -> dict[str, float] | None:
    if spread is None:
        return None
    return {"median_ms": spread.median, "low_ms": spread.low, "high_ms": spread.high, "rounds": spread.rounds}


def number(value: float) -> str:
    """Three significant digits, without an exponent; of a value below 0.01, two."""
    digits = 3 - len(str(int(value))) if value >= 1 else 3 if value >= 0.1 else 4
    if 0 < value < 0.01:
        digits = 1 - math.floor(math.log10(value))
    return f"{value:.{max(0, digits)}f}"


def percent(share: float) -> str:
    """`12%`, `0.3%`: a share that is not nothing is never `0%`."""
    if 0 < share < 0.001:
        return "less than 0.1%"
    return f"{share:.1%}" if 0 < share < 0.01 else f"{share:.0%}"


def si(value: float) -> str:
    """Three significant digits and a prefix: `1.23 T`."""
    prefixes = "kMGTP"
    power = min(len(prefixes), max(0, (len(str(int(value))) - 1) // 3))
    return f"{number(value / 1000**power)} {prefixes[power - 1] if power else ''}"


def machine_line(machine: Mapping[str, Any]) -> str:
    """The machine in a line."""
    keys = {"gpu": "", "driver": "driver ", "cuda": "CUDA ", "cudnn": "cuDNN ", "torch": "torch ", "rnncc": "rnncc "}
    cpu = f"{machine['processor']}, {machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    return "; ".join([cpu, *(f"{word}{machine[key]}" for key, word in keys.items() if machine.get(key))])
