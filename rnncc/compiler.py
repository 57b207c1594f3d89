"""What pickles and packages of earlier releases import from here. New code imports `rnncc.driver`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rnncc import driver
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.source import Source
from rnncc.version import VERSION


def unpickle(source: Source, stem: str, shaping: Mapping[str, Any], parallel_newton: bool, class_name: str) -> Any:
    """An empty instance of a layer's class, as pickles of rnncc 0.1 ask for it."""
    return driver.unpickle(source, stem, request_options(shaping, parallel_newton), class_name)


def request_options(shaping: Mapping[str, Any], parallel_newton: bool) -> dict[str, Any]:
    """Fields of a request, from constants that zoneout and recurrent dropout stand among."""
    constants = dict(shaping)
    zoneout = tuple(str(constants.pop("zoneout__", "")).split())
    dropout = bool(constants.pop("recurrent_dropout__", 0))
    return {"constants": constants, "zoneout": zoneout, "recurrent_dropout": dropout, "newton": parallel_newton}


def compile_fused(*request: object) -> Any:
    """Fused kernels for a package of rnncc 0.1, whose library takes others. Raises RnnccError (RNN609)."""
    help = "build the package again"
    raise RnnccError(Diagnostic("RNN609", f"another rnncc than this one ({VERSION}) built the package", help=help))
