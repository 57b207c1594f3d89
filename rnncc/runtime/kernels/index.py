"""The index of a folder's fused kernels: which kernels each program has, and which of them run which batch. The library
reads it, too (cuda/fused/host/index.h)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ARCHITECTURE = re.compile(r"(sm_\d{2,3}a?|compute_\d{2,3})")
# The scopes of families that rnncc::FusedScope in the library knows; whether the CTAs of all heads must run at once.
_SCOPES = {"cluster": False, "grid": True, "step": False}
_KINDS = ("table", "kernel", "row")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel.

    name          its name, with which the name of its file begins
    sms           the SMs that all of its CTAs need at once
    shared_bytes  shared memory per CTA
    directions    the most directions of a launch
    """

    name: str
    family: str
    sms: int
    shared_bytes: int
    directions: int = 2


@dataclass(frozen=True, slots=True)
class Table:
    """The kernels that run a program, the loop's name with `_forward`, `_backward` or `_inference`, at a size.

    heads         the number of heads side by side for which they were planned
    architecture  what they were compiled for
    rows          the smallest batch of each row, and its kernels, the first choice first
    """

    program: str
    dtype: str
    head_dim: int
    heads: int
    architecture: str
    kernels: tuple[Kernel, ...]
    rows: tuple[tuple[int, tuple[Kernel, ...]], ...]


def read_index(path: Path) -> list[Table]:
    """The tables of an index. Raises OSError or ValueError where it cannot be read."""
    text = path.read_text(encoding="utf-8")
    lines = [line.split(" ") for line in text.splitlines()]
    if not text.endswith("\n") or not all(line[0] in _KINDS for line in lines) or lines[0][0] != "table":
        raise ValueError(f"{path} is no index of fused kernels")
    try:
        first = [number for number, line in enumerate(lines) if line[0] == "table"]
        return [_table(lines[begin:end]) for begin, end in zip(first, [*first[1:], len(lines)], strict=True)]
    except KeyError as key:
        raise ValueError(f"{path} lacks {key}") from None


def _table(lines: list[list[str]]) -> Table:
    """A table from its lines."""
    kinds = [kind for kind, *_ in lines]
    about, *others = (_words(line) for line in lines)
    heads = _number(about["heads"], 1)
    count = kinds.count("kernel")
    if kinds != ["table", *["kernel"] * count, *["row"] * (len(others) - count)] or len(others) == count:
        raise ValueError("after a table come its kernels, and then its rows")
    if not _ARCHITECTURE.fullmatch(about["architecture"]):
        raise ValueError(f"no architecture: {about['architecture']}")
    kernels = {words["name"]: _kernel(words, heads) for words in others[:count]}
    rows = tuple(_row(words, kernels) for words in others[count:])
    batches = [batch for batch, _ in rows]
    if batches[0] != 1 or batches != sorted(set(batches)):
        raise ValueError(f"rows begin at 1 and go up, not {batches}")
    size = _number(about["head_dim"], 1), heads
    return Table(about["program"], about["dtype"], *size, about["architecture"], tuple(kernels.values()), rows)


def _words(line: list[str]) -> dict[str, str]:
    """The words `key=value` of a line."""
    pairs = [(key, value) for key, _, value in (word.partition("=") for word in line[1:])]
    words = dict(pairs)
    if len(words) != len(pairs):
        raise ValueError(f"a key stands there twice: {line}")
    return words


def _number(digits: str, least: int) -> int:
    if not digits.isascii() or not digits.isdigit() or int(digits) < least:
        raise ValueError(f"{digits!r} is no whole number from {least} on")
    return int(digits)


def _kernel(words: Mapping[str, str], heads: int) -> Kernel:
    numbers = {"ctas": 1, "cluster": 1, "threads": 1, "group_batch": 0, "multiple": 1, "concurrent_groups": 1}
    numbers |= {"exchange_steps": 0, "relayed_head_dim": 0, "for_zeros": 0, "shared_bytes": 0, "directions": 1}
    found = {key: _number(words[key], least) for key, least in numbers.items()}
    if words["scope"] not in _SCOPES or found["for_zeros"] > 1 or found["directions"] > 2:
        raise ValueError(f"no kernel: {words}")
    if found["ctas"] % found["cluster"]:
        raise ValueError(f"no kernel: {words}")
    if _SCOPES[words["scope"]] and not (found["exchange_steps"] and found["group_batch"]):
        raise ValueError(f"an exchange has a size: {words}")
    sms = found["ctas"] * heads if _SCOPES[words["scope"]] else found["ctas"]
    return Kernel(words["name"], words["family"], sms, found["shared_bytes"], found["directions"])


def _row(words: Mapping[str, str], kernels: Mapping[str, Kernel]) -> tuple[int, tuple[Kernel, ...]]:
    names, times = (tuple(filter(None, words[key].split(","))) for key in ("kernels", "pass_ns"))
    if len(names) != len([_number(time, 1) for time in times]):
        raise ValueError(f"a time for each kernel: {words}")
    return _number(words["batch"], 1), tuple(kernels[name] for name in names)
