"""A layer's functional op: what `explain()` says that it takes, found in the layer."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor


def taken(layer: Any) -> tuple[list[str], list[str]] | str:
    """The streams, `W (i, f)` or `x`, and the parameters' attributes that `explain()` lists, as `help()` does; or why
    there is no op."""
    help_text = op_of(layer).__doc__ or ""
    line = next(line for line in layer.explain().splitlines() if line.startswith("  functional op: "))
    said: str = line.removeprefix("  functional op: ")
    if said.startswith("none: "):
        assert said in help_text
        return said.removeprefix("none: ")
    assert re.sub(r" \[T, B, \d+\]", "", said) in help_text
    match = re.fullmatch(r"streams (.*); weights (.*)", said)
    assert match is not None
    streams = [word.split(" [T, B")[0] for word in re.split(r"\], ", match[1]) if "[T, B" in word]
    weights = [word.rstrip(")").split(" (")[-1] for word in match[2].split(", ") if word != "none"]
    return streams, weights


def op_of(layer: Any) -> Callable[..., Any]:
    """The functional op of a layer's cell."""
    found: Callable[..., Any] = getattr(sys.modules[type(layer).__module__], layer.spec.name.lower())
    return found


def runtime_of(layer: Any, module: str) -> Any:
    """A module of the runtime of a layer's package."""
    return sys.modules[f"{type(layer).__module__.rpartition('.')[0]}._runtime.{module}"]


def go_the_long_way(layer: Any, patch: pytest.MonkeyPatch) -> None:
    """From now on no call of the layer's package is one op for its product and its loop."""
    patch.setattr(runtime_of(layer, "modules.base"), "run_whole", lambda *_: None)


def streams_of(layer: Any, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[dict[str, Tensor], Any]:
    """What the loops read step by step in a call of a layer with one direction, by name as `taken` has it, and what the
    call returns."""
    directions = runtime_of(layer, "modules.directions")
    run_loop = directions.run_loop
    streams: dict[str, Tensor] = {}

    def noted(cell: Any, segment: Any, kernels: Any, call: Any) -> Any:
        for stream, value in zip(segment.streams, call.streams, strict=False):
            gates = [member.name.split("__")[0] for member in stream.members]
            streams.setdefault(stream.name if len(gates) == 1 else f"{stream.name} ({', '.join(gates)})", value)
        return run_loop(cell, segment, kernels, call)

    with monkeypatch.context() as patch:
        patch.setattr(directions, "run_loop", noted)
        go_the_long_way(layer, patch)
        result = call()
    return streams, result
