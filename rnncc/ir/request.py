"""What a package is made of and for: the text, which program of its cells, and which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rnncc.ir.problem import Problem
from rnncc.ir.target import EVERY, Target, has_clusters
from rnncc.language.source import Source


@dataclass(frozen=True, slots=True)
class Request:
    """What the pipeline is asked for.

    source             the text of one or more cells
    name               the package's
    constants          values of constants that shape the program, by name: loop bounds, delays, functions
    zoneout            states that zoneout is compiled in for; each cell has it for those that it has
    recurrent_dropout  whether variational recurrent dropout is compiled in
    architectures      GPU architectures (`sm_90a`) that there are kernels for; none: kernels for CPUs alone
    gpus               the GPUs that fused kernels are planned for, each with one of these architectures
    problems           sizes and dtypes that there are fused GPU kernels for
    newton             whether loops that are walked through also have GPU kernels that iterate (Newton's method)
    instructions       the one instruction set that CPU kernels are for, or EVERY
    """

    source: Source
    name: str
    constants: Mapping[str, float | int | str] = field(default_factory=dict)
    zoneout: tuple[str, ...] = ()
    recurrent_dropout: bool = False
    architectures: tuple[str, ...] = ()
    gpus: tuple[Target, ...] = ()
    problems: tuple[Problem, ...] = ()
    newton: bool = False
    instructions: str = EVERY

    def options(self) -> dict[str, Any]:
        """What tells one program of a text from another, as plain values by field and without defaults: constants,
        zoneout, recurrent dropout, and whether there are Newton kernels."""
        given: dict[str, Any] = {"constants": dict(self.constants), "zoneout": self.zoneout}
        given |= {"recurrent_dropout": self.recurrent_dropout, "newton": self.newton}
        return {name: value for name, value in given.items() if value}

    @property
    def is_for_gpus(self) -> bool:
        """Whether there are kernels for GPUs."""
        return bool(self.architectures)

    @property
    def has_clusters(self) -> bool:
        """Whether one of the GPUs runs clusters of CTAs, as Newton's kernels do."""
        return any(map(has_clusters, self.architectures))
