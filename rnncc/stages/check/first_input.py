"""`input u in place of x`: the step's input by another name, so that x may be something else."""

from __future__ import annotations

from rnncc.ir.syntax import InputDecl, Statement
from rnncc.language.report import Report

USUAL = "x"


def first_input(statements: tuple[Statement, ...], report: Report) -> str:
    """The name of the step's input: x, or what stands in its place."""
    first = USUAL
    for place, statement in enumerate(statements):
        if not (isinstance(statement, InputDecl) and statement.in_place_of):
            continue
        help = ""
        if statement.in_place_of != USUAL:
            message = f"only '{USUAL}' can be replaced, the step's input, and not '{statement.in_place_of}'"
        elif first != USUAL:
            message = f"'{USUAL}' is replaced twice: it is called '{first}' already"
        elif place:
            message, help = f"what stands in place of '{USUAL}' stands above all other statements", "move it to the top"
        else:
            first = statement.name
            continue
        report.error("RNN238", message, statement.span, "not in place of x", help)
    return first
