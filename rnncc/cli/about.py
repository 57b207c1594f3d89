"""Commands on rnncc itself: cells, env."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from rnncc.cli.output import json_option, print_json, table
from rnncc.language.read import read_source
from rnncc.machine.paths import shipped_cells


@click.command()
@json_option
def cells(as_json: bool) -> None:
    """List the shipped cells: class, phases, citation.

    \b
    rnncc cells
    rnncc cells --json
    """
    from rnncc.show.catalogue import catalogue

    rows = [row for path in shipped_cells() for row in catalogue(read_source(path))]
    if as_json:
        print_json({"cells": [asdict(row) for row in rows]})
        return
    lines = [(row.file, row.cell, row.kinds, str(row.phases), row.citation) for row in rows]
    click.echo(table(("name", "cell", "class", "phases", "source"), lines))


@click.command()
@json_option
def env(as_json: bool) -> None:
    """Show what works here and what to install.

    \b
    rnncc env
    rnncc env --json

    PyTorch, compilers, GPUs, the cache, rnncc's environment variables.
    """
    from rnncc.cli.environment import environment

    found = environment()
    if as_json:
        print_json(found)
        return
    advice = found.pop("advice")
    for key, value in found.items():
        click.echo(f"{key:9} {_words(value)}")
    for line in advice:
        click.echo(f"\n{line}")


def _words(value: Any) -> str:
    match value:
        case None:
            return "not found"
        case dict():
            return ", ".join(f"{key} {_words(item)}" for key, item in value.items()) or "none"
        case list():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
