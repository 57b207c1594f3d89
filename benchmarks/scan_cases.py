"""What benchmarks/gpu_scan.py measures: the cases by axis, and the times that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_cases import PASSES
from scan_cells import shipped

# Our kernels by layout of the gates, [T, B, D] and [B, T, D]; what users have otherwise.
OURS = ("rnncc tbd", "rnncc btd")
# Ours with the kernels that iterate, [T, B, D].
NEWTON = "rnncc newton"
PEERS = ("accelerated warp", "accelerated scalar", "fla recurrent", "fla chunk", "torch scan")
LOG_SPACE = ("log eager", "log compiled")
WHO = (*OURS, NEWTON, *PEERS, *LOG_SPACE, "eager loop")
AXES = ("targets", "steps", "cells", "newton")
STEPS = (1, 16, 256, 1024, 4096, 16384, 65536, 262144, 1_000_000)
CHANNELS = 1024


@dataclass(frozen=True, slots=True)
class ScanCase:
    """One row: `steps` steps of a batch of `batch`, with `channels` elements each; `run` is one of PASSES.

    fw+bw is the training forward and the backward to the gradients of pre-activations, weights and initial states (of
    peers that take none: less)."""

    who: str
    cell: str
    batch: int
    steps: int
    channels: int
    dtype: str
    run: str


# Milliseconds that `affine` and `mingru` must reach on an H200, one after the other or back to back: (fw, fw+bw) by
# (batch, steps, channels, dtype).
MUSTS = {
    (16, 1024, 4096, "fp32"): (0.22, 0.60),
    (16, 1024, 4096, "bf16"): (0.115, 0.33),
    (16, 1024, 768, "bf16"): (0.045, 0.12),
    (1, 16384, 1024, "fp32"): (0.065, 0.18),
    (1, 16384, 1024, "bf16"): (0.045, 0.12),
}
HELD = ("affine", "mingru")
# minGRU's forward at this size must reach this part of the bandwidth of a copy.
BANDWIDTH_MUST = ((16, 1024, 4096, "bf16"), 0.8)


def must_of(case: ScanCase) -> float | None:
    """The time that a case of ours is held to."""
    if case.who not in OURS or case.cell not in HELD:
        return None
    found = MUSTS.get((case.batch, case.steps, case.channels, case.dtype))
    return found and found[PASSES.index(case.run)]


def select(words: Sequence[str], quick: bool) -> list[ScanCase]:
    """The cases of the axes, parties and cells named in `words`; where none of a kind is named, all of that kind. Each
    case once, ours first. A party is also named by its first word.

    Raises ValueError for a word that means nothing."""
    cells = ("affine", *shipped())
    parties = {*WHO, *(name.split()[0] for name in WHO)}
    if unknown := set(words) - {*AXES, *cells, *parties}:
        raise ValueError(f"{', '.join(sorted(unknown))}: not one of {', '.join((*AXES, *WHO, *cells))}")
    axes = [axis for axis in AXES if axis in words] or AXES
    who = [name for name in WHO if name in words or name.split()[0] in words] or WHO
    chosen = [cell for cell in cells if cell in words] or cells
    found = dict.fromkeys(case for axis in axes for case in cases_of(axis, quick))
    return sorted((c for c in found if c.who in who and c.cell in chosen), key=lambda case: WHO.index(case.who))


def cases_of(axis: str, quick: bool) -> Iterator[ScanCase]:
    """The cases of one axis, in both passes."""
    match axis:
        case "targets":
            for size in MUSTS:
                yield from both((*OURS, *PEERS), "affine", *size)
                yield from both(OURS, "mingru", *size)
                yield from both(OURS, "minlstm", *size)
                # In log space bfloat16 has no correct digit at ordinary gates.
                batch, steps, channels, _ = size
                yield from both(OURS, "mingru_log", *size)
                yield from both(LOG_SPACE, "mingru_log", batch, steps, channels, "fp32")
        case "steps":
            for steps in STEPS[::2] if quick else STEPS:
                for dtype in ("bf16",) if quick else ("bf16", "fp32"):
                    yield from both(OURS, "mingru", 1, steps, CHANNELS, dtype)
                    yield from both(("fla chunk",), "affine", 1, steps, CHANNELS, dtype)
                    # It takes powers of two from 32 to 65536.
                    if steps in STEPS[2:-2]:
                        yield from both(("accelerated warp",), "affine", 1, steps, CHANNELS, dtype)
        case "cells":
            for cell in ("affine", *shipped()):
                for batch, channels in ((16, 1024), (1, 1024)):
                    yield from both(OURS, cell, batch, 1024, channels, "bf16")
                if not quick:
                    yield from both(("eager loop",), cell, 16, 1024, 1024, "bf16")
        case "newton":
            # Backward they are the same kernels.
            for cell in ("indrnn", "paralstm") if quick else ("indrnn", "brc", "paragru", "paralstm", "sru"):
                for steps in (1024, 65536) if quick else (1024, 4096, 16384, 65536):
                    for channels in (64, 1024) if quick else (64, 256, 1024, 2048):
                        for who in (OURS[0], NEWTON):
                            yield ScanCase(who, cell, 1, steps, channels, "fp32", PASSES[0])


def both(who: Sequence[str], cell: str, batch: int, steps: int, channels: int, dtype: str) -> Iterator[ScanCase]:
    """The case by each of `who`, in both passes; torch's scan has no usable backward (`generic_scan`)."""
    for name in who:
        for run in PASSES[:1] if name == "torch scan" else PASSES:
            yield ScanCase(name, cell, batch, steps, channels, dtype, run)
