"""What a package is made of and for: the text, which program of its cells, and which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from rnncc.ir.problem import Problem
from rnncc.ir.target import ARCHITECTURE, CPU_FILES, EVERY, INSTRUCTION_SETS, Target, has_clusters
from rnncc.language.packages import check_package_name
from rnncc.language.source import Source

# What tells one program of a text from another. A pickled layer, and a package in use, ask for programs by these.
OPTIONS = ("constants", "zoneout", "recurrent_dropout", "newton")


@dataclass(frozen=True, slots=True)
class Request:
    """What the pipeline is asked for. Its fields name files, macros and ops, and stand in command lines: whatever their
    origin (a file's name, an option, a pickle), they are checked here.

    source             the text of one or more cells
    name               the package's
    constants          values of constants that shape the program, by name: loop bounds, delays, functions
    zoneout            states that zoneout is compiled in for; each cell has it for those that it has
    recurrent_dropout  whether variational recurrent dropout is compiled in
    architectures      GPU architectures (`sm_90a`) that there are kernels for; none: kernels for CPUs alone
    gpus               the GPUs that fused kernels are planned for, each with one of these architectures
    problems           sizes and dtypes that there are fused GPU kernels for
    cell               the one cell of the text that is compiled; empty: all
    programs           of each of its loops, the programs that have fused kernels, by what follows the loop's name
                       (`masked_forward`); none: all
    newton             whether loops that are walked through also have GPU kernels that iterate (Newton's method)
    instructions       the one instruction set that CPU kernels are for, or EVERY; empty: there are none for CPUs
    cpu_files          the files of CPU kernels, of CPU_FILES; others are compiled when a call needs them

    Raises RnnccError (RNN604) for a name that no package can have; TypeError and ValueError for other fields.
    """

    source: Source
    name: str
    constants: Mapping[str, float | int | str] = field(default_factory=dict)
    zoneout: tuple[str, ...] = ()
    recurrent_dropout: bool = False
    architectures: tuple[str, ...] = ()
    gpus: tuple[Target, ...] = ()
    problems: tuple[Problem, ...] = ()
    cell: str = ""
    programs: tuple[str, ...] = ()
    newton: bool = False
    instructions: str = EVERY
    cpu_files: tuple[str, ...] = CPU_FILES

    def __post_init__(self) -> None:
        _check("source", self.source, isinstance(self.source, Source), "a Source")
        _check("source.name", self.source.name, isinstance(self.source.name, str), "a str")
        _check("source.text", self.source.text, isinstance(self.source.text, str), "a str")
        _check("name", self.name, isinstance(self.name, str), "a str")
        check_package_name(self.name)
        _check("constants", self.constants, isinstance(self.constants, Mapping), "a dict")
        for name, value in self.constants.items():
            _check("the name of a constant", name, isinstance(name, str), "a str")
            _check(f"the constant {name!r}", value, isinstance(value, (Real, str)), "a number or a name")
        kinds = {"zoneout": str, "architectures": str, "gpus": Target, "problems": Problem, "programs": str}
        for field_name, kind in kinds.items():
            entries = getattr(self, field_name)
            is_right = isinstance(entries, tuple) and all(isinstance(entry, kind) for entry in entries)
            _check(field_name, entries, is_right, f"a tuple of {kind.__name__}")
        _check("cell", self.cell, isinstance(self.cell, str), "a str")
        _check("recurrent_dropout", self.recurrent_dropout, isinstance(self.recurrent_dropout, bool), "a bool")
        _check("parallel_newton", self.newton, isinstance(self.newton, bool), "a bool")
        for architecture in self.architectures:
            if ARCHITECTURE.fullmatch(architecture) is None:
                raise ValueError(f"{architecture!r} is no architecture of a GPU")
        if self.instructions not in (*INSTRUCTION_SETS, EVERY, ""):
            raise ValueError(f"{self.instructions!r} is no instruction set")
        for file in self.cpu_files:
            if file not in CPU_FILES:
                raise ValueError(f"{file!r} is no file of CPU kernels")

    @classmethod
    def of(cls, source: Source, name: str, options: Mapping[str, Any]) -> Request:
        """A request with these options of a program (see `options`), and no other. Raises also ValueError for others
        than OPTIONS."""
        _check("options", options, isinstance(options, Mapping), "a dict")
        if others := [option for option in options if option not in OPTIONS]:
            raise ValueError(f"{others[0]!r} is no option of a program: these are {', '.join(OPTIONS)}")
        return cls(source, name, **options)

    def options(self) -> dict[str, Any]:
        """The fields in OPTIONS that are not their defaults, as plain values."""
        given = {name: getattr(self, name) for name in OPTIONS} | {"constants": dict(self.constants)}
        return {name: value for name, value in given.items() if value}

    @property
    def is_for_gpus(self) -> bool:
        """Whether there are GPU kernels for every size. Fused kernels may also be made alone, at first use."""
        return bool(self.architectures)

    @property
    def has_kernels(self) -> bool:
        """Whether there are kernels at all. A package without any runs the eager fallback."""
        return bool(self.instructions or self.architectures or self.gpus)

    @property
    def has_clusters(self) -> bool:
        """Whether one of the GPUs runs clusters of CTAs, as Newton's kernels do."""
        return any(map(has_clusters, self.architectures))


def _check(name: str, given: object, is_right: bool, wanted: str) -> None:
    """Raise TypeError, as torch.nn does, where a field is not what it must be."""
    if not is_right:
        raise TypeError(f"{name} must be {wanted}, not {type(given).__name__}")
