"""The templates, and what fills them in."""

from __future__ import annotations

from functools import cache

import jinja2

from rnncc.machine.paths import templates_dir


def text(template: str, **values: object) -> str:
    """A template, by its path in the folder `templates`, with these values in it."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
