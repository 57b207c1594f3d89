"""Functions that generated code calls. Where there are few in a program, the compiler puts copies in their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnncc.analysis.functions import MOST_COPIES, functions_of
from rnncc.ir.kernel import Program
from rnncc.language.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Called:
    """`names` are the C++ names of the called functions. `forms` is the C++ of their operators, as `expression_text`
    takes it."""

    names: tuple[str, ...]
    forms: Mapping[str, str]


def called(program: Program) -> Called:
    """The functions that a program calls: all or none."""
    stages = program.step.elementwise
    found = [*functions_of(statement.expr for stage in stages for statement in stage.statements)]
    forms = {operator: OPERATORS[operator].cpp for operator in found if len(found) > MOST_COPIES}
    names = tuple(form.partition("(")[0] for form in forms.values())
    return Called(names, {operator: f"called__::{form}" for operator, form in forms.items()})
