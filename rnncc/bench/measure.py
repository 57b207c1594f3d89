"""Times the parties of a cell in turn, and keeps what there is when the work is interrupted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from rnncc.bench.limit import TooLong, time_limit
from rnncc.bench.parties import COMPILED, OURS, Case, Party, Sizes, makers
from rnncc.bench.timing import WARM_CALLS, Timer, by_events, by_the_clock, median_ms, queued, ratio, rounds

# The reason for parties that the user left out.
UNWANTED = "not asked for"
# The most calls in a row of which one takes a share.
_QUEUED = 10


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: seconds per party and pass, and seconds that torch.compile may take (0: it is left out).
    `without`: parties that nobody asked for."""

    seconds: float = 1.0
    compile_limit: float = 60.0
    without: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of a call: the median, and between which two numbers the middle half of `rounds` calls lies."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of a party in a pass. `call`: calls one at a time. `queued`: a call's share of calls in a row
    on a GPU; None on a CPU, and of loops, which fill the queue by themselves. `over`: how many times as long as ours it
    takes, None where ours was not measured."""

    run: str
    party: str
    call: Spread
    queued: Spread | None
    over: float | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A party that was not measured in a pass, and why."""

    run: str
    party: str
    reason: str


@dataclass(slots=True)
class Measured:
    """Everything that was measured of a cell so far. It grows while the work goes on, and is of use also where that was
    interrupted; `complete` says that it was not.

    times     the seconds of each round, by pass, party, and whether calls were queued
    left_out  the parties that were not measured
    parties   those that could be made
    """

    times: dict[tuple[str, str, bool], list[float]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    parties: dict[str, Party] = field(default_factory=dict)
    complete: bool = False

    def rows(self) -> list[Row]:
        """The rows, pass by pass. A round that was interrupted does not count."""
        found = []
        for run in dict.fromkeys(run for run, _, _ in self.times):
            own = {(party, several): times for (of, party, several), times in self.times.items() if of == run}
            made = min(map(len, own.values()))
            own = {key: times[:made] for key, times in own.items()}
            for party in dict.fromkeys(party for party, _ in own) if made else ():
                call, several, ours = own[party, False], own.get((party, True)), own.get((OURS, False))
                over = ratio(call, ours) if ours else None
                found.append(Row(run, party, spread(call), spread(several) if several else None, over))
        return found


def spread(seconds: Sequence[float]) -> Spread:
    """The spread of measured seconds, in milliseconds."""
    ordered = sorted(seconds)
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    return Spread(median_ms(ordered), 1e3 * low, 1e3 * high, len(ordered))


def measure(case: Case, runs: Sequence[str], effort: Effort, found: Measured, say: Callable[[str], None]) -> None:
    """Times the parties of a case in each of `runs`, round by round, and puts what it measures into `found`."""
    torch.manual_seed(0)
    wants_compiler = COMPILED not in effort.without and bool(effort.compile_limit)
    with _one_compiler() if wants_compiler else nullcontext(), _without_tf32():
        for name, make in makers(case).items():
            why = _unwanted(name, effort)
            if not why:
                try:
                    found.parties[name] = make()
                except RuntimeError as error:
                    why = _first_line(error)
            if why:
                found.left_out += [LeftOut(run, name, why) for run in runs]
        too_long = ""  # where one pass takes too long to compile, the next one is not tried
        for run in runs:
            timers: dict[tuple[str, bool], Timer] = {}
            for party in found.parties.values():
                if party.name == COMPILED and too_long:
                    found.left_out.append(LeftOut(run, party.name, too_long))
                    continue
                if party.name == COMPILED:
                    say(f"{run}: torch.compile of the loop, for at most {effort.compile_limit:g} s")
                try:
                    timers |= _timers(party, run, case.sizes, effort)
                except TooLong:
                    too_long = _too_long(case.sizes, effort)
                    found.left_out.append(LeftOut(run, party.name, too_long))
                except RuntimeError as error:
                    found.left_out.append(LeftOut(run, party.name, _first_line(error)))
            if timers:
                measured = dict.fromkeys(found.parties[name].label or name for name, _ in timers)
                say(f"{run}: measuring {', '.join(measured)}")
                for each in rounds(timers, seconds=effort.seconds):
                    for (party_name, several), seconds in each.items():
                        found.times.setdefault((run, party_name, several), []).append(seconds)
    found.complete = True


def _unwanted(name: str, effort: Effort) -> str:
    is_wanted = name not in effort.without and (name != COMPILED or bool(effort.compile_limit))
    return "" if is_wanted else UNWANTED


def _too_long(sizes: Sizes, effort: Effort) -> str:
    return f"torch.compile, which unrolls the {sizes.steps} steps, did not end in {effort.compile_limit:g} s"


def _timers(party: Party, run: str, sizes: Sizes, effort: Effort) -> dict[tuple[str, bool], Timer]:
    """What times a party in a pass, after calls that warm it up."""
    try:
        with time_limit(effort.compile_limit) if party.name == COMPILED else nullcontext():
            call = party.call(run)
            for _ in range(WARM_CALLS):
                call()
    except TooLong:
        torch._dynamo.reset()
        raise
    if sizes.device == "cpu":
        return {(party.name, False): by_the_clock(call)}
    torch.cuda.synchronize()
    single = by_events(call)
    timers = {(party.name, False): single}
    if not party.is_loop:
        timers[party.name, True] = queued(call, 1e3 * single(), _QUEUED)
    return timers


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _one_compiler() -> Iterator[None]:
    """torch.compile works in this process alone, so that nothing of it goes on after its time is over."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    """fp32 means float32 everywhere, also in cuDNN."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
