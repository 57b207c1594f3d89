"""Times of functions, taken in turn so that drift of the machine meets all alike. On a GPU they are taken between
events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)

Function = Callable[[], object]
# Runs a function once. Returns its seconds.
Timer = Callable[[], float]

# Milliseconds that a figure may take, of calls one at a time and of calls queued: of long calls fewer tell as much.
SINGLE_MS, QUEUED_MS = 150.0, 40.0
WARM_CALLS = 2
# Rounds that there are at least.
LEAST_ROUNDS = 5


def by_the_clock(function: Function) -> Timer:
    """Times a function that is done when it returns, as on a CPU."""

    def timer() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return timer


def by_events(function: Function) -> Timer:
    """Times one call on the GPU, which waits for it: the host's preparation is included."""
    return lambda: between_events(function, 1) / 1e3


def queued(function: Function, call_ms: float, most: int) -> Timer:
    """Times a call's share of at most `most` calls in a row, whose preparation hides behind the GPU's work. `call_ms`:
    the time of one call, by which fewer are queued."""
    calls = min(most, max(2, int(QUEUED_MS / max(call_ms, 1e-3))))
    begin = time.perf_counter()
    function()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    # A kernel that only waits holds the others back until the host has queued all calls.
    cycles = int(2e9 * min(1.0, 1.5 * calls * host))
    return lambda: between_events(function, calls, cycles) / calls / 1e3


def between_events(function: Function, calls: int, hold_cycles: int = 0) -> float:
    """Milliseconds of so many calls between two events. The GPU idles for `hold_cycles` before the first one."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    if hold_cycles:
        torch.cuda._sleep(hold_cycles)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def rounds(timers: Mapping[Key, Timer], *, seconds: float, least: int = LEAST_ROUNDS) -> Iterator[dict[Key, float]]:
    """The seconds of each function, round by round: until `seconds` a function have passed, and at least `least`
    rounds. Each round begins with another one, since what runs after a pause, or after work of another kind, is slower
    than what follows its like."""
    begin, made, names = time.perf_counter(), 0, list(timers)
    while made < least or time.perf_counter() - begin < seconds * len(timers):
        first = made % len(names)
        yield {name: timers[name]() for name in (*names[first:], *names[:first])}
        made += 1


def interleaved(functions: Mapping[str, Function], *, seconds: float = 1.0, least: int = 5) -> dict[str, list[float]]:
    """Seconds of each call of each function on a CPU, the functions called in turn. Two calls of each warm up."""
    for function in functions.values():
        for _ in range(WARM_CALLS):
            function()
    timers = {name: by_the_clock(function) for name, function in functions.items()}
    found = list(rounds(timers, seconds=seconds, least=least))
    return {name: [each[name] for each in found] for name in functions}


def median_ms(times: Sequence[float]) -> float:
    """The median in milliseconds."""
    return statistics.median(times) * 1e3


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def gpu_ms(function: Function, repeats: int, most_queued: int) -> tuple[float, float | None]:
    """Milliseconds of a call on the GPU, medians, after two calls that warm up: one at a time (`by_events`), and back
    to back (`queued`), or None where `most_queued` is 0. Calls that take long are repeated less, but 5 times (or
    `repeats`) alone and twice queued."""
    for _ in range(WARM_CALLS):
        function()
    torch.cuda.synchronize()
    single = [between_events(function, 1)]
    repeats = min(repeats, max(5, int(SINGLE_MS / max(single[0], 1e-3))))
    single += [between_events(function, 1) for _ in range(repeats - 1)]
    call = statistics.median(single)
    if not most_queued:
        return call, None
    timer = queued(function, call, most_queued)
    return call, statistics.median(timer() for _ in range(max(3, repeats // 3))) * 1e3
