"""What kernels are built for: instruction sets, names of GPUs, architectures, and what this machine has of them.
Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rnncc.ir.target import ARCHITECTURE, EVERY, GPUS, INSTRUCTION_SETS, Target, gpu
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine import gpus
from rnncc.machine.gpus import OLDEST

# By the GPUs' names.
ARCHITECTURES = {name: known.architecture for name, known in GPUS.items()}
SETTING = "RNNCC_TARGET"


def own_instructions() -> str:
    """What code for this machine's processor alone is compiled for; EVERY where that cannot be told."""
    return (instruction_sets() or (EVERY,))[-1]


def instruction_sets() -> tuple[str, ...]:
    """The INSTRUCTION_SETS that this machine's processor runs, best last; none where that cannot be read."""
    try:
        # Only as far as the first processor's flags: Linux makes up the text as it is read, processor by processor.
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return ()
    found = []
    for name, needed in INSTRUCTION_SETS.items():
        if not needed <= flags:
            break
        found.append(name)
    return tuple(found)


def architectures(target: str) -> tuple[str, ...]:
    """The architectures of a `--target` text: `auto` (the GPUs present), `cpu` (none), or names separated by commas.

    Raises RnnccError (RNN606) for a name that means nothing here.
    """
    return tuple(sorted({architecture for architecture, _ in _meant(target)}))


def known_gpus(target: str) -> tuple[Target, ...]:
    """The GPUs of a `--target` text whose sizes are known: those for which fused kernels can be planned. Raises as
    `architectures`."""
    return tuple(dict.fromkeys(known for _, known in _meant(target) if known is not None))


def _meant(target: str) -> Iterator[tuple[str, Target | None]]:
    """What the names of a `--target` text mean: an architecture, and the GPU if its sizes are known."""
    for name in (part.strip().lower() for part in target.split(",")):
        match = ARCHITECTURE.fullmatch(name)
        if name == "auto":
            yield from ((found.architecture, found) for found in _here())
        elif name in GPUS or (match and int(match[1]) >= OLDEST):
            yield ARCHITECTURES.get(name, name), gpu(name)
        elif name != "cpu":
            raise _unknown(name, f"architectures from sm_{OLDEST} on, separated by commas")


def planned(target: str) -> Target | None:
    """The GPU that plans are made for: a name or an architecture; `auto`: the first GPU present, if there is one.

    Raises RnnccError (RNN606) for several, and for a GPU whose sizes are not known here.
    """
    name = target.strip().lower()
    if "," in name:
        message = f"a plan is for one GPU, and '{name}' names several"
        raise RnnccError(Diagnostic("RNN606", message, help="name one: `--target h200`"))
    if name == "auto":
        return next(iter(_here()), None)
    found = gpu(name)
    if found is None and name != "cpu":
        raise _unknown(name, f"{', '.join(sorted(set(ARCHITECTURES.values())))}; a plan is for one of them")
    return found


def _unknown(name: str, architectures: str) -> RnnccError:
    known = ", ".join(("auto", "cpu", *ARCHITECTURES))
    return RnnccError(
        Diagnostic("RNN606", f"no kernels can be built for '{name}'", help=f"targets are {known}, and {architectures}")
    )


def pretended() -> Target | None:
    """The GPU that RNNCC_TARGET names, with PTX for its kernels; None where the setting is not there. Kernels are then
    planned for it, and this machine's GPU runs them if it is not older. Raises RnnccError (RNN606) for a name that is
    not one of a known GPU."""
    name = os.environ.get(SETTING, "").strip().lower()
    if not name:
        return None
    if name not in GPUS:
        message = f"{SETTING} is '{name}', which is no GPU that is known here"
        raise RnnccError(Diagnostic("RNN606", message, help=f"name one of {', '.join(GPUS)}, or unset it"))
    return GPUS[name].with_ptx()


def _here() -> tuple[Target, ...]:
    """The GPUs of this machine, or the one that RNNCC_TARGET names in their place."""
    found, named = gpus.here(), pretended()
    return (named,) if found and named else found


def gpu_at(capability: tuple[int, int], index: int) -> Target:
    """The GPU of that number, for which kernels are planned at their first use: `gpus.at`, or the one that RNNCC_TARGET
    names. Raises RnnccError (RNN606) as `pretended`."""
    return pretended() or gpus.at(capability, index)
