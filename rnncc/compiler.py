"""What pickles and packages of earlier releases import from here. New code imports `rnncc.driver`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from rnncc import driver
from rnncc.ir.cell import Cell
from rnncc.ir.request import Request
from rnncc.language.diagnostics import Diagnostic
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells


def unpickle(source: Source, stem: str, shaping: Mapping[str, Any], parallel_newton: bool, class_name: str) -> Any:
    """An empty instance of a layer's class, as pickles of rnncc 0.1 ask for it."""
    return driver.unpickle(source, stem, request_options(shaping, parallel_newton), class_name)


def request_options(shaping: Mapping[str, Any], parallel_newton: bool) -> dict[str, Any]:
    """Fields of a request, from constants that zoneout and recurrent dropout stand among."""
    constants = dict(shaping)
    zoneout = tuple(str(constants.pop("zoneout__", "")).split())
    dropout = bool(constants.pop("recurrent_dropout__", 0))
    return {"constants": constants, "zoneout": zoneout, "recurrent_dropout": dropout, "newton": parallel_newton}


def front(source: Source, shaping: Mapping[str, Any] | None = None) -> tuple[tuple[Cell, tuple[Diagnostic, ...]], ...]:
    """The cells of a text, each with its warnings. Deprecated: `rnncc.pipeline.compile_cells(request, "partition")` has
    them."""
    message = 'rnncc.compiler.front is rnncc.pipeline.compile_cells(request, "partition")'
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    made = compile_cells(Request(source, "cell", **request_options(shaping or {}, False)), "regularise")
    return tuple(zip(made.cells, made.warnings, strict=True))


def compile_fused(*request: object) -> Any:
    """Fused kernels for a package of rnncc 0.1, whose library takes others. Raises RnnccError (RNN609)."""
    raise driver.built_by_another()
